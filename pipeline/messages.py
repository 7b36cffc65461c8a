"""Between the wire's messages and the domain's values."""

from typing import Any

from culm.pipeline.identity import Identity
from culm.pipeline.keys import Key, Kind
from culm.pipeline.machine import Machine
from culm.pipeline.resources import Resources, TensorWorkers
from culm.pipeline.times import TimeSplit
from culm.protos import coordinator_pb2, tensor_pb2

_KINDS: dict[int, Kind] = {kind: kind for kind in Kind}  # Kind(number) takes many times as long


def key_to_proto(key: Key) -> tensor_pb2.Key:
    kind: Any = key.kind  # a number, as the message wants it
    return tensor_pb2.Key(
        era=key.era,
        step=key.step,
        pipeline=key.pipeline,
        kind=kind,
        stage=key.stage,
        index=key.index,
        end=key.end,
        use=key.use,
    )


def key_from_proto(key: tensor_pb2.Key) -> Key:
    kind = _KINDS.get(key.kind) or Kind(key.kind)
    return Key(key.era, key.step, key.pipeline, kind, key.stage, key.index, key.end, key.use)


def times_to_proto(times: TimeSplit) -> coordinator_pb2.TimeSplit:
    return coordinator_pb2.TimeSplit(
        forward=times.forward,
        backward=times.backward,
        redundant=times.redundant,
        apply=times.apply,
        bubble=times.bubble,
        idle=times.idle,
    )


def times_from_proto(times: coordinator_pb2.TimeSplit) -> TimeSplit:
    return TimeSplit(
        forward=times.forward,
        backward=times.backward,
        redundant=times.redundant,
        apply=times.apply,
        bubble=times.bubble,
        idle=times.idle,
    )


def resources_to_proto(seen: Resources) -> coordinator_pb2.Resources:
    return coordinator_pb2.Resources(
        seconds=seen.seconds,
        cpu_seconds=seen.cpu_seconds,
        processors=seen.processors,
        resident_bytes=seen.resident_bytes,
        memory_bytes=seen.memory_bytes,
        accelerator_busy=seen.accelerator_busy,
        accelerator_used_bytes=seen.accelerator_used_bytes,
        accelerator_bytes=seen.accelerator_bytes,
        tensor_workers=tensor_workers_to_proto(seen.tensor_workers) if seen.tensor_workers is not None else None,
    )


def tensor_workers_to_proto(seen: TensorWorkers) -> coordinator_pb2.TensorWorkers:
    return coordinator_pb2.TensorWorkers(
        workers=seen.workers,
        waiting=seen.waiting,
        done=seen.done,
        repeated=seen.repeated,
        seconds=seen.seconds,
        gigabyte_seconds=seen.gigabyte_seconds,
        waited_seconds=seen.waited_seconds,
        share=seen.share,
    )


def tensor_workers_from_proto(seen: coordinator_pb2.TensorWorkers) -> TensorWorkers:
    return TensorWorkers(
        workers=seen.workers,
        waiting=seen.waiting,
        done=seen.done,
        repeated=seen.repeated,
        seconds=seen.seconds,
        gigabyte_seconds=seen.gigabyte_seconds,
        waited_seconds=seen.waited_seconds,
        share=seen.share,
    )


def resources_from_proto(seen: coordinator_pb2.Resources) -> Resources:
    return Resources(
        seconds=seen.seconds,
        cpu_seconds=seen.cpu_seconds,
        processors=seen.processors,
        resident_bytes=seen.resident_bytes,
        memory_bytes=seen.memory_bytes,
        accelerator_busy=seen.accelerator_busy if seen.HasField("accelerator_busy") else None,
        accelerator_used_bytes=seen.accelerator_used_bytes,
        accelerator_bytes=seen.accelerator_bytes,
        tensor_workers=tensor_workers_from_proto(seen.tensor_workers) if seen.HasField("tensor_workers") else None,
    )


def machine_to_proto(machine: Machine) -> coordinator_pb2.Machine:
    return coordinator_pb2.Machine(
        provider=machine.provider,
        instance_type=machine.instance_type,
        region=machine.region,
        zone=machine.zone,
        market=machine.market,
    )


def machine_from_proto(machine: coordinator_pb2.Machine) -> Machine:
    return Machine(machine.provider, machine.instance_type, machine.region, machine.zone, machine.market)


def identity_into(identity: Identity, available: coordinator_pb2.Available) -> None:
    """Writes the identity into the message. An outline that many layers share is written once."""
    available.parts.update(identity.parts)
    distinct = list(dict.fromkeys(identity.outlines))
    number = {outline: i for i, outline in enumerate(distinct)}
    available.outlines.extend(distinct)
    available.outline_of_layer.extend(number[outline] for outline in identity.outlines)


def identity_from_proto(available: coordinator_pb2.Available) -> Identity:
    """Raises ValueError for a layer whose outline is not there."""
    distinct = list(available.outlines)
    if any(i >= len(distinct) for i in available.outline_of_layer):
        raise ValueError("a layer has an outline that the message does not list")
    return Identity(dict(available.parts), tuple(distinct[i] for i in available.outline_of_layer))
