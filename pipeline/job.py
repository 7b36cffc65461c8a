"""The job file: a typed model of it that rejects what it does not know and says where."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from culm.pipeline.errors import JobError
from culm.pipeline.patience import SHORTEST, USUAL
from culm.pipeline.schedule import Schedule
from culm.pipeline.text import NAME_MEND, closest, is_name, plain, refuse_secrets, shortened, without_secrets

# Bounds far above what anybody needs, and below what overflows a message or fills a memory.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Steps = Annotated[int, Field(ge=1, le=10**12)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Few = Annotated[int, Field(ge=1, le=2**16)]  # in a step: each is an entry of every node's program
Bytes = Annotated[int, Field(ge=1, le=2**62)]
Norm = Annotated[float, Field(gt=0, allow_inf_nan=False)]
DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
Factory = Annotated[str, Field(pattern=rf"^{DOTTED}:{DOTTED}\z")]


def _named(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"this is not a valid name: {NAME_MEND}")
    return name


def _without_secrets(url: str) -> str:
    try:
        return refuse_secrets(url, "checkpoint.url")
    except JobError as error:
        raise ValueError(f"{error.what}: {error.mend}") from error


Name = Annotated[str, AfterValidator(_named)]
Url = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_without_secrets)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class JobSection(_Section):
    """What is run. ``threads``: torch's intra-op threads on every node. ``device``: where every node computes, the CPU
    or the first CUDA device that its process sees. The bits of the result depend on both.

    ``keep_after_done``: seconds for which nodes keep final weights that are neither in a checkpoint nor fetched.
    ``hardware``: with "same" a node whose processor, instruction set or accelerator is of another kind than that of
    the nodes before it is refused, since it computes other bits; with "any" it is taken.
    """

    name: Name = "job"
    steps: Steps
    seed: Seed = 0
    threads: Threads = 1
    keep_after_done: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)] = 3600.0
    device: Literal["cpu", "cuda"] = "cpu"
    hardware: Literal["same", "any"] = "same"


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
    """``loss(output, target)`` is a mean over the microbatch. ``clip_norm`` bounds the whole gradient's L2 norm.

    ``nonfinite``: what becomes of a step whose loss or gradient is NaN or infinite. "stop": the run ends there, with
    the weights of the step before. "skip": the step is committed and changes nothing, neither weights nor buffers nor
    the optimizer's state.
    """

    loss: Factory
    optimizer: Factory
    optimizer_args: dict[str, Any] = {}
    clip_norm: Norm | None = None
    nonfinite: Literal["stop", "skip"] = "stop"


class PipelineSection(_Section):
    """``microbatches``: for each pipeline and step. With nodes to spare the model is cut into up to ``most_stages``.

    ``lead``: by how many microbatches a stage is ahead of the next. 2 hides the time that tensors travel; 1 keeps the
    fewest activations: P - s of them at stage s of P, where 2 keeps 2 (P - s) - 1.

    ``schedule``: 1f1b; or zb-h1, whose gradients of parameters fill the bubbles of the cooldown, and which keeps more
    graphs meanwhile: on every stage up to as many as the first one.

    ``pipelines``: fixed parts of a step's samples, of ``microbatches`` each. The bits depend on their number.
    Who runs which of them is the coordinator's choice, and changes no bit.

    ``cut``: what is about equal for all stages: their "parameters", or with "measured" the time of their forwards and
    backwards, which the first nodes measure before they take part. No bit depends on it.

    ``shape_by``: what the choice of replicas and stages makes least: the time of a step with "speed"; with "value" its
    price, which is that time on all nodes, and what the step sends between zones. No bit depends on it.
    """

    stages: Few
    most_stages: Few | None = None
    microbatches: Few
    pipelines: Few = 1
    lead: Few = 2
    schedule: Literal["1f1b", "zb-h1"] = "1f1b"
    cut: Literal["parameters", "measured"] = "parameters"
    shape_by: Literal["speed", "value"] = "speed"

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.most_stages is not None and self.most_stages < self.stages:
            raise ValueError(f"most_stages {self.most_stages} is less than stages: set it to {self.stages} or more")
        return self


class ResilienceSection(_Section):
    """``seed_bytes_per_second``: what each holder gives at most to nodes being seeded, so that training goes on.

    ``ship_every``: after so many microbatches a stage's gradients, as far as they have come, go to its hot standby,
    which then redoes no more than so many backwards; 0: only when they are whole. Stages whose forwards change buffers
    ship none.
    ``copies``: how many nodes hold each stage, its owners among them, so that one less may be lost at once. With "auto"
    they are 2, or as many as a trace that the coordinator is given asks for, and become more where the bulks of lost
    nodes ask for it.
    ``standby``: where a layer lies that a node only stands by for: on the device, or in the host's memory, from where
    it is brought to the device for each optimizer step alone. On a CPU both are one.
    ``redundant_bytes``: what a step's redundant forwards may keep on a node; the rest of the step goes without them.
    ``patience``: seconds of silence after which a node that is frozen or cut off counts as lost. Every other time
    limit keeps its ratio to it. A node that is killed is noticed at once.
    """

    seed_bytes_per_second: Bytes = 100_000_000
    ship_every: Annotated[int, Field(ge=0, le=2**16)] = 0
    redundant_bytes: Bytes = 2_000_000_000
    redundancy: Literal["off", "lazy", "eager", "auto"] = "lazy"
    standby: Literal["device", "host"] = "device"
    copies: Annotated[int, Field(ge=2, le=16)] | Literal["auto"] = 2
    patience: Annotated[float, Field(ge=SHORTEST, allow_inf_nan=False, strict=False)] = USUAL

    @model_validator(mode="after")
    def _has_copies_to_count(self) -> Self:
        # A job that is passed on names every option, also those that nobody chose.
        if self.redundancy == "off" and self.copies != type(self).model_fields["copies"].default:
            raise ValueError(f"redundancy is off, so there are no copies: remove copies = {self.copies}")
        return self

    @property
    def copies_held(self) -> int:
        """As ``copies``, but 1 without redundancy, and with "auto" those that a run begins with."""
        return 1 if self.redundancy == "off" else 2 if self.copies == "auto" else self.copies


class CheckpointSection(_Section):
    """``url``: any fsspec URL, without secrets: ``${NAME}`` in it stands for what a process finds in its environment.
    ``every`` in steps; ``keep``: how many checkpoints stay.
    """

    url: Url
    every: Steps
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
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
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
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        what = error if isinstance(error, tomllib.TOMLDecodeError) else "it is nested too deeply"
        raise JobError(f"this is not valid TOML: {what}", where, "correct the syntax there") from error


def _merged(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for override in overrides:
        name, equals, text = override.partition("=")
        keys = name.strip().split(".")
        if not equals or len(keys) < 2 or not all(keys):
            raise JobError(
                f"{override!r} is not an assignment", "--set", "write section.key=value, such as job.steps=20"
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (tomllib.TOMLDecodeError, RecursionError):
            value = text
        table = content
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise JobError(f"{key} is a value, not a section", f"--set {name}", "write section.key=value")
        table[keys[-1]] = value
    return content


def _validated(content: Mapping[str, Any], where: str) -> Job:
    try:
        job = Job.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        location = [plain(str(part)) for part in first["loc"]]
        what, mend = _explained(first, location)
        raise JobError(what, f"{where}, {shortened('.'.join(location), 100)}", mend) from error
    return job


def _explained(error: Any, location: list[str]) -> tuple[str, str]:
    """What is wrong with a key's value, and the mend."""
    kind, limits = error["type"], error.get("ctx", {})
    given = shortened(plain(without_secrets(repr(error["input"]))), 80)
    if kind == "extra_forbidden":
        return f"unknown key {shortened(location[-1], 80)!r}", closest(location[-1], _fields(location[:-1]))
    if kind == "missing":
        return "it is missing", "add it to the job file"
    if kind == "string_pattern_mismatch":
        return f"{given} does not name a callable", 'write "module:callable", the module as in an import'
    if kind == "literal_error":
        words = [word.strip("'") for word in limits["expected"].replace(" or ", ", ").split(", ")]
        return f"{given} is not one of {', '.join(words)}", closest(str(error["input"]), words)
    if kind.startswith(("greater_than", "less_than", "finite")):
        least, most = (limits.get(name, limits.get(alike)) for name, alike in (("ge", "gt"), ("le", "lt")))
        if least is not None:
            mend = f"set it to {least:g} or more" if "ge" in limits else f"set it to more than {least:g}"
            return f"{given} is too small", mend
        return f"{given} is too large", f"set it to {most} or less" if most is not None else "set it to a finite number"
    if kind == "value_error":
        what, _, mend = str(limits["error"]).partition(": ")
        return what, mend
    return error["msg"][0].lower() + error["msg"][1:], f"correct the value {given}"


def _fields(path: list[str]) -> list[str]:
    """The keys of the job file, or of one of its sections."""
    annotation: Any = Job.model_fields[path[0]].annotation if path else Job
    section = next(t for t in (annotation, *getattr(annotation, "__args__", ())) if hasattr(t, "model_fields"))
    return list(section.model_fields)
