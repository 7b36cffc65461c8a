"""How a run stands, in words: its phase, what everybody has to know, and what there is when it is over. Pure."""

import math
from dataclasses import dataclass
from datetime import UTC, tzinfo

from culm.pipeline.counting import STEPS, counted
from culm.pipeline.epochs import in_words
from culm.pipeline.money.example_prices import WORDS as EXAMPLE_PRICES
from culm.pipeline.money.example_prices import at_example_prices
from culm.protos import coordinator_pb2 as pb
from culm.ui.counting import counting
from culm.ui.look import Look
from culm.ui.words import fewer, moment, money, seconds_left, span

EXPOSED_SHOWN = 4  # stages that a warning names
AWAITED_SHOWN = 4  # nodes that a stalled run is said to wait for


@dataclass(frozen=True, kw_only=True)
class Standing:
    """``word`` and ``tone`` are the phase; ``told`` is where the run is, in one line."""

    word: str
    tone: str
    name: str
    told: str
    share: float | None  # of its steps; None: nobody knows


def is_over(look: Look) -> bool:
    """Whether nothing more will be trained. It stays so when the nodes go, and when the coordinator does.

    A coordinator that answers knows best: a run that failed, or was done, may have gone on since.
    """
    phase, history = look.status.phase, look.history
    if phase in ("done", "failed"):
        return True
    answers = phase and not look.problem
    return not answers and (history.done is not None or history.failed is not None)


def is_done(look: Look) -> bool:
    """Whether it is over, and did not fail."""
    if look.status.phase in ("done", "failed"):
        return look.status.phase == "done"
    return is_over(look) and look.history.failed is None


def has_price(cost: pb.GetCostResponse) -> bool:
    """Whether there is a price of any node: without one nothing is known of what the run costs.

    Nor is it while the coordinator waits for Redis, to read what the run has cost before: its dollars are no number.
    """
    known = bool(cost.dollars) and not math.isnan(cost.dollars)
    return known or (len(cost.nodes) > 0 and not cost.unpriced)


def _made_up(cost: pb.GetCostResponse) -> str:
    return f" at {EXAMPLE_PRICES}" if at_example_prices(cost.nodes) else ""


def seconds_to_end(look: Look) -> float | None:
    """As foreseen, or at the present speed as long as that is not; None while neither is known."""
    status, foreseen = look.status, look.cost.forecast
    if foreseen.HasField("seconds"):
        return foreseen.seconds.expected
    return seconds_left(status.step, status.steps, status.samples_per_second, status.samples_per_step)


def standing(look: Look) -> Standing:
    status, history, of = look.status, look.history, counting(look)
    name = status.job or "no run"
    share = status.step / status.steps if status.steps else None
    if is_done(look):
        ended = f", after {span(history.done.time - history.begun)}" if history.done and history.begun else ""
        paid = f", for {money(look.cost.dollars)}{_made_up(look.cost)}" if has_price(look.cost) else ""
        trained = f"{status.step or history.steps_done():,} {of.step}s{ended}{paid}"
        return Standing(word="finished", tone="good", name=name, told=trained, share=1.0)
    where = f"{of.step} {status.step:,} of {status.steps:,}" if status.steps else f"no {of.step} yet"
    epoch = in_words(status, status.step)
    if epoch and of is STEPS:
        where += f", {epoch}"
    if is_over(look):
        return Standing(word="failed", tone="bad", name=name, told=where, share=share)
    if not status.phase:
        return Standing(word="no answer", tone="leaving", name=name, told="", share=None)
    if look.problem:
        return Standing(word="no answer", tone="leaving", name=name, told=f"{where} when it last answered", share=share)
    if look.ended:
        return Standing(word="broke off", tone="leaving", name=name, told=where, share=share)
    if status.phase == "waiting":
        return Standing(word="waiting", tone="coming", name=name, told=where, share=share)
    if status.phase == "paused":
        return Standing(word="paused", tone="coming", name=name, told=where, share=share)
    left = seconds_to_end(look) if not status.stalled_seconds else None
    rest = f", about {span(left)} left" if left is not None else ""
    tone, word = ("bad", "stalled") if status.stalled_seconds else ("good", "running")
    return Standing(word=word, tone=tone, name=name, told=where + rest, share=share)


def alerts(look: Look, zone: tzinfo = UTC) -> list[tuple[str, str]]:
    """What everybody has to know now: (tone, words)."""
    status, found = look.status, []
    if look.problem and not (is_over(look) and look.status.phase):
        found.append(
            ("leaving", f"{look.problem}{f' It last answered at {moment(look.at, zone)}.' if look.at else ''}")
        )
    elif look.problem:
        found.append(("resting", "The coordinator does not answer any more. The run is over: this is how it ended."))
    if look.reading:
        found.append(("coming", f"The run's log is being read: {look.reading:,} events so far."))
    if is_over(look):
        if not is_done(look):
            why = look.history.failed.text if look.history.failed else status.detail
            found.append(("bad", f"The run failed: {status.detail or why}"))
        return found
    if status.phase == "waiting":
        found.append(("coming", _told("waiting", status.detail)))
    elif status.phase == "paused":
        found.append(("coming", _told("paused", status.detail)))
    if status.stalled_seconds:
        found.append(
            ("bad", f"No commit for {span(status.stalled_seconds)}. Waiting for {fewer(status.awaited, AWAITED_SHOWN)}")
        )
    if status.checkpoint_fault:
        found.append(("leaving", f"No checkpoint can be written: {status.checkpoint_fault}"))
    exposed = sorted(
        ((seconds, s) for s, seconds in status.exposure.items() if seconds > 0), key=lambda x: (-x[0], x[1])
    )
    if exposed and status.phase == "running" and has_had_several(look):
        part = counting(look).part
        named = ", ".join(f"{part} {s} for {exposure(seconds)}" for seconds, s in exposed[:EXPOSED_SHOWN])
        more = f", and {counted(len(exposed) - EXPOSED_SHOWN, f'more {part}')}" if len(exposed) > EXPOSED_SHOWN else ""
        found.append(("leaving", f"Without a hot standby: {named}{more}"))
    return found


def has_had_several(look: Look) -> bool:
    """Whether there are several nodes, or were: a run that was begun with one node is to have no second copies."""
    return len(look.status.nodes) > 1 or any(count > 1 for _, count in look.history.population)


def _told(phase: str, detail: str) -> str:
    """A phase and what it means now: the coordinator often begins with the phase itself."""
    return f"{phase.capitalize()}{detail[len(phase) :] if detail.startswith(phase) else f': {detail}'}"


def nobody_is_here(look: Look) -> str:
    """Of a run without nodes that goes on, or of which nothing is known."""
    return "No node is here. Start one with culm stage." if look.status.phase else "Nothing is known of the run yet."


def exposure(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)


def result(look: Look, zone: tzinfo = UTC) -> list[tuple[str, str]]:
    """What there is of a run that is over: (what, in words)."""
    status, cost, history, of = look.status, look.cost, look.history, counting(look)
    ended = history.done or history.failed
    found = []
    if ended is not None:
        lasted = f", {span(ended.time - history.begun)} after the first plan" if history.begun else ""
        found.append(("ended", f"{moment(ended.time, zone)}{lasted}"))
    if status.stopped_early:
        found.append(("ended early", status.stopped_early))
    found.append(("weights", weights(look)))
    last_loss = f"{history.losses[-1]:.4f} in {of.step} {history.steps[-1]:,}" if history.losses else ""
    if last_loss:
        found.append(("last loss", last_loss))
    if history.evaluations:
        step, values = max(history.evaluations.items())
        found.append((f"evaluated after step {step:,}", ", ".join(f"{n} {v:.4g}" for n, v in values.items())))
    known = has_price(cost)
    parts = [f"{money(cost.dollars)} in all{_made_up(cost)}" if known else "no price is known"]
    if known and cost.samples:
        parts.append(f"{money(of.price(cost.dollars_per_thousand_samples))} for {of.priced}")
    if known and cost.tokens:
        parts.append(f"{money(cost.dollars_per_million_tokens)} for a million tokens")
    found.append(("cost", ", ".join(parts)))
    lost = sum(i.lost for i in history.incidents)
    handed = sum(1 for i in history.incidents if i.kind == "handover")
    found.append(("nodes lost", f"{lost}; handed over in time: {handed}"))
    return found


def weights(look: Look) -> str:
    """Where the weights of a run that is over are."""
    status, history = look.status, look.history
    folder = status.checkpoint_folder or (history.checkpoint.folder if history.checkpoint else "")
    at = status.checkpoint or (history.checkpoint.step if history.checkpoint else 0)
    trained = status.step or history.steps_done()
    if folder and at >= trained > 0:
        return f"in the checkpoint {folder}"
    if history.fetched is not None and is_done(look):
        return history.fetched.text
    if status.kept_seconds > 0 and not look.problem:
        dollars = look.cost.dollars_per_hour * status.kept_seconds / 3600
        costs = f", which costs {money(dollars)}{_made_up(look.cost)}" if dollars else ""
        return f"on the nodes, for {span(status.kept_seconds)} more{costs}: culm weights --out FILE fetches them"
    newest = f"; the newest checkpoint is of step {at:,}: {folder}" if folder else ""
    if not is_done(look):
        return f"training did not come to its end{newest}"
    if look.problem and status.nodes:
        return (
            f"on the nodes, when the coordinator was last heard; the log names no checkpoint of the last step{newest}"
        )
    return f"the nodes have gone, and the log names no checkpoint of the last step{newest}"
