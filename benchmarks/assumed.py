"""How Culm's figures depend on what is assumed: ``python -m benchmarks.assumed`` writes ``benchmarks/assumed.json``.

BERT in one random market, machines gone within an hour with a probability of 0.10 and of 0.50. One assumption is
changed at a time. Begun again it goes on where it was; with ``--anew`` it forgets what is there. Nothing is timed.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from benchmarks.strategies import BAMBOO, CULM, CULM_AUTO, CULM_TWO, MACHINES, WORKLOADS, figures
from culm.simulator.markets.account import Row
from culm.simulator.markets.bamboo import Bamboo
from culm.simulator.markets.compare import PIPELINES, culm
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.other_systems import CHECKPOINTS, Peer
from culm.simulator.markets.random_market import HOUR, hourly
from culm.simulator.markets.rerouting import Rerouting
from culm.simulator.markets.trace import Change

RESULTS = Path(__file__).with_name("assumed.json")
PROBABILITIES = (0.10, 0.50)
HOURS = 8  # looked at: less than any of the runs takes
BERT = WORKLOADS["bert"]
Changes = Sequence[Change]


def grid(
    pipelines: int = PIPELINES["bert"], copies: int | Literal["auto"] = 3, **changed: float
) -> Callable[[Changes], Row]:
    cluster = replace(Cluster(), **changed)
    return lambda changes: culm(changes, BERT, cluster, "lazy", pipelines, copies).run(HOURS * HOUR)


def restart(pause: float = CHECKPOINTS.pause, writes: float = CHECKPOINTS.writes) -> Callable[[Changes], Row]:
    rule = replace(CHECKPOINTS, pause=pause, writes=writes)
    return lambda changes: Peer(changes, BERT, rule).run(HOURS * HOUR)


VARIANTS: Mapping[str, Callable[[Changes], Row]] = {
    CULM: grid(),
    CULM_AUTO: grid(copies="auto"),
    CULM_TWO: grid(copies=2),
    BAMBOO: lambda changes: Bamboo(changes, BERT).run(HOURS * HOUR),
    "recycle-like, 0 s for a lost node": lambda changes: Rerouting(changes, BERT, pause=0.0).run(HOURS * HOUR),
    "recycle-like, 27 s": lambda changes: Rerouting(changes, BERT).run(HOURS * HOUR),
    "restart": restart(),
    "restart, 15.8 s to write": restart(writes=15.8),
    "restart, 15.8 s to write, 10 s to come back": restart(writes=15.8, pause=10.0),
    "restart, 15.8 s to write, 86 s to come back": restart(writes=15.8, pause=86.0),
    "culm, 4 pipelines": grid(4),
    "culm, 6 pipelines": grid(6),
    "culm, 44 pipelines": grid(44),
    "culm, links of 5 Gbit/s": grid(bytes_per_second=0.625e9),
    "culm, links of 25 Gbit/s": grid(bytes_per_second=3.125e9),
    "culm, seeding at 50 MB/s": grid(seed_bytes_per_second=5e7),
    "culm, 5 ms to a neighbour": grid(hop_seconds=0.005),
    "culm, 2 s to notice a lost node": grid(detect_seconds=2.0),
    "culm, 90 s to start a machine": grid(starts_up=90.0),
}


def main() -> None:
    there = RESULTS.exists() and "--anew" not in sys.argv[1:]
    results: dict[str, dict[str, dict[str, float]]] = json.loads(RESULTS.read_text()) if there else {}
    for name, variant in VARIANTS.items():
        if len(results.get(name, {})) == len(PROBABILITIES):
            continue
        for probability in PROBABILITIES:
            found = figures(variant(hourly(1, MACHINES, probability, HOURS)))
            results.setdefault(name, {})[f"{probability:.2f}"] = {k: round(v, 4) for k, v in found.items()}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        told = "; ".join(
            f"{p}: {x['throughput']:.1f} samples/s, value {x['value']:.2f}" for p, x in results[name].items()
        )
        print(f"{name}: {told}", flush=True)


if __name__ == "__main__":
    main()
