"""``culm verify``: tries the promise on the user's own job. Plain loop, calm run and killed run give the same bits."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from culm.commands.run import add_job_arguments, node_count, read_job, try_out
from culm.pipeline.counting import of_chunks
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.terminal import flags, interrupts

KILLS = 3
SPACING = 3  # steps between two kills, in which redundancy is repaired


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "verify",
        help="prove that kills change nothing",
        description="Trains the job three times: on a calm cluster, on one with kills, and in a plain PyTorch loop. "
        "Compares every loss and the final weights, bit for bit.",
        epilog="example: culm verify examples/digits_mlp.toml --kills 5",
    )
    add_job_arguments(parser)
    parser.add_argument("--kills", type=flags.whole(), metavar="N", help=f"nodes to kill; default: {KILLS}")
    parser.add_argument(
        "--seed", type=flags.seed, default=0, metavar="S", help="draws where the kills strike; default: 0"
    )
    parser.add_argument(
        "--shapes",
        type=flags.shapes,
        default=(),
        metavar="RxS,...",
        help="train it on these shapes instead of with kills, replicas x stages each, such as 1x1,2x3,4x2",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.set_defaults(command=verify)


def verify(arguments: argparse.Namespace) -> int:
    from culm.local import nursery
    from culm.terminal.outcome import RunFailed

    job = read_job(arguments.job, arguments.set)
    if arguments.shapes:
        if arguments.kills is not None:
            raise JobError(
                "runs on shapes lose no nodes", f"--kills {arguments.kills}", "leave out --shapes or --kills"
            )
        return _verify_shapes(job, arguments)
    arguments.kills = KILLS if arguments.kills is None else arguments.kills
    nodes = node_count(job, arguments.nodes, arguments.spares)
    if arguments.kills * SPACING > job.job.steps:
        mend = f"ask for {job.job.steps // SPACING} or fewer, or for more steps with --set job.steps=N"
        raise JobError(f"so many kills do not fit into {job.job.steps} steps", f"--kills {arguments.kills}", mend)
    nursery.warm_up()
    try_out(job)
    from culm.local.cluster import job_folder_of
    from culm.oracle.plain_loop import Stopped, run_plain
    from culm.oracle.verification import Killer, compare, train_on_cluster

    interrupts.end_on_sigterm()
    try:
        folder = job_folder_of(arguments.job)
        calm = train_on_cluster(job, folder, nodes, [], "calm", arguments.json)
        killer = Killer(job, arguments.kills, arguments.seed, len(calm.losses))
        spares = nodes + min(arguments.kills, 2)
        killed = train_on_cluster(job, folder, spares, [], "killed", arguments.json, killer)
        every = max(1, job.job.steps // 10)

        def on_step(step: int, loss: float) -> None:
            if (step + 1) % every == 0:
                print(f"plain | step {step + 1}/{job.job.steps}  loss {loss:.4f}", file=sys.stderr, flush=True)

        plain = run_plain(job, on_step)
    except Stopped as error:
        print(f"culm verify: the plain loop stops, and the cluster does not: {error}", file=sys.stderr)
        return 1
    except RunFailed as error:
        alike = "; the plain loop stops there as well" if error.code == 1 and _stops_alike(job, str(error)) else ""
        print(f"culm verify: {error}{alike}", file=sys.stderr)
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
        of = of_chunks(job.graph.chunks if job.graph is not None else 0)
        for x in killed.losses_of_nodes:
            # A node that is killed at the commit of step N is missed in step N + 1.
            missed = f"step {x['step']} went on {x['resume_ms']:.0f} ms later"
            print(f"lost {x['node']} ({of.part} {x['stage']}): {missed}")
        kills = f"(node@step:instruction): {', '.join(map(str, killer.done))}" if killer.done else "(none asked for)"
        survived = f"{len(killer.done)} kills survived {kills}"
        early = f"\n{calm.stopped_early}, as the plain loop does" if calm.stopped_early else ""
        print(str(difference) if difference else f"identical {plain.sha256}{early}\n{survived}")
    if len(killer.done) < arguments.kills:
        mend = "ask for fewer" if calm.stopped_early else "give it more steps with --set job.steps=N"
        over = f"the run was over after {len(killer.done)} of {arguments.kills} kills"
        print(f"culm verify: {over}: {mend}", file=sys.stderr)
        return 1
    return 1 if difference else os.EX_OK


def _verify_shapes(job: Job, arguments: argparse.Namespace) -> int:
    """Trains the job on each shape, and compares all with the plain loop."""
    from culm.local import nursery
    from culm.terminal.outcome import RunFailed

    for replicas, stages in arguments.shapes:
        if replicas > job.pipeline.pipelines:
            mend = f"ask for {job.pipeline.pipelines} replicas or fewer, or for more with --set pipeline.pipelines=D"
            raise JobError(f"the job has {job.pipeline.pipelines} pipelines", f"--shapes {replicas}x{stages}", mend)
    shaped = [
        (f"{r}x{s}", r * s, read_job(arguments.job, [*arguments.set, f"pipeline.stages={s}"]))
        for r, s in arguments.shapes
    ]
    nursery.warm_up()
    try_out(job)
    _refuse_too_many_stages(job, arguments.shapes)
    from culm.local.cluster import job_folder_of
    from culm.oracle.plain_loop import Stopped, run_plain
    from culm.oracle.verification import compare, train_on_cluster

    interrupts.end_on_sigterm()
    try:
        plain = run_plain(job)
        differences = {}
        for name, nodes, each in shaped:
            outcome = train_on_cluster(each, job_folder_of(arguments.job), nodes, [], name, arguments.json)
            differences[name] = compare(name, plain, outcome)
            if not arguments.json:
                print(f"{name} on {nodes} nodes: {differences[name] or f'identical {outcome.sha256}'}", flush=True)
    except (Stopped, RunFailed) as error:
        print(f"culm verify: {error}", file=sys.stderr)
        return error.code if isinstance(error, RunFailed) else 1
    except KeyboardInterrupt:
        print("culm verify: interrupted; every process is ended", file=sys.stderr)
        return 130
    differing = {name: str(difference) for name, difference in differences.items() if difference is not None}
    if arguments.json:
        result = {"identical": not differing, "differences": differing, "weights_sha256": plain.sha256}
        print(json.dumps(result | {"shapes": list(differences)}))
    return 1 if differing else os.EX_OK


def _refuse_too_many_stages(job: Job, shapes: Sequence[tuple[int, int]]) -> None:
    from culm.pipeline.user_code.model import ModelSource

    layers = ModelSource(job).layer_count
    for replicas, stages in shapes:
        if stages > layers:
            mend = f"ask for {layers} stages or fewer"
            raise JobError(f"the model has {layers} layers", f"--shapes {replicas}x{stages}", mend)


def _stops_alike(job: Job, words: str) -> bool:
    """Whether the plain loop stops at the same step, for the same reason: its numbers are not finite there."""
    from culm.oracle.plain_loop import Stopped, run_plain

    try:
        run_plain(job)
    except Stopped as error:
        return str(error) == words
    return False
