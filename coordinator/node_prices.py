"""What nodes cost an hour, and what they pay for each byte to another zone or region. Pure."""

# The price table is at the edge (``edges.billing``), which tells what it knows of each node (``reports.Priced``). What
# nobody has told costs nothing: so a decision by prices falls back on speed where there are none.

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

GB = 1e9
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class NodePrice:
    """Dollars: of an hour of the node's machine, of a gigabyte out of its zone or region, and the like."""

    per_hour: float = 0.0
    per_gb_zones: float = 0.0
    per_gb_regions: float = 0.0
    region: str = ""  # where the machine is; empty: nobody has said
    per_gb_second: float = 0.0  # of a function service there

    def is_far_from(self, other: "NodePrice") -> bool:
        """Whether the two are known to be in different regions."""
        return bool(self.region and other.region) and self.region != other.region

    def of_bytes(self, near: float, far: float) -> float:
        """Dollars for so many bytes to other zones of the region, and to other regions."""
        return (near * self.per_gb_zones + far * self.per_gb_regions) / GB


Prices = Mapping[str, NodePrice]
NO_PRICES: Prices = MappingProxyType({})
FREE = NodePrice()


def per_second(prices: Prices) -> float:
    """Dollars that all of the nodes cost in a second, whether they have work or not."""
    return sum(price.per_hour for price in prices.values()) / HOUR
