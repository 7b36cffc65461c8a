"""What is trained, as far as its time and price depend on it: as published, and what the published times come to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

# The published times are of one number of stages P and of D = 1 to 4 pipelines. Everybody else needs the times of other
# numbers, so these are fitted (``fitted``). With M microbatches in a step, which the pipelines divide, a step takes
#
#     (M / D + P - 1) t + 2 (P - 1) HOP + 2 (D - 1) / D b
#
# The first part is 1F1B with t seconds for a microbatch at a stage, the second one microbatch's way there and back. The
# third is the sum of gradients over D owners of a stage, whose parameters take b seconds on a link of LINK. Bamboo's
# times contain the last two. Culm's run adds its own, so ``t`` is of computing alone.

BAMBOO = "Bamboo's released simulator, github.com/uclasystem/bamboo, project_pactum/simulation (2022)"
SPOT, ON_DEMAND = 0.91, 3.06  # dollars an hour of a p3.2xlarge's V100: the same source
LINK = 1.25e9  # bytes a second: 10 Gbit/s, which a p3.2xlarge has at most
HOP = 0.0015  # seconds of a small tensor between two nodes: measured with Culm, on one machine
GRADIENT_BYTES = 4  # of a parameter


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
    # Layers of equal time and size, a multiple of ``stages``: so the published cut is taken to be a perfect one, and no
    # other cut gains by dividing layers better.
    layers: int
    parameters: int
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
            layers=24,
            parameters=340_000_000,  # BERT-large, as its paper has it
        ),
        Published(
            name="gpt2",
            samples_per_step=32,
            steps=188_828,
            stages=12,
            machines=48,
            step_seconds={4: 1.008, 3: 1.046, 2: 1.085, 1: 1.200},
            on_demand_machines=32,
            on_demand_step_seconds=3.37,
            local_meeting_seconds=20.0,
            layers=24,
            parameters=345_000_000,  # GPT-2 medium: the release's scripts have 24 layers of 1024
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
            layers=48,
            parameters=60_200_000,  # ResNet-152: 50 blocks
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
            layers=18,
            parameters=134_300_000,  # 16 LSTM of 1024, as in the release
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
            layers=18,
            parameters=143_700_000,  # VGG-19
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
            layers=6,
            parameters=61_100_000,  # 8 layers
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Fit:
    """What the published times come to. Seconds; ``off``: by which share each of them is missed, by pipelines."""

    microbatches: int
    each: float  # of a microbatch at a stage, forward and backward
    off: Mapping[int, float]


def summing(work: Published, pipelines: int) -> float:
    """Seconds of the sum over the owners of a stage, on the published number of stages."""
    return 2 * (pipelines - 1) / pipelines * GRADIENT_BYTES * work.parameters / work.stages / LINK


def _beside(work: Published, pipelines: int) -> float:
    """What a step takes beside computing."""
    return 2 * (work.stages - 1) * HOP + summing(work, pipelines)


def fitted(work: Published, multiple: int = 1) -> Fit:
    """The number of microbatches, and their time, that miss the published times least.

    Each microbatch has as many samples as any other. ``multiple``: their number is to be a multiple of this. Raises
    ValueError if there is none.
    """

    def of(microbatches: int) -> tuple[float, Fit]:
        shares = [
            ((microbatches / d + work.stages - 1) / seconds, 1.0 - _beside(work, d) / seconds)
            for d, seconds in work.step_seconds.items()
        ]
        each = sum(a * b for a, b in shares) / sum(a * a for a, _ in shares)
        off = {d: a * each - b for d, (a, b) in zip(work.step_seconds, shares, strict=True)}
        return sum(x * x for x in off.values()), Fit(microbatches, each, off)

    samples = work.samples_per_step
    counts = [count for count in range(multiple, samples + 1, multiple) if samples % count == 0]
    if not counts:
        raise ValueError(f"{samples} samples of {work.name} cannot be divided into {multiple} equal pipelines")
    return min((of(count) for count in counts), key=lambda found: found[0])[1]


def on_machines(work: Published, machines: int) -> Published:
    """The same model on more machines than were published: times of more pipelines follow from the fit."""
    fit, known = fitted(work), dict(work.step_seconds)
    for d in range(max(known) + 1, machines // work.stages + 1):
        known[d] = (fit.microbatches / d + work.stages - 1) * fit.each + _beside(work, d)
    return replace(work, machines=machines, step_seconds=known)
