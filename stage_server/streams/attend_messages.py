"""A node's facts as messages to its coordinator, and the coordinator's commits as orders."""

from culm.pipeline.audits import Audited
from culm.pipeline.bookmark import Bookmark
from culm.pipeline.checkpoints.manifest import File
from culm.pipeline.origin import Origin
from culm.pipeline.plan_codec import best_so_far_to_proto, bookmark_to_proto, commit_to_proto, plan_to_proto
from culm.pipeline.tensors.values import Value
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.worker.effects import ReportCaughtUp, ReportReady, ReportResumed
from culm.stage_server.worker.work import Save
from culm.stage_server.worker.worker import Worker


def available(node: pb.Available, worker: Worker[Value]) -> pb.AttendRequest:
    """The node is there, with all that it holds; ``node``: what does not change about it."""
    message = pb.Available()
    message.CopyFrom(node)
    message.era, message.version = worker.era, worker.version
    message.layers.extend(worker.holdings.kept())
    if worker.plan is not None:
        message.holds_state = worker.holds_state
        message.plan.CopyFrom(plan_to_proto(worker.plan))
    if worker.last_commit is not None:
        message.last_commit.CopyFrom(commit_to_proto(worker.last_commit))
    return pb.AttendRequest(available=message)


def built(initial: dict[int, str]) -> pb.AttendRequest:
    return pb.AttendRequest(built=pb.Built(initial=initial))


def read(bookmark: Bookmark) -> pb.AttendRequest:
    """All samples of the step before it have been read here."""
    return pb.AttendRequest(read=bookmark_to_proto(bookmark))


def ready(fact: ReportReady) -> pb.AttendRequest:
    message = pb.Ready(
        era=fact.era,
        step=fact.step,
        stage=fact.stage,
        first_layer=fact.first_layer,
        squared_norms=fact.squared_norms,
        tallies=fact.tallies,
        redone=fact.redone,
        states=fact.states,
        audited=map(_audited, fact.audited),
        taken=map(_audited, fact.taken),
    )
    if fact.order is not None:
        message.term, message.generation = fact.order
    return pb.AttendRequest(ready=message)


def _audited(said: Audited) -> pb.Audited:
    return pb.Audited(pipeline=said.pipeline, stage=said.stage, microbatch=said.microbatch, digest=said.digest)


def caught_up(fact: ReportCaughtUp) -> pb.AttendRequest:
    layers = pb.CaughtUp(era=fact.era, first_layer=fact.first_layer, end_layer=fact.end_layer)
    layers.version, (layers.term, layers.generation) = fact.version, fact.order
    return pb.AttendRequest(caught_up=layers)


def resumed(fact: ReportResumed) -> pb.AttendRequest:
    return pb.AttendRequest(resumed=pb.Resumed(generation=fact.generation, stage=fact.stage))


def saved(asked: Save, files: dict[int, tuple[File, ...]]) -> pb.AttendRequest:
    """This node's share of a checkpoint is written: its files by layer."""
    listed = [
        pb.SavedFile(layer=layer, name=f.name, size=f.size, sha256=f.sha256) for layer, x in files.items() for f in x
    ]
    message = pb.Saved(era=asked.era, step=asked.step, loss=asked.loss, files=listed)
    if asked.best_so_far is not None:
        message.best_so_far.CopyFrom(best_so_far_to_proto(asked.best_so_far))
    return pb.AttendRequest(saved=message)


def unread(era: int, origin: Origin, why: str, absent: bool, damaged_layer: int | None) -> pb.AttendRequest:
    """What the era begins from cannot be read so far."""
    named = pb.Unread(
        era=era,
        step=origin.step,
        folder=origin.folder,
        sha256=origin.sha256,
        why=why[:500],
        absent=absent,
        damaged_layer=damaged_layer,
    )
    return pb.AttendRequest(unread=named)


def being_read(era: int, origin: Origin, seconds: float) -> pb.AttendRequest:
    """What the era begins from has been read for so long, and is not here yet."""
    message = unread(era, origin, f"it has taken {seconds:g} s so far", absent=False, damaged_layer=None)
    message.unread.being_read = True
    return message


def checkpoint_bad(origin: Origin, why: str) -> pb.AttendRequest:
    """A proof against a checkpoint."""
    named = pb.CheckpointBad(step=origin.step, folder=origin.folder, sha256=origin.sha256, why=why[:500])
    return pb.AttendRequest(checkpoint_bad=named)


def fact(fact: ReportReady | ReportCaughtUp | ReportResumed) -> pb.AttendRequest:
    match fact:
        case ReportReady():
            return ready(fact)
        case ReportCaughtUp():
            return caught_up(fact)
        case ReportResumed():
            return resumed(fact)
