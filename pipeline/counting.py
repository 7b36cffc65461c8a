"""What a run counts: steps and samples, or the epochs of a graph. Pure.

A graph's chunk is a sample of its job, and a step takes each chunk once. So a step is an epoch, and nobody asks how
many chunks were trained in all.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Counting:
    step: str = "step"  # what a commit ends
    trained: str = "samples"  # what speed and value count
    samples: int = 1  # in one of these
    priced: str = "1,000 samples"  # what one price is for
    samples_priced: int = 1_000  # in that

    def speed(self, samples_per_second: float) -> str:
        return f"{amount(samples_per_second / self.samples)} {self.trained}/s"

    def price(self, dollars_per_thousand_samples: float) -> float:
        """Dollars for what one price is for."""
        return dollars_per_thousand_samples * self.samples_priced / 1e3


STEPS = Counting()


def of_chunks(chunks: int) -> Counting:
    """Of a graph that is cut into so many; 0: the job trains on no graph."""
    return Counting("epoch", "epochs", chunks, "an epoch", chunks) if chunks else STEPS


def amount(value: float) -> str:
    """A speed: three digits of a small one, no fraction of a large one."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"
