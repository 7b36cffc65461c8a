"""Made-up prices are named as such wherever money is shown."""

from culm.commands.cost import in_words
from culm.pipeline.money.example_prices import at_example_prices
from culm.protos import coordinator_pb2 as pb
from culm.ui.history import History
from culm.ui.look import Look
from culm.ui.screens.widgets import spent
from culm.ui.standing import result


def a_bill(provider: str) -> pb.GetCostResponse:
    machine = pb.Machine(provider=provider)
    bill = pb.NodeCost(node="n0", machine=machine, price_per_hour=0.3, dollars=0.1)
    return pb.GetCostResponse(dollars=0.1, dollars_per_hour=0.3, nodes=[bill])


def test_a_machine_of_this_computer_costs_nobody_anything() -> None:
    assert at_example_prices(a_bill("example").nodes)
    assert not at_example_prices(a_bill("aws").nodes)


def test_every_place_that_shows_money_says_so() -> None:
    for provider, said in (("example", True), ("aws", False)):
        cost = a_bill(provider)
        look = Look(status=pb.GetStatusResponse(phase="running"), cost=cost, history=History(), at=1.0)
        over = Look(status=pb.GetStatusResponse(phase="done"), cost=cost, history=History(), at=1.0)
        told = [*spent(look), *spent(over), dict(result(over))["cost"], *in_words(cost)]
        assert sum("example prices" in each for each in told) == (4 if said else 0), provider
