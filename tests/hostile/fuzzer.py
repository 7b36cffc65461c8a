"""Messages that are nearly right: valid ones, changed field by field, and streams of them in any order.

What a holder of the certificate may truly say is left out: that a node fails, or a fact of the present era. Whoever has
a stage's certificate computes the weights, and is trusted with that (docs/security.md).
"""

import math
import random
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from culm.pipeline.version import PROTOCOL_VERSION
from culm.protos import coordinator_pb2 as pb
from culm.protos import stage_pb2, tensor_pb2

PATIENCE = 20.0  # seconds that a stream may take; it ends by what is wrong with it, or by its end
MOST_IN_A_STREAM = 12
NAMES = 16  # under which the coordinator is attended
ATTEND = "/culm.v1.Coordinator/Attend"
INTEGERS = (0, 1, 2, 3, 4, 15, 16, 17, 255, 1 << 16, (1 << 20) + 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
LARGE = (1 << 32, 1 << 40, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
DOUBLES = (0.0, -0.0, -1.0, 1e-300, 1e300, math.inf, -math.inf, math.nan)
TEXTS = ("", "n9", "../../x", "a/b", "\x1b[2J", "[red]x[/red]", "x" * 65, "y" * 5000, "\u202e", "12:2B3", "²:x", "n9\n")
OTHER_ERA = 77
WIDE = (FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_INT64)
FLOATING = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def mutate(message: Message, draw: random.Random, share: float = 0.3) -> None:
    """Gives about this share of the fields, those within fields too, another value."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.containing_oneof is not None and not message.HasField(field.name):
            continue
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            _mutate_messages(message, field, draw, share)
        elif draw.random() < share:
            if field.is_repeated:
                count = draw.choice([0, 1, 2, 5, 300])
                getattr(message, field.name)[:] = [_value(field, draw) for _ in range(count)]
            else:
                setattr(message, field.name, _value(field, draw))


def _mutate_messages(message: Message, field: Any, draw: random.Random, share: float) -> None:
    if field.is_repeated:
        found = getattr(message, field.name)
        if draw.random() < share:
            for _ in range(draw.choice([1, 1, 2, 40])):
                mutate(found.add(), draw, 0.6)
        for each in found:
            mutate(each, draw, share)
    elif message.HasField(field.name):
        if draw.random() < share / 3:
            message.ClearField(field.name)
        else:
            mutate(getattr(message, field.name), draw, share)
    elif draw.random() < share / 3:
        inner = getattr(message, field.name)
        inner.SetInParent()
        mutate(inner, draw, 0.6)


def _value(field: Any, draw: random.Random) -> Any:
    if field.cpp_type in FLOATING:
        return draw.choice(DOUBLES)
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return draw.random() < 0.5
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return draw.choice([0, 1, 2, 3, 4, 5, 6, 99])
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        text = draw.choice([*TEXTS, "float32", "quint8", "float64"])
        return text if field.type == FieldDescriptor.TYPE_STRING else draw.randbytes(draw.choice([0, 1, 7, 4000]))
    return draw.choice([*INTEGERS, *LARGE] if field.cpp_type in WIDE else INTEGERS)


def spoil(data: bytes, draw: random.Random) -> bytes:
    """Mostly as it is; else cut off, with unknown fields, with other bits, or any bytes at all."""
    how = draw.random()
    if how < 0.7:
        return data
    if how < 0.78:
        return data[: draw.randrange(len(data) + 1)]
    if how < 0.86:  # an unknown field: number 2047, with so many bytes
        return data + b"\xfa\x7f" + bytes((draw.choice([0, 1, 5, 127]),)) + b"rubbish"
    if how < 0.94 and data:
        flipped = bytearray(data)
        for _ in range(draw.choice([1, 1, 3])):
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    return draw.randbytes(draw.choice([0, 1, 2, 3, 17, 300]))


# ---- the coordinator -------------------------------------------------------------------------------------------------


def reports() -> list[pb.AttendRequest]:
    """One of each kind."""
    plan = pb.Plan(term=1, generation=1, members=[pb.Member(node="n9", incarnation=1)])
    plan.stages.add(first_layer=0, end_layer=6, owners=["n9"])
    file = pb.SavedFile(name="layer-00000.safetensors", size=9, sha256="0" * 64)
    counts, era = [1] * 6, OTHER_ERA
    return [
        pb.AttendRequest(available=pb.Available(layer_parameters=counts, fingerprint="x", plan=plan, layers=[0])),
        pb.AttendRequest(available=pb.Available(layer_parameters=counts, last_commit=pb.Commit(step=1), version=2)),
        pb.AttendRequest(heartbeat=pb.Heartbeat(times=pb.TimeSplit(forward=1.0), instruction="0F0")),
        pb.AttendRequest(heartbeat=pb.Heartbeat(resources=pb.Resources(seconds=1.0, accelerator_busy=0.5))),
        pb.AttendRequest(heartbeat=pb.Heartbeat(log_lines=[pb.LogLine(number=1, time=1.0, text="joined")])),
        pb.AttendRequest(ready=pb.Ready(era=era, squared_norms=[1.0], tallies=[1.0] * 4)),
        pb.AttendRequest(resumed=pb.Resumed(generation=1)),
        pb.AttendRequest(peer_lost=pb.PeerLost(node="n9", incarnation=1, why="it broke")),
        pb.AttendRequest(leave=pb.Leave(why="it goes")),
        pb.AttendRequest(draining=pb.Draining(why="it goes", seconds_left=5.0)),
        pb.AttendRequest(saved=pb.Saved(era=era, step=1, files=[file])),
        pb.AttendRequest(checkpoint_bad=pb.CheckpointBad(step=1, why="torn")),
        pb.AttendRequest(warned=pb.Warned(why="perhaps")),
        pb.AttendRequest(caught_up=pb.CaughtUp(era=era, end_layer=6)),
        pb.AttendRequest(join=pb.Join(node="n9", incarnation=1, protocol_version=PROTOCOL_VERSION)),
    ]


def attend_stream(draw: random.Random, name: str, incarnation: int) -> list[bytes]:
    """Mostly a join under a name of its own, then anything; sometimes anything first."""
    join = pb.Join(node=name, incarnation=incarnation, address="127.0.0.1:1", protocol_version=PROTOCOL_VERSION)
    if draw.random() < 0.15:
        mutate(join, draw)
        join.term = 0  # a higher one is a later leader's
    first = [pb.AttendRequest(join=join).SerializeToString()] if draw.random() < 0.9 else []
    out = [*first]
    for _ in range(draw.randrange(1, MOST_IN_A_STREAM)):
        report = draw.choice(reports())
        if draw.random() < 0.8:
            mutate(report, draw)
        for fact in (report.ready, report.saved, report.caught_up) if report.WhichOneof("body") in FACTS else ():
            if fact.era == 0 and report.WhichOneof("body") == _name_of(fact):
                fact.era = OTHER_ERA
        if report.HasField("join"):
            report.join.term = 0
        data = report.SerializeToString()
        out.append(spoil(data, draw) if not report.HasField("join") else data)
        if draw.random() < 0.1:
            out.append(out[-1])
    return [data for data in out if not _fails(data)]


FACTS = ("ready", "saved", "caught_up")


def _name_of(fact: Message) -> str:
    return {"Ready": "ready", "Saved": "saved", "CaughtUp": "caught_up"}[fact.DESCRIPTOR.name]


def _fails(data: bytes) -> bool:
    """Whether spoilt bytes have become what a node may say with effect: that it fails, or a fact of the present era."""
    try:
        request = pb.AttendRequest.FromString(data)
    except Exception:  # protobuf's several kinds of errors
        return False
    body = request.WhichOneof("body")
    fact = getattr(request, body) if body in FACTS else None
    led = body == "join" and (request.join.term > 0 or request.join.node in ("n0", "n1", "n2"))
    return body == "failed" or led or (fact is not None and fact.era == 0)


def asked(draw: random.Random) -> tuple[str, bytes]:
    """One call of an operator or a viewer."""
    method, message = draw.choice(
        [
            ("Kill", pb.KillRequest(node="n9", at="1:0F0")),
            ("Drain", pb.DrainRequest(node="n9", why="so")),
            ("GetStatus", pb.GetStatusRequest()),
            ("GetCost", pb.GetCostRequest()),
        ]
    )
    mutate(message, draw, 0.6)
    return method, spoil(message.SerializeToString(), draw)


# ---- a stage ---------------------------------------------------------------------------------------------------------


def deliveries() -> list[stage_pb2.DeliverRequest]:
    """One of each kind."""
    key = tensor_pb2.Key(era=OTHER_ERA, step=1, kind=tensor_pb2.KIND_REDUCED, stage=1, index=1)
    near = tensor_pb2.Key(step=1, kind=tensor_pb2.KIND_ACTIVATION, index=1)
    spec = tensor_pb2.TensorSpec(name="grad.weight", dtype="float32", shape=[32, 64])
    header = tensor_pb2.ValueHeader(tensors=[spec], total_bytes=8192)
    one = tensor_pb2.ValueHeader(
        tensors=[tensor_pb2.TensorSpec(name="output", dtype="float32", shape=[2])], total_bytes=8
    )
    memory = stage_pb2.Memory(pid=1, file=3, secret=b"0" * 16)
    return [
        stage_pb2.DeliverRequest(hello=stage_pb2.Hello(node="hostile", incarnation=1, generation=1, memory=memory)),
        stage_pb2.DeliverRequest(chunk=tensor_pb2.Chunk(key=key, header=header, payload=bytes(8192), term=1)),
        stage_pb2.DeliverRequest(chunk=tensor_pb2.Chunk(key=near, header=one, payload=bytes(8), term=1, generation=9)),
        stage_pb2.DeliverRequest(chunk=tensor_pb2.Chunk(key=near, header=one, payload=bytes(4))),
        stage_pb2.DeliverRequest(chunk=tensor_pb2.Chunk(key=near, offset=4, payload=bytes(4))),
        stage_pb2.DeliverRequest(chunk=tensor_pb2.Chunk(key=near, header=one, slot=tensor_pb2.Slot(size=8))),
        stage_pb2.DeliverRequest(end=stage_pb2.End()),
    ]


def deliver_stream(draw: random.Random) -> list[bytes]:
    hello = stage_pb2.Hello(node=f"hostile-{draw.randrange(1 << 30)}", incarnation=1, term=1, generation=1)
    first = [stage_pb2.DeliverRequest(hello=hello)] if draw.random() < 0.9 else []
    out = [request.SerializeToString() for request in first]
    for _ in range(draw.randrange(1, MOST_IN_A_STREAM)):
        request = draw.choice(deliveries())
        if draw.random() < 0.8:
            mutate(request, draw)
        out.append(spoil(request.SerializeToString(), draw))
    return [data for data in out if not _leads(data)]


def _leads(data: bytes) -> bool:
    """Whether it tells of a later leader that there may be."""
    try:
        return 1 < stage_pb2.DeliverRequest.FromString(data).hello.term < 5000
    except Exception:  # protobuf's several kinds of errors
        return False


def fetch(draw: random.Random) -> bytes:
    request = stage_pb2.FetchRequest(layers=[0], era=OTHER_ERA)
    mutate(request, draw, 0.7)
    return spoil(request.SerializeToString(), draw)


# ---- sending ---------------------------------------------------------------------------------------------------------


class Fuzzer:
    """Sends until it is told to stop; ``sent`` counts messages."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.sent = 0
        self._incarnations: dict[str, int] = {}

    def attend(self, channel: grpc.Channel) -> None:
        name = f"hostile-{self._draw.randrange(NAMES)}"
        incarnation = self._incarnations.setdefault(name, 1)
        messages = attend_stream(self._draw, name, incarnation)
        orders = [pb.AttendResponse.FromString(order) for order in self._stream(channel, ATTEND, messages)]
        if any(order.HasField("dismiss") for order in orders):  # it was declared lost, or has left
            self._incarnations[name] = incarnation + 1

    def ask(self, channel: grpc.Channel) -> None:
        method, data = asked(self._draw)
        call: Any = channel.unary_unary(f"/culm.v1.Coordinator/{method}")
        self.sent += 1
        self._take(lambda: call(data, timeout=PATIENCE))

    def deliver(self, channel: grpc.Channel) -> None:
        if self._draw.random() < 0.1:
            data, call = fetch(self._draw), cast(Any, channel.unary_stream("/culm.v1.Stage/Fetch"))
            self.sent += 1
            self._take(lambda: list(call(data, timeout=PATIENCE)))
            return
        self._stream(channel, "/culm.v1.Stage/Deliver", deliver_stream(self._draw))

    def _stream(self, channel: grpc.Channel, method: str, messages: list[bytes]) -> list[bytes]:
        """Says all of it, and then no more: the stream ends by what is wrong with it, or because nobody is left. What
        was answered until then.
        """
        answers: list[bytes] = []
        call: Any = channel.stream_stream(method)

        def counted() -> Iterator[bytes]:
            for message in messages:
                self.sent += 1
                yield message

        self._take(lambda: answers.extend(call(counted(), timeout=PATIENCE)))
        return answers

    def _take(self, call: Callable[[], object]) -> None:
        try:
            call()
        except grpc.RpcError as error:
            refused: Any = error
            if refused.code() is grpc.StatusCode.UNKNOWN:
                raise AssertionError(f"the server raised: {refused.details()}") from error
