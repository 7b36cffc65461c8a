"""How many nodes may be getting ready at once from one caller: each leaves its joining and its end in the event log."""

from culm.coordinator.state import State

MOST_JOINING = 64  # of one certificate on one host: more nodes than a machine has cores for


class Joining:
    """Who has joined and is not available yet, and who opened its stream."""

    def __init__(self) -> None:
        # By node. Those that are ready or gone are dropped with the next question.
        self._callers: dict[str, str] = {}

    def problem(self, state: State, node: str, caller: str) -> str:
        """Why the node has to wait; nothing: it counts as joining from now on."""
        known = state.nodes
        self._callers = {n: c for n, c in self._callers.items() if n in known and not known[n].available}
        if node not in known and sum(c == caller for c in self._callers.values()) >= MOST_JOINING:
            return f"{MOST_JOINING} nodes of this host are joining: another may join once one is ready or gone"
        self._callers[node] = caller
        return ""
