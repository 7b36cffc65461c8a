"""What the coordinator decides, as transcripts that read as prose.

Accept a change on purpose with ``pytest tests/scenarios --rewrite``.
"""

from pathlib import Path

import pytest

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.failures import START, Work
from culm.pipeline.patience import Patience

FOLDER = Path(__file__).parent / "coordinator_transcripts"


class Play:
    """Feeds reports to the decisions and writes down what they record and order."""

    def __init__(self, stages: int = 3, nodes: int = 3, steps: int = 4, redundancy: bool = True) -> None:
        self.state = begin(
            co.Settings(
                stages=stages, microbatches=2, steps=steps, nodes=nodes, redundancy=redundancy, patience=Patience(2.0)
            )
        )
        self.now = 0.0
        self.lines: list[str] = []
        self.incarnations: dict[str, int] = {}

    def report(self, words: str, report: reports.Report) -> None:
        self.lines.append(f"{self.now:5.2f}  {words}")
        self.state, commands = advance(self.state, report, self.now)
        validate(self.state)
        for command in commands:
            if isinstance(command, cmd.Record):
                self.lines.append(f"         {command.kind}: {command.text}")
            elif isinstance(command, cmd.Publish | cmd.SendPlan):
                to = command.node if isinstance(command, cmd.SendPlan) else "all"
                self.lines.append(f"         -> {to}: plan {command.plan.generation}{self._stages(command.plan)}")
            elif isinstance(command, cmd.Commit):
                plan = command.next_plan
                switch = f", then plan {plan.generation}{self._stages(plan)}" if plan else ""
                self.lines.append(f"         -> all: commit {command.step}{switch}")
            elif isinstance(command, cmd.Dismiss):
                self.lines.append(f"         -> {command.node}: go{', join anew' if command.join_anew else ''}")

    @staticmethod
    def _stages(plan: object) -> str:
        out = ""
        for s in plan.stages:  # type: ignore[attr-defined]
            standbys = "".join(f"+{b.node}{'' if b.hot else '(seeding)'}" for b in s.standbys)
            out += f" {s.owner}{standbys}"
        return f" [{out.strip()}]"

    def join(self, node: str, zone: str = "") -> None:
        incarnation = self.incarnations[node] = self.incarnations.get(node, 0) + 1
        where = f" in zone {zone}" if zone else ""
        self.report(
            f"{node} joins{where}", reports.Joined(node=node, incarnation=incarnation, address=f"{node}:1", zone=zone)
        )
        self.report(
            f"{node} is available", reports.Available(node=node, incarnation=incarnation, layer_costs=(1.0,) * 6)
        )

    def ready(self, *nodes: str, step: int | None = None) -> None:
        """Every stage that each of the nodes holds is ready."""
        plan = self.state.plan
        step = self.state.committed if step is None else step
        assert plan is not None
        for node in nodes:
            for s in plan.held_by(node):
                losses = (1.0, 2.0) if s == len(plan.stages) - 1 else ()
                layers = plan.stages[s].layers
                norms = (0.0,) * len(layers)
                ready = reports.Ready(
                    node=node,
                    incarnation=self.incarnations[node],
                    era=plan.era,
                    step=step,
                    stage=s,
                    first_layer=layers.start,
                    squared_norms=norms,
                    losses=losses,
                )
                self.report(f"{node} is ready with stage {s} of step {step}", ready)

    def caught_up(self) -> None:
        """After the last commit: every copy that is being seeded is at the last version, under the present plan."""
        while self.state.plan is not None and (seeded := self._seeded()):
            node, layers = seeded[0]
            report = reports.CaughtUp(
                node=node,
                incarnation=self.incarnations[node],
                era=self.state.era,
                first_layer=layers.start,
                end_layer=layers.stop,
                version=self.state.committed,
                order=(self.state.term, self.state.generation),
            )
            self.report(f"{node} has layers {layers.start} to {layers.stop} at the last version", report)

    def _seeded(self) -> list[tuple[str, range]]:
        assert self.state.plan is not None
        return [(b.node, stage.layers) for stage in self.state.plan.stages for b in stage.standbys if not b.hot]

    def nodes(self) -> list[str]:
        """Who holds something, now or soon."""
        plan = self.state.plan
        return sorted(n for n in self.incarnations if plan is not None and plan.held_by(n))

    def lose(self, node: str, reporter: str) -> None:
        incarnation = self.incarnations[node]
        self.report(f"{node}'s order stream breaks", reports.StreamBroken(node, incarnation))
        lost = reports.PeerLost(reporter, self.incarnations[reporter], node, incarnation, "the stream broke")
        self.report(f"{reporter} misses {node}", lost)

    def beat(self, *nodes: str) -> None:
        for node in nodes:
            self.state, _ = advance(
                self.state, reports.Heartbeat(node=node, incarnation=self.incarnations[node]), self.now
            )

    def estranged(self, seconds: float, *pairs: tuple[str, str]) -> None:
        """The first of each pair misses the second all the while; heartbeats come, and time passes."""
        told = ", ".join(f"{one} misses {other}" for one, other in pairs)
        self.lines.append(f"{self.now:5.2f}  for {seconds:g} s: {told or 'nobody misses anybody'}")
        for _ in range(round(seconds / 0.5)):
            self.wait(0.5)
            self.beat(*self.state.nodes)
            for one, other in pairs:
                if one in self.state.nodes and other in self.state.nodes:
                    numbers = (self.incarnations[one], other, self.incarnations[other])
                    self.state, _ = advance(self.state, reports.PeerLost(one, *numbers, "the stream broke"), self.now)
            state, commands = advance(self.state, reports.Tick(), self.now)
            if commands:
                self.tick()
            else:
                self.state = state

    def tick(self) -> None:
        self.report("time passes", reports.Tick())

    def wait(self, seconds: float) -> None:
        self.now += seconds


def run_that_stands_still() -> Play:
    """A node attends, beats and does no work: no detector has evidence against it, and steps do not come."""
    play = three_nodes(steps=8)
    for _ in range(4):
        play.wait(0.5)
        play.ready("n0", "n1", "n2")
        play.tick()
    play.lines = play.lines[-2:]
    play.ready("n0", "n1")
    for _ in range(20):
        play.wait(0.5)
        play.beat("n0", "n1", "n2")
        state, commands = advance(play.state, reports.Tick(), play.now)
        if commands:
            play.tick()
        play.state = state
    play.ready("n2")
    play.wait(0.5)
    play.tick()
    return play


def three_nodes(steps: int = 4) -> Play:
    play = Play(steps=steps)
    for node in ("n0", "n1", "n2"):
        play.join(node)
    return play


def calm_step() -> Play:
    play = three_nodes()
    play.wait(0.1)
    play.ready("n0", "n1", "n2")
    return play


def lost_and_back() -> Play:
    play = three_nodes()
    play.wait(0.1)
    play.lose("n1", "n2")
    play.wait(0.1)
    play.ready("n0", "n2")
    play.join("n1")
    play.wait(0.1)
    play.ready("n0", "n2")
    play.wait(0.1)
    play.ready("n1", "n0", "n2")
    return play


def lost_between_ready_and_commit() -> Play:
    play = three_nodes()
    play.wait(0.1)
    play.ready("n1", "n2")
    play.lose("n1", "n2")
    play.ready("n0")
    return play


def a_standby_that_is_seeded_is_always_late() -> Play:
    """Nobody waits for it until it has caught up; then the next commit does."""
    play = three_nodes()
    play.wait(0.1)
    play.join("n3")
    play.lose("n1", "n2")
    play.ready("n0", "n2")
    play.ready("n3", step=0)
    play.ready("n0", "n2")
    play.ready("n3")
    return play


def frozen_node() -> Play:
    play = three_nodes()
    for _ in range(3):
        play.wait(0.8)
        play.beat("n0", "n1")
        play.tick()
    play.report("n2 wakes up", reports.Joined(node="n2", incarnation=1, address="n2:1"))
    return play


def coordinator_stood_still() -> Play:
    play = three_nodes()
    play.tick()
    play.wait(60.0)
    play.tick()
    return play


def link_fault() -> Play:
    play = three_nodes()
    play.report("n0 misses n1", reports.PeerLost("n0", 1, "n1", 1, "the stream broke"))
    play.wait(0.5)
    play.beat("n0", "n1", "n2")
    play.tick()
    return play


def link_that_does_not_mend() -> Play:
    """Both ends attend; the spare end of the broken link goes, since that costs nothing."""
    play = three_nodes()
    play.join("n3")
    for _ in range(8):
        play.state, _commands = advance(play.state, reports.PeerLost("n2", 1, "n3", 1, "no connection"), play.now)
        play.wait(0.8)
        play.beat("n0", "n1", "n2", "n3")
        play.tick()
    return play


def stuck_node() -> Play:
    play = three_nodes()
    for seconds in (0.5, 1.5, 2.5):
        play.wait(1.0)
        play.beat("n0", "n1")
        stuck = reports.Heartbeat(
            node="n2",
            incarnation=1,
            version=0,
            instruction="2B1",
            finished=40,
            running_seconds=seconds,
            median_seconds=0.02,
            deviation_seconds=0.001,
            samples=40,
        )
        play.report(f"n2 says that 2B1 has been running for {seconds} s", stuck)
        play.tick()
    return play


def slow_start() -> Play:
    """Without a history nothing is stuck: the first instruction of all may take its time."""
    play = three_nodes()
    for seconds in (1.0, 3.0, 9.0):
        play.wait(1.0)
        play.beat("n0", "n1")
        play.report(
            f"n2 says that 2F0 has been running for {seconds} s",
            reports.Heartbeat(
                node="n2", incarnation=1, version=0, instruction="2F0", finished=0, running_seconds=seconds
            ),
        )
        play.tick()
    return play


def drained_node() -> Play:
    play = three_nodes()
    play.join("n3")
    play.wait(0.1)
    play.report("n1 is given notice", reports.Draining("n1", "its machine is to go", 120.0))
    play.ready("n0", "n1", "n2")
    play.wait(0.1)
    play.ready("n0", "n1", "n2", "n3")
    return play


def warned_node() -> Play:
    """It works on until somebody joins that can take its place, and is the last choice afterwards."""
    play = three_nodes(steps=8)
    play.report("n1 is warned", reports.Warned("n1", "its cloud recommends a rebalance"))
    play.ready("n0", "n1", "n2")
    play.join("n3")
    for _ in range(5):
        play.wait(0.1)
        play.ready(*play.nodes())
    return play


def four_nodes() -> Play:
    """The last one is a spare."""
    play = Play(nodes=4)
    for node in ("n0", "n1", "n2", "n3"):
        play.join(node)
    return play


def link_that_stays_broken() -> Play:
    """One end goes, and is no standby again while the link is not to be trusted."""
    play = four_nodes()
    play.estranged(6.0, ("n0", "n1"), ("n1", "n0"))
    play.join("n1")
    play.ready("n0", "n2")
    play.ready("n3", "n0", "n2")
    play.estranged(60.0)
    play.ready("n0", "n2", "n3")
    return play


def link_that_breaks_now_and_then() -> Play:
    play = three_nodes()
    for _ in range(3):
        play.estranged(4.0, ("n0", "n1"), ("n1", "n0"))
        play.estranged(3.0)
    return play


def link_that_breaks_while_steps_commit() -> Play:
    """A commit shows that its tensors have passed."""
    play = three_nodes()
    for _ in range(3):
        play.estranged(3.0, ("n0", "n1"), ("n1", "n0"))
        play.ready("n0", "n1", "n2")
    return play


def link_to_a_node_that_several_miss() -> Play:
    play = three_nodes()
    play.estranged(6.0, ("n1", "n0"), ("n0", "n1"), ("n2", "n0"))
    return play


def link_to_a_standby_that_is_seeded() -> Play:
    """Less depends on it than on an owner."""
    play = four_nodes()
    play.lose("n1", "n2")
    play.estranged(6.0, ("n0", "n3"))
    return play


def link_between_two_only_copies() -> Play:
    """To do without either is to begin again: the link is waited for, but not for ever."""
    play = Play(stages=2, nodes=2, redundancy=False)
    play.join("n0")
    play.join("n1")
    play.estranged(20.0, ("n0", "n1"), ("n1", "n0"))
    play.ready("n0", "n1")
    play.estranged(32.0, ("n0", "n1"), ("n1", "n0"))
    return play


def zone_that_vanishes() -> Play:
    """Both of its nodes at once: every stage goes on in the other zone, and moves apart again when they are back."""
    play = Play(stages=4, nodes=4, steps=20)
    for node, zone in (("n0", "a"), ("n1", "a"), ("n2", "b"), ("n3", "b")):
        play.join(node, zone)
    play.lose("n0", "n2")
    play.lose("n1", "n2")
    play.ready("n2", "n3")
    play.join("n0", "a")
    play.join("n1", "a")
    for _ in range(8):
        play.wait(0.1)
        play.ready(*play.nodes())
    return play


def other_code() -> Play:
    play = Play()
    play.join("n0")
    play.state, _ = advance(
        play.state,
        reports.Available(node="n0", incarnation=1, layer_costs=(1.0,) * 6, fingerprint="0123456789abcdef"),
        play.now,
    )
    play.incarnations["n1"] = 1
    play.report("n1 joins", reports.Joined(node="n1", incarnation=1, address="n1:1"))
    play.report(
        "n1 is available with other code",
        reports.Available(node="n1", incarnation=1, layer_costs=(1.0,) * 6, fingerprint="fedcba9876543210"),
    )
    return play


def too_few_layers() -> Play:
    play = Play(stages=3)
    play.report("n0 joins", reports.Joined(node="n0", incarnation=1, address="n0:1"))
    play.report("n0 is available with two layers", reports.Available(node="n0", incarnation=1, layer_costs=(1.0, 1.0)))
    return play


def both_copies_lost() -> Play:
    play = three_nodes()
    play.wait(0.1)
    play.ready("n0", "n1", "n2")
    play.lose("n1", "n2")
    play.lose("n0", "n2")
    play.join("n0")
    return play


def done_and_then_lost() -> Play:
    """After the last commit redundancy is repaired as before it, until the weights were fetched (rule 17)."""
    play = Play(stages=2, nodes=3, steps=1)
    for node in ("n0", "n1", "n2"):
        play.join(node)
    play.now = 0.5
    play.ready(*play.nodes())
    for at, lost, reporter in ((1.0, "n0", "n1"), (2.0, "n1", "n2")):
        play.now = at
        play.lose(lost, reporter)
        play.caught_up()
    play.now = 3.0
    play.report("somebody has fetched the weights", reports.Fetched("culm weights wrote model.safetensors on laptop"))
    play.report("n1 joins", reports.Joined(node="n1", incarnation=9, address="n1:1"))
    return play


def every_node_is_told_to_stop() -> Play:
    """Nobody is left to hand over to: without a checkpoint they go at once."""
    play = Play(stages=2, nodes=2)
    for node in ("n0", "n1"):
        play.join(node)
    play.now = 0.5
    for node in ("n0", "n1"):
        told = reports.Draining(node, "it was told to stop", 25.0, told=True)
        play.report(f"{node} is told to stop", told)
    return play


def raises(play: Play, node: str, why: str, work: Work | None) -> None:
    doing = f"at {work}" if work is not None else "on a thread of its own"
    play.report(f"{node} fails {doing}", reports.NodeFailed(node, play.incarnations[node], why, work))


def spare_that_does_not_start() -> Play:
    """Again and again, since something starts it again: it is told of ever more seldom."""
    play = three_nodes()
    for i in range(5):
        play.wait(1.0)
        play.beat("n0", "n1", "n2")
        play.report("n3's process starts", reports.Joined(node="n3", incarnation=1 + i, address="n3:1"))
        play.report("the job does not start there", reports.NodeFailed("n3", 1 + i, "ImportError: no cuda", START))
    return play


def job_that_does_not_start() -> Play:
    play = Play()
    for node in ("n0", "n1"):
        play.report(f"{node}'s process starts", reports.Joined(node=node, incarnation=1, address=f"{node}:1"))
    for node in ("n0", "n1"):
        play.report(f"the job does not start on {node}", reports.NodeFailed(node, 1, "ImportError: no model", START))
    return play


def work_that_raises_on_one_node() -> Play:
    play = three_nodes()
    play.wait(0.1)
    raises(play, "n1", "RuntimeError: CUDA error", Work("F1", 0, 2, 4))
    play.ready("n0", "n2")
    raises(play, "n2", "RuntimeError: CUDA error", Work("F1", 1, 4, 6))
    return play


def work_that_raises_on_two_nodes() -> Play:
    play = three_nodes()
    play.wait(0.1)
    raises(play, "n1", "ValueError: out of luck", Work("F1", 0, 2, 4))
    raises(play, "n0", "ValueError: out of luck", Work("F1", 0, 2, 4))
    return play


def thread_that_breaks() -> Play:
    play = three_nodes()
    raises(play, "n1", "the thread orders raised KeyError: 3", None)
    return play


def node_that_cannot_die() -> Play:
    """It does not work any more, but its heartbeats come."""
    play = three_nodes()
    play.report("n1 is ordered to die", reports.Condemned("n1", 1))
    for _ in range(3):
        play.wait(0.8)
        play.beat("n0", "n1", "n2")
        play.tick()
    return play


def storage_that_stalls() -> Play:
    """One that loads is no stuck one, and is lost only long after, and only if no other waits for storage as well."""
    play = three_nodes()
    for seconds in (3.0, 30.0, 61.0):
        play.wait(1.0)
        play.beat("n1")
        for node in ("n0", "n2"):
            said = reports.Heartbeat(
                node=node,
                incarnation=1,
                version=0,
                instruction="0F1",
                finished=40,
                running_seconds=0.0,
                median_seconds=0.02,
                deviation_seconds=0.001,
                samples=40,
                loading_seconds=seconds,
            )
            play.report(f"{node} says that it has been loading for {seconds} s", said)
        play.tick()
    play.beat("n0", "n1")
    play.tick()
    return play


def deaths_at_the_same_work() -> Play:
    """Whatever runs the middle stage dies without a word: in the end that is the job's fault."""
    play = three_nodes(steps=2)
    for _ in range(8):
        plan = play.state.plan
        if plan is None or play.state.phase is co.Phase.FAILED:
            break
        node = plan.stages[1].owner
        reporter = next(n for n in play.state.nodes if n != node)
        play.wait(0.1)
        play.lose(node, reporter)
        play.join(node)
    return play


SCENARIOS = {
    f.__name__: f
    for f in (
        calm_step,
        lost_and_back,
        lost_between_ready_and_commit,
        a_standby_that_is_seeded_is_always_late,
        frozen_node,
        coordinator_stood_still,
        link_fault,
        link_that_does_not_mend,
        link_that_stays_broken,
        link_that_breaks_now_and_then,
        link_that_breaks_while_steps_commit,
        link_to_a_node_that_several_miss,
        link_to_a_standby_that_is_seeded,
        link_between_two_only_copies,
        stuck_node,
        run_that_stands_still,
        slow_start,
        drained_node,
        warned_node,
        zone_that_vanishes,
        other_code,
        too_few_layers,
        both_copies_lost,
        done_and_then_lost,
        every_node_is_told_to_stop,
        spare_that_does_not_start,
        job_that_does_not_start,
        work_that_raises_on_one_node,
        work_that_raises_on_two_nodes,
        thread_that_breaks,
        node_that_cannot_die,
        storage_that_stalls,
        deaths_at_the_same_work,
    )
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_transcript(name: str, request: pytest.FixtureRequest) -> None:
    text = "\n".join(SCENARIOS[name]().lines) + "\n"
    path = FOLDER / f"{name}.txt"
    if request.config.getoption("--rewrite"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
