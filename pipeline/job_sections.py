"""The sections of the job file, and what their keys may be.

Each key says in its annotation what it is for: docs/job.md is made from these (``job_page``).
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from culm.pipeline.errors import JobError
from culm.pipeline.patience import SHORTEST, USUAL
from culm.pipeline.text import NAME_MEND, is_name, refuse_secrets

# Bounds far above what anybody needs, and below what overflows a message or fills a memory.
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Steps = Annotated[int, Field(ge=1, le=10**12)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Threads = Annotated[int, Field(ge=1, le=1024)]
Few = Annotated[int, Field(ge=1, le=2**16)]  # in a step: each is an entry of every node's program
Bytes = Annotated[int, Field(ge=1, le=2**62)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)]
Dollars = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False, strict=False)]
Arguments = dict[str, Any]
Norm = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(gt=0, lt=1)]
DOTTED = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
Factory = Annotated[str, Field(pattern=rf"^{DOTTED}:{DOTTED}\z")]


def _named(name: str) -> str:
    if not is_name(name):
        raise ValueError(f"this is not a valid name: {NAME_MEND}")
    return name


def _without_secrets(url: str) -> str:
    try:
        return refuse_secrets(url, "it")
    except JobError as error:
        raise ValueError(f"{error.what}: {error.mend}") from error


def _as_text(moment: object) -> object:
    """TOML has moments of its own."""
    return moment.isoformat() if isinstance(moment, datetime) else moment


def _moment(text: str) -> str:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError('this is no time: write it as in "2026-12-01T08:00:00+01:00"') from error
    if moment.tzinfo is None:
        raise ValueError('this time is of no zone: add its distance from UTC, as in "2026-12-01T08:00:00+01:00"')
    return text


Name = Annotated[str, AfterValidator(_named)]
Moment = Annotated[str, Field(max_length=64), BeforeValidator(_as_text), AfterValidator(_moment)]
Place = Annotated[str, Field(min_length=1, max_length=1000)]
Url = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_without_secrets)]


# By numbers told beside metrics.
_TAKEN = ("loss", "step", "epoch", "gradient_norm", "learning_rate", "samples_per_second", "tokens_per_second")


def _refuse_names(metrics: Mapping[str, str]) -> None:
    """Raises ValueError for what cannot be a metric's name."""
    for name in metrics:
        if not is_name(name) or name in _TAKEN:
            raise ValueError(f"{name[:80]!r} cannot be a metric's name: {NAME_MEND}, and not {', '.join(_TAKEN)}")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class JobSection(Section):
    """What is run, and on what. The bits of the result depend on the device and on the number of threads."""

    name: Annotated[Name, "what the run is called: in status, logs and checkpoints"] = "job"
    steps: Annotated[Steps, "how many steps are trained"]
    seed: Annotated[Seed, "of all random numbers: parameters, dropout, the order of samples"] = 0
    threads: Annotated[
        Threads,
        "torch's intra-op threads on every node. With 2 or more on the CPU torch uses deterministic algorithms alone, "
        "and raises where it has none",
    ] = 1
    keep_after_done: Annotated[
        Seconds,
        "seconds for which nodes keep final weights that are neither in a checkpoint nor fetched, and what a run that "
        "has come to its `budget` or `stop_at` has trained",
    ] = 3600.0
    budget: Annotated[
        Dollars | None,
        "dollars that the run may cost, by `culm cost`: with the next commit after that it saves a checkpoint and "
        "pauses, until `culm resume --budget` gives it more. Every node needs a known price",
    ] = None
    stop_at: Annotated[
        Moment | None,
        'when the run pauses in the same way, such as `"2026-12-01T08:00:00+01:00"`; the coordinator\'s clock counts',
    ] = None
    device: Annotated[
        Literal["cpu", "cuda"],
        "where every node computes: the CPU, or the first CUDA device that its process sees. On a CUDA device torch "
        "uses deterministic algorithms alone, and raises where it has none",
    ] = "cpu"
    hardware: Annotated[
        Literal["same", "any"],
        '"same" refuses a node whose processor, instruction set or accelerator is of another kind than that of the '
        'nodes before it, since it computes other bits; "any" takes it',
    ] = "same"

    @property
    def stops_at(self) -> float:
        """In unix seconds; 0: no such time."""
        return datetime.fromisoformat(self.stop_at).timestamp() if self.stop_at is not None else 0.0


class ModelSection(Section):
    """The model, cut where its layers meet. A layer takes what the one before gave: a tensor, or a pytree of them."""

    layers: Annotated[Factory, "returns an nn.Sequential, or a list of modules or of their constructors"]
    args: Annotated[Arguments, "what it is called with"] = {}
    tied: Annotated[
        list[list[str]],
        'parameters that are one: `[["0.wte.weight", "13.lm_head.weight"]]`, a list for each, by layer and name. Those '
        "that are one object in ready-made modules need no entry",
    ] = []


class DataSection(Section):
    """The samples."""

    dataset: Annotated[
        Factory,
        "returns a map-style Dataset of pairs (input, target); or an iterable one with state_dict and "
        "load_state_dict, which is read in its own order (`shuffle = false`), by every node that takes samples",
    ]
    args: Annotated[Arguments, "what it is called with"] = {}
    collate: Annotated[
        Factory | None,
        "called with the list of a microbatch's samples, as the dataset gives them; returns (input, target). None: "
        "torch's default_collate",
    ] = None
    microbatch: Annotated[Count, "samples in a microbatch"]
    shuffle: Annotated[bool, "whether each epoch has an order of its own, drawn by the seed"] = True
    workers: Annotated[
        int,
        Field(ge=0, le=256),
        "processes that load samples ahead, of each node that takes samples; 0: it loads them itself, while it waits",
    ] = 0
    tokens_per_sample: Annotated[
        Count | None,
        "for figures alone: tokens trained on, tokens a second, and what a million cost; it changes no bit",
    ] = None


class TrainSection(Section):
    """Loss and optimizer."""

    loss: Annotated[Factory, "called with (output, target); a mean over the microbatch, or as `reduction` says"]
    metrics: Annotated[
        dict[str, Factory],
        'of what is trained on, by name: `{ accuracy = "module:callable" }`, called with (output, target) as the '
        "loss is; it returns the mean over the samples of the microbatch, or a pair (sum, count)",
    ] = {}
    reduction: Annotated[
        Literal["mean", "sum"],
        '"mean": a step\'s loss is the mean of its microbatches\'. "sum": the loss returns a pair, the sum over a '
        "microbatch and over how many it is, such as tokens; the step's is the whole sum divided by the whole count",
    ] = "mean"
    optimizer: Annotated[Factory, "a torch.optim.Optimizer"]
    optimizer_args: Annotated[Arguments, "what it is made with, beside the parameters"] = {}
    groups: Annotated[
        Factory | None,
        "called with (layer number, parameter name, parameter); returns the optimizer's options for it, such as "
        '`{"weight_decay": 0.0}`, or `{}`. It may name another optimizer for it, with all options of that one: '
        '`{"optimizer": "torch.optim:Muon", "lr": 0.02}`',
    ] = None
    schedule: Annotated[
        Factory | None,
        "a class of torch.optim.lr_scheduler other than ReduceLROnPlateau; or a function whose first argument is "
        "`optimizer` and which returns such a scheduler; or one of the step, which returns the learning rate's factor",
    ] = None
    schedule_args: Annotated[Arguments, "what it is called with beside that"] = {}
    precision: Annotated[
        Literal["fp32", "bf16-mixed", "bf16"],
        '"bf16-mixed" runs forwards under torch.autocast; parameters, gradients and sums stay float32. With "bf16" '
        "layers, their gradients and the optimizer's state are bfloat16, and so are the inputs that are floating point",
    ] = "fp32"
    activation_checkpointing: Annotated[
        bool, "whether a backward runs each layer's forward again, so that its input alone is kept in between"
    ] = False
    compile: Annotated[
        bool,
        "whether torch.compile compiles each layer, every shape by itself; on the CPU, with a C++ compiler on every "
        "node",
    ] = False
    average: Annotated[
        Decay | None,
        "decay of an exponential moving average of the weights, such as 0.999: kept by every copy, written to "
        "checkpoints, and exported by `culm checkpoint export --average`",
    ] = None
    clip_norm: Annotated[Norm | None, "bounds the whole gradient's L2 norm"] = None
    nonfinite: Annotated[
        Literal["stop", "skip"],
        'what becomes of a step whose loss or gradient is NaN or infinite: "stop" ends the run there, with the weights '
        'of the step before; "skip" commits it, and neither weights nor buffers nor the optimizer\'s state change',
    ] = "stop"

    @model_validator(mode="after")
    def _has_names(self) -> Self:
        _refuse_names(self.metrics)
        return self


class PipelineSection(Section):
    """How the work is divided. Of these keys the bits depend on ``microbatches`` and ``pipelines`` alone."""

    stages: Annotated[Few, "how many stages the model is cut into"]
    most_stages: Annotated[Few | None, "with nodes to spare the model may be cut into so many"] = None
    microbatches: Annotated[Few, "of each pipeline in a step"]
    pipelines: Annotated[Few, "equal parts of a step's samples, each of so many microbatches"] = 1
    lead: Annotated[
        Few,
        "by how many microbatches a stage is ahead of the next. 2 hides the time that tensors travel; 1 keeps the "
        "fewest activations: P - s of them at stage s of P, where 2 keeps 2 (P - s) - 1",
    ] = 2
    schedule: Annotated[
        Literal["1f1b", "zb-h1"],
        '"zb-h1" fills the bubbles of the cooldown with gradients of parameters. Meanwhile it keeps more graphs: on '
        "every stage up to as many as on the first one",
    ] = "1f1b"
    cut: Annotated[
        Literal["parameters", "measured"],
        'what is about equal for all stages: their parameters; or with "measured" the time of their forwards and '
        "backwards, which the first nodes measure before they take part",
    ] = "parameters"
    shape_by: Annotated[
        Literal["speed", "value"],
        'what the choice of replicas and stages makes least: the time of a step; or with "value" its price, which is '
        "that time on all nodes, and what the step sends between zones",
    ] = "speed"

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.most_stages is not None and self.most_stages < self.stages:
            raise ValueError(f"most_stages {self.most_stages} is less than stages: set it to {self.stages} or more")
        return self


class ResilienceSection(Section):
    """What is done against lost nodes. No bit depends on it."""

    seed_bytes_per_second: Annotated[
        Bytes,
        "what each holder gives at most to nodes being seeded, so that training goes on; a stage's only copy goes as "
        "fast as the link",
    ] = 100_000_000
    ship_every: Annotated[
        Annotated[int, Field(ge=0, le=2**16)],
        "after so many microbatches a stage's gradients, as far as they have come, go to its hot standby, which then "
        "redoes no more than so many backwards; 0: only when they are whole. Stages whose forwards change buffers ship "
        "none",
    ] = 0
    redundant_bytes: Annotated[
        Bytes, "what a step's redundant forwards may keep on a node; the rest of the step goes without them"
    ] = 2_000_000_000
    redundancy: Annotated[
        Literal["off", "lazy", "eager", "auto"],
        'whether standbys are kept ("lazy"), and run forwards ahead as well ("eager"); "auto" chooses by what the run '
        "sees",
    ] = "lazy"
    standby: Annotated[
        Literal["device", "host"],
        "where a layer lies that a node only stands by for: on the device, or in the host's memory, from where it is "
        "brought to the device for each optimizer step alone. On a CPU both are one",
    ] = "device"
    copies: Annotated[
        Annotated[int, Field(ge=2, le=16)] | Literal["auto"],
        'how many nodes hold each stage, its owners among them, so that one less may be lost at once. With "auto" a '
        "run begins with 2, or as many as a trace that the coordinator is given asks for. After each loss it weighs "
        "what copies cost its steps against what rollbacks would cost it, and takes the number that costs least",
    ] = 2
    audit: Annotated[
        Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False, strict=False)],
        "the share of forwards that another holder of the stage runs once more, in bubbles, to find a machine that "
        "computes wrongly; above 0 the holders of a stage also compare their state before each commit. With two copies "
        "nobody knows at once which of two is wrong; [protocol.md](protocol.md#a-machine-that-computes-wrongly) says "
        "what follows, and what is not found. 0: neither",
    ] = 0.0
    patience: Annotated[
        Annotated[float, Field(ge=SHORTEST, allow_inf_nan=False, strict=False)],
        "seconds of silence after which a node that is frozen or cut off counts as lost. Every other time limit keeps "
        "its ratio to it. A node that is killed is noticed at once",
    ] = USUAL

    @model_validator(mode="after")
    def _has_copies_to_count(self) -> Self:
        # A job that is passed on names every option, also those that nobody chose.
        if self.redundancy == "off" and self.copies != type(self).model_fields["copies"].default:
            raise ValueError(f"redundancy is off, so there are no copies: remove copies = {self.copies}")
        return self

    @model_validator(mode="after")
    def _has_somebody_to_audit(self) -> Self:
        if self.redundancy == "off" and self.audit:
            raise ValueError(f"redundancy is off, so nobody holds a stage to audit it: remove audit = {self.audit}")
        return self

    @property
    def copies_held(self) -> int:
        """As ``copies``, but 1 without redundancy, and with "auto" those that a run begins with."""
        return 1 if self.redundancy == "off" else 2 if self.copies == "auto" else self.copies


class EvaluateSection(Section):
    """How good the weights are on samples that are not trained on. Without this section nobody looks. An evaluation
    changes no bit of the weights. Layers are in evaluation mode then, and use the buffers as they are.
    """

    dataset: Annotated[
        Factory, "returns a map-style Dataset, as `data.dataset` does; `data.collate` is for this one too"
    ]
    args: Annotated[Arguments, "what it is called with"] = {}
    every: Annotated[Steps, "steps from one evaluation to the next; the final weights are evaluated in any case"]
    samples: Annotated[Count, "how many of its samples are evaluated, from the first one on, in their order"]
    microbatch: Annotated[Count | None, "samples in a microbatch; none: as many as in training"] = None
    metrics: Annotated[
        dict[str, Factory],
        'beside the loss, by name: `{ accuracy = "module:callable" }`, called with (output, target); it returns the '
        "mean over the samples of the microbatch, or a pair (sum, count)",
    ] = {}

    best: Annotated[str, "`loss` or a metric's name: what tells which weights are the best so far"] = "loss"
    best_is: Annotated[Literal["least", "most"], "whether the least or the most of it is the best"] = "least"
    keep_best: Annotated[
        bool,
        "whether the checkpoint of the best weights stays, beside those that `checkpoint.keep` counts; `every` has to "
        "be a multiple of `checkpoint.every` then",
    ] = False
    patience: Annotated[
        Annotated[int, Field(ge=1, le=2**31 - 1)] | None,
        "the run ends early, with the weights evaluated last, once so many evaluations in a row were no better than "
        "the best one by `best`; none: it trains all of its steps. With `keep_best` the best weights stay as well",
    ] = None

    @model_validator(mode="after")
    def _has_names(self) -> Self:
        _refuse_names(self.metrics)
        if self.best not in ("loss", *self.metrics):
            known = ", ".join(["loss", *self.metrics])
            raise ValueError(f"best is {self.best[:80]!r}, which nothing is called: name one of {known}")
        return self


class TrackSection(Section):
    """Where the run's numbers are written as it goes on, beside its own event log. Each tracker is an extra of Culm:
    `pip install 'culm[tensorboard]'`. The coordinator writes; what gives access comes from the tracker's own variables.
    """

    tensorboard: Annotated[Place | None, "a folder; the run has one of its own in it"] = None
    trackio: Annotated[Place | None, "a project"] = None
    wandb: Annotated[Place | None, "a project; `WANDB_MODE=offline` writes files of this machine alone"] = None
    mlflow: Annotated[Url | None, "a tracking URI, such as `sqlite:///mlflow.db` or `http://host:5000`"] = None

    @property
    def named(self) -> dict[str, str]:
        """Where each tracker that is asked for writes."""
        return self.model_dump(exclude_none=True)


class CheckpointSection(Section):
    """Where the state is saved as training goes on. Without this section nothing is."""

    url: Annotated[
        Url, "any fsspec URL, without secrets: `${NAME}` in it stands for what a process finds in its environment"
    ]
    every: Annotated[Steps, "steps from one checkpoint to the next; the last step has one in any case"]
    keep: Annotated[Count, "how many checkpoints stay"] = 3
