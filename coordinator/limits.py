"""What a run may cost and until when it may train, and whether it has come to that. Pure."""

# The ledger of the coordinator knows what the run has cost, and its clock what time it is: both come in as ``Spent``,
# once a second. No node is asked for either.
#
# A run that has come to a limit pauses, by the next commit: that version is saved, and the nodes keep it for
# ``[job] keep_after_done`` seconds, in which it can go on at once. Nodes that wait cost money as well. So once it is
# saved and that time is over they are let go, and the run waits in its checkpoint for nodes and for a higher limit.
#
# A node without a price would count as free. So a run with a budget does not begin before each of its nodes has a
# price. Of a node that joins later the event log says that it is not counted.

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from culm.coordinator.commands import Record
from culm.coordinator.requests import Limits, Spending, Spent
from culm.coordinator.state import Phase, State
from culm.pipeline.money import kinds


def limits_of(state: State) -> Limits:
    """Those that count: the job's, unless an operator has set others."""
    return state.limits if state.limits is not None else state.settings.limits


def noted(state: State, report: Spent) -> tuple[State, tuple[Record, ...]]:
    """The state with the figures, and what to say of nodes that a budget cannot count."""
    before = state.spending.unpriced if state.spending is not None else ()
    state = replace(state, spending=Spending(report.dollars, report.at, tuple(report.unpriced)))
    budget = limits_of(state).budget
    if not budget or state.phase is Phase.WAITING:
        return state, ()
    new = [name for name in report.unpriced if name not in before]
    return state, tuple(Record(kinds.Unpriced(node=name), unpriced_in_words([name], budget)) for name in new)


def unpriced_in_words(nodes: Sequence[str], budget: float) -> str:
    """Why a budget cannot be kept, and the mend."""
    who = ", ".join(nodes)
    mend = "name their machines in the coordinator's price table (--prices), with 0 where they cost nothing"
    return f"the budget of {budget:.2f} $ cannot be kept: no price is known for {who}; {mend}"


def why_not_begun(state: State) -> str:
    """Why a run with a budget does not begin yet, or nothing."""
    budget = limits_of(state).budget
    if not budget:
        return ""
    if state.spending is None:
        return "waiting for what the nodes cost"
    there = [name for name in state.spending.unpriced if name in state.nodes]
    return unpriced_in_words(there, budget) if there else ""


def reached(limits: Limits, dollars: float, at: float) -> str:
    """The limit that a run has come to, in words, or nothing. ``at``: unix seconds."""
    if limits.budget and dollars >= limits.budget:
        return f"the run has cost {dollars:.2f} $ of its budget of {limits.budget:.2f} $"
    if limits.stop_at and at >= limits.stop_at:
        return f"it is {moment(limits.stop_at)}, the time at which the run was to stop"
    return ""


def come_to(state: State) -> str:
    """The limit for which a run is paused, or beyond which it is by now, in words; empty: it is paused for none."""
    pause, spent = state.pause, state.spending
    if pause is None or pause.why or spent is None:
        return pause.why if pause is not None else ""
    return reached(limits_of(state), spent.dollars, spent.at)


def in_force(state: State, budget: float | None, stop_at: float | None) -> Limits:
    """The limits once the run goes on. A time that has passed has had its effect, and counts no more."""
    known, spent = limits_of(state), state.spending
    passed = spent is not None and spent.at >= known.stop_at
    until = 0.0 if passed else known.stop_at
    return Limits(known.budget if budget is None else budget, until if stop_at is None else stop_at)


def refusal(state: State, budget: float | None, stop_at: float | None) -> str:
    """Why a run cannot go on with these limits, or nothing: it would pause again at once."""
    limits, spent = in_force(state, budget, stop_at), state.spending
    why = reached(limits, spent.dollars, spent.at) if spent is not None else ""
    if not why:
        return ""
    is_budget = bool(limits.budget) and spent is not None and spent.dollars >= limits.budget
    mend = "let it go on with a higher --budget" if is_budget else "let it go on with a later --stop-at"
    return f"{why}; {mend}, or with none (0)"


def moment(unix: float) -> str:
    """In words, the same on every machine."""
    return f"{datetime.fromtimestamp(unix, UTC):%Y-%m-%d %H:%M:%S} UTC"
