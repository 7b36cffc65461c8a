"""How fast the simulator is: ``python -m benchmarks.thousand_machines``, a day of 1,000 machines on one core."""

import argparse
import time
from dataclasses import replace

from culm.simulator.markets.culm_run import CulmRun
from culm.simulator.markets.job_profile import Cluster, Layer, Profile
from culm.simulator.markets.random_market import HOUR, Zone, zoned
from culm.simulator.markets.run_setup import Choice

MACHINES = 1000
ZONES = [
    Zone(
        name=name,
        machines=MACHINES // 4,
        price=0.91,
        lost_per_hour=0.10,
        bulk_per_hour=0.02,
        bulk_share=0.2,
        wait_seconds=600.0,
    )
    for name in "abcd"
]
# 96 layers in up to 96 stages. With one pipeline what is not needed stands by as spares.
MODEL = Profile(
    name="96 layers",
    layers=(Layer(0.02, 0.04, 20_000_000, 4_000_000),) * 96,
    microbatches=384,
    samples_per_step=3072,
    steps=10**9,
    stages=48,
    most_stages=96,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--pipelines", type=int, default=32, help="of a step; 1: as many stages as there are layers")
    parser.add_argument("--begins-with", type=int, default=960, metavar="N", help="nodes that the run waits for")
    arguments = parser.parse_args()
    seconds = arguments.hours * HOUR
    model = replace(MODEL, pipelines=arguments.pipelines, microbatches=MODEL.microbatches // arguments.pipelines)
    choice = Choice(machines=MACHINES, begins_with=arguments.begins_with, checkpoint_steps=50)
    began = time.process_time()
    changes = zoned(1, ZONES, seconds)
    run = CulmRun(changes, model, Cluster(), choice)
    row = run.run(seconds)
    took = time.process_time() - began
    hours = row.nodes * row.seconds / HOUR
    print(
        f"{hours:.0f} machine-hours, {row.preemptions} lost nodes, {row.steps} steps, {run.decisions} decisions: "
        f"{took:.0f} s of CPU, {hours / took:.0f} machine-hours a second"
    )


if __name__ == "__main__":
    main()
