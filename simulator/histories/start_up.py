"""What is wrong with single machines, or with the job: the simulated cluster's part for rule 16 and for patience.

A machine on which the job does not start, once or ever; one on which a piece of work raises; one whose storage stalls;
one whose node neither dies nor works when it is ordered to die; one that lives and never ends a piece of work;
heartbeats that come late, since a machine is busy. Or a job that raises, or ends its process, at the same work wherever
it runs.
"""

from dataclasses import dataclass

from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.detection import SAMPLES
from culm.coordinator.failures import START
from culm.coordinator.failures import Work as FailedWork
from culm.simulator.histories.arithmetic import Number
from culm.simulator.histories.world import Node, World
from culm.stage_server.worker.work import Run, Work

# A machine's fault shows on that machine alone, the job's wherever its work is done. The coordinator has to tell them
# apart: ``check_verdict`` breaks a history in which a healthy job was failed. A job that is at fault has to end as
# failed; one that goes on for ever is stuck.

LAST_WORDS = 0.3  # seconds in which a process that ends says why


@dataclass(frozen=True, slots=True)
class Fault:
    """A forward of a layer in a step that goes wrong. ``dies``: without a word. ``on``: one machine; empty: on all."""

    step: int
    layer: int
    dies: bool = False
    on: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """Nothing is wrong by default. Machines go by their node's name. Times in seconds."""

    never_starts: frozenset[str] = frozenset()
    starts_late: frozenset[str] = frozenset()  # its first start fails
    breaks_first: frozenset[str] = frozenset()  # a thread of its first process raises before it takes part
    fault: Fault | None = None
    for_ever: bool = True  # the fault comes again whenever the work is done; False: once
    stalls: str = ""  # its storage stalls once, at its first forward of step 1
    stall_seconds: float = 0.0
    cannot_die: str = ""  # is ordered to die in the middle of the run
    hangs: str = ""  # once, with beating heart
    hangs_at: str = ""  # the name of the class of the work
    late_beats: float = 0.0  # up to so much

    @property
    def is_the_jobs(self) -> bool:
        """Whether no set of machines could finish this job."""
        return self.fault is not None and self.for_ever and not self.fault.on


NOTHING = Wrong()


class StartUp:
    """Carries out what is wrong."""

    def __init__(self, world: World, wrong: Wrong) -> None:
        self.wrong = wrong
        self._world = world
        self._happened: set[str] = set()
        self._loading: dict[str, float] = {}  # node -> since when
        if wrong.cannot_die:
            world.clock.at(0.6, self._condemn)

    def starts(self, node: Node) -> bool:
        """Whether the job starts in this process; if not it says so, and ends."""
        first = node.name not in self._happened
        fails = node.name in self.wrong.never_starts or (node.name in self.wrong.starts_late and first)
        breaks = node.name in self.wrong.breaks_first and first
        if fails or breaks:
            self._happened.add(node.name)
            why, work = ("a library is missing", START) if fails else ("its disk is full", None)
            self._end(node, reports.NodeFailed(node.name, node.incarnation, why, work))
        return not (fails or breaks)

    def goes_wrong(self, node: Node, work: Work[Number]) -> bool:
        """Whether the piece of work raises, or ends the process."""
        if node.name == self.wrong.hangs and type(work).__name__ == self.wrong.hangs_at and self._hangs(node):
            return True
        fault = self.wrong.fault
        if fault is None or not isinstance(work, Run) or work.instruction.op != "F" or work.step != fault.step:
            return False
        held = node.arithmetic.ranges.get(work.instruction.duty, range(0))
        if fault.layer not in held or (fault.on and fault.on != node.name):
            return False
        if not self.wrong.for_ever and "fault" in self._happened:
            return False
        self._happened.add("fault")
        if fault.dies:
            self._world.faults.kill(node)
        else:
            what = FailedWork(work.instruction.of_stage, work.step, held.start, held.stop)
            self._end(node, reports.NodeFailed(node.name, node.incarnation, "ValueError: out of luck", what))
        return True

    def _hangs(self, node: Node) -> bool:
        """Whether the node, which has been at such work often enough to know how long it takes, never ends it."""
        if "hang" in self._happened or node.durations.running(self._world.clock.now)[1].samples < SAMPLES:
            return False
        self._happened.add("hang")
        return True

    def _end(self, node: Node, words: reports.NodeFailed) -> None:
        node.busy = True  # it does nothing any more
        node.tell(words)
        self._world.clock.after(LAST_WORDS, lambda: self._world.faults.kill(node))

    def stall(self, node: Node, work: Work[Number]) -> float:
        """Seconds that the work waits for storage."""
        if node.name != self.wrong.stalls or "stall" in self._happened:
            return 0.0
        if not isinstance(work, Run) or work.instruction.op != "F" or work.step < 1:
            return 0.0
        self._happened.add("stall")
        seconds, began = self.wrong.stall_seconds, self._world.clock.now
        self._loading[node.name] = began
        node.durations.leave_out(seconds)

        def over() -> None:
            self._loading.pop(node.name, None)

        self._world.clock.after(seconds, over)
        return seconds

    def beat(self, node: Node) -> reports.Heartbeat:
        """What a heartbeat says of the node's present instruction."""
        now = self._world.clock.now
        loads = self._loading.get(node.name)
        running, usual = node.durations.running(now)
        return reports.Heartbeat(
            node=node.name,
            incarnation=node.incarnation,
            version=node.worker.version,
            running_seconds=running if loads is None else 0.0,
            median_seconds=usual.median,
            deviation_seconds=usual.deviation,
            samples=usual.samples,
            loading_seconds=now - loads if loads is not None else 0.0,
        )

    def beat_delay(self) -> float:
        """Seconds by which the next heartbeat is late."""
        return self._world.random.uniform(0.0, self.wrong.late_beats) if self.wrong.late_beats else 0.0

    def _condemn(self) -> None:
        """An operator orders the node to die; it stops working and obeying, but its heartbeats go on for a while."""
        node, leader = self._world.nodes.get(self.wrong.cannot_die), self._world.leader
        if node is None or not node.alive or leader.state.phase is co.Phase.DONE:
            return
        node.busy = node.deaf = True
        leader.take(reports.Condemned(node.name, node.incarnation))
        self._world.clock.after(30.0, lambda: self._end_at_last(node))

    def _end_at_last(self, node: Node) -> None:
        if node.alive:
            self._world.faults.kill(node)
            self._world.ending.disturbed()


def check_verdict(world: World, wrong: Wrong) -> bool:
    """Whether the run has ended as failed. Raises AssertionError if the job is not at fault (rule 16)."""
    if world.state.phase is not co.Phase.FAILED:
        return False
    everywhere = wrong.never_starts >= set(world.nodes)
    assert wrong.is_the_jobs or everywhere, f"a healthy run failed: {world.state.detail} (rule 16)"
    return True
