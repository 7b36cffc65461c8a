"""Asks the nodes of a run for a step's timetable: the coordinator says who they are, and they say what they did."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from culm.pipeline.errors import JobError
from culm.pipeline.patience import DEFAULT, Patience
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.tls import open_channel
from culm.pipeline.text import natural_order
from culm.pipeline.timetable import Timetable
from culm.pipeline.timetable_codec import Told, Untrue, from_proto
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2
from culm.protos.stage_pb2_grpc import TimetablesStub

ANSWER_SECONDS = 5.0  # for a node's answer
AT_ONCE = 16  # nodes that are asked at the same time


@dataclass(frozen=True, slots=True)
class Gathered:
    """``timetables``: one for each step that was asked for, in order; ``kept``: steps that every node has whole."""

    timetables: tuple[Timetable, ...]
    kept: range
    silent: Mapping[str, str] = field(default_factory=dict)  # why a node is not in them, in words


class Nodes:
    """The nodes of a run that hold layers, each with a channel. Closes them on leaving."""

    def __init__(self, status: pb.GetStatusResponse, patience: Patience) -> None:
        addresses = {member.node: member.address for member in status.plan.members}
        owners = {owner for stage in status.plan.stages for owner in stage.owners}
        standbys = {standby.node for stage in status.plan.stages for standby in stage.standbys}
        self.names = [name for name in natural_order(owners | standbys) if addresses.get(name)]
        self.silent: dict[str, str] = {}
        self._channels = {name: open_channel(addresses[name], "stage", patience) for name in self.names}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="timetable")

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for channel in self._channels.values():
            channel.close()

    def ask(self, step: int | None) -> dict[str, Told]:
        """What each node tells of a step, or only which steps it has. One that does not answer is not asked again."""
        asked = [name for name in self.names if name not in self.silent]
        found: dict[str, Told] = {}
        for name, told in zip(asked, self._pool.map(lambda name: self._ask(name, step), asked), strict=True):
            if isinstance(told, Told):
                found[name] = told
            else:
                self.silent[name] = told
        return found

    def _ask(self, name: str, step: int | None) -> Told | str:
        try:
            pieces = TimetablesStub(self._channels[name]).GetTimetable(
                stage_pb2.GetTimetableRequest(step=step), timeout=ANSWER_SECONDS
            )
            return from_proto(name, iter(pieces))
        except Untrue as error:
            return f"{name} tells what cannot be true: {error}"
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return f"{name} runs a version of Culm that keeps no timetable; start it with this version"
            return f"{name} does not answer: {details(error)}"


def gather(
    status: pb.GetStatusResponse, step: int | None = None, steps: int = 1, patience: Patience = DEFAULT
) -> Gathered:
    """The timetables of so many steps, the last one being ``step``, or the newest that all nodes have whole.

    Raises JobError where no node answers, or a step is not kept.
    """
    with Nodes(status, patience) as nodes:
        if not nodes.names:
            over = status.phase == "done"  # and the nodes were let go
            mend = "ask while the nodes are there: [job] keep_after_done" if over else "wait until it trains"
            raise JobError("no node holds a stage, so there is no timetable", "the run", mend)
        kept = _common(told.steps for told in nodes.ask(None).values())
        if len(nodes.silent) == len(nodes.names):
            mend = "ask from a machine that reaches the nodes' addresses, which culm status --json lists"
            raise JobError(f"no node answers: {next(iter(nodes.silent.values()))}", "the run's nodes", mend)
        last = kept.stop - 1 if step is None else step
        if last not in kept:
            raise _not_kept(last, kept)
        wanted = range(max(kept.start, last + 1 - steps), last + 1)
        found = [_timetable(each, nodes.ask(each), nodes.silent) for each in wanted]
        if found[-1].is_empty:  # dropped since the nodes said what they have
            raise _not_kept(last, kept)
        return Gathered(tuple(found), kept, dict(nodes.silent))


def _common(kept: Iterable[range]) -> range:
    """The steps that all of them have; of a node that has none nothing is expected."""
    some = [each for each in kept if each]
    start, stop = max((each.start for each in some), default=0), min((each.stop for each in some), default=0)
    return range(start, max(start, stop))


def _not_kept(step: int, kept: range) -> JobError:
    if not kept:
        return JobError(
            "no step is kept whole by all nodes yet", "the run's nodes", "ask again when a step is committed"
        )
    which = f"step {kept.start}" if len(kept) == 1 else f"steps {kept.start} to {kept.stop - 1}"
    what = "is not over yet" if step >= kept.stop else "is no longer kept"
    return JobError(f"step {step} {what}: the nodes have {which}", "--step", "name one of these")


def _timetable(step: int, told: Mapping[str, Told], silent: Mapping[str, str]) -> Timetable:
    lanes = tuple(each.lane for each in told.values())
    schedule = next(iter(told.values())).schedule if told else None
    if schedule is None:
        raise JobError(f"no node answers any more: {next(iter(silent.values()))}", "the run's nodes", "ask again")
    return Timetable(step=step, schedule=schedule, lanes=lanes, silent=dict(silent))
