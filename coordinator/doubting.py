"""What follows once nodes have computed the same thing differently: nobody goes on with the step (rule 25)."""

# The step is not committed, and no step of which it may be said that a wrong number went into it counts:
#
#     a state differs      it may have changed as soon as its digest was taken for the gate before: then a wrong
#                          gradient went into that step, and files of its state were read from memory that had changed.
#                          So checkpoints are good up to the step before. In a run that goes on no other is whole yet
#                          (``checkpoints``); one that was written in a pause is
#     a forward differs    both nodes computed rightly when the last whole row of agreeing audits of each began; where
#                          every forward is audited one is a row
#
# So the run goes back to the newest checkpoint before that, as it does where a stage has no copy left. Newer ones are
# struck off the record. Whoever is found to compute wrongly is declared lost: its process may join anew, and hold
# nothing. A machine that is found a second time is not let in.

from dataclasses import replace

from culm.coordinator import checks, membership
from culm.coordinator.checks import PROOF, Checks, Doubt
from culm.coordinator.commands import Command, Persist, Record
from culm.coordinator.decisions import Decision
from culm.coordinator.rolling_back import roll_back
from culm.coordinator.state import Phase, State
from culm.pipeline import tally
from culm.pipeline.money import kinds
from culm.pipeline.plan import Plan


def is_to_audit(state: State, node: str, layers: frozenset[int]) -> bool:
    """Whether the node has yet to tell what it found of these layers, as the present plan has it audit them."""
    return state.settings.audit > 0.0 and not state.checks.is_done_by(node, layers, (state.term, state.generation))


def doubt_in(state: State) -> Doubt | None:
    """The first thing that was computed differently in the step that is to be committed."""
    told, plan, settings = state.checks, state.plan, state.settings
    if plan is None or not (told.states or told.audited):
        return None
    trained, _ = tally.parted(state.tallies, settings.evaluated_in(state.committed), settings.pipelines)
    moved = frozenset(lost.stage for lost in state.lost_owners)
    return checks.differing(told, plan, trained, settings.microbatches, settings.tally.trained, moved)


def agreed(state: State, plan: Plan) -> Checks:
    """What is known once the step is committed under the plan."""
    return state.checks.after_step(state.committed, plan, 1 if state.settings.audit >= 1.0 else PROOF)


def go_back(state: State, doubt: Doubt, now: float) -> Decision:
    """Ends the era before what is in doubt; the run, if nobody can tell which of two nodes is right."""
    told, guilty = checks.noted(state.checks, doubt)
    step = state.committed
    since = _good_until(state, doubt)
    names = ", ".join(sorted(doubt.nodes))
    said = f"{names or 'nodes'} differ in {doubt.what} of step {step}"
    differed = kinds.Differed(step=step, what=doubt.what, nodes=names, found=", ".join(sorted(guilty)))
    if two := checks.undecided(told):
        return _fail(replace(state, checks=told), f"{said}: {_mend(two)}", differed)
    good = tuple(c for c in state.checkpoints if c.step <= since or c == state.origin)
    told = replace(told, doubted=checks.doubted_also(told.doubted, since, step))
    storage = replace(state.storage, proved_bad=state.storage.proved_bad.union(state.checkpoints).difference(good))
    state = replace(state, checks=told, checkpoints=good, storage=storage)
    why = f"{said}, and {_found(guilty)}"
    state, back = roll_back(state, why)
    lost = dict.fromkeys(guilty, f"it computes wrongly: {said}")
    state, gone = membership.lose(state, lost, now, by_choice=True)
    return state, (Record(differed, why), *back, *gone)


def _good_until(state: State, doubt: Doubt) -> int:
    """The last step of which a checkpoint is beyond doubt."""
    if doubt.of_state:
        return state.committed - 2
    return 1 + min((state.checks.good.get(node, -1) for node in doubt.nodes), default=-1)


def _found(guilty: frozenset[str]) -> str:
    if not guilty:
        return "nobody can say yet which is right"
    return f"{', '.join(sorted(guilty))} {'computes' if len(guilty) == 1 else 'compute'} wrongly"


def _mend(two: frozenset[str]) -> str:
    names = " and ".join(sorted(two))
    return (
        f"{names} differ again and again, and no third copy tells which is right. Either a layer gives other bits each "
        "time (culm verify tells), or one of their machines computes wrongly: run them on other ones, or with "
        "resilience.copies = 3"
    )


def _fail(state: State, text: str, differed: kinds.Differed) -> Decision:
    commands: tuple[Command, ...] = (
        Record(differed, text),
        Persist(),
        Record(kinds.Failed(step=state.committed, why=text, code=1), text),
    )
    return replace(state, phase=Phase.FAILED, detail=text), commands
