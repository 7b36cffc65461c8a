"""An era ends since some stage has no copy left: from what the next one begins (rules 1 and 14)."""

# The next era begins from the newest whole checkpoint. It is chosen before that, and nobody looks it up again later.
#
# The state tells which ones there are: each is put on record as it becomes whole, and off the record before it is
# deleted. But what was persisted may be older than the storage, since Redis may have come back as it was an hour ago.
# Then every checkpoint on record may have been deleted since, and the run would go back to step 0 beside whole ones.
# So a leader that took over looks at the storage before it begins an era (``FindCheckpoints``), and so does one whose
# origin has turned out to be gone, or that does not know whether a newer checkpoint is whole: a slow storage may have
# the manifest, and its answer be on its way; or nodes were to write a whole one anew, and were lost before they did.
# What it finds counts if it was made by this job, and as these nodes compute.
#
#     roll_back       WAITING, without a plan
#     search_first    FindCheckpoints, once a node is there that tells what the run is made of; no era begins meanwhile
#     found           perhaps a newer origin
#     begin_era       with as many nodes as there are

from collections.abc import Sequence
from dataclasses import replace

from culm.coordinator import agreement
from culm.coordinator.agreement import Agreement
from culm.coordinator.best import noted
from culm.coordinator.commands import Command, FindCheckpoints, Persist, Record
from culm.coordinator.decisions import Decision
from culm.coordinator.reports import CheckpointsFound, Whole
from culm.coordinator.state import Ending, Phase, Search, State
from culm.pipeline.identity import Identity
from culm.pipeline.money import kinds
from culm.pipeline.origin import Origin
from culm.pipeline.terms import ERAS_BITS


def roll_back(state: State, why: str, work_lost: bool = True) -> Decision:
    """Starts a new era from the newest checkpoint, or from step 0. A run that was resumed never starts from step 0.

    ``work_lost``: whether somebody has to hear of it. False where every node was let go after a last checkpoint.
    """
    origin = state.checkpoints[-1] if state.checkpoints else Origin()
    layers = len(state.layer_costs)
    ordered = any(step > origin.step and len(shares.files) == layers for step, shares in state.saved.items())
    hidden = ordered or state.storage.written_over > origin.step
    if hidden and state.settings.checkpoint_url and state.storage.search is Search.OVER:
        state = replace(state, storage=replace(state.storage, search=Search.NEEDED))
    searched = state.storage.search is Search.OVER
    if state.resumed and not origin.folder and searched:
        text = f"{why}; no checkpoint is left to go back to, and a resumed run never begins at step 0: "
        text += "begin another run (--run NAME) that resumes from another one"
        # The plan names nodes that are lost: a coordinator that starts again would wait for them.
        state = replace(state, phase=Phase.FAILED, plan=None, exposed_since={}, detail=text)
        return state, (Record(kinds.Failed(), text), Persist())
    text = f"{why}; a new era begins at step {origin.step}, from {origin}"
    if not searched:
        text += ", unless the storage shows a newer checkpoint"
    state = replace(
        state,
        # Two leaders at once may roll back without knowing of each other: an era names the term that began it.
        era=max(state.era + 1, state.term << ERAS_BITS),
        origin=origin,
        committed=origin.step,
        plan=None,
        phase=Phase.WAITING,
        detail=text,
        # All that follows was said of the era before, which nobody goes on with. ``failures`` stays: the same work may
        # end processes in every era.
        facts={},
        following={},
        norms={},
        tallies=(),
        checks=state.checks.of_era(origin.step),
        saved={},
        storage=replace(
            state.storage,
            unread={},
            examined=False,
            fault="",
            fault_step=0,
            written_over=0,
            ordered=frozenset(),
            pending=(),
        ),
        last_commit=None,
        lost_owners=(),
        exposed_since={},
        ending=Ending(),
        stopping=None,
        saving=None,
        paused_at=None,
    )
    return state, (Persist(), Record(kinds.RolledBack(era=state.era, step=origin.step, work_lost=int(work_lost)), text))


def is_doubted(state: State, origin: Origin) -> bool:
    """Whether the checkpoint was written by an era before, at a step behind which that one was given up (rule 25)."""
    since, until = state.checks.doubted
    return since < origin.step <= until and origin.step not in state.storage.ordered and origin != state.origin


def search_first(state: State) -> Decision:
    """Searches the storage if that is needed and not under way: see ``Storage.search``."""
    if state.storage.search is not Search.NEEDED:
        return state, ()
    return replace(state, storage=replace(state.storage, search=Search.UNDER_WAY)), (FindCheckpoints(),)


def found(state: State, report: CheckpointsFound) -> Decision:
    """What the storage shows. Of what is on record only the very same folder's manifest may have changed."""
    if state.storage.search is not Search.UNDER_WAY:  # a leader of before asked, which had not heard from the nodes
        return state, ()
    waiting = state.phase is Phase.WAITING and state.plan is None
    if report.why:
        text = f"the storage does not say which checkpoints there are: {report.why}; no era begins before it does"
        if not waiting or text == state.detail:
            return state, ()
        return replace(state, detail=text), (Record(kinds.Waiting(why=report.why), text),)
    state = replace(state, storage=replace(state.storage, search=Search.OVER))
    commands: list[Command] = []
    shown: dict[str, Origin] = {}
    evaluated: dict[int, tuple[float, ...]] = {}
    for whole in report.whole:
        if whole.origin in state.storage.proved_bad or is_doubted(state, whole.origin):
            continue
        why = _of_another_run(state, whole)
        if why:
            commands.append(Record(kinds.CheckpointFault(node="", step=whole.origin.step, why=why), why))
        else:
            shown[whole.origin.folder] = whole.origin
            evaluated[whole.origin.step] = whole.evaluated
    before = state.checkpoints
    known = tuple(sorted({*shown.values(), *(c for c in before if c.folder not in shown)}))
    if known != before:
        state = noted(replace(state, checkpoints=known), evaluated)
        commands.append(Persist())
    newest = known[-1] if known else Origin()
    if waiting and (newest.step > state.origin.step or (state.resumed and not known)):
        why = f"the storage was searched for checkpoints: {len(known)} are whole"
        state, more = roll_back(state, why)
        commands += more
    return state, tuple(commands)


def going_on(state: State, ours: Sequence[Whole], allow: frozenset[str]) -> State:
    """The state of a run of which only checkpoints are left; one that is resumed from a newer one stays as it is.

    ours: oldest first, all of one identity. allow: the parts of it in which nodes may differ.
    """
    if not ours or ours[-1].origin.step <= state.committed:
        return state
    newest = ours[-1]
    found = replace(
        state,
        committed=newest.origin.step,
        origin=newest.origin,
        checkpoints=tuple(whole.origin for whole in ours),
        agreement=Agreement(checkpoint=newest.identity.without(allow), lineage=newest.identity.lineage),
    )
    return noted(found, {whole.origin.step: whole.evaluated for whole in ours})


def _of_another_run(state: State, whole: Whole) -> str:
    """Why bits that follow from this checkpoint would not be this run's, or nothing."""
    identity = whole.identity.compared(state.settings.same_hardware)
    # Nodes may differ from the checkpoint that they were resumed from, and not from those that they have written.
    known = replace(state.agreement, checkpoint=Identity()) if state.agreement.nodes.parts else state.agreement
    differs = agreement.refusal(known, "its writer", identity)
    if not differs and identity.lineage != state.agreement.lineage:
        differs = "its run was resumed from another checkpoint than this one"
    return f"the checkpoint {whole.origin.folder} is not this run's, so it is left out: {differs}" if differs else ""
