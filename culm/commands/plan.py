"""``culm plan``: how many machines to rent for a job, how to run it, what it will cost and when it will end."""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product

from culm.commands.run import read_job
from culm.engines.spread import HELP, PROCESSES, WAYS, spread
from culm.pipeline.errors import JobError
from culm.simulator.markets.account import Row
from culm.simulator.markets.advice import (
    Draw,
    Outlook,
    Placed,
    Way,
    best,
    longest,
    outlook,
    placed,
    short_list,
    simulate,
    ways,
    why,
)
from culm.simulator.markets.job_profile import Cluster, Profile, of_job, read_profile
from culm.terminal import flags, interrupts
from culm.terminal.market_flags import add_market_arguments, read_market, read_prices
from culm.terminal.progress import counted

Run = tuple[int, Way]  # the seed of a market, and how the job runs in it
FIRST_LOOK = 5  # markets in which every way is tried; in the others only those that look good
MOST_MACHINES, MOST_NUMBERS = 10_000, 1000
CHUNK = 4  # runs that a worker is given at once


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "plan",
        help="how many machines to rent, how to run the job, what it will cost and when it will end",
        description="Simulates every way to run the job in the same random markets, with Culm's own decisions. Names "
        "the best: the cheapest one that ends by the deadline or, without a deadline, the one with the fewest dollars "
        "times days. See docs/simulator.md.",
        epilog="examples:\n"
        "  culm plan examples/stdlib_gpt.toml --nodes 4-8 --prices 0.91 --hazard 0.10\n"
        "  culm plan JOB.toml --profile v100.json --nodes 8,12,16 --machine p3.2xlarge --trace p3.csv --deadline 3",
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
    parser.add_argument("--on", type=flags.one_of(*WAYS), default=PROCESSES, metavar="WAY", help=HELP)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=plan)


def plan(arguments: argparse.Namespace) -> int:
    machines = _numbers(arguments.nodes)
    prices = read_prices(arguments)
    job = read_job(arguments.job, arguments.set)
    if arguments.profile is not None:
        given = read_profile(arguments.profile)
        profile = of_job(job, given.layers, given.source)
    else:
        from culm.commands.profile import ROUNDS, measure

        profile = measure(job, ROUNDS)
    cluster = Cluster(
        seed_bytes_per_second=job.resilience.seed_bytes_per_second,
        per_gb_between_zones=arguments.traffic,
        per_hour=prices[0],
    )
    tried = ways(profile, machines)
    if not tried:
        where = f"the model has {len(profile.layers)} layers"
        raise JobError(f"no number of machines can run it: {where}", "--nodes", "ask for other numbers")
    seconds = longest(profile, cluster, tried)
    draw = read_market(arguments, prices, max(machines), seconds)
    interrupts.end_on_sigterm()
    one = partial(_one, profile, cluster, draw, seconds)
    found = _all(one, tried, arguments.seeds, profile.steps, arguments.deadline, arguments.on)
    listed = [x for x in found if x.markets == arguments.seeds]
    chosen = best(listed, arguments.deadline)
    lies = placed(profile, chosen.way, draw(0)) if chosen is not None else Placed((), {})
    layers, zones = lies.layers_in_words(profile), lies.zones_in_words(profile, cluster) if lies.stages else ""
    if arguments.json:
        told = {
            "seeds": arguments.seeds,
            "ways": [asdict(x) for x in found],
            "best": asdict(chosen) if chosen else None,
            "layers": layers,
            "zones": zones,
        }
        print(json.dumps(told))
    else:
        _show(listed, chosen, {"Stages": layers, "In zones": zones})
    return 0 if chosen is not None else 1


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


def _one(profile: Profile, cluster: Cluster, draw: Draw, seconds: float, run: Run) -> Row:
    """One way in the market of one seed."""
    seed, way = run
    return simulate(profile, cluster, way, draw(seed), seconds)


def _all(
    one: Callable[[Run], Row], tried: Sequence[Way], seeds: int, steps: int, deadline_days: float | None, on: str
) -> list[Outlook]:
    """Every way in the first markets, and those that look good there in the others as well."""
    rows: dict[Way, list[Row]] = {way: [] for way in tried}
    print(
        f"simulating {len(tried)} ways in {min(seeds, FIRST_LOOK)} markets, the best of them in {seeds}",
        file=sys.stderr,
    )
    with spread(on, CHUNK) as each:
        for markets in (range(min(seeds, FIRST_LOOK)), range(FIRST_LOOK, seeds)):
            runs = list(product(markets, tried))
            for (seed, way), row in zip(runs, each(one, runs), strict=True):
                rows[way].append(row)
                counted(f"market {seed + 1} of {seeds}, {len(tried)} ways each")
            outlooks = [outlook(way, of_way, steps) for way, of_way in rows.items()]
            tried = short_list(outlooks, deadline_days)
    counted("")
    return outlooks


def _show(found: Sequence[Outlook], chosen: Outlook | None, placed: Mapping[str, str]) -> None:
    """``placed``: how the chosen way is laid out, in words; what is empty is not told."""
    from rich.console import Console
    from rich.table import Table

    several = any(x.way.replicas > 1 for x in found)
    heads = ("nodes", "shape" if several else "stages", "redundancy", "saves", "samples/s", "time", "$", "rollback")
    title = "the ten best; ranges are of eight markets in ten"
    if several:
        title += "; a shape is replicas x stages"
    table = Table(*heads, box=None, pad_edge=False, title=title, title_justify="left")
    nearest: dict[tuple[int, int, str], Outlook] = {}  # the best of the ways that differ in their checkpoints alone
    for x in sorted(found, key=lambda x: (x is not chosen, -x.done, x.cost * x.days)):
        nearest.setdefault((x.way.machines, x.way.stages, x.way.redundancy), x)
    for x in list(nearest.values())[:10]:
        way, (cheap, dear) = x.way, x.cost_range
        shape = f"{way.replicas}x{way.stages}" if several else f"{way.stages}"
        setting = (f"{way.machines}", shape, way.redundancy, f"{way.checkpoint_steps or 'never'}")
        span, dollars = _span(*x.days_range), f"{cheap:.4g}-{dear:.4g}"
        figures = (f"{x.samples_per_second:.4g}", span, dollars, f"{x.rollback_risk:.0%}")
        table.add_row(*setting, *figures, style="bold" if x is chosen else "")
    for column in table.columns:
        column.no_wrap = True
    console = Console(highlight=False)
    console.print(table)
    if chosen is None:
        console.print("No way is done often enough, or by the deadline: try more machines, or a later deadline.")
        return
    way = chosen.way
    every = way.checkpoint_steps
    saves = f"a checkpoint every {every} steps" if every else "no checkpoint, since it is done before the first"
    console.print(
        f"\nRent {way.machines}: {way.shape} and {way.spares} spare(s), redundancy {way.redundancy!r}, "
        f"{saves}. Done in {_span(chosen.days, chosen.days)} at {chosen.samples_per_second:.4g} samples/s for "
        f"${chosen.cost:.2f}; a run goes back to a checkpoint "
        f"in {chosen.rollback_risk * chosen.markets:.0f} of {chosen.markets} markets."
    )
    for what, words in placed.items():
        if words:
            console.print(f"  {what}: {words}.", markup=False)
    for reason in why(chosen, found):
        console.print(f"  {reason}", markup=False)


def _span(first: float, last: float) -> str:
    """Days in a unit that fits."""
    unit, name = next(
        ((unit, name) for unit, name in ((1.0, "days"), (1 / 24, "h"), (1 / 1440, "min")) if last >= 2 * unit),
        (1 / 86400, "s"),
    )
    one, other = f"{first / unit:.3g}", f"{last / unit:.3g}"
    return f"{one} {name}" if one == other else f"{one}-{other} {name}"
