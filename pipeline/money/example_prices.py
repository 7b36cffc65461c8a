"""Made-up prices: a machine that says that it is an "example" costs nobody anything, and whoever reads has to know."""

from collections.abc import Iterable

from culm.protos import coordinator_pb2 as pb

PROVIDER = "example"  # as prices.toml names it
WORDS = "example prices"
EXPLAINED = f"These are {WORDS}, made up for trying Culm on one machine: nobody pays them."


def at_example_prices(nodes: Iterable[pb.NodeCost | pb.NodeStatus]) -> bool:
    """Whether any of the money is made up."""
    return any(node.machine.provider == PROVIDER for node in nodes)
