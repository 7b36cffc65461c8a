"""What the run waits for, by topic, each said once until it changes: two topics at once do not take turns."""

# Every tick finds again what is waited for. By topic, and not only by the newest text: a broken link and silence, found
# in turn, would put two lines into the event log with every tick.

from dataclasses import replace

from culm.coordinator.commands import Record
from culm.coordinator.decisions import Decision
from culm.coordinator.state import Phase, State
from culm.pipeline.money import kinds

NODES = "nodes"  # too few to begin
PRICES = "prices"  # of nodes, in a run with a budget
SILENCE = "silence"  # nobody answers
LINK = "link"  # between two only copies


def wait(state: State, topic: str, text: str, silent: bool = False) -> Decision:
    """Notes what is waited for; on record only where it is new. ``silent``: nobody at all is heard.

    A run that has failed waits for nothing: its detail says why, though its nodes have gone.
    """
    if state.phase is Phase.FAILED or state.waits.get(topic) == text:
        return state, ()
    event = kinds.Silent() if silent else kinds.Waiting()
    return replace(state, waits={**state.waits, topic: text}, detail=text), (Record(event, text),)


def over(state: State, *topics: str) -> State:
    """Nothing of these is waited for any more."""
    if not any(topic in state.waits for topic in topics):
        return state
    kept = {topic: text for topic, text in state.waits.items() if topic not in topics}
    if state.phase is Phase.FAILED:
        return replace(state, waits=kept)
    at_it = str(state.pause) if state.phase is Phase.PAUSED and state.pause is not None else "training"
    detail = next(reversed(kept.values())) if kept else at_it if state.plan is not None else state.detail
    return replace(state, waits=kept, detail=detail)
