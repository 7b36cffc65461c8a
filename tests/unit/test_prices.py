"""The price table: which row counts, and what is wrong with a bad one."""

import json
from datetime import date, datetime
from pathlib import Path

import pytest

from culm.__main__ import main
from culm.commands.prices import as_toml, on_demand_price
from culm.pipeline.errors import JobError
from culm.pipeline.machine import Machine
from culm.pipeline.money.prices import load_prices

DATED = 'date = 2026-11-01\nsource = "here"\n'


def table(tmp_path: Path, text: str) -> str:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    return str(path)


def test_every_shipped_price_has_a_source_and_can_be_found() -> None:
    prices = load_prices()
    row = prices.machine(Machine("aws", "p3.2xlarge", "us-east-1", "us-east-1b", "spot"))
    assert row is not None
    assert (row.spot, row.on_demand) == (0.91, 3.06)
    assert row.source
    assert prices.on_demand(Machine("aws", "p3.2xlarge", "us-east-1")) == 3.06
    assert prices.per_gb("aws", "zones") == 0.02
    assert prices.per_gb("nobody", "zones") == 0.0
    assert prices.restart.seconds == 133


def test_the_row_with_the_most_keys_counts_and_the_users_file_comes_first(tmp_path: Path) -> None:
    text = f'[[machine]]\nprovider = "aws"\nspot = 1.0\n{DATED}'
    text += f'[[machine]]\nprovider = "aws"\ninstance_type = "g5.xlarge"\nzone = "us-east-1a"\nspot = 2.0\n{DATED}'
    prices = load_prices(table(tmp_path, text))
    in_zone = prices.machine(Machine("AWS", "g5.xlarge", "us-east-1", "us-east-1a", "spot"))
    elsewhere = prices.machine(Machine("aws", "p3.2xlarge", "us-east-1", "us-east-1b", "spot"))
    assert in_zone is not None
    assert elsewhere is not None
    assert (in_zone.spot, elsewhere.spot) == (2.0, 1.0)
    on_demand = prices.machine(Machine("aws", "p3.2xlarge", "us-east-1", "", "on-demand"))
    assert on_demand is not None, "the user's file knows no such price"
    assert on_demand.on_demand == 3.06


def test_a_provider_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    text = f'[[transfer]]\nprovider = "AWS"\nbetween = "zones"\nper_gb = 0.5\n{DATED}'
    text += f'[[function]]\nprovider = "AWS"\nper_gb_second = 0.25\n{DATED}'
    prices = load_prices(table(tmp_path, text))
    assert [prices.per_gb(name, "zones") for name in ("aws", "AWS")] == [0.5, 0.5], "not the shipped price"
    function = prices.function("Aws")
    assert function is not None
    assert function.per_gb_second == 0.25


def test_a_plan_takes_a_types_price_of_the_users_table(tmp_path: Path) -> None:
    text = f'[[machine]]\nprovider = "aws"\ninstance_type = "p3.2xlarge"\nspot = 1.5\n{DATED}'
    dearer = load_prices(table(tmp_path, text))
    assert [row.spot for row in dearer.spot_rows("P3.2xlarge")] == [1.5], "not the lower one of the shipped table"
    assert 0.91 in [row.spot for row in load_prices().spot_rows("p3.2xlarge")]
    assert dearer.spot_rows("abacus") == []


def test_an_unknown_machine_has_no_price() -> None:
    assert load_prices().machine(Machine()) is None
    assert load_prices().machine(Machine("aws", "z9.huge", "us-east-1", "", "spot")) is None
    assert load_prices().machine(Machine("aws", "g5.xlarge", "us-east-1", "", "spot")) is None, (
        "only on demand is known"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[machine]]\nprovider = "aws"\nspot = -1\n' + DATED, "machine.0.spot"),
        ('[[machine]]\nprovider = "aws"\nspot = 1\n', "machine.0.date"),
        ("[[machines]]\n", "machines"),
        ("[machine\n", "no TOML"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "9" * 5000, "a number is too long"),
        ("[restart]\ncheckpoint_every = inf\n", "restart.checkpoint_every"),
        ("[fixed]\na = 1e308\nb = 1e308\n", "fixed.a"),  # together they are no number
    ],
)
def test_a_bad_table_is_refused_in_one_line_that_says_where(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(JobError, match=said) as refused:
        load_prices(table(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_a_table_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot be read"):
        load_prices(str(tmp_path / "none.toml"))


class PriceList:
    """What AWS's price list answers, cut down to what is read of it."""

    def get_products(self, **asked: object) -> dict[str, list[str]]:
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": "1.0060000000"}}
        return {"PriceList": [json.dumps({"terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}})]}


def test_the_newest_of_awss_spot_prices_in_each_zone_makes_a_table(tmp_path: Path) -> None:
    history = [
        {
            "InstanceType": "g5.xlarge",
            "AvailabilityZone": zone,
            "SpotPrice": price,
            "Timestamp": datetime(2026, 11, day),
        }
        for zone, price, day in (("us-east-1a", "0.41", 2), ("us-east-1a", "0.39", 1), ("us-east-1b", "0.45", 1))
    ]
    on_demand = {"g5.xlarge": on_demand_price(PriceList(), "g5.xlarge", "us-east-1")}
    prices = load_prices(table(tmp_path, as_toml(history, on_demand, "us-east-1", date(2026, 11, 3))))
    found = [prices.machine(Machine("aws", "g5.xlarge", "us-east-1", f"us-east-1{z}", "spot")) for z in "ab"]
    assert [(row.spot, row.on_demand) for row in found if row is not None] == [(0.41, 1.006), (0.45, 1.006)]


def test_the_known_prices_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prices", "ls"]) == 0
    assert "p3.2xlarge" in capsys.readouterr().out
