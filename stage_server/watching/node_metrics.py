"""What a node tells Prometheus, read when it is asked: nothing is counted twice, and computing pays nothing for it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from culm.pipeline.resources import Resources
from culm.pipeline.times import TimeSplit


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One look at a node. Bytes are by the peer's name; times in seconds."""

    node: str
    times: TimeSplit
    sent_bytes: Mapping[str, int]
    received_bytes: Mapping[str, int]
    version: int
    mailbox: int
    outbox: int
    finished: int
    spilled_bytes: int
    resources: Resources | None = None  # of its process; None: nobody has looked yet


class NodeCollector(Collector):
    """The node's metrics, each with its name as a label; none while ``read`` gives None. See docs/metrics.md."""

    def __init__(self, read: Callable[[], Reading | None]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        if reading is None:
            return
        node = reading.node
        seconds = CounterMetricFamily(
            "culm_node_seconds", "Where the time of the node's compute thread went.", labels=("node", "phase")
        )
        for field in fields(reading.times):
            seconds.add_metric((node, field.name), getattr(reading.times, field.name))
        yield seconds
        yield _by_peer("culm_sent_bytes", "Bytes of tensors sent to a peer.", node, reading.sent_bytes)
        yield _by_peer("culm_received_bytes", "Bytes of tensors received from a peer.", node, reading.received_bytes)
        done = CounterMetricFamily("culm_instructions", "Forwards and backwards finished.", labels=("node",))
        done.add_metric((node,), reading.finished)
        yield done
        spilled = CounterMetricFamily(
            "culm_spilled_bytes", "Bytes of kept tensors written to disk, for want of memory.", labels=("node",)
        )
        spilled.add_metric((node,), reading.spilled_bytes)
        yield spilled
        yield _gauge("culm_version", "Steps applied to what the node holds.", node, reading.version)
        yield _gauge("culm_mailbox_tensors", "Tensors received and kept until their commit.", node, reading.mailbox)
        yield _gauge("culm_outbox_tensors", "Tensors produced and kept until their commit.", node, reading.outbox)
        if reading.resources is not None:
            yield from _of_resources(node, reading.resources)


def _of_resources(node: str, seen: Resources) -> Iterator[Metric]:
    """Named after the node, where ``process_cpu_seconds_total`` and the like name no node."""
    cpu = CounterMetricFamily("culm_cpu_seconds", "Processor time of the node's process.", labels=("node",))
    cpu.add_metric((node,), seen.cpu_seconds)
    yield cpu
    yield _gauge("culm_processors", "Processors that the node may use.", node, seen.processors)
    yield _gauge("culm_resident_bytes", "Host memory that the node's process takes.", node, seen.resident_bytes)
    yield _gauge("culm_memory_bytes", "Host memory that the node may use.", node, seen.memory_bytes)
    if seen.accelerator_bytes:
        used = seen.accelerator_used_bytes
        yield _gauge("culm_accelerator_used_bytes", "Memory of its accelerator that is taken.", node, used)
        yield _gauge("culm_accelerator_bytes", "Memory of its accelerator.", node, seen.accelerator_bytes)
    if seen.accelerator_busy is not None:
        busy = seen.accelerator_busy
        yield _gauge("culm_accelerator_busy_ratio", "Share of the time in which it computes.", node, busy)


def _by_peer(name: str, text: str, node: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("node", "peer"))
    for peer, count in sorted(counts.items()):
        family.add_metric((node, peer), count)
    return family


def _gauge(name: str, text: str, node: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, text, labels=("node",))
    family.add_metric((node,), value)
    return family
