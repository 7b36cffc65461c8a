"""What a run counts: steps and samples, or the epochs of a graph. Pure.

A graph's chunk is a sample of its job, and a step takes each chunk once. So a step is an epoch, and nobody asks how
many chunks were trained in all. Every layer is a stage of the plan, and every chunk a pipeline of it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, kw_only=True)
class Counting:
    step: str = "step"  # what a commit ends
    trained: str = "samples"  # what speed and value count
    samples: int = 1  # in one of these
    priced: str = "1,000 samples"  # what one price is for
    samples_priced: int = 1_000  # in that
    node: str = "node"  # that holds a part of the model, or of the graph
    part: str = "stage"  # of the model, which a plan numbers
    share: str = "pipeline"  # of a step

    def speed(self, samples_per_second: float) -> str:
        return f"{amount(samples_per_second / self.samples)} {self.trained}/s"

    def price(self, dollars_per_thousand_samples: float) -> float:
        """Dollars for what one price is for."""
        return dollars_per_thousand_samples * self.samples_priced / 1e3


STEPS = Counting()


def of_chunks(chunks: int) -> Counting:
    """Of a graph that is cut into so many; 0: the job trains on no graph."""
    if not chunks:
        return STEPS
    return Counting(
        step="epoch",
        trained="epochs",
        samples=chunks,
        priced="an epoch",
        samples_priced=chunks,
        node="graph server",
        part="layer",
        share="chunk",
    )


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def ranges(numbers: Collection[int]) -> str:
    """Neighbours together: ``0-3, 6``."""
    told: list[str] = []
    for _, group in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        told.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(told)


def amount(value: float) -> str:
    """A speed: three digits of a small one, no fraction of a large one."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"
