"""What heartbeats tell: that a node lives, what it is at, and whether it has become slower. Pure."""

# Heartbeats decide nothing. They leave their figures with the node, and others look at those when time passes: silence
# is judged by ``membership.tick``, work that does not end by ``detection``. Only a change of pace that lasts
# is told at once, since the next commit may cut the model by it (``slowness``, ``repartition``).
#
# They come in bulk (``Heard``): a thousand nodes beat twice a second or more, and to copy the nodes' mapping for each
# heartbeat would cost a thousand times the work.

from dataclasses import replace

from culm.coordinator import slowness
from culm.coordinator.commands import Command, Record
from culm.coordinator.decisions import Decision
from culm.coordinator.reports import Heard
from culm.coordinator.state import State
from culm.pipeline.money import kinds

# A part of the time that nodes are left alone before the model is cut anew: for so long a node is slow before that
# counts. Less than the whole of it, so that the pace is known when a cut is looked at.
SLOW_FOR = 1 / 3


def heard(state: State, report: Heard) -> Decision:
    """Takes the heartbeats in the order in which they came."""
    nodes = dict(state.nodes)
    records: list[Command] = []
    for at, beat in report.heartbeats:
        node = nodes.get(beat.node)
        # One of a process that is gone may have waited in the bulk: it is no sign of life of its successor.
        if node is None or node.incarnation != beat.incarnation:
            continue
        pace, changed = slowness.told(node.pace, beat.slowness, at, state.settings.settle_seconds * SLOW_FOR)
        if changed:
            slow = kinds.Slow(node=beat.node, slowness=round(beat.slowness, 2))
            text = f"an instruction of {beat.node} takes {beat.slowness:.1f} times as long as at first"
            records.append(Record(slow, f"{text}: the cut of the model is reconsidered, and {beat.node} works on"))
        nodes[beat.node] = replace(
            node,
            heard_at=at,
            version=beat.version,
            instruction=beat.instruction,
            finished=beat.finished,
            running_seconds=beat.running_seconds,
            loading_seconds=beat.loading_seconds,
            median_seconds=beat.median_seconds,
            deviation_seconds=beat.deviation_seconds,
            samples=beat.samples,
            pace=pace,
            times=beat.times,
            sent_bytes=beat.sent_bytes,
            bytes_per_second=beat.bytes_per_second,
            resources=beat.resources or node.resources,
        )
    return replace(state, nodes=nodes), tuple(records)
