"""``culm verify``: the promise, tried on the user's own job: plain loop, calm run and killed run give the same bits."""

import argparse
import json
import os
import random
import sys
from dataclasses import dataclass
from typing import Any

from culm.kills import Kill
from culm.plain_loop import PlainResult, run_plain
from culm.run import add_job_arguments, end_on_sigterm, node_count, prepare
from culm.training import LayerState, Outcome, train
from pipeline.digest import hash_layer
from pipeline.errors import JobError
from pipeline.job import Job
from pipeline.schedule import one_f_one_b

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


def choose_kills(job: Job, nodes: int, kills: int, seed: int) -> list[Kill]:
    """Random nodes that own a stage at the start, at random instructions, one in each of ``kills`` spans of steps."""
    draw = random.Random(seed)
    steps = job.job.steps
    if kills and steps // kills < SPACING:
        mend = f"ask for {steps // SPACING} or fewer, or for more steps with --set job.steps={kills * SPACING}"
        raise JobError(f"{kills} kills do not fit into {steps} steps", f"--kills {kills}", mend)
    stages = job.pipeline.stages
    kinds = ["send", "receive", "ship", "ready", "commit", "forward", "backward"]
    chosen = []
    for i in range(kills):
        first, end = i * steps // kills, (i + 1) * steps // kills
        step = draw.randrange(max(first, 1), max(end - SPACING + 1, first + 2))
        stage = draw.randrange(stages)
        node = f"n{stage * min(nodes, stages) // stages}"
        place = str(draw.choice(one_f_one_b(stage, stages, job.pipeline.microbatches)))
        kind = draw.choice([*kinds, place, place, place])
        chosen.append(Kill(node, step, kind))
    return chosen


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


def train_on_cluster(job: Job, path: str, nodes: int, kills: list[Kill], title: str, plain: bool) -> Outcome:
    """One run on a local cluster, with its progress shown."""
    from culm.cluster import LocalCluster, job_folder_of
    from culm.progress import display

    cluster = LocalCluster(job, job_folder_of(path), nodes, kills)
    print(f"{title}: logs in {cluster.folder}", file=sys.stderr)
    with cluster, display(title, plain) as shown:
        return train(cluster, shown.watch)


def verify(arguments: argparse.Namespace) -> int:
    from culm.cluster import RunFailed

    job = prepare(arguments.job, arguments.set)
    nodes = node_count(job, arguments.nodes, arguments.spares)
    kills = choose_kills(job, nodes, arguments.kills, arguments.seed)
    end_on_sigterm()
    try:
        calm = train_on_cluster(job, arguments.job, nodes, [], "calm", arguments.json)
        print(f"killed: {', '.join(map(str, kills)) or 'no kills'}", file=sys.stderr)
        killed = train_on_cluster(job, arguments.job, nodes, kills, "killed", arguments.json)
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
    lost = len(killed.losses_of_nodes)
    if arguments.json:
        result: dict[str, Any] = {
            "identical": difference is None,
            "difference": str(difference) if difference else None,
            "weights_sha256": plain.sha256,
            "plain": {"seconds": plain.seconds, "weights_sha256": plain.sha256},
            "calm": calm.as_json(),
            "killed": killed.as_json(),
            "kills": [str(kill) for kill in kills],
        }
        print(json.dumps(result))
    else:
        for x in killed.losses_of_nodes:
            print(f"lost {x['node']} (stage {x['stage']}) in step {x['step']}: resumed after {x['resume_ms']:.0f} ms")
        print(str(difference) if difference else f"identical {plain.sha256} ({lost} stages' losses survived)")
    return 1 if difference else os.EX_OK
