"""The job file: a typed model of it that rejects what it does not know and says where."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import JobError
from pipeline.schedule import Schedule

Count = Annotated[int, Field(ge=1)]
Factory = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class JobSection(_Section):
    """What is run. ``threads``: torch's intra-op threads on every node. ``device``: where every node computes, the CPU
    or its first CUDA device. The bits of the result depend on both.
    """

    name: Annotated[str, Field(pattern=r"^[\w.-]+$")] = "job"
    steps: Count
    seed: int = 0
    threads: Count = 1
    device: Literal["cpu", "cuda"] = "cpu"


class ModelSection(_Section):
    """``layers``: "module:callable" that returns an nn.Sequential, or a list of modules or their constructors."""

    layers: Factory
    args: dict[str, Any] = {}


class DataSection(_Section):
    """``dataset``: "module:callable" that returns a map-style Dataset of (input, target); ``microbatch`` in samples.

    ``tokens_per_sample`` is for the cost of a million tokens, and for nothing else.
    """

    dataset: Factory
    args: dict[str, Any] = {}
    microbatch: Count
    shuffle: bool = True
    tokens_per_sample: Count | None = None


class TrainSection(_Section):
    """``loss(output, target)`` is a mean over the microbatch. ``clip_norm`` bounds the whole gradient's L2 norm."""

    loss: Factory
    optimizer: Factory
    optimizer_args: dict[str, Any] = {}
    clip_norm: Annotated[float, Field(gt=0, strict=False)] | None = None


class PipelineSection(_Section):
    """``microbatches``: for each pipeline and step. With nodes to spare the model is cut into up to ``most_stages``.

    ``lead``: by how many microbatches a stage is ahead of the next. 2 hides the time that tensors travel; 1 keeps the
    fewest activations: P - s of them at stage s of P, where 2 keeps 2 (P - s) - 1.

    ``schedule``: 1f1b; or zb-h1, whose gradients of parameters fill the bubbles of the cooldown, and which keeps more
    graphs meanwhile: on every stage up to as many as the first one.
    """

    stages: Count
    most_stages: Count | None = None
    microbatches: Count
    pipelines: Count = 1
    lead: Count = 2
    schedule: Literal["1f1b", "zb-h1"] = "1f1b"


class ResilienceSection(_Section):
    """``seed_bytes_per_second``: what each holder gives at most to nodes being seeded, so that training goes on.

    ``ship_every``: after so many microbatches a stage's gradients, as far as they have come, go to its hot standby,
    which then redoes no more than so many backwards; 0: only when they are whole. Stages whose forwards change buffers
    ship none.
    ``redundant_bytes``: what a step's redundant forwards may keep on a node; the rest of the step goes without them.
    """

    seed_bytes_per_second: Count = 100_000_000
    ship_every: Annotated[int, Field(ge=0)] = 0
    redundant_bytes: Count = 2_000_000_000
    redundancy: Literal["off", "lazy", "eager", "auto"] = "lazy"


class CheckpointSection(_Section):
    """``url``: any fsspec URL; ``every`` in steps; ``keep``: how many checkpoints stay."""

    url: str
    every: Count
    keep: Count = 3


class Job(_Section):
    """A whole job file. Frozen, and equal to itself after a round trip through its text."""

    job: JobSection
    model: ModelSection
    data: DataSection
    train: TrainSection
    pipeline: PipelineSection
    resilience: ResilienceSection = ResilienceSection()
    checkpoint: CheckpointSection | None = None

    @property
    def samples_per_step(self) -> int:
        return self.pipeline.pipelines * self.pipeline.microbatches * self.data.microbatch

    @property
    def schedule(self) -> Schedule:
        """In what order stages run."""
        return Schedule(self.pipeline.microbatches, self.pipeline.lead, self.pipeline.schedule == "zb-h1")


def load_job(path: str | Path, overrides: Sequence[str] = ()) -> Job:
    """Reads a job file; ``overrides`` are ``section.key=value``, a value being TOML or else a bare string.

    Raises JobError in one line for every way in which a job file can be wrong.
    """
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise JobError(f"the job file cannot be read ({reason})", where, "give the path of a JOB.toml") from error
    return _validated(_merged(_parsed(text, where), overrides), where)


def parse_job(text: str, where: str = "job file") -> Job:
    """A job from its text; raises JobError as ``load_job`` does."""
    return _validated(_parsed(text, where), where)


def job_to_toml(job: Job) -> str:
    """The text that parses to the same job."""
    return tomli_w.dumps(job.model_dump(exclude_none=True))


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"this is no TOML: {error}", where, "correct the syntax there") from error


def _merged(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        name, equals, text = override.partition("=")
        keys = name.strip().split(".")
        if not equals or len(keys) < 2 or not all(keys):
            raise JobError(f"{override!r} sets nothing", "--set", "write section.key=value, such as job.steps=20")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        table = content
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise JobError(f"{key} is no section", f"--set {name}", "write section.key=value")
        table[keys[-1]] = value
    return content


def _validated(content: Mapping[str, Any], where: str) -> Job:
    try:
        return Job.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        at = ".".join(str(part) for part in first["loc"])
        what, mend = _explained(first["type"], first["msg"], [str(part) for part in first["loc"]])
        raise JobError(what, f"{where}, {at}", mend) from error


def _explained(kind: str, message: str, location: list[str]) -> tuple[str, str]:
    if kind == "extra_forbidden":
        known = list(_fields(location[:-1]))
        close = difflib.get_close_matches(location[-1], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"unknown key {location[-1]!r}", hint
    if kind == "missing":
        return "it is missing", "add it"
    if kind == "string_pattern_mismatch" and location[-1] in ("layers", "dataset", "loss", "optimizer"):
        return "this names no callable", 'write "module:callable"'
    return message[0].lower() + message[1:], "correct the value"


def _fields(path: list[str]) -> Mapping[str, Any]:
    if not path:
        return Job.model_fields
    sections: dict[str, type[BaseModel]] = {
        "job": JobSection,
        "model": ModelSection,
        "data": DataSection,
        "train": TrainSection,
        "pipeline": PipelineSection,
        "resilience": ResilienceSection,
        "checkpoint": CheckpointSection,
    }
    return sections[path[0]].model_fields
