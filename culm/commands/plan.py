"""``culm plan``: how many machines to rent for a job, how to run it, what it will cost and when it will end."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from typing import Any

from culm.commands.run import read_job
from culm.engines.spread import HELP, PROCESSES, WAYS, spread
from culm.local.cluster import job_folder_of
from culm.local.played_market import Happened, drive, predict, rehearsed, show
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, load_job
from culm.simulator.markets import first_guess
from culm.simulator.markets.account import Row
from culm.simulator.markets.advice import (
    DAY,
    Draw,
    Outlook,
    best,
    choice_of,
    in_order,
    longest,
    outlook,
    placed,
    short_list,
    simulate,
)
from culm.simulator.markets.first_guess import Conditions, Guess, Rates, rates_of, with_checkpoints
from culm.simulator.markets.job_profile import Cluster, Profile, of_job, read_profile
from culm.simulator.markets.trace import hastened
from culm.simulator.markets.ways import Kind, Way, settings_of, ways
from culm.terminal import flags, interrupts
from culm.terminal.advised import Advised
from culm.terminal.market_flags import add_market_arguments, read_kinds, read_markets
from culm.terminal.progress import counted

Run = tuple[int, Way]  # the seed of a market, and how the job runs in it
FIRST_LOOK = 5  # markets in which every way is tried; in the others only those that look good
MOST_MACHINES, MOST_NUMBERS = 10_000, 1000
MOST_SECONDS = 14 * DAY  # of a market, from which its rates are taken
CHUNK = 4  # runs that a worker is given at once
SPEED = 100.0  # times as fast as the market: its --validate seconds are hours
MOST_STEPS = 10**9  # a validation ends by time


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plan",
        help="how many machines to rent, how to run the job, what it will cost and when it will end",
        description="Chooses machines, zones, shape, redundancy, copies, where standbys lie and how often to save, "
        "together. A formula weighs all ways, and the best few dozen are simulated in the same random markets, with "
        "Culm's own decisions. The best is the cheapest one that ends by the deadline or, without a deadline, the one "
        "with the fewest dollars times days. See docs/simulator.md.",
        epilog="examples:\n"
        "  culm plan examples/stdlib_gpt.toml --nodes 4-8 --prices 0.91 --hazard 0.10\n"
        "  culm plan JOB.toml --profile v100.json --nodes 8,12,16 --machine p3.2xlarge --trace p3.csv --deadline 3\n"
        "  culm plan JOB.toml --nodes 4-8 --machine p3.2xlarge --machine g5.xlarge,price=0.4,speed=0.8 --hazard 0.1\n"
        "  culm plan JOB.toml --nodes 4 --prices 0.91 --hazard 0.10 --validate 60",
    )
    parser.add_argument("job", metavar="JOB.toml", help="the job file")
    parser.add_argument("--nodes", required=True, metavar="N[-M][,...]", help="numbers of machines to try")
    parser.add_argument("--profile", metavar="FILE", help="a file of culm profile; default: measure the layers here")
    add_market_arguments(parser)
    parser.add_argument("--deadline", type=flags.number(above=True), metavar="DAYS", help="when the run has to be done")
    parser.add_argument(
        "--seeds", type=flags.whole(1, 100_000), default=20, metavar="N", help="how many markets to try; default: 20"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="change a key of the job"
    )
    parser.add_argument(
        "--validate",
        type=flags.number(above=True, most=1e6),
        metavar="SECONDS",
        help="then replay the choice for so long with real processes on this machine, the first market "
        f"{SPEED:g} times as fast, and print predicted and measured",
    )
    parser.add_argument("--on", type=flags.one_of(*WAYS), default=PROCESSES, metavar="WAY", help=HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=plan)


def plan(arguments: argparse.Namespace) -> int:
    machines = _numbers(arguments.nodes)
    kinds = read_kinds(arguments)
    job = read_job(arguments.job, arguments.set)
    profile = _profile(job, arguments.profile)
    tried = ways(profile, machines, kinds)
    if not tried:
        where = f"the model has {len(profile.layers)} layers"
        raise JobError(f"no number of machines can run it: {where}", "--nodes", "ask for other numbers")
    cluster = Cluster(
        seed_bytes_per_second=job.resilience.seed_bytes_per_second, per_gb_between_zones=arguments.traffic
    )
    conditions = Conditions(profile, cluster, kinds, (), job.resilience.audit)
    seconds = longest(conditions, tried)
    markets = read_markets(arguments, kinds, max(machines))
    conditions = replace(conditions, zones=markets.zones)
    tried = conditions.fitting(ways(profile, machines, kinds, markets.zones, job.job.device == "cuda"))
    if not tried:
        raise JobError("no way fits into the memory of the machines", "--machine", "name larger ones, or more --nodes")
    interrupts.end_on_sigterm()
    looked_at = min(seconds, MOST_SECONDS)  # to draw a market of years takes half a minute
    guesses = _guesses(conditions, tried, markets.lasting(looked_at), looked_at)
    draw = markets.lasting(seconds)
    one = partial(_one, conditions, draw, seconds)
    found = _all(one, guesses, arguments.seeds, profile.steps, arguments.deadline, arguments.on)
    in_all = [x for x in found if x.markets == arguments.seeds]
    chosen = best(in_all, arguments.deadline)
    advised = Advised(conditions, tuple(in_all), chosen, arguments.deadline, job.checkpoint is not None)
    lies = placed(conditions.profile_of(chosen.way), chosen.way, draw(0, chosen.way)) if chosen else None
    told: dict[str, Any] = {"seeds": arguments.seeds, "weighed": len(guesses), "ways": [asdict(x) for x in found]}
    told |= advised.as_json(lies)
    if not arguments.json:
        advised.show(lies)
    if chosen is not None and arguments.validate is not None:
        predicted, measured = _validated(arguments, conditions, chosen.way, draw)
        told["validation"] = {"predicted": asdict(predicted), "measured": asdict(measured)}
        if not arguments.json:
            show(predicted, measured)
    if arguments.json:
        print(json.dumps(told))
    return 0 if chosen is not None else 1


def _profile(job: Job, path: str | None) -> Profile:
    if path is not None:
        given = read_profile(path)
        return of_job(job, given.layers, given.source)
    from culm.commands.profile import ROUNDS, measure

    return measure(job, ROUNDS)


def _guesses(conditions: Conditions, tried: Sequence[Way], draw: Draw, seconds: float) -> list[Guess]:
    """Of every way, with each interval between checkpoints; ``seconds``: of the market that they go by."""
    rates: dict[Way, Rates] = {}  # by what a market's draw depends on
    guesses: list[Guess] = []
    for way in tried:
        rented = Way(machines=way.machines, stages=1, redundancy="off", kind=way.kind, zones=way.zones)
        if rented not in rates:
            price = conditions.kind(way).prices[0]
            rates[rented] = rates_of(draw(0, rented), way.machines, seconds, price)
        guesses += with_checkpoints(conditions, way, rates[rented])
    return guesses


def _validated(
    arguments: argparse.Namespace, conditions: Conditions, way: Way, draw: Draw
) -> tuple[Happened, Happened]:
    """The way's first market, hastened: what the simulator predicts of it, and what happens to real processes."""
    seconds = arguments.validate
    url = ['checkpoint.url="file:///nowhere"'] if way.checkpoint_steps else []  # a replay's own are elsewhere
    job = load_job(arguments.job, [*arguments.set, *url, *settings_of(way)])
    job = job.model_copy(update={"job": job.job.model_copy(update={"steps": MOST_STEPS})})
    market = [change for change in draw(0, way) if change.at <= seconds * SPEED]
    changes = hastened(market, SPEED)
    choice = choice_of(way, changes)
    begins_with = min(way.machines, sum(change.kind == "add" and change.at == 0.0 for change in changes))
    if begins_with < way.stages:
        what = f"the first market begins with {begins_with} machines, too few for {way.stages} stages"
        raise JobError(what, "--validate", "take a trace that begins with more")
    choice = replace(choice, begins_with=begins_with)
    print(
        f"validating: {way.machines} nodes share this machine's {os.cpu_count()} processors for {seconds:g} s, in "
        f"which the first of the markets passes {SPEED:g} times as fast. Steps take longer than is predicted where "
        "nodes compute more than the processors can.",
        file=sys.stderr,
    )
    profile = _profile(job, None)
    folder = job_folder_of(arguments.job)
    local = replace(conditions, profile=profile, kinds=(Kind(name=way.kind, prices=conditions.kind(way).prices),))
    cluster = replace(local, cluster=rehearsed(job, folder, begins_with)).cluster_of(way)
    cluster = replace(
        cluster,
        per_hour=cluster.per_hour * SPEED,
        seed_bytes_per_second=job.resilience.seed_bytes_per_second,
    )
    changes = [replace(c, price=c.price * SPEED if c.price is not None else None) for c in changes]
    predicted = predict(changes, local.profile_of(way), cluster, choice, seconds)
    return predicted, drive(job, folder, changes, cluster, choice, seconds)


def _numbers(text: str) -> list[int]:
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        bounds = [first, last if dash else first]
        if not all(re.fullmatch(r"[0-9]{1,6}", bound.strip()) for bound in bounds):
            raise JobError(f"{part!r} is not a number of machines", "--nodes", "write 8, 4-8 or 4,8,16")
        numbers += range(int(bounds[0]), int(bounds[1]) + 1)
        if not numbers or min(numbers) < 1 or max(numbers) > MOST_MACHINES or len(numbers) > MOST_NUMBERS:
            mend = f"write 8, 4-8 or 4,8,16: up to {MOST_NUMBERS} numbers from 1 to {MOST_MACHINES}"
            raise JobError(f"{text!r} names no machines", "--nodes", mend)
    return numbers


def _one(conditions: Conditions, draw: Draw, seconds: float, run: Run) -> Row:
    """One way in the market of one seed."""
    seed, way = run
    return simulate(conditions, way, draw(seed, way), seconds)


def _all(
    one: Callable[[Run], Row], guesses: Sequence[Guess], seeds: int, steps: int, deadline_days: float | None, on: str
) -> list[Outlook]:
    """The best guesses in a few markets, and the ways next to the best of them; then the good ones in the others."""
    deadline = deadline_days * DAY if deadline_days is not None else None
    first = range(min(seeds, FIRST_LOOK))
    listed = first_guess.short_list(guesses, deadline)
    print(
        f"simulating {len(listed)} of {len(guesses)} ways in {len(first)} markets, the best of them in {seeds}",
        file=sys.stderr,
    )
    rows: dict[Way, list[Row]] = {}

    def outlooks() -> list[Outlook]:
        return [outlook(way, of_way, steps) for way, of_way in rows.items()]

    with spread(on, CHUNK) as each:

        def run(markets: range, tried: Sequence[Way]) -> None:
            runs = list(product(markets, tried))
            for (seed, way), row in zip(runs, each(one, runs), strict=True):
                rows.setdefault(way, []).append(row)
                counted(f"market {seed + 1} of {seeds}, {len(tried)} ways each")

        run(first, listed)
        nearest = first_guess.next_to(in_order(outlooks(), deadline_days)[0].way, guesses, deadline)
        run(first, [way for way in nearest if way not in rows])
        run(range(FIRST_LOOK, seeds), short_list(outlooks(), deadline_days))
    counted("")
    return outlooks()
