"""What a run has cost, and for what, from its event log and nothing else. docs/cost.md has the formulas."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from culm.pipeline.machine import Machine
from culm.pipeline.money.calm_groups import CalmGroups, Groups
from culm.pipeline.money.codec import Entry
from culm.pipeline.money.cost_figures import cost_figures
from culm.pipeline.money.counterfactual import History
from culm.pipeline.money.forecast import forecast
from culm.pipeline.money.interruptions import Interruption, Interruptions, Pending
from culm.pipeline.money.kinds import (
    Committed,
    Dismissed,
    Done,
    Failed,
    Joined,
    Left,
    Lost,
    Paused,
    Planned,
    Priced,
    RolledBack,
    Stopping,
    Tariff,
    TookOver,
    Unpaused,
    Used,
)
from culm.pipeline.money.lives import Life, Lives
from culm.pipeline.money.trained_steps import Mark, Moment, TrainedSteps
from culm.pipeline.money.usage import USES, Usage
from culm.protos import coordinator_pb2 as pb

__all__ = ["USES", "Ledger"]

# The ledger hears every event once, in the order of the log, and moves money at events only. Asking for figures moves
# nothing. So the same events give the same figures to the last bit: live, replayed from a file, or by a coordinator
# that goes on from the document of the one before.
#
#     event                      what is counted                                          where
#     -----                      ---------------                                          -----
#     joined, lost, left,        a machine is paid from here on, up to here               lives
#       dismissed, price
#     tariff                     what runs beside the nodes, from the first tariff on     fixed, here
#     usage                      where machines' time went; bytes between zones; what     usage
#                                tensor workers cost
#     plan, commit, rollback     the steps that count; when the one that runs began       trained_steps
#     lost, rollback,            what went wrong, charged at the commit that follows      interruptions
#       recovered_coordinator,
#       commit
#     paused, unpaused           a pause, charged when it is over                         interruptions
#     joined, lost, ...          how many nodes there were, for the comparison            counterfactual
#     plan, commit               how long calm steps take, of all shapes and the present  calm_groups
#     done                       the figures of that moment are told from then on         ended, here
#
# Nodes that stay for the weights of a run that is done are not in its figures. All the same events after its end are
# counted: once every copy is lost it rolls back and trains again, and then what it has cost since counts too.
#
# The money spent by a moment is the lives that ended, the lives that go on, what runs beside the nodes, transfer, and
# tensor workers: always added in this order, since floats added in another one differ in their last bit.


class Ledger:
    """Takes the events of one run in their order; ``figures`` may be asked for at any time."""

    def __init__(self) -> None:
        self._lives = Lives()
        self._steps = TrainedSteps()
        self._interruptions = Interruptions()
        self._usage = Usage()
        self._history = History()
        # Unix seconds of the newest event. Invariant: never goes back. Clocks of two coordinators differ, and those of
        # older versions were set back: an event that is earlier than the one before counts as if both came at once.
        self.at = 0.0
        # What runs beside the nodes is paid as a life of no node. Invariant: it costs nothing until it has a price.
        self._fixed = Life(node="", incarnation=0, machine=Machine(), joined=0.0, since=0.0)
        self._ended: pb.GetCostResponse | None = None  # the figures as of the run's end; None: it is not done
        self._paused: Moment | None = None  # when the present pause began, and what was spent by then
        self._calm = CalmGroups()
        # Why no step is to come, in words, though the run is not done. Nodes that come again, or a job that was mended,
        # end that: a plan says so, and a rollback before it.
        self._over = ""
        self._waits = ""  # why no step runs until the next plan, in words

    # ---- events -----------------------------------------------------------------------------------------------------

    def take(self, entry: Entry) -> None:
        """Counts the next event of the log. Raises ValueError for a step that cannot be."""
        at = self.at = max(self.at, entry.time)
        event = entry.event
        match event:
            case Joined():
                self._joined(at, event)
            case Priced():
                self._lives.price(at, event)
            case Tariff():
                self._tariff(at, event)
            case Used():
                self._usage.take(at, event, self._lives)
            case Planned():
                self._over = self._waits = ""
                self._calm.plan(event.stages)
                if self._steps.plan(at, entry.step, event, self._spent(at)):
                    self._history.begin(at)
            case Committed():
                self._commit(at, event.step)
            case RolledBack():
                self._rolled_back(at, event.step)
            case Paused():
                self._paused = self._paused or Moment(at, self._spent(at))
            case Unpaused():
                self._go_on(at, entry.step)
            case Failed():
                self._over = "the run has failed"
            case Stopping():
                self._over = "every node is to go"
            case TookOver():
                if self._steps.begun is not None:
                    self._interruptions.happen("coordinator", at, entry.step, "")
            case Done():
                self._ended = self._ended or self._figures(at, done=True)
            case Lost():
                self._lost(at, entry.step, event)
                self._end(at, event.node)
            case Left() | Dismissed():
                self._end(at, event.node)

    def _joined(self, at: float, event: Joined) -> None:
        known = self._lives.open.get(event.node)
        if known is not None and known.incarnation == event.incarnation:
            return
        self._end(at, event.node)  # the log of a leader that died may lack the end of the one before
        self._lives.join(at, event)
        self._history.nodes(at, len(self._lives.open))

    def _end(self, at: float, node: str) -> None:
        if self._lives.end(at, node):
            self._history.nodes(at, len(self._lives.open))

    def _lost(self, at: float, committed: int, event: Lost) -> None:
        if self._steps.begun is None:
            return  # no training was held up
        # Of the step that it happened in: by the time it is on record, that may be committed.
        step = event.step if event.step is not None else committed
        self._interruptions.happen("lost", at, step, event.node)
        if event.stages:
            self._history.lost(at)

    def _tariff(self, at: float, event: Tariff) -> None:
        if not self._fixed.priced:
            self._fixed.joined = self._fixed.since = at
        self._fixed.settle(at)
        self._fixed.priced = True
        self._fixed.per_hour = event.fixed_per_hour
        self._history.restart_seconds = event.restart_seconds
        self._history.checkpoint_seconds = event.checkpoint_seconds

    def _commit(self, at: float, step: int) -> None:
        if step < 0:
            raise ValueError(f"step {step}")
        began = self._steps.since
        if began is None:
            return  # the plan is not on record: nobody knows what a step is
        dollars = self._spent(at)
        paused_seconds, paused_dollars = self._interruptions.pauses_since(began.time)
        seconds = at - began.time - paused_seconds
        is_calm = self._interruptions.step_ended(
            began=began.time,
            seconds=seconds,
            dollars=dollars - began.dollars - paused_dollars,
            follows=step == self._steps.committed,
        )
        if is_calm:
            self._calm.take(seconds)
        self._steps.commit(at, step, seconds, dollars)

    def _go_on(self, at: float, step: int) -> None:
        began, self._paused = self._paused, None
        if began is None or self._steps.since is None:
            return
        began = max(began, self._steps.since)  # a pause may begin before training does
        seconds, dollars = at - began.time, self._spent(at) - began.dollars
        self._interruptions.paused(at=began.time, step=step, seconds=seconds, dollars=dollars)

    def _rolled_back(self, at: float, step: int) -> None:
        self._over, self._ended = "", None
        if self._steps.begun is None:
            return
        self._waits = "the run waits for nodes since a rollback"
        self._steps.roll_back(step)
        self._interruptions.happen("rollback", at, step, "")

    # ---- what a successor goes on from -------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """All of it as JSON-able data. Stores hold documents of coordinators before: no name here ever changes."""
        lives, steps, usage = self._lives, self._steps, self._usage
        return {
            "_at": self.at,
            "_closed_dollars": lives.ended_dollars,
            "_begun": steps.begun,
            "_begun_dollars": steps.begun_dollars,
            "_done": self._ended.as_of if self._ended is not None else None,
            "_ended": b64encode(self._ended.SerializeToString()).decode() if self._ended is not None else None,
            "_paused": self._paused,
            "_first_step": steps.first,
            "_committed": steps.committed,
            "_samples_per_step": steps.samples,
            "_tokens_per_step": steps.tokens,
            "_chunks": steps.chunks,
            "_stages": steps.stages,
            "_owners": [steps.owners, steps.stepped, steps.owner_seconds],
            "_asked": steps.asked,
            "_marks": steps.marks,
            "_since": steps.since,  # for older readers: it follows from the marks
            "_lost_seconds": self._interruptions.lost_seconds,
            "_by_use": usage.dollars,
            "_transfer": usage.transfer_dollars,
            "_crossing_bytes": usage.crossing_bytes,
            "_worker_dollars": usage.worker_dollars,
            "_gigabyte_seconds": usage.gigabyte_seconds,
            "_machines_before": lives.left_out_dollars,
            "_on_demand_before": lives.left_out_on_demand,
            "lives": [asdict(life) for life in lives.known],
            "open": [[life.node, life.incarnation] for life in lives.open.values()],
            "newest": [[life.node, life.incarnation] for life in lives.newest.values()],
            "fixed": asdict(self._fixed),
            "calm": list(self._interruptions.calm),
            "pending": [asdict(p) for p in self._interruptions.pending],
            "interruptions": [asdict(x) for x in self._interruptions.charged],
            "history": asdict(self._history),
            "calm_groups": asdict(self._calm),
            "_over": self._over,
            "_waits": self._waits,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Ledger":
        """What ``to_document`` was made from. Raises KeyError, TypeError or ValueError for what is none."""
        ledger = cls()
        ledger.at = document.get("_at", 0.0)  # older documents lack it
        known = [_life(x) for x in document["lives"]]
        by_incarnation = {(life.node, life.incarnation): life for life in known}
        ledger._lives = Lives(
            known=known,
            by_incarnation=by_incarnation,
            newest={node: by_incarnation[node, incarnation] for node, incarnation in document["newest"]},
            open={node: by_incarnation[node, incarnation] for node, incarnation in document["open"]},
            ended_dollars=document["_closed_dollars"],
            left_out_dollars=document["_machines_before"],
            left_out_on_demand=document["_on_demand_before"],
        )
        # A coordinator of a version before kept no owners: then there are as many as stages until the next plan.
        owners, stepped, owner_seconds = document.get("_owners", (document["_stages"], 0.0, 0.0))
        ledger._steps = TrainedSteps(
            begun=document["_begun"],
            begun_dollars=document.get("_begun_dollars", 0.0),  # older documents lack it
            first=document["_first_step"],
            committed=document["_committed"],
            samples=document["_samples_per_step"],
            tokens=document["_tokens_per_step"],
            chunks=document.get("_chunks", 0),  # older documents lack it
            stages=document["_stages"],
            owners=owners,
            stepped=stepped,
            owner_seconds=owner_seconds,
            asked=document.get("_asked", 0),  # older documents lack it
            marks=[Mark(int(step), at, money) for step, at, money in document["_marks"]],
        )
        interruptions = ledger._interruptions
        interruptions.charged = [Interruption(**x) for x in document["interruptions"]]
        interruptions.lost_seconds = document["_lost_seconds"]
        interruptions.calm.extend(document["calm"])
        interruptions.pending.extend(Pending(**p) for p in document["pending"])
        ledger._usage = Usage(
            dollars=document["_by_use"],
            transfer_dollars=document["_transfer"],
            crossing_bytes=document["_crossing_bytes"],
            worker_dollars=document.get("_worker_dollars", 0.0),
            gigabyte_seconds=document.get("_gigabyte_seconds", 0.0),
        )
        ledger._history = History(**document["history"])
        ledger._fixed = _life(document["fixed"])
        if calm := document.get("calm_groups"):
            groups = {name: Groups(**calm[name]) for name in ("whole", "present")}
            ledger._calm = CalmGroups(**{**calm, **groups})
        ledger._over, ledger._waits = document.get("_over", ""), document.get("_waits", "")
        ledger._paused = None if (since := document.get("_paused")) is None else Moment(since[0], since[1])
        if ended := document.get("_ended"):
            ledger._ended = pb.GetCostResponse.FromString(b64decode(ended))
        elif document["_done"] is not None:  # older documents know nothing that came after the end
            ledger._ended = ledger._figures(document["_done"], done=True)
        return ledger

    # ---- figures ----------------------------------------------------------------------------------------------------

    def _spent(self, now: float) -> float:
        lives, fixed, usage = self._lives, self._fixed_dollars(now), self._usage
        nodes = lives.ended_dollars + lives.open_dollars(now)
        return nodes + fixed + usage.transfer_dollars + usage.worker_dollars

    def _fixed_dollars(self, now: float) -> float:
        return self._fixed.dollars(now) if self._fixed.priced else 0.0

    def dollars(self, now: float) -> float:
        """So far, as of ``now``; after the run's end, as of the end."""
        return self._ended.dollars if self._ended is not None else self._spent(max(now, self.at))

    def dollars_per_hour(self) -> float:
        """Of all that runs now."""
        return self._lives.per_hour() + self._fixed.per_hour

    def life_of(self, node: str) -> Life | None:
        """The node that takes part under this name."""
        return self._lives.open.get(node)

    def figures(self, now: float) -> pb.GetCostResponse:
        """Everything that the ledger knows, at ``now`` in unix seconds; after the run's end, as of the end."""
        if self._ended is None:
            return self._figures(max(now, self.at), done=False)
        cost = pb.GetCostResponse()
        cost.CopyFrom(self._ended)
        return cost

    def _figures(self, at: float, done: bool) -> pb.GetCostResponse:
        cost = cost_figures(
            at=at,
            done=done,
            dollars=self._spent(at),
            dollars_per_hour=self.dollars_per_hour(),
            fixed_dollars=self._fixed_dollars(at),
            lives=self._lives,
            steps=self._steps,
            interruptions=self._interruptions,
            lost_seconds=self._interruptions.lost_seconds + self._being_lost(at),
            usage=self._usage,
            history=self._history,
        )
        cost.forecast.CopyFrom(self._forecast(at, done))
        return cost

    def _being_lost(self, at: float) -> float:
        """Seconds of what is charged only once it is over: a pause, and a step that is held up, or is not to end."""
        began, interruptions = self._steps.since, self._interruptions
        if began is None:
            return 0.0
        pausing = at - max(self._paused.time, began.time) if self._paused is not None else 0.0
        if not (interruptions.pending or self._over or self._waits):
            return pausing
        seconds = at - began.time - interruptions.pauses_since(began.time)[0] - pausing
        return pausing + interruptions.lost_in_step(began.time, seconds)

    def _forecast(self, at: float, done: bool) -> pb.Forecast:
        """Of the rest of the run. Nothing of it is part of what was spent."""
        return forecast(
            at=at,
            over="the run is done" if done else self._over,
            waits=self._waits,
            paused_at=self._paused.time if self._paused is not None else None,
            dollars_per_hour=self.dollars_per_hour(),
            lives=self._lives,
            steps=self._steps,
            calm=self._calm,
            interruptions=self._interruptions,
            usage=self._usage,
        )


def _life(document: Mapping[str, Any]) -> Life:
    return Life(**{**document, "machine": Machine(**document["machine"])})
