"""``culm replay``: plays a trace with real processes, and prints the simulator's prediction beside what happened."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from culm.commands.run import read_job, try_out
from culm.local.cluster import job_folder_of
from culm.local.played_market import choice_of, drive, predict, rehearsed, show
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.simulator.markets.job_profile import Profile, of_job, read_profile
from culm.simulator.markets.trace import Change, hastened, read_trace
from culm.simulator.markets.workload import SPOT
from culm.terminal import flags, interrupts


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "replay",
        help="play a trace with real processes, beside the simulator's prediction",
        description="Starts and kills real nodes on this machine as the trace says, only faster, and prints the "
        "simulator's prediction beside what happened. See docs/simulator.md.",
        epilog="example: culm replay examples/digits_mlp.toml --trace p3.csv --speed 100 --hours 2 --machines 5",
    )
    parser.add_argument("job", metavar="JOB.toml", help="the job file")
    parser.add_argument("--trace", required=True, metavar="FILE", help="when machines come and go: docs/simulator.md")
    parser.add_argument(
        "--speed",
        type=flags.number(above=True, most=1e9),
        default=100.0,
        metavar="X",
        help="how many times as fast; default: 100",
    )
    parser.add_argument(
        "--burst",
        type=flags.number(most=1e6),
        default=0.0,
        metavar="S",
        help="changes up to S seconds apart stay as far apart, and only longer pauses pass faster; default: 0",
    )
    parser.add_argument(
        "--hours", type=flags.number(above=True, most=1e6), metavar="H", help="hours of the trace to play; default: all"
    )
    parser.add_argument(
        "--machines",
        type=flags.whole(1, flags.MOST_NODES),
        metavar="N",
        help="machines to rent at most; default: stages + 2",
    )
    parser.add_argument("--profile", metavar="FILE", help="a file of culm profile; default: measure the layers first")
    parser.add_argument(
        "--price",
        type=flags.number(),
        default=SPOT,
        metavar="$/H",
        help=f"of a machine, in the trace's hours; default: {SPOT}",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a key of the job"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=replay)


def replay(arguments: argparse.Namespace) -> int:
    trace = read_trace(arguments.trace)
    end = arguments.hours * 3600.0 if arguments.hours is not None else trace[-1].at
    changes, seconds = played(trace, end, arguments.speed, arguments.burst)
    job = read_job(arguments.job, arguments.set)
    machines = arguments.machines or job.pipeline.stages + 2
    begins_with = min(machines, sum(change.kind == "add" and change.at == 0.0 for change in trace))
    if begins_with < job.pipeline.stages:
        what = f"the trace begins with {begins_with} machines, too few for {job.pipeline.stages} stages"
        raise JobError(what, arguments.trace, "take another trace, or fewer stages with --set pipeline.stages=N")
    interrupts.end_on_sigterm()
    profile = _profile(job, arguments.profile)
    folder = job_folder_of(arguments.job)
    cluster = replace(
        rehearsed(job, folder, begins_with),
        per_hour=arguments.price * end / seconds,
        seed_bytes_per_second=job.resilience.seed_bytes_per_second,
    )
    choice = choice_of(job, machines, begins_with)
    predicted = predict(changes, profile, cluster, choice, seconds)
    measured = drive(job, folder, changes, cluster, choice, seconds)
    if arguments.json:
        print(json.dumps({"predicted": asdict(predicted), "measured": asdict(measured)}))
    else:
        show(predicted, measured)
    return 0


def played(trace: Sequence[Change], end: float, speed: float, burst: float) -> tuple[list[Change], float]:
    """The trace up to ``end`` as it is played, and how many seconds that takes. An hour costs what the trace's does."""
    taken = [change for change in trace if change.at <= end]
    changes = hastened(taken, speed, burst)
    rest = end - (taken[-1].at if taken else 0.0)
    seconds = (changes[-1].at if changes else 0.0) + rest / speed
    if not seconds > 0:
        raise JobError("no time of the trace is left to replay", "--hours", "give more than 0")
    dearer = end / seconds
    return [replace(c, price=c.price * dearer if c.price is not None else None) for c in changes], seconds


def _profile(job: Job, path: str | None) -> Profile:
    if path is not None:
        given = read_profile(path)
        return of_job(job, given.layers, given.source)
    from culm.commands.profile import ROUNDS, measure

    try_out(job)
    return measure(job, ROUNDS)
