"""All measures, interleaved in one process tree: ``python -m benchmarks`` (``make bench``).

Prints medians and spreads, writes ``benchmarks/results.json``, and from it ``docs/performance.md`` and its picture.
"""

import argparse
import json
import os
import platform
import random
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks import coordination, failover, grid, idle_cost, pipelining, plots, transport
from benchmarks.awake import awake_cores
from benchmarks.measure import Measure, quiet_rounds
from benchmarks.priorities import allowed
from benchmarks.restarts import restarted
from culm.local.kills import Kill
from culm.pipeline.instruction import Duty
from culm.pipeline.schedule import one_f_one_b

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
HEAD = """# Performance

Made by `make bench` from `benchmarks/results.json`. Every value is the median of rounds in which both sides ran in turn
on one machine: {machine}.
The floor has to hold; the aim is what to try for.

Stolen is the share of the cores' time that the machine's host gave to others, in the worst round. Rounds with more than
a hundredth are done again, up to three times as many in all, and the quietest count. A loop of the lowest priority
keeps every core from halting: a host that gives halted cores to others takes a while to give them back.

The rows from "a node of 8 is lost" to the end are of the present version. Those above were measured while nodes of one
machine still passed small tensors through pipes. Now these streams are sockets, and paced steps take 1 to 3 % more than
the rows say (paired: P = 4 1.6 %, P = 8 1.9 %).

| measure | value | spread | floor | aim | holds | stolen |
| --- | --- | --- | --- | --- | --- | --- |
"""
TAIL = """
![How far each figure is on the way from its floor to its aim](../benchmarks/results.svg)

The dot is the median, the bar the spread of the rounds. Values far beyond floor or aim are drawn at the edge.

- Throughput and CPU: tensors from process to process, beside gloo's send and recv; CPU of both sides. Nodes of one
  machine pass large tensors through shared memory. Nodes of two machines have the stream alone.
- Paced steps: layers that take 10 ms forward and 20 ms backward, all that their module does included and nearly all
  of it off the CPU, stand for accelerators that do not share this machine's cores; M = 2 P. The ideal is (M + P - 1)
  (f + b); torch is torch.distributed.pipelining's 1F1B on gloo; bare processes pass the same tensors through pipes
  and do nothing else: what this machine gives without any runtime. "Later stages first" is the same run at real-time
  priorities, which tells how much of a step its processes wait for one of the machine's two cores. Of the 23 ms that
  a step of P = 8 took longer than the ideal in a quiet minute, traced once (in brackets bare processes, a minute
  later): 12 ms between the last stage's 32 instructions (7), 9 ms in fourteen hops from node to node (4), 2.3 ms from
  the last backward to the next step (0.3; here reduce, ready, commit, apply). Most of it is code that has left the
  core's caches, and how long that takes is up to the machine's host and its other guests: a layer's forward and
  backward take 0.05 to 0.2 ms at once and, in quiet hours 0.2, in others up to 1.2 ms after 10 ms of an empty loop,
  with nothing else running on the machine (`python -m benchmarks.cold`). So these rows hold in quiet hours only. In the
  busiest, steps took 1.064 to 1.099 of the ideal with P = 4 and 1.059 to 1.114 with P = 8 (bare processes 1.030 to
  1.048); one and the same version took 1.069 with both and, an hour later, 1.047 and 1.054 (bare 1.029 and 1.037, then
  1.019 and 1.025).
- Zero bubble: the same paced steps with backwards in two halves of 10 ms, beside 1F1B.
- A kill: kill -9 at a random instruction; the time from it to the next commit, less a calm step, in steps. The
  disturbed step itself is longer by more: `python -m benchmarks.failover` prints both.
- torchrun + checkpoint restart: kill -9 of one of four ranks under torchrun, which starts all again from the last
  torch.distributed.checkpoint (asynchronous, every 20 steps, the kill at a random moment between two): from the kill to
  the first new step, less a calm step. Ours: by how much the disturbed step was longer. Both trainings are the paced
  one. This favours torchrun: no machine has to be replaced. This hurts it: four ranks start on two cores, and a start
  is 2.4 s of a core's time. With a core for each it would lose some 2.5 s less, and more where the cores are busy.
  `python -m benchmarks.restarts` prints the seconds. torchft, which needs a second copy of the pipeline, loses 4.8 s
  with its defaults (five kills, 4.7 to 4.8): `python -m benchmarks.torchft_replicas`.
- Coordinator: nodes that attend a real coordinator and compute nothing, on the machine's other core; the worst of ten
  lost nodes a round, from the end of a stream to the moment when the last node has its plan; a commit of eight.
  A line is one pipeline of 990 stages, each with a standby, or of 8; a grid is 125 pipelines on as many replicas of 8
  stages, or 4 of 2.
- A grid: four pipelines of eight microbatches on four replicas of two stages, paced as above; bare processes pass and
  add the same tensors; torch's pipelines are torch.distributed.pipelining with DistributedDataParallel's all-reduce on
  gloo. The lost node: eight pipelines of four microbatches and twelve equal layers; no other node comes. By arithmetic
  three replicas of two stages have 0.69 of the throughput of four at most, and two of three 0.75.
- Data parallel: one stage on four nodes, 50 MB of parameters, 0.2 s of paced compute a step; CPU of all processes.
  "Of the exchange": less what torch takes when nothing is exchanged.
- Memory: what a node has in a run of one stage beside parameters and optimizer, in gradients of the stage. The C
  library keeps what was freed, so the heap in use is told beside it; "counted" is without buffers that wait. What gRPC
  has under way, between machines of their own, is part of all of them.
- GPT-2 small (124 million parameters, tied, AdamW, clipping; `python -m benchmarks.gpt2 steps`, `seeding`,
  `checkpoint`), 8 samples of 256 tokens a step, four nodes on two cores: a step took 10.6 and 11.0 s with lazy
  redundancy, 9.4 and 9.7 s without it, 9.7 and 10.1 s in the plain loop with two threads. 432 MB of gradients were
  shipped a step; a node's memory was 2.3 to 3.4 GB at most, without redundancy 1.8 to 2.5. A spare was given 1,020 MB
  in 1.01 of the time that they take at the set pace. A step with a checkpoint of 1,956 MB to write took 3.5 and 4.5 CPU
  seconds more than the others of its run (two runs of 18 steps), and a bare process that hashes and writes as much
  beside the same training 5.7 and 4.2: 0.62 and 1.06 of it. The writing threads alone took 5.8, of which 4.3 are the
  kernel's copying to files. Where steps are so short that a commit comes first, the layers are copied for it, at 0.4 s
  a GB.
- On a card (one NVIDIA H200, torch 2.11; `python -m benchmarks.card`): of a Transformer block of 1,024 numbers, 12.6
  million parameters, for 8 x 512 tokens in float32. A forward takes 6.5 ms and a backward 9.4 ms, from and to ordinary
  host memory, where tensors of other nodes come in; plain PyTorch takes 3.2 and 6.5 ms, with its input on the card. To
  copy the output of 16.8 MB home takes 0.6 ms, of which 0.4 ms are the copy. A redundant forward takes 10.8 ms: its
  graph is copied as well. AdamW's step with a gradient of 50 MB from the host takes 10.1 ms, and 17.4 ms where the
  state lies there too (`standby = "host"`); on the card alone 1.0 ms.
- Samples that take 20 ms each, with two processes that load ahead: a paced step took 1.011 of one whose samples are in
  memory (five rounds, 1.004 to 1.018; `python -m benchmarks.slow_samples`).
- Real compute: the example job on two nodes with a thread each, beside the plain loop with two threads; samples/s.
"""


def transported(_: int) -> list[Measure]:
    """Tensor throughput and CPU against gloo."""
    out = []
    names = {"culm": "against gloo", "stream": "of the stream alone against gloo"}
    for mib in transport.SIZES:
        took = {way: transport.measure(way, mib) for way in transport.WAYS}
        for way, name in names.items():
            speed, cost = (took[way][i] / took["gloo"][i] for i in range(2))
            out.append(
                Measure(
                    name=f"throughput {name}, {mib} MiB", unit="ratio", floor=0.6, aim=1.0, higher=True, rounds=[speed]
                )
            )
            out.append(Measure(name=f"CPU per GB {name}, {mib} MiB", unit="ratio", floor=3.0, aim=1.5, rounds=[cost]))
    return out


def pipelined(stages: int) -> list[Measure]:
    """Paced steps with and without redundancy."""
    p, apart, microbatches = f"P = {stages}", "paced step over the stream alone", 2 * stages
    ideal, beside_torch = pipelining.ideal(stages, microbatches), 1.02 if stages == 4 else 1.0
    off, lazy, eager = (pipelining.culm_step(stages, microbatches, way, 20) for way in ("off", "lazy", "eager"))
    torchs = pipelining.torch_step(stages, microbatches, 20)
    bare = pipelining.bare_step(stages, microbatches, 20)
    alone = pipelining.culm_step(stages, microbatches, "off", 20, apart=True)
    measures = [
        Measure(name=f"paced step against the ideal, {p}", unit="ratio", floor=1.06, aim=1.02, rounds=[off / ideal]),
        Measure(
            name=f"paced step against torch's 1F1B, {p}",
            unit="ratio",
            floor=beside_torch,
            aim=0.97,
            rounds=[off / torchs],
        ),
        Measure(
            name=f"paced step of bare processes against the ideal, {p}",
            unit="ratio",
            floor=1.06,
            aim=1.02,
            rounds=[bare / ideal],
        ),
        Measure(name=f"{apart} against the ideal, {p}", unit="ratio", floor=1.06, aim=1.02, rounds=[alone / ideal]),
        Measure(name=f"paced step, lazy against off, {p}", unit="ratio", floor=1.03, aim=1.01, rounds=[lazy / off]),
        Measure(name=f"paced step, eager against off, {p}", unit="ratio", floor=1.06, aim=1.02, rounds=[eager / off]),
    ]
    if allowed():
        first = pipelining.culm_step(stages, microbatches, "off", 20, priorities=True)
        bare_first = pipelining.bare_step(stages, microbatches, 20, priorities=True)
        later, bare_later = "paced step, later stages first", "paced step of bare processes, later stages first"
        measures += [
            Measure(
                name=f"{later}, against the ideal, {p}", unit="ratio", floor=1.06, aim=1.02, rounds=[first / ideal]
            ),
            Measure(
                name=f"{bare_later}, against the ideal, {p}",
                unit="ratio",
                floor=1.06,
                aim=1.02,
                rounds=[bare_first / ideal],
            ),
        ]
    return measures


def unbubbled(_: int) -> list[Measure]:
    """Paced steps of ZB-H1 beside 1F1B."""
    whole, split = (
        pipelining.culm_step(4, 8, "lazy", 20, changes=[f"pipeline.schedule={schedule}"])
        for schedule in ("1f1b", "zb-h1")
    )
    return [Measure(name="zero bubble against 1F1B, P = 4", unit="ratio", floor=0.95, aim=0.9, rounds=[split / whole])]


def killed(number: int) -> list[Measure]:
    """What a kill costs."""
    draw = random.Random(number)
    stage = draw.randrange(failover.STAGES)
    at = str(draw.choice(one_f_one_b(Duty(failover.PIPELINE, stage), failover.STAGES, failover.MICROBATCHES)))
    kill = Kill(f"n{stage}", failover.KILLED, at)
    lazy, eager, shipped = (failover.steps_lost(way, kill).lost for way in ("lazy", "eager", "k = 2"))
    return [
        Measure(name="a kill, lazy", unit="steps", floor=1.3, aim=0.9, rounds=[lazy]),
        Measure(name="a kill, eager", unit="steps", floor=0.9, aim=0.4, rounds=[eager]),
        Measure(
            name="a kill, gradients shipped every 2 microbatches", unit="steps", floor=0.9, aim=0.4, rounds=[shipped]
        ),
    ]


def computed(_: int) -> list[Measure]:
    """Real compute on two nodes against the plain loop with two threads."""
    overrides = ["job.steps=12"]
    speed = idle_cost.plain_seconds(overrides) / idle_cost.pipeline_seconds(overrides)
    return [
        Measure(
            name="real compute, P = 2, against the plain loop",
            unit="ratio",
            floor=0.85,
            aim=1.0,
            higher=True,
            rounds=[speed],
        )
    ]


# One round of each, the first being number 0: a value of each of its measures.
GROUPS: dict[str, Callable[[int], list[Measure]]] = {
    "transport": transported,
    "pipelining-4": lambda _: pipelined(4),
    "pipelining-8": lambda _: pipelined(8),
    "zero-bubble": unbubbled,
    "failover": killed,
    "restart": restarted,
    "compute": computed,
    "coordination": coordination.measures,
    **{f"grid-{name}": group for name, group in grid.GROUPS.items()},
}


def machine() -> str:
    where = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}"
    return f"{where}, Python {platform.python_version()}, torch {torch.__version__}"


def as_json(measures: list[Measure]) -> dict[str, Any]:
    """As design and checks have it."""
    return {
        "machine": machine(),
        "measures": {
            m.name: {
                "value": round(m.value, 4),
                "unit": m.unit,
                "floor": m.floor,
                "aim": m.aim,
                "holds": m.holds,
                "rounds": [round(x, 4) for x in m.rounds],
                "stolen": round(m.stolen, 3),
            }
            for m in measures
        },
    }


def _shown(value: float) -> str:
    """With what tells it from a floor that it just misses."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.2f}"


def page(results: dict[str, Any]) -> str:
    rows = [
        f"| {name} | {_shown(m['value'])} | {min(m['rounds']):.2f} to {max(m['rounds']):.2f} | {m['floor']:g} | "
        f"{m['aim']:g} | {'yes' if m['holds'] else '**no**'} | {m['stolen']:.0%} |"
        for name, m in results["measures"].items()
    ]
    return HEAD.format(machine=results["machine"]) + "\n".join(rows) + "\n" + TAIL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS))
    arguments = parser.parse_args()
    if find_spec("vl_convert") is None:  # told now, not after an hour
        parser.error("the picture needs vl-convert: pip install -c constraints.txt -e '.[bench]', as make bench does")
    with awake_cores():
        measured(arguments)


def measured(arguments: argparse.Namespace) -> None:
    everything = set(arguments.only) == set(GROUPS)
    before = {} if everything or not plots.RESULTS.exists() else json.loads(plots.RESULTS.read_text())["measures"]
    measures: list[Measure] = []
    for name in arguments.only:
        for measure in quiet_rounds(GROUPS[name], arguments.rounds):
            measures.append(measure)
            print(measure, flush=True)
        # After each group: one that raises does not take the others' hours with it.
        results = as_json(measures)
        results["measures"] = before | results["measures"]  # those that were not asked for stay as they are
        plots.RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        plots.PICTURE.write_text(plots.draw(results))
        PAGE.write_text(page(results))


if __name__ == "__main__":
    main()
