"""``culm verify``: the promise, tried on the user's own job: plain loop, calm run and killed run give the same bits."""

import argparse
import json
import os
import random
import sys
from dataclasses import dataclass
from typing import Any

import grpc

from culm.kills import Kill
from culm.plain_loop import PlainResult, run_plain
from culm.run import add_job_arguments, end_on_sigterm, node_count, prepare
from culm.training import LayerState, Outcome, train
from pipeline.digest import hash_layer
from pipeline.errors import JobError
from pipeline.job import Job
from pipeline.schedule import one_f_one_b
from protos import coordinator_pb2 as pb
from protos.coordinator_pb2_grpc import CoordinatorStub
from stage_server.faults import KINDS

SPACING = 3  # steps between two kills, in which redundancy is repaired


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "verify",
        help="prove that kills change nothing",
        description="Runs the job in a plain PyTorch loop, calmly on a cluster, and with kills; compares all bits.",
        epilog="example: culm verify examples/digits_mlp.toml --kills 5",
    )
    add_job_arguments(parser)
    parser.add_argument("--kills", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the kills' places")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.set_defaults(command=verify)


class Killer:
    """Kills the owner of a random stage at a random instruction, ``kills`` times, spread over the run.

    It strikes only while every stage has a hot standby and a node is left to repair with: one loss at a time.
    """

    def __init__(self, job: Job, kills: int, seed: int) -> None:
        self.done: list[Kill] = []
        self._draw = random.Random(seed)
        self._job = job
        self._wanted = kills
        self._armed: Kill | None = None

    def watch(self, stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        """Called again and again while the run goes on."""
        if len(deaths) > len(self.done) and self._armed is not None:
            self.done.append(self._armed)
            self._armed = None
        if self._armed is not None and status.step > self._armed.step + 1:
            self._armed = None  # the step was over before the order came: another place
        due = (len(self.done) + 0.5) * status.steps / max(1, self._wanted)
        safe = status.phase == "running" and not any(status.exposure.values()) and len(status.nodes) > 2
        if self._armed is None and len(self.done) < self._wanted and status.step >= due - 2 and safe:
            self._arm(stub, status)

    def _arm(self, stub: CoordinatorStub, status: pb.GetStatusResponse) -> None:
        stages, microbatches = len(status.plan.stages), self._job.pipeline.microbatches
        stage = self._draw.randrange(stages)
        node = status.plan.stages[stage].owners[0]
        place = str(self._draw.choice(one_f_one_b(stage, stages, microbatches)))
        kind = self._draw.choice([*KINDS, place, place, place])
        self._armed = Kill(node, min(status.step + 2, status.steps - 1), kind)
        try:
            stub.Kill(pb.KillRequest(node=node, at=self._armed.at), timeout=5.0)
        except grpc.RpcError:
            self._armed = None  # it is just being lost: another one


@dataclass(frozen=True)
class Difference:
    """The first place where a run left the plain loop; layer -1 for the loss."""

    run: str
    step: int
    layer: int

    def __str__(self) -> str:
        what = "loss" if self.layer < 0 else f"weights of layer {self.layer}"
        return f"the {self.run} run differs: {what} after step {self.step}"


def compare(name: str, plain: PlainResult, run: Outcome) -> Difference | None:
    """The first loss that differs, else the first layer of the final weights."""
    for step, loss in enumerate(plain.losses):
        if step >= len(run.losses) or run.losses[step].hex() != loss.hex():
            return Difference(name, step, -1)
    return _compare_layers(name, len(plain.losses) - 1, plain.layers, run.layers)


def _compare_layers(name: str, step: int, plain: list[LayerState], run: list[LayerState]) -> Difference | None:
    for (index, expected), (_, got) in zip(plain, run, strict=True):
        if hash_layer(index, expected) != hash_layer(index, got):
            return Difference(name, step, index)
    return None


def train_on_cluster(
    job: Job, path: str, nodes: int, kills: list[Kill], title: str, plain: bool, killer: Killer | None = None
) -> Outcome:
    """One run on a local cluster, with its progress shown."""
    from culm.cluster import USUAL_ADDRESS, LocalCluster, job_folder_of
    from culm.progress import display

    cluster = LocalCluster(job, job_folder_of(path), nodes, kills, USUAL_ADDRESS)
    print(f"{title}: logs in {cluster.folder}", file=sys.stderr)
    with cluster, display(title, plain) as shown:
        return train(cluster, shown.watch, killer.watch if killer is not None else None)


def verify(arguments: argparse.Namespace) -> int:
    from culm.cluster import RunFailed

    job = prepare(arguments.job, arguments.set)
    nodes = node_count(job, arguments.nodes, arguments.spares)
    if arguments.kills < 0 or arguments.kills * SPACING > job.job.steps:
        mend = f"ask for {job.job.steps // SPACING} or fewer, or for more steps with --set job.steps=N"
        raise JobError(f"they do not fit into {job.job.steps} steps", f"--kills {arguments.kills}", mend)
    killer = Killer(job, arguments.kills, arguments.seed)
    end_on_sigterm()
    try:
        calm = train_on_cluster(job, arguments.job, nodes, [], "calm", arguments.json)
        spares = nodes + min(arguments.kills, 2)
        killed = train_on_cluster(job, arguments.job, spares, [], "killed", arguments.json, killer)
        every = max(1, job.job.steps // 10)

        def on_step(step: int, loss: float) -> None:
            if (step + 1) % every == 0:
                print(f"plain | step {step + 1}/{job.job.steps}  loss {loss:.4f}", file=sys.stderr, flush=True)

        plain = run_plain(job, on_step)
    except RunFailed as error:
        print(f"culm verify: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("culm verify: interrupted; every process is ended", file=sys.stderr)
        return 130
    difference = compare("calm", plain, calm) or compare("killed", plain, killed)
    if arguments.json:
        result: dict[str, Any] = {
            "identical": difference is None,
            "difference": str(difference) if difference else None,
            "weights_sha256": plain.sha256,
            "plain": {"seconds": plain.seconds, "weights_sha256": plain.sha256},
            "calm": calm.as_json(),
            "killed": killed.as_json(),
            "kills": [str(kill) for kill in killer.done],
        }
        print(json.dumps(result))
    else:
        for x in killed.losses_of_nodes:
            print(f"lost {x['node']} (stage {x['stage']}) in step {x['step']}: resumed after {x['resume_ms']:.0f} ms")
        survived = f"{len(killer.done)} kills survived: {', '.join(map(str, killer.done)) or 'none asked for'}"
        print(str(difference) if difference else f"identical {plain.sha256}\n{survived}")
    if len(killer.done) < arguments.kills:
        print(f"culm verify: only {len(killer.done)} kills found their moment: set more steps", file=sys.stderr)
        return 1
    return 1 if difference else os.EX_OK
