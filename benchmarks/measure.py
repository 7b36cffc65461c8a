"""One figure with its floor and its aim, and how quiet the machine was meanwhile."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import psutil


@dataclass(kw_only=True)
class Measure:
    """``higher``: whether more is better. One value a round."""

    name: str
    unit: str
    floor: float
    aim: float
    higher: bool = False
    rounds: list[float] = field(default_factory=list)
    stolen: float = 0.0  # share of the cores' time that the host gave to others, in the worst of the rounds

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)

    @property
    def holds(self) -> bool:
        return self.value >= self.floor if self.higher else self.value <= self.floor

    def __str__(self) -> str:
        spread = f"{min(self.rounds):.3f} to {max(self.rounds):.3f}"
        holds = "holds" if self.holds else "does not hold"
        stolen = f"{self.stolen:.0%} of the cores' time stolen"
        return f"{self.name}: {self.value:.3f} {self.unit} ({spread}); floor {self.floor:g} {holds}, {stolen}"


QUIET = 0.01  # of the cores' time: a round in which the host gave more of it away says little
MOST = 3  # times as many rounds as are wanted, while too few are quiet


def stolen_seconds() -> tuple[float, float]:
    """Of all cores so far: what this machine's host gave to its other guests, 0 where that is not told, and all."""
    times = psutil.cpu_times()
    twice = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # those are in user and nice as well
    return getattr(times, "steal", 0.0), sum(times) - twice


def quiet_rounds(
    group: Callable[[int], list[Measure]],
    count: int,
    seconds: Callable[[], tuple[float, float]] = stolen_seconds,
) -> list[Measure]:
    """A group's measures over so many of its rounds, the quietest of those that were run."""
    rounds: list[tuple[float, list[Measure]]] = []
    while sum(stolen <= QUIET for stolen, _ in rounds) < count and len(rounds) < MOST * count:
        before = seconds()
        found = group(len(rounds))
        stolen, passed = (b - a for a, b in zip(before, seconds(), strict=True))
        rounds.append((stolen / passed if passed else 0.0, found))
        told = "".join(f"\n    {m.name}: {m.value:.3f}" for m in found)
        print(f"  round {len(rounds) - 1}, {rounds[-1][0]:.1%} of the cores' time stolen{told}", flush=True)
    chosen = sorted(rounds, key=lambda each: each[0])[:count]
    share = max(stolen for stolen, _ in chosen)
    values = zip(*(found for _, found in chosen), strict=True)
    return [replace(same[0], rounds=[x for m in same for x in m.rounds], stolen=share) for same in values]
