"""A play of the coordinator: what it is told in words, and what it then records and orders."""

from pathlib import Path

from culm.coordinator import commands as cmd
from culm.coordinator import reports
from culm.coordinator import state as co
from culm.coordinator.decide import advance, begin, validate
from culm.coordinator.requests import Limits, Spent
from culm.pipeline.checkpoints.manifest import File, folder_of
from culm.pipeline.clip import SKIPPED
from culm.pipeline.evaluations import NEVER, Evaluations
from culm.pipeline.origin import Origin
from culm.pipeline.patience import Patience

NO_LIMITS = Limits()
FOLDER = Path(__file__).parent / "coordinator_transcripts"


class CoordinatorPlay:
    """Feeds reports to the decisions and writes down what they record and order."""

    def __init__(
        self,
        stages: int = 3,
        nodes: int = 3,
        steps: int = 4,
        copies: int = 2,
        measured: bool = False,
        evaluations: Evaluations = NEVER,
        worse_allowed: int = 0,
        checkpoint_url: str = "",
        limits: Limits = NO_LIMITS,
    ) -> None:
        self.state = begin(
            co.Settings(
                stages=stages,
                microbatches=2,
                steps=steps,
                nodes=nodes,
                copies=copies,
                patience=Patience(2.0),
                measured=measured,
                evaluations=evaluations,
                worse_allowed=worse_allowed,
                checkpoint_url=checkpoint_url,
                checkpoint_every=1000 if checkpoint_url else 0,
                limits=limits,
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
                switch = ", which asks for a checkpoint" if command.save else ""
                switch += f", then plan {plan.generation}{self._stages(plan)}" if plan else ""
                nothing = ", which applies nothing" if command.scale == SKIPPED else ""
                self.lines.append(f"         -> all: commit {command.step}{nothing}{switch}")
            elif isinstance(command, cmd.Dismiss):
                self.lines.append(f"         -> {command.node}: go{', join anew' if command.join_anew else ''}")

    def _stages(self, plan: object) -> str:
        out = ""
        for s in plan.stages:  # type: ignore[attr-defined]
            if self.state.settings.measured:
                out += f" {s.first_layer}-{s.end_layer}:"
            standbys = "".join(f"+{b.node}{'' if b.hot else '(seeding)'}" for b in s.standbys)
            out += f"{'' if out.endswith(':') else ' '}{s.owner}{standbys}"
        rests = ", begins no step" if plan.pause is not None else ""  # type: ignore[attr-defined]
        return f" [{out.strip()}]{rests}"

    def join(self, node: str, zone: str = "", seconds: tuple[float, ...] = (), unmeasured: str = "") -> None:
        incarnation = self.incarnations[node] = self.incarnations.get(node, 0) + 1
        where = f" in zone {zone}" if zone else ""
        self.report(
            f"{node} joins{where}", reports.Joined(node=node, incarnation=incarnation, address=f"{node}:1", zone=zone)
        )
        said = f", and says that its layers take {', '.join(f'{x:g}' for x in seconds)} s" if seconds else ""
        self.report(
            f"{node} is available{said}",
            reports.Available(
                node=node,
                incarnation=incarnation,
                layer_costs=(1.0,) * 6,
                layer_seconds=seconds,
                unmeasured=unmeasured,
            ),
        )

    def ready(self, *nodes: str, step: int | None = None, evaluated: float | None = None) -> None:
        """Every stage that each of the nodes holds is ready. ``evaluated``: the loss of the weights, in such a step."""
        plan = self.state.plan
        step = self.state.committed if step is None else step
        assert plan is not None
        for node in nodes:
            for s in plan.held_by(node):
                told = (1.0, 2.0) if evaluated is None else (1.0, 2.0, evaluated, 1.0)
                tallies = told if s == len(plan.stages) - 1 else ()
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
                    tallies=tallies,
                )
                self.report(f"{node} is ready with stage {s} of step {step}", ready)

    def saved(self, step: int) -> None:
        """Every layer of the checkpoint of this step is written, and then its manifest."""
        plan = self.state.plan
        assert plan is not None
        node = plan.stages[0].owner
        layers = range(plan.stages[-1].end_layer)
        files = {layer: (File(f"layer-{layer}", 1, "0" * 64),) for layer in layers}
        report = reports.Saved(
            node=node, incarnation=self.incarnations[node], era=plan.era, step=step, files=files, loss=1.5
        )
        self.report(f"the nodes have written step {step}", report)
        folder = folder_of(self.state.settings.checkpoint_url, step)
        self.report("its manifest is written", reports.Checkpointed(Origin(step, folder, "0" * 64)))

    def spent(self, dollars: float, *unpriced: str) -> None:
        """So much so far, at this moment by the coordinator's clock."""
        words = f"the run has cost {dollars:g} $" + (f", without {', '.join(unpriced)}" if unpriced else "")
        self.report(words, Spent(dollars, self.now, unpriced))

    def caught_up(self) -> None:
        """While no step runs: every copy that is being seeded is at the last version, under the present plan."""
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


def three_nodes(steps: int = 4) -> CoordinatorPlay:
    play = CoordinatorPlay(steps=steps)
    for node in ("n0", "n1", "n2"):
        play.join(node)
    return play


def four_nodes() -> CoordinatorPlay:
    """The last one is a spare."""
    play = CoordinatorPlay(nodes=4)
    for node in ("n0", "n1", "n2", "n3"):
        play.join(node)
    return play


def check_transcript(name: str, play: CoordinatorPlay, rewrite: bool) -> None:
    """Raises AssertionError if the play differs from the accepted one. ``rewrite``: accepts it."""
    text = "\n".join(play.lines) + "\n"
    path = FOLDER / f"{name}.txt"
    if rewrite:
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
