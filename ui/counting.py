"""What the run that is looked at counts. Pure."""

from culm.pipeline.counting import Counting, of_chunks
from culm.ui.look import Look


def chunks_of(look: Look) -> int:
    """Of the graph that the run trains on; 0: it trains on none."""
    return look.status.graph.chunks or look.history.chunks


def counting(look: Look) -> Counting:
    return of_chunks(chunks_of(look))
