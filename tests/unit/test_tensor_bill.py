"""What a function service bills is the time that workers are there."""

from culm.stage_server.tensor_work.bill import GIGABYTE, Bill


def test_a_worker_is_billed_from_its_offer_to_its_end_by_its_share() -> None:
    bill = Bill()
    bill.came(0, 2 * GIGABYTE, 1, now=10.0)
    bill.came(1, GIGABYTE, 4, now=10.0)  # there for four servers: a quarter counts here
    assert bill.gigabyte_seconds(14.0) == 2 * 4.0 + 4.0 / 4
    assert bill.share() == 1.25
    bill.went(0, 20.0)
    assert bill.gigabyte_seconds(30.0) == 2 * 10.0 + 20.0 / 4
    assert bill.share() == 0.25
