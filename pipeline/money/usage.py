"""What machines' time was used for, and what bytes between zones and regions cost: from what nodes report."""

from dataclasses import dataclass, field, fields

from culm.pipeline.money.kinds import Used
from culm.pipeline.money.lives import HOUR, Life, Lives
from culm.pipeline.times import TimeSplit

# A node tells sums since it started, not what is new. So each report counts by its difference to the last one, which
# the life remembers: the next report makes up for one that is missing from the log. A report may come after the node
# is gone.
#
# Time counts at the price of the moment, and never below zero. Bytes are paid by their sender, by the machines as they
# were announced; to a peer that nobody knows they cost nothing.
#
# Tensor workers are no nodes: the graph server that they work for tells for how long they were there, and they are paid
# at the price that comes with it.

USES = tuple(f.name for f in fields(TimeSplit))
GB = 1e9  # as clouds bill it


@dataclass(eq=False, kw_only=True)
class Usage:
    """Of all nodes together, those that are gone too."""

    dollars: dict[str, float] = field(default_factory=lambda: dict.fromkeys(USES, 0.0))  # by use
    transfer_dollars: float = 0.0
    crossing_bytes: int = 0  # between zones or regions
    worker_dollars: float = 0.0  # of tensor workers
    gigabyte_seconds: float = 0.0  # that these are billed by

    def take(self, at: float, event: Used, lives: Lives) -> None:
        """What a node reports of itself, and of its tensor workers."""
        life = lives.by_incarnation.get((event.node, event.incarnation))
        if life is None:
            return
        for use in USES:
            seconds = getattr(event, use)
            self.dollars[use] += max(0.0, seconds - life.seconds.get(use, 0.0)) * life.per_hour / HOUR
            life.seconds[use] = seconds
        for peer, sent in event.sent.items():
            more = sent - life.sent.get(peer, 0)
            life.sent[peer] = sent
            crossed = lives.crossed(life, peer)
            if crossed:
                self.crossing_bytes += more
                self.transfer_dollars += more / GB * life.per_gb.get(crossed, 0.0)
        self._take_workers(at, event, life)

    def _take_workers(self, at: float, event: Used, life: Life) -> None:
        more = max(0.0, (event.gigabyte_seconds or 0.0) - life.gigabyte_seconds)
        dollars = more * (event.per_gigabyte_second or 0.0)
        self.gigabyte_seconds += more
        self.worker_dollars += dollars
        since, life.workers_until = life.workers_until or life.joined, at
        if at > since:
            life.workers_per_hour = dollars / (at - since) * HOUR
        life.gigabyte_seconds += more
