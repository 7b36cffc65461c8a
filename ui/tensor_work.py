"""What tensor workers have done for the graph servers of a run, those that are gone too. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from culm.pipeline.counting import counted
from culm.pipeline.neighbours import Staleness
from culm.pipeline.resources import TensorWorkers
from culm.protos import coordinator_pb2 as pb

NOTHING = TensorWorkers()


@dataclass(eq=False)
class TensorWork:
    """Servers tell sums since they started; another process of the name begins anew at nothing."""

    _newest: dict[str, tuple[int, TensorWorkers]] = field(default_factory=dict)  # by server: its incarnation, its sums
    _before: TensorWorkers = NOTHING  # of the processes before these

    def take(self, server: str, incarnation: int, told: TensorWorkers) -> None:
        """What a server tells of itself, in whatever order it is heard."""
        known_as, known = self._newest.get(server, (incarnation, NOTHING))
        if incarnation < known_as or (incarnation == known_as and told.seconds < known.seconds):
            return
        if incarnation > known_as:
            self._before = added([self._before, known])
        self._newest[server] = incarnation, told

    def total(self) -> TensorWorkers:
        """Of the whole run; nobody works or waits in it."""
        return added([self._before, *(told for _, told in self._newest.values())])


def added(each: Sequence[TensorWorkers]) -> TensorWorkers:
    """The sums of what was done."""
    return TensorWorkers(
        done=sum(x.done for x in each),
        repeated=sum(x.repeated for x in each),
        seconds=sum(x.seconds for x in each),
        gigabyte_seconds=sum(x.gigabyte_seconds for x in each),
    )


def servers(status: pb.GetStatusResponse) -> list[pb.NodeStatus]:
    """The nodes that tell of tensor workers."""
    return [node for node in status.nodes if node.resources.HasField("tensor_workers")]


def workers_in_words(status: pb.GetStatusResponse) -> tuple[str, str]:
    """How many workers there are, and a note. A worker may offer itself to each server, or to one."""
    counts = [node.resources.tensor_workers.workers for node in servers(status)]
    wanted = f"; {status.workers_wanted:,} wanted" if status.workers_wanted else ""
    if not any(counts):
        note = "the graph servers compute all themselves" if counts else "no server has told of any yet"
        return "0", note + wanted
    if min(counts) == max(counts):
        note = f"at each of {counted(len(counts), 'server')}" if len(counts) > 1 else "at the server"
        return str(counts[0]), note + wanted
    return f"{min(counts)}–{max(counts)}", "at a server" + wanted


def age_in_words(status: pb.GetStatusResponse) -> tuple[str, str]:
    """How old the values are that a chunk takes of others in the epoch that runs, and a note."""
    graph, step = status.graph, status.step
    if not graph.staleness:
        return "of this epoch", "staleness 0: a chunk waits for others"
    known = Staleness(graph.staleness, max(1, graph.refresh), graph.fresh_from)
    lag = known.lag(step, status.plan.origin_step)
    if step >= graph.fresh_from:
        return "of this epoch", f"staleness {graph.staleness}: fresh to the end"
    fresh = min(step - step % known.refresh + known.refresh, graph.fresh_from)
    after = f"staleness {graph.staleness}: fresh {'again ' if lag else ''}in epoch {fresh:,}"
    return ("of this epoch" if lag == 0 else f"{counted(lag, 'epoch')} old"), after
