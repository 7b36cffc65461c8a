"""A small job and ways to run it, for the tests of plans."""

from culm.simulator.markets.job_profile import Layer, Profile
from culm.simulator.markets.ways import Way

PROFILE = Profile(
    name="small",
    layers=(Layer(0.01, 0.02, 1000),) * 6,
    microbatches=8,
    samples_per_step=32,
    steps=400,
    stages=3,
    most_stages=6,
    source="made up",
)


def way_of(machines: int, stages: int, redundancy: str, checkpoint_steps: int = 0, replicas: int = 1) -> Way:
    return Way(
        machines=machines,
        stages=stages,
        redundancy=redundancy,
        checkpoint_steps=checkpoint_steps,
        replicas=replicas,
        copies=1 if redundancy == "off" else 2,
    )
