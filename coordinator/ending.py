"""When a run is over, and when its nodes may go (rule 17): after the last commit, and when every node is to stop."""

# After the last commit the final weights are in the nodes' memory alone. So the nodes stay, and redundancy is kept and
# repaired as before (see ``commits.keep``), until the weights are elsewhere:
#
#     somebody has fetched them, and said so         the nodes go at once
#     a checkpoint of the last step is whole         they go SAVED_SECONDS after the last commit
#     neither                                        they go ``[job] keep_after_done`` seconds after it
#
# Then they are *released*: dismissed for good, and the run has no plan any more. That is persisted: a node that comes
# later is sent away, and a coordinator that starts again neither waits for nodes nor trains again. One that takes over
# before that counts the seconds from its own start: no clock outlives a coordinator.
#
# A run that fails in its closing step is trained: what raises there is an evaluation. Nothing is decided any more, but
# each node goes on writing its share of the last checkpoint, one that has failed before it ends. The manifest follows.
#
# A coordinator that is told to stop decides nothing here: its nodes wait for the next one.
#
# Where every node is to go at once, as when a whole cluster is stopped, nobody is left to hand over to. They are let go
# as soon as a last checkpoint is whole, or at once if the job has none. A run that was not done then waits for nodes,
# to begin a new era.

from dataclasses import replace

from culm.coordinator import draining, limits, saving, stopping_early
from culm.coordinator.commands import Command, Persist, Record
from culm.coordinator.decisions import Decision
from culm.coordinator.reports import Fetched
from culm.coordinator.rolling_back import roll_back
from culm.coordinator.state import Phase, State, Stopping
from culm.pipeline.money import kinds
from culm.pipeline.text import shown_url

# How long nodes stay at least after the last commit, where its checkpoint is whole: whoever follows the run fetches the
# weights sooner from memory than from the storage.
SAVED_SECONDS = 30.0
# Nodes that are all to go are kept for a last checkpoint until so many seconds before the first of their machines may
# be gone: a machine that is taken is a lost node, whose work would move to nodes that are to go as well.
SPARE_SECONDS = 2.0
# And for so long where one of them does not say when: docker kills a container 10 s after it told it to stop, and the
# goodbye needs its time.
LAST_CHECKPOINT_SECONDS = 8.0


def is_saved(state: State) -> bool:
    """Whether a checkpoint holds the final weights."""
    return bool(state.checkpoints) and state.checkpoints[-1].step == state.steps


def fetched(state: State, report: Fetched) -> Decision:
    """Somebody has the final weights: nothing keeps the nodes any longer."""
    if state.phase is not Phase.DONE or state.ending.fetched or state.ending.released:
        return state, ()
    state = replace(state, ending=replace(state.ending, fetched=report.who))
    text = f"the final weights were fetched: {report.who}"
    state, released = release(state, f"the run is done and its weights were fetched: {report.who}")
    return state, (Record(kinds.Fetched(who=report.who), text), *released)


def look(state: State, now: float) -> Decision:
    """Lets the nodes go when that is due. Called whenever time passes or the set of nodes changes."""
    if state.ending.released:
        return state, ()
    if state.nodes and all(node.draining for node in state.nodes.values()):
        return _everyone_stops(state, now)
    # A node has joined: the others hand over to it after all.
    state = replace(state, stopping=None) if state.stopping is not None else state
    if state.phase is Phase.PAUSED:
        return _at_a_limit(state, now)
    if state.phase is not Phase.DONE or state.plan is None:
        return state, ()
    if state.ending.done_at is None:  # this coordinator has just taken over
        return replace(state, ending=replace(state.ending, done_at=now)), ()
    kept = now - state.ending.done_at
    if state.ending.fetched:
        return release(state, f"the run is done and its weights were fetched: {state.ending.fetched}")
    if is_saved(state) and kept >= SAVED_SECONDS:
        return release(state, f"the run is done and its weights are in the checkpoint {state.checkpoints[-1].folder}")
    if not is_saved(state) and kept >= state.settings.keep_after_done:
        why = f"nobody fetched the weights within {state.settings.keep_after_done:.0f} s after the run was done"
        return release(state, f"{why} ([job] keep_after_done); {_left_of(state)}")
    return state, ()


def _at_a_limit(state: State, now: float) -> Decision:
    """Lets the nodes of a run go that has come to a limit, some time after its checkpoint is whole: they cost money.

    The run then waits in that checkpoint for nodes, and for somebody who lets it go on.
    """
    limit = limits.come_to(state)
    if not limit or state.took_over_at is not None:
        return state, ()
    if state.paused_at is None:  # this coordinator has just taken over
        return replace(state, paused_at=now), ()
    if not (is_safe(state) and now - state.paused_at >= state.settings.keep_after_done):
        return state, ()
    commands: list[Command] = []
    for name in state.nodes:
        why = f"the run is paused, since {limit}, and its checkpoint is whole"
        state, farewell = draining.farewell(state, name, why)
        commands.extend(farewell)
    why = f"the run is paused, since {limit}, and its nodes were let go ([job] keep_after_done)"
    state, rolled_back = roll_back(state, why, work_lost=False)
    return state, (*commands, *rolled_back)


def is_safe(state: State) -> bool:
    """Whether what the run has come to is in a checkpoint, or is what it began from."""
    return state.committed == state.origin.step or saving.is_whole(state, min(state.committed, state.steps))


def release(state: State, why: str) -> Decision:
    """Lets every node go for good: the run is over."""
    commands: list[Command] = []
    for name in state.nodes:
        state, farewell = draining.farewell(state, name, why)
        commands.extend(farewell)
    state = replace(
        state,
        plan=None,
        phase=Phase.DONE,
        detail=why,
        ending=replace(state.ending, released=why),
        stopping=None,
        took_over_at=None,
        exposed_since={},
        saved={},
    )
    return state, (Persist(), Record(kinds.Released(why=why), f"every node may go: {why}"), *commands)


def seconds_left(state: State, now: float) -> float:
    """For how long the nodes of a run that is done stay yet."""
    if state.phase is not Phase.DONE or state.ending.released or state.ending.done_at is None:
        return 0.0
    stays = SAVED_SECONDS if is_saved(state) else state.settings.keep_after_done
    return max(0.0, state.ending.done_at + stays - now)


def in_words(state: State, now: float, dollars_per_hour: float) -> str:
    """What is to be known of a run that is done, or that failed when it was trained, as status shows it."""
    if state.phase is Phase.FAILED and state.committed >= state.settings.steps:
        return f"{state.detail}; {_of_the_trained(state)}"
    left = seconds_left(state, now)
    if state.phase is not Phase.DONE or not left:
        return state.detail
    done = stopping_early.over_in_words(state)
    if is_saved(state):
        return f"{done}; the weights are in the checkpoint {state.checkpoints[-1].folder}; the nodes go soon"
    minutes = f"{left / 60.0:.0f} min" if left >= 120.0 else f"{left:.0f} s"
    costs = f", which costs ${dollars_per_hour * left / 3600.0:.2f}" if dollars_per_hour else ""
    return (
        f"{done}; the weights are on the nodes alone, which stay for {minutes} more{costs}: "
        "fetch them with culm weights --out FILE"
    )


def _of_the_trained(state: State) -> str:
    """Where the final weights are, of a run that failed in its closing step. The nodes go on writing them."""
    url = shown_url(state.settings.checkpoint_url)
    if not url:
        return "every step is trained, but no checkpoint holds the final weights: give the job a [checkpoint] section"
    gives = f"culm checkpoint export {url} --out FILE gives the final weights"
    return f"every step is trained: {gives}{'' if is_saved(state) else ' once the last checkpoint is whole'}"


def _left_of(state: State) -> str:
    """What there is of a run whose nodes are gone."""
    if not state.checkpoints:
        return "they are in no checkpoint, and lost" if state.phase is Phase.DONE else "there is no checkpoint"
    newest = state.checkpoints[-1]
    return f"the newest checkpoint is of step {newest.step}: {newest.folder}"


def _everyone_stops(state: State, now: float) -> Decision:
    """Every node is to go: nobody is left to hand over to (rule 17).

    Where machines are to go, or an operator drains every node, they work on: another node may join in time.
    """
    done = state.phase is Phase.DONE
    # Then the nodes are writing the checkpoint already.
    written = done or (state.phase is Phase.PAUSED and state.committed > state.origin.step)
    here = min(state.committed, state.steps)
    saves = (written and not saving.is_whole(state, here)) or state.phase is Phase.RUNNING
    saves = saves and not state.ending.fetched and state.plan is not None and bool(state.settings.checkpoint_url)
    told = all(node.told for node in state.nodes.values())
    # A leader that is still hearing from nodes commits nothing: there will be no last checkpoint by it.
    if told and (not saves or state.took_over_at is not None):
        return _everyone_goes(state)
    if state.stopping is None and saves:
        last = "the last step" if done else f"step {here}"
        what = f"they stay for the checkpoint of {last}" if written else "the next commit asks for a last checkpoint"
        stopping = Stopping(now, here if written else None)
        return replace(state, stopping=stopping), (Record(kinds.Stopping(), f"every node is to go: {what}"),)
    if state.stopping is None or not told:
        return state, ()
    unsaid = state.stopping.since + LAST_CHECKPOINT_SECONDS
    deadlines = [unsaid if n.leaves_at is None else n.leaves_at - SPARE_SECONDS for n in state.nodes.values()]
    if _is_last_whole(state) or now >= min(deadlines):
        return _everyone_goes(state)
    return state, ()


def _is_last_whole(state: State) -> bool:
    """Whether the last checkpoint is whole that nodes stay for, since they are all to go."""
    last = state.stopping.step if state.stopping is not None else None
    return last is not None and any(checkpoint.step >= last for checkpoint in state.checkpoints)


def _everyone_goes(state: State) -> Decision:
    if state.phase is Phase.DONE and (is_saved(state) or state.ending.fetched):
        return release(state, "the run is done, its weights are safe, and every node was told to stop")
    commands: list[Command] = []
    for name in state.nodes:
        state, farewell = draining.farewell(state, name, f"drained, since {state.nodes[name].draining}")
        commands.extend(farewell)
    work_lost = not (is_safe(state) or _is_last_whole(state))
    state = replace(state, stopping=None)
    if state.phase is Phase.FAILED:
        return replace(state, plan=None, exposed_since={}), tuple(commands)
    if state.plan is None:
        return state, tuple(commands)
    why = "every node was told to stop, so none was left to hand over to"
    state, rolled_back = roll_back(state, f"{why}; {_left_of(state)}", work_lost)
    return state, (*commands, *rolled_back)
