"""What a job's steps are made of, and the cluster that they run on: what the simulated run goes by."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from culm.coordinator.moving import STATE_BYTES
from culm.coordinator.zones import apart
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.layer_bytes import LayerBytes
from culm.pipeline.plan import Stages
from culm.pipeline.schedule import Schedule
from culm.simulator.markets.grid_step import GridWork, StageSeconds
from culm.simulator.markets.step_time import Durations
from culm.simulator.markets.workload import BAMBOO, GRADIENT_BYTES, HOP, LINK, SPOT, Published, fitted

CONFIG = ConfigDict(extra="forbid")
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, slots=True, config=CONFIG)
class Layer:
    """Of one microbatch, on one node of the kind that is rented."""

    forward: Seconds
    backward: Seconds
    parameters: Annotated[int, Field(ge=0)]
    activation_bytes: Annotated[int, Field(ge=0)] = 0  # that it passes on


@dataclass(frozen=True, slots=True, config=CONFIG, kw_only=True)
class Profile:
    """A job. ``microbatches``: of each pipeline. ``source``: where the figures are from."""

    name: str
    layers: Annotated[tuple[Layer, ...], Field(min_length=1)]
    microbatches: Count
    samples_per_step: Count
    steps: Count
    stages: Count
    most_stages: Count
    lead: Count = 2
    splits: bool = False
    pipelines: Count = 1
    by_value: bool = False  # whether shapes are chosen by dollars for a step, in place of its length
    measured: bool = False  # whether the model is cut by the layers' times, in place of their parameters
    source: str = ""

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.microbatches, self.lead, self.splits)

    @property
    def compares_bytes(self) -> bool:
        """Whether the coordinator weighs what shapes send: it goes by how long steps take, and by links."""
        return self.by_value or self.pipelines > 1

    @property
    def state_bytes(self) -> int:
        return STATE_BYTES * sum(layer.parameters for layer in self.layers)

    @property
    def parameters(self) -> tuple[float, ...]:
        """Of each layer, as nodes report them."""
        return tuple(float(layer.parameters) for layer in self.layers)

    @property
    def layer_seconds(self) -> tuple[float, ...]:
        """What nodes tell that measure their layers; nothing where the job asks for none."""
        return tuple(layer.forward + layer.backward for layer in self.layers) if self.measured else ()

    @property
    def layer_bytes(self) -> tuple[LayerBytes, ...]:
        """What nodes tell of the layers; nothing where nobody has measured what they pass on."""
        if not any(layer.activation_bytes for layer in self.layers):
            return ()
        return tuple(
            LayerBytes(STATE_BYTES * x.parameters, GRADIENT_BYTES * x.parameters, 2 * x.activation_bytes)
            for x in self.layers
        )

    def least_step_seconds(self, replicas: int = 1) -> float:
        """Seconds of a step on as many stages as there may be, without a network; the busiest replica's."""
        each = sum(layer.forward + layer.backward for layer in self.layers) / self.most_stages
        microbatches = -(-self.pipelines // replicas) * self.microbatches
        return (microbatches + self.most_stages - 1) * each

    def bytes_between_zones(self, stages: Stages, zones: Mapping[str, str]) -> int:
        """What a step sends between zones: activations, their gradients, and the parameters' for all holders.

        An owner beside the reducer sends its partial sum there; every other holder is sent the whole one.
        """
        sent = 0
        for stage, following in pairwise(stages):
            crossed = sum(apart(zones, *pair) for pair in zip(stage.owners, following.owners, strict=True))
            sent += 2 * crossed * self.microbatches * self.layers[stage.end_layer - 1].activation_bytes
        for stage in stages:
            for x in stage.layers:
                places = stage.places_of(x)
                for reducer in stage.reducers[places.start : places.stop]:
                    away = [node for node in stage.holders() if apart(zones, reducer, node)]
                    times = len(away) + sum(node in stage.owners for node in away)
                    sent += times * GRADIENT_BYTES * self.layers[x].parameters // len(places)
        return sent

    def durations(self, stages: Stages, cluster: "Cluster") -> Durations:
        """For the model as a plan has cut it."""
        forward = tuple(sum(self.layers[x].forward for x in stage.layers) for stage in stages)
        backward = tuple(sum(self.layers[x].backward for x in stage.layers) for stage in stages)
        largest = max(self.layers[stage.end_layer - 1].activation_bytes for stage in stages)
        return Durations(forward, backward, cluster.hop_seconds + largest / cluster.bytes_per_second)

    def grid_work(self, stages: Stages, cluster: "Cluster") -> GridWork:
        """The same where stages may have several owners."""
        seconds = self.durations(stages, cluster)
        return GridWork(
            layers=tuple(layer.forward + layer.backward for layer in self.layers),
            parameters=self.parameters,
            stages=tuple(map(StageSeconds, seconds.forward, seconds.backward)),
            pipelines=self.pipelines,
            microbatches=self.microbatches,
            hop=seconds.hop,
            bytes_per_second=cluster.bytes_per_second,
        )


@dataclass(frozen=True, slots=True, config=CONFIG, kw_only=True)
class Cluster:
    """Machines and network. Seconds and bytes; what is measured is from docs/performance.md and the tests."""

    starts_up: float = 45.0  # from a machine's coming until its node can be given work: as Bamboo's simulator has it
    launches: float = 0.0  # until a node of the first machines can be given work at all: the coordinator starts as well
    hop_seconds: float = HOP  # of a small tensor between two nodes
    bytes_per_second: float = LINK  # of each
    seed_bytes_per_second: float = 1e8  # [resilience] seed_bytes_per_second's default
    storage_bytes_per_second: float = 2.5e8  # of checkpoints, each node: assumed
    commit_seconds: float = 0.004  # from the last gradient to the next step's first forward: measured
    detect_seconds: float = 0.05  # until a dead node's streams are known to be broken, and its heir begins: measured
    lazy_share: float = 0.004  # by which standbys make steps longer: measured, lazy against off
    eager_share: float = 0.007  # the same with redundant forwards: measured, eager against off
    per_hour: float = SPOT  # of a machine, where the trace does not say
    per_gb_between_zones: float = 0.0  # dollars for 1e9 bytes, both ends' charges together


def of_published(work: Published, pipelines: int = 1) -> Profile:
    """A profile that takes as long as the published steps do, with and without data parallelism.

    The step's microbatches are divided among so many ``pipelines``. The published times contain Bamboo's own
    redundancy. Its sum over several pipelines is left out, since the run adds its own (``workload.fitted``).
    """
    fit = fitted(work, pipelines)
    each = fit.each * work.stages / work.layers
    layer = Layer(each / 3, each * 2 / 3, work.parameters // work.layers)
    return Profile(
        name=work.name,
        layers=(layer,) * work.layers,
        microbatches=fit.microbatches // pipelines,
        pipelines=pipelines,
        samples_per_step=work.samples_per_step,
        steps=work.steps,
        stages=work.stages,
        most_stages=work.layers,
        source=f"fitted to {BAMBOO}",
    )


def of_job(job: Job, layers: Sequence[Layer], source: str) -> Profile:
    """A job whose layers were measured."""
    pipeline = job.pipeline
    return Profile(
        name=job.job.name,
        layers=tuple(layers),
        microbatches=pipeline.microbatches,
        pipelines=pipeline.pipelines,
        samples_per_step=job.samples_per_step,
        steps=job.job.steps,
        stages=pipeline.stages,
        most_stages=max(pipeline.stages, pipeline.most_stages or 0),
        lead=pipeline.lead,
        splits=pipeline.schedule == "zb-h1",
        by_value=pipeline.shape_by == "value",
        measured=pipeline.cut == "measured",
        source=source,
    )


_PROFILE = TypeAdapter(Profile)


def profile_to_json(profile: Profile) -> str:
    return _PROFILE.dump_json(profile, indent=1).decode() + "\n"


def read_profile(path: str | Path) -> Profile:
    """What ``culm profile`` wrote, or somebody by hand. Raises JobError in one line."""
    try:
        return _PROFILE.validate_json(Path(path).read_bytes())
    except OSError as error:
        mend = "write one with culm profile JOB.toml --out FILE"
        raise JobError(f"the profile cannot be read ({error.strerror})", str(path), mend) from error
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(map(str, first["loc"])) or "its beginning"
        what = first["msg"][0].lower() + first["msg"][1:]
        raise JobError(what, f"{path}, {at}", "correct it, or measure anew with culm profile") from error
