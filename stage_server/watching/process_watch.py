"""What heartbeats tell of the process beside its work: what it takes of its machine, and the newest lines of its log.

All of it is there from the start of the process on, before there is a job, and none of it is needed to train.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace

from culm.pipeline.messages import resources_to_proto
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.watching.log_tail import AT_ONCE, KEPT, LogTail
from culm.stage_server.watching.node_metrics import Reading
from culm.stage_server.watching.resource_meter import ResourceMeter

MOST_RESTS = 1 + KEPT // AT_ONCE  # other threads may log meanwhile


class ProcessWatch:
    """Of this process. Any thread may call it."""

    def __init__(self) -> None:
        self.meter = ResourceMeter()
        self._tail = LogTail()

    def begin(self) -> None:
        logging.getLogger().addHandler(self._tail)
        self.meter.start()

    def close(self) -> None:
        logging.getLogger().removeHandler(self._tail)
        self.meter.close()

    def attached(self) -> None:
        """A coordinator listens, maybe another one than before."""
        self._tail.tell_again()
        self.meter.tell_again()

    def added_to(self, beat: pb.Heartbeat) -> pb.Heartbeat:
        """The heartbeat, with what is new. Each thing is given out once, so this goes to a stream that is open."""
        if (resources := self.meter.news()) is not None:
            beat.resources.CopyFrom(resources_to_proto(resources))
        beat.log_lines.extend(self._tail.news())
        return beat

    def rest(self, beat: Callable[[], pb.Heartbeat]) -> Iterator[pb.Heartbeat]:
        """Heartbeats (as ``added_to`` gives them) until all lines are told: the stream ends."""
        for _ in range(MOST_RESTS):
            if not (last := beat()).log_lines:
                return
            yield last

    def reading(self, node: Reading) -> Reading:
        """For Prometheus."""
        return replace(node, resources=self.meter.newest)
