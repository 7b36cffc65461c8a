"""What is trained, as far as its time and price depend on it: measured, given, or as published."""

from collections.abc import Mapping
from dataclasses import dataclass

BAMBOO = "Bamboo's released simulator, github.com/uclasystem/bamboo, project_pactum/simulation (2022)"
SPOT, ON_DEMAND = 0.91, 3.06  # dollars an hour of a p3.2xlarge's V100: the same source


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A model as Bamboo measured it; seconds. Steps take so long with redundancy on, by the number of pipelines."""

    name: str
    samples_per_step: int
    steps: int  # of its run
    stages: int  # of a pipeline
    machines: int  # asked for on the spot market
    step_seconds: Mapping[int, float]
    on_demand_machines: int
    on_demand_step_seconds: float
    local_meeting_seconds: float  # of the nodes, to cut the pipelines anew
    source: str = BAMBOO


PUBLISHED = {
    each.name: each
    for each in (
        Published(
            name="bert",
            samples_per_step=264,
            steps=22_194,
            stages=12,
            machines=48,
            step_seconds={4: 1.450, 3: 1.805, 2: 2.390, 1: 4.310},
            on_demand_machines=20,
            on_demand_step_seconds=2.51,
            local_meeting_seconds=20.0,
        ),
        Published(
            name="resnet",
            samples_per_step=384,
            steps=22_194,
            stages=8,
            machines=32,
            step_seconds={4: 1.600, 3: 2.400, 2: 3.200, 1: 6.100},
            on_demand_machines=20,
            on_demand_step_seconds=1.3,
            local_meeting_seconds=10.0,
        ),
        Published(
            name="gnmt",
            samples_per_step=288,
            steps=22_194,
            stages=6,
            machines=24,
            step_seconds={4: 0.950, 3: 1.185, 2: 1.660, 1: 3.100},
            on_demand_machines=16,
            on_demand_step_seconds=0.9,
            local_meeting_seconds=10.0,
        ),
        Published(
            name="vgg",
            samples_per_step=384,
            steps=22_194,
            stages=6,
            machines=24,
            step_seconds={4: 2.750, 3: 3.440, 2: 4.900, 1: 9.300},
            on_demand_machines=16,
            on_demand_step_seconds=2.2,
            local_meeting_seconds=5.0,
        ),
        Published(
            name="alexnet",
            samples_per_step=384,
            steps=22_194,
            stages=6,
            machines=24,
            step_seconds={4: 1.550, 3: 2.000, 2: 3.100, 1: 6.180},
            on_demand_machines=16,
            on_demand_step_seconds=1.6,
            local_meeting_seconds=5.0,
        ),
    )
}
