"""How far a run is, in epochs and tokens."""

from culm.protos import coordinator_pb2 as pb


def epoch_of(status: pb.GetStatusResponse, step: int) -> float | None:
    """Passes through the dataset by then; None where nobody knows how long one is."""
    return step * status.samples_per_step / status.samples_per_epoch if status.samples_per_epoch else None


def in_words(status: pb.GetStatusResponse, step: int) -> str:
    """Such as ``epoch 1.53, 3.1 M tokens``: what is known of it. Of a graph nothing: its steps are epochs."""
    if status.graph.chunks:
        return ""
    epoch, tokens = epoch_of(status, step), step * status.tokens_per_step
    known = [f"epoch {epoch:.2f}" if epoch is not None else "", f"{_large(tokens)} tokens" if tokens else ""]
    return ", ".join(filter(None, known))


def _large(count: float) -> str:
    for unit in ("", " k", " M", " G"):
        if count < 1000 or unit == " G":
            return f"{count:.1f}{unit}" if unit else f"{count:.0f}"
        count /= 1000
    raise AssertionError
