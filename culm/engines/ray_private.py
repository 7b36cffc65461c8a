"""What Culm takes of Ray beyond its public interface. ``make ray`` tells when one of these changes."""


def drained_at(node_id: str) -> float | None:
    """When Ray will end a machine that it drains, in unix seconds; 0 where it does not say; None: it drains it not."""
    from ray._private.state import state

    milliseconds = state.get_draining_nodes().get(node_id)
    return milliseconds / 1e3 if milliseconds is not None else None
