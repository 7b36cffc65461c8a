"""What is trained, as far as its time and price depend on it: measured, given, or as published."""

from collections.abc import Mapping
from dataclasses import dataclass

BAMBOO = "Bamboo's released simulator, github.com/uclasystem/bamboo, project_pactum/simulation (2022)"
SPOT, ON_DEMAND = 0.91, 3.06  # dollars an hour of a p3.2xlarge's V100: the same source


@dataclass(frozen=True, slots=True)
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
        Published("bert", 264, 22_194, 12, 48, {4: 1.450, 3: 1.805, 2: 2.390, 1: 4.310}, 20, 2.51, 20.0),
        Published("resnet", 384, 22_194, 8, 32, {4: 1.600, 3: 2.400, 2: 3.200, 1: 6.100}, 20, 1.3, 10.0),
        Published("gnmt", 288, 22_194, 6, 24, {4: 0.950, 3: 1.185, 2: 1.660, 1: 3.100}, 16, 0.9, 10.0),
        Published("vgg", 384, 22_194, 6, 24, {4: 2.750, 3: 3.440, 2: 4.900, 1: 9.300}, 16, 2.2, 5.0),
        Published("alexnet", 384, 22_194, 6, 24, {4: 1.550, 3: 2.000, 2: 3.100, 1: 6.180}, 16, 1.6, 5.0),
    )
}
