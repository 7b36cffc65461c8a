"""What a run counts: steps and samples, or the epochs of a graph. Pure.

A graph's chunk is a sample of its job, and a step takes each chunk once. So a step is an epoch, and nobody asks how
many chunks were trained in all.
"""

from dataclasses import dataclass

from culm.protos import coordinator_pb2 as pb
from culm.ui.look import Look


@dataclass(frozen=True)
class Counting:
    step: str = "step"  # what a commit ends
    trained: str = "samples"  # what speed and value count
    samples: int = 1  # in one of these
    priced: str = "1,000 samples"  # what one price is for
    samples_priced: int = 1_000  # in that


STEPS = Counting()


def of_chunks(chunks: int) -> Counting:
    """Of a graph that is cut into so many; 0: the job trains on no graph."""
    return Counting("epoch", "epochs", chunks, "an epoch", chunks) if chunks else STEPS


def chunks_of(look: Look) -> int:
    """Of the graph that the run trains on; 0: it trains on none."""
    return look.status.graph.chunks or look.history.chunks


def counting(look: Look) -> Counting:
    return of_chunks(chunks_of(look))


def price_of(cost: pb.GetCostResponse, of: Counting) -> float:
    """Dollars for what one price is for."""
    return cost.dollars_per_thousand_samples * of.samples_priced / 1e3


def amount(value: float) -> str:
    """A speed: three digits of a small one, no fraction of a large one."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"
