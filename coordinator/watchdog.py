"""Tells a run that stands still from one that waits for nodes: no commit for many usual steps, and for whom. Pure."""

# It decides nothing else. Every detector has its own evidence and its own patience; what they all miss (a node that
# lives, beats and does no work; a device that hangs; a defect of ours) shows as steps that do not come.
#
# Time counts only while the run is RUNNING under a plan, and from when this step was first seen. A rollback, a takeover
# and waiting for nodes begin the count anew: each of those says by itself what is waited for.

from dataclasses import replace
from statistics import median

from culm.coordinator import commits, takeover
from culm.coordinator.commands import Record
from culm.coordinator.decisions import Decision
from culm.coordinator.state import Phase, State, Watch
from culm.pipeline.money import kinds

# So many usual steps, and not less than so many times the patience, without a commit before a run counts as stalled: a
# lost node may take the patience once to be seen, and its heir up to a step. Sooner every lost node would look like a
# stall.
STALLED_STEPS = 10
PATIENCE = 3.0
FIRST_SECONDS = 120.0  # that a step may take before any other has shown what is usual: the first one takes longest
REMEMBERED = 16  # steps that show what is usual: the median of so many passes over one with a lost node


def look(state: State, now: float) -> Decision:
    """The state with the watch as of ``now``, and what is to be put on record: a stall once, and its end once."""
    watch = state.watch
    waits = state.phase is not Phase.RUNNING or state.plan is None or takeover.recovering(state)
    if waits or watch.at is None or state.era != watch.era:
        return replace(state, watch=Watch(state.era, state.committed, now, watch.recent)), ()
    if state.committed != watch.step:
        seconds = now - watch.at
        steps = state.committed - watch.step
        recent = watch.recent if steps < 0 else (*watch.recent, seconds / steps)[-REMEMBERED:]
        moved: tuple[Record, ...] = ()
        if watch.stalled:
            text = f"step {state.committed - 1} is committed: the run goes on after {seconds:.1f} s"
            moved = (Record(kinds.Moving(stalled_seconds=round(seconds, 1)), text),)
        return replace(state, watch=Watch(state.era, state.committed, now, recent)), moved
    if watch.stalled or now - watch.at < allowance(state):
        return state, ()
    awaited = waited_for(state, now)
    usual = f"a step usually takes {median(watch.recent):.2f} s" if watch.recent else "what is usual is not known yet"
    text = f"no commit for {now - watch.at:.0f} s ({usual}): waiting for {awaited}"
    stalled = kinds.Stalled(step=state.committed, awaited=awaited)
    return replace(state, watch=replace(watch, stalled=awaited)), (Record(stalled, text),)


def allowance(state: State) -> float:
    """Seconds that the running step may take before it counts as stalled."""
    recent = state.watch.recent
    usual = STALLED_STEPS * median(recent) if recent else FIRST_SECONDS
    return max(usual, PATIENCE * state.settings.patience.seconds)


def waited_for(state: State, now: float) -> str:
    """Which nodes have not reported which stages, and what each of them said last that it was doing."""
    assert state.plan is not None
    stages: dict[str, list[str]] = {}
    for entry in commits.missing(state, state.plan):
        stage, _, node = entry.partition(":")
        stages.setdefault(node, []).append("the cut being prepared" if stage == "target" else f"stage {stage}")
    return "; ".join(f"{node} with {', '.join(held)} ({_doing(state, node, now)})" for node, held in stages.items())


def _doing(state: State, name: str, now: float) -> str:
    node = state.nodes.get(name)
    if node is None:
        return "not attached"
    if node.attached_since is None:
        return "its connection to the coordinator is broken"
    if now - node.heard_at > state.settings.patience.seconds:
        return f"silent for {now - node.heard_at:.0f} s"
    if not node.instruction:
        return "waiting for input"
    return f"in {node.instruction} for {node.running_seconds:.0f} s"
