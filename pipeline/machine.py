"""What a node runs on, as far as it is known: it decides the price, and which bytes cross zones."""

import re
from dataclasses import dataclass, replace

# us-east-1a of AWS, us-central1-a of Google: the zone's name is the region's and a letter.
ZONE = re.compile(r"^([a-z]+(?:-[a-z]+)+-?\d+)-?[a-z]$")


@dataclass(frozen=True, slots=True)
class Machine:
    """Empty: not known. ``market`` is "spot" or "on-demand"."""

    provider: str = ""
    instance_type: str = ""
    region: str = ""
    zone: str = ""
    market: str = ""

    def filled_in(self, found: "Machine") -> "Machine":
        """With what this one does not know taken from another, and the region from the zone."""
        names = ("provider", "instance_type", "region", "zone", "market")
        both = replace(self, **{name: getattr(self, name) or getattr(found, name) for name in names})
        match = ZONE.match(both.zone)
        return replace(both, region=match.group(1)) if match and not both.region else both
