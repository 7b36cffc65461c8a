"""The job file: a typed model of it that rejects what it does not know and says where."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tomli_w
from pydantic import ValidationError, model_validator

from culm.pipeline.errors import JobError
from culm.pipeline.evaluations import NEVER, Best, Evaluations
from culm.pipeline.job_data import as_data
from culm.pipeline.job_graph import GraphSection
from culm.pipeline.job_sections import (
    CheckpointSection,
    DataSection,
    EvaluateSection,
    JobSection,
    ModelSection,
    PipelineSection,
    ResilienceSection,
    Section,
    TrackSection,
    TrainSection,
)
from culm.pipeline.neighbours import FRESH, Staleness
from culm.pipeline.schedule import Schedule
from culm.pipeline.tally import TallyForm
from culm.pipeline.text import closest, plain, shortened, without_secrets


class Job(Section):
    """A whole job file. Frozen, and equal to itself after a round trip through its text."""

    job: JobSection
    model: ModelSection
    data: DataSection
    train: TrainSection
    pipeline: PipelineSection
    resilience: ResilienceSection = ResilienceSection()
    evaluate: EvaluateSection | None = None
    checkpoint: CheckpointSection | None = None
    track: TrackSection | None = None
    graph: GraphSection | None = None

    @model_validator(mode="before")
    @classmethod
    def _follows_the_graph(cls, content: Any) -> Any:
        """What [graph] says of other sections, in place of the user."""
        if not isinstance(content, Mapping) or not isinstance(content.get("graph"), Mapping):
            return content
        try:
            follows = GraphSection.model_validate(content["graph"]).sections()
        except ValidationError:  # it is told of the section itself
            return content
        filled = dict(content)
        for section, keys in follows.items():
            given = filled.get(section, {})
            if isinstance(given, Mapping):
                filled[section] = {**keys, **given}
        return filled

    @model_validator(mode="after")
    def _is_a_graph(self) -> Self:
        if self.graph is None:
            return self
        for section, keys in self.graph.sections().items():
            for key, wanted in keys.items():
                if getattr(getattr(self, section), key) != wanted:
                    raise ValueError(f"[graph] sets {section}.{key}: leave that key out")
        every = self.checkpoint.every if self.checkpoint is not None and self.graph.staleness else self.graph.refresh
        if every % self.graph.refresh:
            what = f"only every {self.graph.refresh} epochs one is fresh, and a checkpoint is saved every {every}"
            raise ValueError(f"{what}: set checkpoint.every to a multiple of graph.refresh")
        refused = {
            "evaluate": self.evaluate is not None,
            "train.compile": self.train.compile,
            "train.activation_checkpointing": self.train.activation_checkpointing,
            "train.precision": self.train.precision != "fp32",
            "resilience.audit": self.resilience.audit > 0.0,
            "resilience.redundancy": self.resilience.redundancy in ("eager", "auto"),
            "resilience.ship_every": self.resilience.ship_every > 0,
            "pipeline.schedule": self.pipeline.schedule != "1f1b",
            "job.device": self.job.device != "cpu",
        }
        if found := next((key for key, is_set in refused.items() if is_set), None):
            raise ValueError(f"{found} is not for graphs yet: leave it out")
        return self

    @model_validator(mode="after")
    def _saves_the_best(self) -> Self:
        if self.evaluate is None or not self.evaluate.keep_best:
            return self
        if self.checkpoint is None:
            raise ValueError("evaluate.keep_best keeps a checkpoint, and there is no [checkpoint]: add the section")
        if self.evaluate.every % self.checkpoint.every:
            what = f"evaluate.every is {self.evaluate.every}, and only every {self.checkpoint.every} steps are saved"
            raise ValueError(f"{what}: set evaluate.every to a multiple of checkpoint.every")
        return self

    @model_validator(mode="after")
    def _compiles(self) -> Self:
        if self.train.compile and self.job.device != "cpu":
            raise ValueError("train.compile is for the CPU, and job.device is not: leave one of them out")
        if self.train.compile and self.job.threads > 1:
            raise ValueError("train.compile is for one thread a node: set job.threads to 1")
        if self.train.compile and self.schedule.splits:
            what = "train.compile makes each layer's backward one piece, which zb-h1 splits"
            raise ValueError(f'{what}: set pipeline.schedule to "1f1b"')
        return self

    @property
    def code(self) -> tuple[str, ...]:
        """What it names of the user's code, as "module:callable"."""
        named = [self.model.layers, self.data.dataset, self.data.collate, self.train.loss, self.train.optimizer]
        named += [self.graph.data] if self.graph is not None else []
        named += [self.train.groups, self.train.schedule, *self.train.metrics.values()]
        if self.evaluate is not None:
            named += [self.evaluate.dataset, *self.evaluate.metrics.values()]
        return tuple(name for name in named if name is not None)

    @property
    def best(self) -> Best:
        """By what weights that were evaluated are the best."""
        if (asked := self.evaluate) is None:
            return Best()
        return Best(place=("loss", *asked.metrics).index(asked.best), most=asked.best_is == "most")

    @property
    def worse_allowed(self) -> int:
        """After how many evaluations in a row that are no better the run ends early; 0: it does not."""
        return (self.evaluate.patience or 0) if self.evaluate is not None else 0

    @property
    def samples_per_step(self) -> int:
        return self.pipeline.pipelines * self.pipeline.microbatches * self.data.microbatch

    @property
    def evaluations(self) -> Evaluations:
        """When the weights are evaluated."""
        if (asked := self.evaluate) is None:
            return NEVER
        return Evaluations(
            every=asked.every,
            samples=asked.samples,
            size=asked.microbatch or self.data.microbatch,
            pipelines=self.pipeline.pipelines,
        )

    @property
    def tally_form(self) -> TallyForm:
        """Which numbers its microbatches tell."""
        metrics = tuple(self.evaluate.metrics) if self.evaluate is not None else ()
        counted, measured = self.train.reduction == "sum", tuple(self.train.metrics)
        return TallyForm(counted=counted, measured=measured, metrics=metrics, rate=True)

    @property
    def staleness(self) -> Staleness:
        """Of what chunks of a graph take of each other."""
        if self.graph is None or not self.graph.staleness:
            return FRESH
        fresh_from = max(self.job.steps - self.graph.fresh_at_end, 0)
        return Staleness(self.graph.staleness, self.graph.refresh, fresh_from)

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
        whole = f" at {Path(path).absolute()}" if not Path(path).is_absolute() else ""
        raise JobError(
            f"the job file cannot be read{whole} ({reason})", where, "give the path of a JOB.toml"
        ) from error
    return _validated(_merged(_parsed(text, where), overrides), where)


def parse_job(text: str, where: str = "job file") -> Job:
    """A job from its text; raises JobError as ``load_job`` does."""
    return _validated(_parsed(text, where), where)


def job_of(sections: Mapping[str, Any], where: str) -> Job:
    """A job from its sections, each a mapping of its keys; raises JobError as ``load_job`` does."""
    return _validated(as_data(sections, where), where)


def with_values(job: Job, values: Mapping[str, Any]) -> Job:
    """The job with these keys changed: ``{"section.key": value}``. Raises JobError."""
    content = job.model_dump(exclude_none=True)
    for section, follow in (job.graph.sections() if job.graph is not None else {}).items():
        for key in follow:  # from the [graph] as it will be
            del content[section][key]
    for name, value in values.items():
        section, dot, key = name.partition(".")
        if not dot or not isinstance(content.setdefault(section, {}), dict):
            raise JobError(f"{name!r} names no key", "overrides", "write section.key, such as job.steps")
        content[section][key] = value
    return job_of(content, "overrides")


def job_to_toml(job: Job) -> str:
    """The text that parses to the same job."""
    return tomli_w.dumps(job.model_dump(exclude_none=True))


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # A ValueError of Python itself: it reads no number of more than 4300 digits.
        of_python = "a number is too long" if isinstance(error, ValueError) else "it is nested too deeply"
        what = error if isinstance(error, tomllib.TOMLDecodeError) else of_python
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
        except (ValueError, RecursionError):
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
        errors = error.errors()
        # A section whose name is misspelt is missing, too: the name is what is to be mended.
        first = next((x for x in errors if x["type"] == "extra_forbidden"), errors[0])
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
        return "it is missing", "add it to the job"
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
        bound = f"set it to {most} or less" if "le" in limits else f"set it to less than {most}"
        return f"{given} is too large", bound if most is not None else "set it to a finite number"
    if kind == "value_error":
        what, _, mend = str(limits["error"]).partition(": ")
        return what, mend
    return error["msg"][0].lower() + error["msg"][1:], f"correct the value {given}"


def _fields(path: list[str]) -> list[str]:
    """The keys of the job file, or of one of its sections."""
    annotation: Any = Job.model_fields[path[0]].annotation if path else Job
    section = next(t for t in (annotation, *getattr(annotation, "__args__", ())) if hasattr(t, "model_fields"))
    return list(section.model_fields)
