"""One figure with its floor and its aim."""

import statistics
from dataclasses import dataclass, field


@dataclass
class Measure:
    """``higher``: whether more is better. One value a round."""

    name: str
    unit: str
    floor: float
    aim: float
    higher: bool = False
    rounds: list[float] = field(default_factory=list)

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)

    @property
    def holds(self) -> bool:
        return self.value >= self.floor if self.higher else self.value <= self.floor
