"""A pause: at the next commit the run stops to begin steps, until it is let go on (rule 24)."""

# The way of a pause, and what tells it:
#
#     asked for          State.pause; persisted. The step that runs goes on to its commit
#     in effect          Phase.PAUSED, and the pause is in the plan: it comes with that commit, or with the first plan
#                        of an era. Every plan of the pause has it: nodes tell it to a leader whose store has lost it
#     let go on          a plan without it, in which everybody holds what it held
#
# In a pause nothing is in flight, as after the last commit. So lost nodes are repaired and nodes hand over as then
# (``commits.keep``); a copy is hot once its node says, under the present plan, that it is at the present version. A job
# with a [checkpoint] has that version saved: nodes do that by themselves, since the plan tells them to rest.
#
# While a new leader hears from the nodes it takes neither a pause nor its end: they may obey a newer plan that tells.

from dataclasses import replace

from culm.coordinator.commands import Command, Persist, Publish, Record
from culm.coordinator.decisions import Decision, with_plan
from culm.coordinator.limits import come_to, in_force, limits_of, moment, noted, reached
from culm.coordinator.requests import Pausing, Spent, Unpausing
from culm.coordinator.saving import again, is_whole
from culm.coordinator.state import Phase, State
from culm.coordinator.takeover import recovering
from culm.pipeline.money import kinds
from culm.pipeline.pause import Pause


def ask(state: State, report: Pausing) -> Decision:
    """Notes that the run is to pause; the first word counts. A run that is over has nothing to pause."""
    if state.pause is not None or state.phase in (Phase.DONE, Phase.FAILED) or recovering(state):
        return state, ()
    state = replace(state, pause=report.pause)
    if state.phase is Phase.RUNNING:
        text = f"the run is to be {report.pause}: the next commit does it"
        return state, (Persist(), Record(kinds.Pausing(who=report.pause.who, why=report.pause.why), text))
    return state, (Persist(), _paused(report.pause, "no step is begun"))


def spent(state: State, report: Spent) -> Decision:
    """Whether the run has come to a limit, which pauses it."""
    state, told = noted(state, report)
    why = reached(limits_of(state), report.dollars, report.at)
    if not why:
        return state, told
    state, paused = ask(state, Pausing(Pause("", report.at, why)))
    return state, (*told, *paused)


def take_effect(state: State, now: float) -> Decision:
    """No step is begun any more. Asked before the plan of the commit is made, which tells the nodes."""
    pause = state.pause
    assert pause is not None
    # Who had caught up for a commit has not shown yet that it has applied this one, as after the last commit.
    state = replace(state, phase=Phase.PAUSED, detail=str(pause), following={}, paused_at=now)
    saves = state.settings.checkpoint_url and state.committed > state.origin.step
    what = "the nodes save that version" if saves else "the nodes keep what they hold"
    steps = "1 step is" if state.committed == 1 else f"{state.committed} steps are"
    return state, (_paused(pause, f"{steps} committed, and no other is begun; {what}"),)


def go_on(state: State, report: Unpausing, now: float) -> Decision:
    """Steps are begun again, from where the run stands."""
    if recovering(state):
        return state, ()
    limits = in_force(state, report.budget, report.stop_at)
    changed = limits != limits_of(state)
    state = replace(state, limits=limits) if changed else state
    if state.pause is None:
        return state, (Persist(),) if changed else ()
    pause = state.pause
    what = "the run goes on" if state.phase is Phase.PAUSED else "the run is not paused any more"
    by = f": {report.who} asked for it" if report.who else ""
    more = f", with a budget of {limits.budget:.2f} $" if limits.budget else ""
    unpaused = kinds.Unpaused(who=report.who, budget=limits.budget)
    told = Record(unpaused, f"{what}{more}{by}; it was {pause}")
    state = replace(state, pause=None, paused_at=None)
    plan = state.plan
    if state.phase is not Phase.PAUSED or plan is None:
        return state, (Persist(), told)
    state = again(replace(state, phase=Phase.RUNNING, detail="training"))
    reason = f"the run goes on after a pause{by}"
    state, published, records = with_plan(state, plan.stages, reason, now, plan.target)
    commands: tuple[Command, ...] = (Persist(), Publish(published), told, *records)
    return state, commands


def in_words(state: State, now: float, dollars_per_hour: float) -> str:
    """What is to be known of a run that is paused, or is to be, as status shows it; empty: it is neither."""
    pause = state.pause
    if pause is None or state.phase in (Phase.DONE, Phase.FAILED):
        return ""
    if state.phase is Phase.RUNNING:
        return f"{state.detail}; {pause} with the next commit"
    said = [f"{pause}" + (f" at {moment(pause.since)}" if pause.since else "")]
    if state.phase is not Phase.PAUSED or recovering(state) or state.waits:
        return "; ".join([*said, state.detail])
    here = min(state.committed, state.steps)
    if is_whole(state, here):
        said.append(f"step {here} is in the checkpoint {state.checkpoints[-1].folder}")
    elif state.settings.checkpoint_url and here > state.origin.step:
        said.append(f"the checkpoint of step {here} is being written")
    elif here > state.origin.step:
        said.append(f"step {here} is in the nodes' memory alone")
    said.append("the nodes stay" + (f", which costs ${dollars_per_hour:.2f} an hour" if dollars_per_hour else ""))
    if come_to(state) and state.paused_at is not None and is_whole(state, here):
        left = max(0.0, state.paused_at + state.settings.keep_after_done - now)
        said[-1] += f"; they are let go in {left / 60.0:.0f} min ([job] keep_after_done)"
    return "; ".join(said)


def _paused(pause: Pause, follows: str) -> Record:
    return Record(kinds.Paused(who=pause.who, why=pause.why), f"{pause}: {follows}")
