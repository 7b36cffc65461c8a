"""Whether bubbles suffice for a redundant forward: ``python -m benchmarks.bubbles`` writes ``benchmarks/bubbles.json``.

Each of the six models is cut by its measured layer times (``layer_times.json``) into the published number of stages.
Its step is the published one of four pipelines. Each node stands by for the next stage, as Bamboo's and Culm's do.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from culm.coordinator.moving import STATE_BYTES
from culm.pipeline.partition import partition
from culm.pipeline.schedule import Schedule
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.step_time import Durations, StepRun
from culm.simulator.markets.workload import GRADIENT_BYTES, PUBLISHED, SPOT, Published, fitted

LAYERS = Path(__file__).with_name("layer_times.json")
RESULTS = Path(__file__).with_name("bubbles.json")
PIPELINES = 4
HOURLY = 0.10  # at which the money is counted
HOUR = 3600.0

# A node's bubbles are the time of a step in which it runs nothing. Of the forwards of the stage that it stands by for,
# these hold a share. To run all of them the step has to become longer. By how much lies between
#
#     filled    every bubble is of use: the step is as long as the busiest node works, or as before
#     plain     no bubble is: each forward of a stage takes the next stage's forward as well
#
# After a lost node its heir runs what the stage had done: half of a step's microbatches in the mean. Under "eager" it
# had run the share of their forwards already. Peers divide the work among them, and hold nothing for it.


def cut(work: Published, layers: list[dict[str, Any]]) -> tuple[list[float], list[float], list[int]]:
    """Forward and backward seconds, and parameters, of each stage; the busiest one takes what was published."""
    costs = [layer["forward"] + layer["backward"] for layer in layers]
    ranges = partition(costs, work.stages)
    scale = fitted(work).each / max(sum(costs[first:end]) for first, end in ranges)
    forward = [scale * sum(x["forward"] for x in layers[first:end]) for first, end in ranges]
    backward = [scale * sum(x["backward"] for x in layers[first:end]) for first, end in ranges]
    return forward, backward, [sum(x["parameters"] for x in layers[first:end]) for first, end in ranges]


def bubbles(work: Published, layers: list[dict[str, Any]]) -> dict[str, Any]:
    """What the tables show of one model."""
    forward, backward, parameters = cut(work, layers)
    stages, cluster = work.stages, Cluster()
    microbatches = fitted(work).microbatches // PIPELINES
    owners = tuple(f"n{s}" for s in range(stages))
    durations = Durations(tuple(forward), tuple(backward), cluster.hop_seconds)
    run = StepRun(owners=owners, schedule=Schedule(microbatches, 2), durations=durations)
    busy = [microbatches * (f + b) for f, b in zip(forward, backward, strict=True)]
    following = [forward[(s + 1) % stages] for s in range(stages)]  # whose forwards node s has on top
    room = [min(1.0, (run.seconds - busy[s]) / (microbatches * following[s])) for s in range(stages)]
    filled = max(run.seconds, *(busy[s] + microbatches * following[s] for s in range(stages)))
    doubled = replace(durations, forward=tuple(f + g for f, g in zip(forward, following, strict=True)))
    plain = StepRun(owners=owners, schedule=Schedule(microbatches, 2), durations=doubled).seconds
    again = [microbatches / 2 * (f + b) for f, b in zip(forward, backward, strict=True)]
    ahead = [room[s - 1] * microbatches / 2 * forward[s] for s in range(stages)]  # node s - 1 is the heir of stage s
    return {
        "layers": len(layers),
        "stages": stages,
        "microbatches": microbatches,
        "step": run.seconds,
        "bubble": [(run.seconds - each) / run.seconds for each in busy],
        # By the stage whose forwards are run again.
        "room": [room[s - 1] for s in range(stages)],
        "longer_filled": filled / run.seconds - 1.0,
        "longer_plain": plain / run.seconds - 1.0,
        "lazy_redone": sum(again) / stages,
        "eager_redone": sum(a - b for a, b in zip(again, ahead, strict=True)) / stages,
        "peers_redone": sum(again) / stages / (PIPELINES - 1),
        "standby_bytes": max((STATE_BYTES + GRADIENT_BYTES) * p for p in parameters),
        "money": money(work, run.seconds, sum(again) / stages, sum(ahead) / stages),
    }


def money(work: Published, step: float, again: float, ahead: float) -> dict[str, float]:
    """Dollars for 1,000 steps on four pipelines of spot machines: what lost nodes and redundancy cost of them."""
    cluster = Cluster()
    machines = PIPELINES * work.stages
    seconds = 1000 * step
    price = machines * SPOT / HOUR
    lost = HOURLY * machines * seconds / HOUR
    return {
        "all": seconds * price,
        "lazy": (seconds * cluster.lazy_share + lost * (again + cluster.detect_seconds)) * price,
        "eager": (seconds * cluster.eager_share + lost * (again - ahead + cluster.detect_seconds)) * price,
        "peers": lost * (again / (PIPELINES - 1) + cluster.detect_seconds) * price,
    }


def main() -> None:
    measured = json.loads(LAYERS.read_text())
    found = {name: bubbles(work, measured[name]) for name, work in PUBLISHED.items()}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for name, told in found.items():
        share = " ".join(f"{100 * x:3.0f}" for x in told["room"])
        print(
            f"{name:8} room, in % by stage: {share}; longer {told['longer_filled']:.2f} to {told['longer_plain']:.2f}"
        )


if __name__ == "__main__":
    main()
