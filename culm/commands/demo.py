"""``culm demo``: a small GPT learns; three nodes die; the weights are those of the run that nobody disturbed."""

import argparse
import os
import sys
from pathlib import Path

from culm.commands.run import read_job, try_out
from culm.local.kills import Kill
from culm.pipeline.errors import JobError
from culm.terminal import interrupts

JOB = Path("examples/stdlib_gpt.toml")
OVERRIDES = (
    "job.steps=60",
    "model.args.depth=6",
    "model.args.width=96",
    "model.args.context=64",
    "data.args.context=64",
    "train.optimizer_args.lr=2e-3",
)
KILLS = (Kill("n1", 12, "1B3"), Kill("n0", 28, "send"), Kill("n3", 44, "ship"))


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "demo",
        help="watch nodes die and nothing change",
        description="Trains a small GPT twice on this machine, undisturbed and with kills, and compares the weights.",
        epilog="example: culm demo",
    )
    parser.set_defaults(command=demo)


def demo(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from culm.local import nursery
    from culm.terminal.outcome import RunFailed
    from culm.terminal.progress import lost_nodes_table

    if not JOB.exists():
        raise JobError("the job that it trains is not here", str(JOB), "run culm demo in a clone of Culm's repository")
    job = read_job(str(JOB), OVERRIDES)
    nodes = job.pipeline.stages
    title = f"A GPT learns Python from the standard library, {job.job.steps} steps on {nodes} nodes, undisturbed:"
    print(title, flush=True)  # before the trial, which takes a while
    nursery.warm_up()
    try_out(job)
    from culm.local.cluster import job_folder_of
    from culm.oracle.verification import train_on_cluster

    interrupts.end_on_sigterm()
    try:
        calm = train_on_cluster(job, job_folder_of(JOB), nodes, [], "undisturbed", False)
        print(f"loss {calm.losses[0]:.3f} -> {calm.losses[-1]:.3f} in {calm.seconds:.0f} s")
        print(f"\nThe same again, with kill -9 at {', '.join(map(str, KILLS))}:")
        killed = train_on_cluster(job, job_folder_of(JOB), nodes, list(KILLS), "with kills", False)
    except RunFailed as error:
        print(f"culm demo: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("culm demo: interrupted; every process is ended", file=sys.stderr)
        return 130
    print(f"loss {killed.losses[0]:.3f} -> {killed.losses[-1]:.3f} in {killed.seconds:.0f} s\n")
    Console().print(lost_nodes_table(killed))
    print(f"\nundisturbed {calm.sha256}\nwith kills  {killed.sha256}")
    same = calm.sha256 == killed.sha256 and calm.losses == killed.losses
    print("identical, bit for bit" if same else "they differ: please report this")
    return os.EX_OK if same else 1
