"""The alerts of deploy/monitoring/alerts.yml, evaluated by the dashboard from what it knows already. Pure.

Names, severities, times and summaries are those of the file: a test compares them. Prometheus looks at samples of
metrics. Here the event log often says since when something has held, so an alert fires in time though nobody had the
page open.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from culm.pipeline.money.kinds import CheckpointFault, RolledBack, Unpaused, Waiting
from culm.protos import coordinator_pb2 as pb
from culm.ui.look import Firing, Look
from culm.ui.standing import is_over
from culm.ui.words import span

EXPOSED_SECONDS = 120.0
DOLLARS_AN_HOUR = 100.0
HOUR, QUARTER, MINUTE = 3600.0, 900.0, 60.0
ROLLED_BACK_SECONDS = 600.0  # for which a rollback is told
PARTS = 3  # moments within a quarter of an hour at which its price is looked at

Pending = Mapping[str, float]  # by rule: since when what it says has held, in unix seconds


class Held(NamedTuple):
    """What a rule says holds. ``since``: as far as anybody knows."""

    value: float
    since: float


@dataclass(frozen=True)
class Rule:
    name: str
    severity: str
    seconds: float  # for which it has to hold
    summary: str  # as in the file: with {{ $value }} and the like
    holds: Callable[[Look, float], Held | None]


def evaluate(look: Look, now: float, before: Pending) -> tuple[tuple[Firing, ...], Pending]:
    """The alerts that fire, those that wake somebody first; and what to give as ``before`` the next time."""
    if look.reading:
        return look.firing, before  # a part of the log says nothing
    found, pending = [], {}
    for rule in RULES:
        if (held := rule.holds(look, now)) is None:
            continue
        since = min(held.since, before.get(rule.name, now))
        pending[rule.name] = since
        if now - since >= rule.seconds:
            found.append(Firing(rule.name, rule.severity, _filled(rule.summary, held.value), since))
    return tuple(sorted(found, key=lambda firing: firing.severity != "page")), pending


def _filled(summary: str, value: float) -> str:
    words = {"humanizeDuration": span(value), "humanize": f"{value:,.0f}", None: f"{value:g}"}
    return re.sub(r"\{\{ \$value(?: \| (\w+))? \}\}", lambda found: words[found[1]], summary)


# ---- what holds ------------------------------------------------------------------------------------------------------
def _answered(holds: Callable[[Look, float], Held | None]) -> Callable[[Look, float], Held | None]:
    """Of a coordinator that does not answer only its absence is known."""
    return lambda look, now: None if look.problem or not look.status.phase else holds(look, now)


def _away(look: Look, now: float) -> Held | None:
    # A run that is over needs no coordinator any more. Prometheus cannot tell, and says so all the same.
    return Held(0.0, look.at or now) if look.problem and not is_over(look) else None


def _stalled(look: Look, now: float) -> Held | None:
    begun = (i.time for i in reversed(look.history.incidents) if i.kind == "stall")
    return Held(look.status.stalled_seconds, next(begun, now)) if look.status.stalled_seconds > 0 else None


def _waiting(look: Look, now: float) -> Held | None:
    # A paused run whose nodes were let go is in this phase too, but no node that is started would help it.
    waits = look.status.phase == "waiting" and not look.status.HasField("pause")
    return Held(1.0, _newest(look, (Waiting, RolledBack, Unpaused), now)) if waits else None


def still_trains(look: Look) -> bool:
    """Whether steps are to come: of a run that failed none are, and nobody is to start nodes for it."""
    return look.status.step < look.status.steps and not is_over(look)


def _no_commit(look: Look, now: float) -> Held | None:
    if not still_trains(look) or look.status.HasField("pause"):
        return None
    history, first = look.history, look.history.notable[0].time if look.history.notable else now
    last = history.times[-1] if history.times else first
    since = max(last, _newest(look, (Unpaused,), last)) + MINUTE
    return Held(0.0, since) if now >= since else None


def _not_replaced(look: Look, now: float) -> Held | None:
    """Looks back over the moments at which nodes came or went, as far as it holds."""
    if not still_trains(look):
        return None
    history, since = look.history, None
    moments = [at for at, _ in history.population if now - QUARTER < at <= now]
    for at in sorted({now, *moments, now - QUARTER}, reverse=True):
        known = [count for when, count in history.population if at - HOUR <= when <= at]
        lost = any(i.lost and at - HOUR <= i.time <= at for i in history.incidents)
        if not lost or not known or known[-1] >= max(known):
            break
        since = at
    left = sum(node.state != "detached" for node in look.status.nodes)
    return Held(left, since) if since is not None else None


def _exposed(look: Look, now: float) -> Held | None:
    # A run that is over is told to fetch its weights; nobody is to add a node to it.
    longest = 0.0 if is_over(look) else max(look.status.exposure.values(), default=0.0)
    return Held(longest, now - longest) if longest > EXPOSED_SECONDS else None


def _no_storage(look: Look, now: float) -> Held | None:
    return Held(1.0, _newest(look, (CheckpointFault,), now)) if look.status.checkpoint_fault else None


def _rolled_back(look: Look, now: float) -> Held | None:
    for entry in reversed(look.history.notable):
        if now - entry.time >= ROLLED_BACK_SECONDS:
            break
        if isinstance(entry.event, RolledBack) and entry.event.work_lost:
            return Held(1.0, entry.time)
    return None


def _too_expensive(look: Look, now: float) -> Held | None:
    cost = look.cost
    rates = [_per_hour(cost, now - QUARTER * part / PARTS) for part in range(PARTS + 1)]
    if cost.done or rates[0] <= DOLLARS_AN_HOUR:
        return None
    return Held(rates[0], now - QUARTER if min(rates) > DOLLARS_AN_HOUR else now)


def _done_and_running(look: Look, now: float) -> Held | None:
    done = look.history.done
    if not look.status.steps or look.status.step < look.status.steps or not look.status.nodes:
        return None
    return Held(1.0, done.time if done is not None else now)


def _newest(look: Look, kinds: tuple[type, ...], now: float) -> float:
    """When an event of one of these kinds was on record last. There may be none: the log keeps the newest alone."""
    return next((entry.time for entry in reversed(look.history.notable) if isinstance(entry.event, kinds)), now)


def _per_hour(cost: pb.GetCostResponse, end: float) -> float:
    """Dollars an hour, over the quarter of an hour before that moment."""
    dollars = 0.0
    for node in cost.nodes:
        until = min(node.ended or end, end)
        dollars += max(0.0, until - max(node.joined, end - QUARTER)) * node.price_per_hour / QUARTER
    return dollars


RULES = (
    Rule(
        "CulmCoordinatorAway",
        "page",
        60.0,
        "No coordinator leads. Start it again under the same name and Redis.",
        _away,
    ),
    Rule(
        "CulmStalled",
        "page",
        30.0,
        "The run stands still, though no node is missing. `culm status` names whom it waits for: look there.",
        _answered(_stalled),
    ),
    Rule(
        "CulmWaitingForNodes",
        "page",
        300.0,
        "The run waits for nodes. Start some: `culm status` says how many it lacks.",
        _answered(_waiting),
    ),
    Rule(
        "CulmNoCommit",
        "page",
        900.0,
        "No step was committed for 15 minutes. `culm status` says what the run waits for.",
        _answered(_no_commit),
    ),
    Rule(
        "CulmNodeNotReplaced",
        "warn",
        600.0,
        "A lost node was not replaced: {{ $value }} are left. Start another one, or see why none joins.",
        _answered(_not_replaced),
    ),
    Rule(
        "CulmStageExposed",
        "warn",
        0.0,
        "A stage has had no hot standby for {{ $value | humanizeDuration }}. Add a node.",
        _answered(_exposed),
    ),
    Rule(
        "CulmCheckpointStorageAway",
        "warn",
        300.0,
        "No checkpoint can be written. `culm status` says why: mend the storage, or the nodes' rights there.",
        _answered(_no_storage),
    ),
    Rule(
        "CulmRolledBack",
        "warn",
        0.0,
        "The run went back: all copies of a stage were lost at once, or nodes computed differently.",
        _answered(_rolled_back),
    ),
    Rule(
        "CulmTooExpensive",
        "warn",
        900.0,
        "The run costs ${{ $value | humanize }} an hour, more than planned. `culm cost` says what for.",
        _answered(_too_expensive),
    ),
    Rule(
        "CulmDoneAndRunning",
        "warn",
        1800.0,
        "The run is done and its nodes still cost. Fetch the weights: `culm weights --out FILE`.",
        _answered(_done_and_running),
    ),
)
