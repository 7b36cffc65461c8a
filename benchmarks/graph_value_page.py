"""docs/graphs_value.md, from the results of ``benchmarks.graph_value``: the words around its tables, and the tables."""

import json
from collections.abc import Iterator
from pathlib import Path

from benchmarks.graph_figures import Figures, billed, filled, operation_price, published, table, tensor_share, times
from benchmarks.graph_value import BASE, COUNTED, COUNTS, CPU, CPU_AHEAD, GPU, RESULTS, VARIANTS, VARIED, WAYS, WORKERS
from culm.simulator.graphs.hardware import CPU_ADDS, CPU_OPERATIONS, function
from culm.simulator.graphs.published import JOBS, SAMPLED, SPARSE

PAGE = Path(__file__).parent.parent / "docs" / "graphs_value.md"

HEAD = """# What a dollar buys on graphs

Made by `python -m benchmarks.graph_value`, in less than a minute; `make tables` makes it, too. Change it there.

Dorylus (OSDI 2021) keeps graph work on CPU servers and gives tensor work to functions that are billed by the second. It
claims 2.75 times the performance per dollar of CPU servers alone; 1.22 times the speed of GPU servers at a cost 4.83
times lower; 3.8 times the speed of sampling at a cost 10.7 times lower. This page plays epochs of its graphs in virtual
time, on its clusters, at their prices, and says where the claims hold. `simulator/graphs/` is what is played: chunks
pass through gather, apply vertex, scatter and apply edge, forward and backward, on cores, networks and workers.

S is the staleness. With S = 0 a gather waits for all neighbours' values of its own epoch. With S = 1 it takes those of
the epoch before, and does not wait. **So nobody should read S = 1 beside S = 0 as free:** the paper reports more epochs
to the same accuracy with older values (8 % more, as remembered; not looked up).
"""

ASSUMED = """## What is assumed

- **Published results are quoted from memory**, the paper was not at hand: `simulator/graphs/published.py`. Arithmetic
  bears them out. Time, machines and on-demand price come to each cost of servers alone, within a cent or 0.3 %.
- Graphs have the published vertices, edges and layer sizes. Reddit-large's hidden layer is taken to have 128 values.
- A virtual CPU adds {adds:.1f} billion neighbours' values a second and does {operations:.0f} billion operations a
  second in products. A V100 has 60 % of its memory's bandwidth and 4e12 operations a second. The reasons stand in
  `simulator/graphs/hardware.py`. No rate is fitted to a published time, and none differs from row to row.
- Networks do what AWS advertises ("up to"). Values on a GPU pass PCIe twice. Launches of a GPU's kernels are free.
- A function has 192 MB, {share:.2f} of a virtual CPU and 0.6 Gbit/s, and begins 20 ms after the call. It is billed
  while it runs, also while it waits for the server's network. Weights reach it for nothing, and it never starts cold.
- Weight servers, disks and transfer cost nothing, in all ways alike. (The published costs leave weight servers out.)
- {chunks} chunks a server, of uneven size (standard deviation {uneven:.0f} %). Each is every other one's neighbour. Two
  servers are played and stand for all; in the table of assumptions one.
- {apart:.0f} % of the edges have their ends on two servers, in every graph. Degrees are geometric: that says how many
  ghosts there are. Real partitions are better on some graphs and worse on others.
- A GAT's apply edge takes two scores an edge and gives one back: vertices are multiplied before. Culm's own GAT layer
  gives apply edge both ends' whole rows. Those are far more bytes, with which workers pay even less.
"""


def in_short(found: Figures) -> Iterator[str]:
    ways = found["ways"]
    gat, amazon, friendster = (ways[name] for name in ("GAT Amazon", "GCN Amazon", "GCN Friendster"))
    time, money, both = published("GAT Amazon", "cpu")
    cheaper = max(times(of[CPU], of[WORKERS])[1] for of in ways.values())
    yield "## In short"
    yield ""
    yield (
        "- **2.75 times the performance per dollar does not come out.** It is published for the GAT on Amazon: "
        f"{time:.2f} times as fast, {money:.2f} times as cheap. Its measure is 1 / (time x cost), in which time counts "
        f"twice ({time:.2f} x {money:.2f} = {both:.2f}). By throughput for a dollar the published gain is {money:.2f}. "
        f"Simulated, workers with S = 1 are {times(gat[CPU], gat[WORKERS])[0]:.2f} times as fast there as CPU servers "
        f"with S = 0, and cost {1 / times(gat[CPU], gat[WORKERS])[1]:.1f} times as much."
    )
    yield (
        "- **Workers buy time.** On sparse graphs they make epochs "
        f"{min(times(ways[n][CPU], ways[n][WORKERS])[0] for n in SPARSE):.2f} to "
        f"{max(times(ways[n][CPU], ways[n][WORKERS])[0] for n in SPARSE):.2f} times faster, as published for the GCNs "
        f"({published('GCN Amazon', 'cpu')[0]:.2f} and {published('GCN Friendster', 'cpu')[0]:.2f}; simulated "
        f"{times(amazon[CPU], amazon[WORKERS])[0]:.2f} and {times(friendster[CPU], friendster[WORKERS])[0]:.2f}). They "
        f"do not buy value: in no row does a dollar train more epochs with them (at best {cheaper:.2f} times as many)."
    )
    yield (
        "- **Beside CPU servers with S = 1** little remains: workers are "
        f"{times(amazon[CPU_AHEAD], amazon[WORKERS])[0]:.2f} times as fast on Amazon (GCN), "
        f"{times(gat[CPU_AHEAD], gat[WORKERS])[0]:.2f} on Amazon (GAT), and "
        f"{times(friendster[CPU_AHEAD], friendster[WORKERS])[0]:.2f} on Friendster, where their bytes take the network "
        "from the ghosts."
    )
    ahead = times(friendster[CPU], friendster[CPU_AHEAD])
    yield (
        "- **Asynchrony pays without workers.** On Friendster most of the gain is S = 1 alone: CPU servers are "
        f"{ahead[0]:.2f} times as fast with it, and as much cheaper, because ghosts travel while cores add."
    )
    yield (
        f"- **GPU servers cost more on sparse graphs, as claimed.** Workers are {times(gat[GPU], gat[WORKERS])[0]:.2f} "
        f"times as fast on the GAT and {times(friendster[GPU], friendster[WORKERS])[0]:.2f} times on Friendster "
        f"(published {published('GAT Amazon', 'gpu')[0]:.2f} and {published('GCN Friendster', 'gpu')[0]:.2f}), and "
        f"{times(gat[GPU], gat[WORKERS])[1]:.1f} and {times(friendster[GPU], friendster[WORKERS])[1]:.1f} times "
        f"cheaper (published {published('GAT Amazon', 'gpu')[1]:.1f} and {published('GCN Friendster', 'gpu')[1]:.1f}). "
        f"CPU servers alone with S = 1 are cheaper still: {times(gat[GPU], gat[CPU_AHEAD])[1]:.1f} and "
        f"{times(friendster[GPU], friendster[CPU_AHEAD])[1]:.1f} times. For Amazon's GCN GPU servers are faster than "
        f"workers, {times(amazon[WORKERS], amazon[GPU])[0]:.1f} times (published "
        f"{1 / published('GCN Amazon', 'gpu')[0]:.1f}), and dearer."
    )
    small = ways["GCN Reddit-small"]
    yield (
        "- **It does not pay on dense graphs.** On Reddit-small GPU servers are "
        f"{times(small[WORKERS], small[GPU])[0]:.0f} times as fast as workers and "
        f"{times(small[WORKERS], small[GPU])[1]:.1f} times as cheap. The paper has them faster "
        f"({1 / published('GCN Reddit-small', 'gpu')[0]:.1f} times), yet dearer."
    )
    yield ""


def ways(found: Figures) -> Iterator[str]:
    yield "## Time, cost and value"
    yield ""
    yield (
        "Of an epoch. Value is beside CPU servers with S = 0: epochs for a dollar, and the paper's 1 / (time x cost). "
        "Workers are those busy in the mean, of all servers; their number is tuned (below)."
    )
    for name, of in found["ways"].items():
        job = JOBS[name]
        sizes = "-".join(map(str, job.sizes))
        yield ""
        yield f"### {name}"
        yield ""
        yield (
            f"{job.vertices / 1e6:,.1f} million vertices, {job.edges / 1e6:,.0f} million edges, {job.degree:.0f} a "
            f"vertex; layers {sizes}; {job.servers} {job.instance_type} or {job.servers} p3.2xlarge."
        )
        yield ""
        rows = []
        for way in WAYS:
            x = of[way]
            _, cheaper, both = times(of[CPU], x)
            busy = f"{x['busy']:.0f}" if x["workers"] else ""
            rows.append(
                [
                    way,
                    f"{x['seconds']:.2f}",
                    f"{1000 * x['dollars']:.2f}",
                    f"{cheaper:.2f}",
                    f"{both:.2f}",
                    busy,
                    f"{100 * x['cores']:.0f} %",
                ]
            )
        columns = [
            "way",
            "s an epoch",
            "$ for 1,000",
            "epochs for a dollar",
            "1 / (time x cost)",
            "workers",
            "cores busy",
        ]
        yield from table(columns, rows)
    yield ""


def beside(found: Figures) -> Iterator[str]:
    yield "## Beside the published results"
    yield ""
    yield (
        "How many times faster and cheaper workers are (S = 1) than servers alone (S = 0), published and simulated; "
        "and how many workers of a server are busy, in the published case as its cost implies."
    )
    yield ""
    rows = []
    for name, of in found["ways"].items():
        row = [name]
        for base, way in (("cpu", CPU), ("gpu", GPU)):
            theirs, ours = published(name, base), times(of[way], of[WORKERS])
            row += [f"{a:.2f}, {b:.2f}" for a, b in zip(theirs[:2], ours[:2], strict=True)]
        row.append(f"{billed(name):.0f}, {of[WORKERS]['busy'] / JOBS[name].servers:.0f}")
        rows.append(row)
    columns = ["job", "faster than CPU", "cheaper than CPU", "faster than GPU", "cheaper than GPU", "busy workers"]
    yield from table(columns, rows)
    yield ""
    gat = found["ways"]["GAT Amazon"]
    needed = 1 - 1 / published("GAT Amazon", "cpu")[0]
    yield (
        "Where they agree: speed beside CPU servers for the sparse GCNs; that dense graphs gain little; that GPU "
        "servers "
        f'are dear on sparse graphs. The published "4.83 times cheaper" is 1 / (time x cost) again: '
        f"{published('GAT Amazon', 'gpu')[0]:.2f} x {published('GAT Amazon', 'gpu')[1]:.2f} = "
        f"{published('GAT Amazon', 'gpu')[2]:.2f}."
    )
    yield ""
    yield (
        f"Where they do not: the GATs, and money. To be {published('GAT Amazon', 'cpu')[0]:.2f} times as fast, workers "
        f"must take {100 * needed:.0f} % of the servers' time off them. With the rates assumed here tensor work is "
        f"{100 * tensor_share(gat):.0f} % of it. So the published CPU servers do tensor work more slowly than these, "
        "as the table of assumptions shows; and the paper's functions are faster for their price: here an operation "
        f"on a function costs {operation_price():.1f} times one on a busy c5n. GPU servers are much faster on Reddit "
        "here than published: nothing but memory bandwidth and networks holds them up in this model."
    )
    yield ""


def decides(found: Figures) -> Iterator[str]:
    yield "## Which assumptions decide"
    yield ""
    yield (
        "One is changed at a time. How many times faster, and cheaper, workers with S = 1 are than CPU servers and "
        "than GPU servers with S = 0."
    )
    for name in VARIED:
        of = found["variants"][name]
        yield ""
        yield f"### {name}, varied"
        yield ""
        rows = []
        for variant in VARIANTS:
            row = [variant]
            for way in (CPU, GPU):
                faster, cheaper, _ = times(of[f"{way}: {variant}"], of[f"{WORKERS}: {variant}"])
                row += [f"{faster:.2f}", f"{cheaper:.2f}"]
            rows.append([*row, f"{of[f'{WORKERS}: {variant}']['busy']:.0f}"])
        columns = ["variant", "faster than CPU", "cheaper", "faster than GPU", "cheaper", "workers"]
        yield from table(columns, rows)
    amazon, gat = (found["variants"][name] for name in VARIED)
    slow, as_is = "servers' CPUs do products at a quarter of the rate", "as above"
    both = "the last two at once"

    def against_cpu(of: Figures, variant: str) -> tuple[float, float, float]:
        return times(of[f"{CPU}: {variant}"], of[f"{WORKERS}: {variant}"])

    yield ""
    yield (
        "- **How fast a server's CPU multiplies** decides most. At a quarter of the rate, with functions as before, "
        f"workers are {against_cpu(amazon, slow)[0]:.2f} and {against_cpu(gat, slow)[0]:.2f} times as fast (GCN, GAT), "
        f"not {against_cpu(amazon, as_is)[0]:.2f} and {against_cpu(gat, as_is)[0]:.2f}, and the GCN's dollar buys "
        f"{against_cpu(amazon, slow)[1]:.2f} times as much. That is the published range. With functions at half the "
        f"price as well, the GAT is {against_cpu(gat, both)[0]:.2f} times as fast and {against_cpu(gat, both)[1]:.2f} "
        f"times as cheap, {against_cpu(gat, both)[2]:.2f} by 1 / (time x cost): these two assumptions give the "
        "published 2.75."
    )
    late, hundred = "workers begin after 500 ms", "workers begin after 100 ms"
    yield (
        "- **Latency** is hidden by the chunks in flight, as claimed, where tasks are long: the GCN loses nothing at "
        f"500 ms ({against_cpu(amazon, late)[0]:.2f}). The GAT's tasks are short and many: "
        f"{against_cpu(gat, hundred)[0]:.2f} at 100 ms, {against_cpu(gat, late)[0]:.2f} at 500 ms. With 32 chunks in "
        f"place of 128 nothing is hidden ({against_cpu(amazon, '32 chunks a server, not 128')[0]:.2f})."
    )
    slower = "servers' networks do 40 %, as they do for long"
    yield (
        "- **Bandwidth**: a GAT's edges all pass the server's network, and at 40 % of it workers make it slower than "
        f"CPU servers alone ({against_cpu(gat, slower)[0]:.2f}). A GCN's products hide behind its gathers "
        f"({against_cpu(amazon, slower)[0]:.2f})."
    )
    yield (
        "- **Sparsity** cuts both ways. With four times the edges graph work hides the products, and there is less to "
        f"gain ({against_cpu(amazon, 'four times the edges')[0]:.2f}). With a quarter of them there is more tensor "
        "work for each edge, but workers' money is the larger part "
        f"({against_cpu(amazon, 'a quarter of the edges')[1]:.2f} as cheap)."
    )
    yield (
        "- **Price**: with functions at half the price the GCN's dollar still buys "
        f"{against_cpu(amazon, 'functions cost half as much')[1]:.2f} of what it buys without."
    )
    yield ""


def tuner(found: Figures) -> Iterator[str]:
    yield "## The number of workers"
    yield ""
    yield (
        "`pipeline/tuning.py` looks at queues, task times and money once an epoch. It begins with 100 workers a "
        "server, as the published system does (from memory). S = 1; seconds of an epoch, and dollars for 1,000."
    )
    yield ""
    rows = []
    for name in COUNTED:
        cells = [
            f"{x['seconds']:.2f} s, {1000 * x['dollars']:.1f} $"
            for x in (*(found["counts"][name][str(each)] for each in COUNTS), found["ways"][name][WORKERS])
        ]
        each = found["ways"][name][WORKERS]["workers"] / JOBS[name].servers
        rows.append([name, *cells[:-1], f"{each:.0f}: {cells[-1]}"])
    yield from table(["job", *(f"{each} a server" for each in COUNTS), "tuned"], rows)
    for name in COUNTED:
        yield ""
        yield f"What it did on {name}:"
        yield ""
        moves = found["ways"][name][WORKERS]["moves"]
        yield from table(["epoch", "workers", "why"], [[str(epoch), str(count), why] for epoch, count, why in moves])
    yield ""


def sampling(found: Figures) -> Iterator[str]:
    yield "## Sampling"
    yield ""
    yield (
        "Formulas (`simulator/graphs/sampling.py`): mini-batches of 1,000 targets, 25 and 10 neighbours, on the "
        "machines that the published costs come to. Beside it the published results, to a fixed accuracy, from memory "
        "as well."
    )
    yield ""
    rows = []
    for row, x in found["samples"].items():
        name, system = row.split(": ")
        helped = found["ways"][name][WORKERS]
        theirs, against = SAMPLED[name][system], SAMPLED[name]["workers"]
        faster, cheaper, _ = times(x, helped)
        rows.append(
            [
                name,
                system,
                f"{x['drawing']:.1f}, {x['collecting']:.1f}, {x['training']:.1f}",
                f"{1000 * x['dollars']:.0f}",
                f"{faster:.1f}, {cheaper:.1f}",
                f"{theirs[0] / against[0]:.1f}, {theirs[1] / against[1]:.1f}",
            ]
        )
    columns = ["job", "system", "s to draw, collect, train", "$ for 1,000 epochs", "workers faster, cheaper (an epoch)"]
    yield from table([*columns, "published (to an accuracy)"], rows)
    amazon, small = ratio(found, "GCN Amazon", "AliGraph, on c5n"), ratio(found, "GCN Reddit-small", "DGL, on p3")
    yield ""
    yield (
        "The published 3.8 is AliGraph's on Amazon, and 10.7 is DGL's on Reddit-small: two systems, two graphs. Most "
        "of an epoch of samples is collecting features: each is read and sent many times over. How many epochs each "
        "way needs decides the rest, and this page does not know it. For the published factors of time, samples would "
        f"have to need {amazon:.0f} times fewer epochs than all neighbours on Amazon (AliGraph), and {1 / small:.1f} "
        "times as many on Reddit-small. **One model of sampling does not give both**, so these two claims are neither "
        "confirmed nor refuted here."
    )
    yield ""


def ratio(found: Figures, name: str, system: str) -> float:
    """How many times slower than workers an epoch of samples is, over how many times slower the published training."""
    slower = found["samples"][f"{name}: {system}"]["seconds"] / found["ways"][name][WORKERS]["seconds"]
    return float(slower / (SAMPLED[name][system][0] / SAMPLED[name]["workers"][0]))


def page() -> str:
    found = json.loads(RESULTS.read_text())
    told = ASSUMED.format(
        adds=CPU_ADDS / 1e9,
        operations=CPU_OPERATIONS / 1e9,
        share=function().operations / CPU_OPERATIONS,
        chunks=BASE.chunks,
        uneven=100 * BASE.uneven,
        apart=100 * BASE.apart,
    )
    lines = [HEAD]
    for part in (in_short, beside, ways, decides, tuner, sampling):
        lines += [line if line.startswith("|") else filled(line) for line in part(found)]
    return "\n".join([*lines, told])


def write() -> None:
    PAGE.write_text(page())
