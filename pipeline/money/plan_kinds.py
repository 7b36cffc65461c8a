"""Events of plans, and of what becomes of lost stages."""

from dataclasses import dataclass
from typing import Annotated

from culm.pipeline.money.event import Event, Stage, Step
from culm.pipeline.plan import Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned(Event):
    """A new plan was published. The event's text is its reason."""

    kind = "plan"
    generation: Annotated[int, "the number of the plan"] = 0
    steps: Annotated[int, "of the job"] = 0
    stage_count: Annotated[int, "how many stages the model is cut into"] = 0
    stages: Annotated[Stages, "JSON, a list a stage: first layer, end layer, owners, standbys, which are hot"] = ()
    samples_per_step: Annotated[int, "samples in a step"] = 0
    tokens_per_step: Annotated[int, "tokens in a step; 0 where samples have none"] = 0
    samples_per_epoch: Annotated[int, "samples that the dataset has; 0 where nobody knows"] = 0
    chunks: Annotated[int | None, "of the graph, each a pipeline of the plan; none: the job trains on samples"] = None
    staleness: Annotated[int | None, "epochs that values of other chunks may be old"] = None
    refresh: Annotated[int | None, "every so many epochs one takes new values"] = None
    fresh_from: Annotated[int | None, "from this epoch on all take new values"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """An heir has begun its first instruction of a lost node's stage."""

    kind = "resumed"
    node: Annotated[str, "the lost node"]
    heir: Annotated[str, "who runs its stage now"] = ""
    stage: Stage
    resume_ms: Annotated[float, "milliseconds since the node was declared lost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """The step in which a node was lost is committed."""

    kind = "recovered"
    node: Annotated[str, "the lost node"]
    stage: Stage
    step: Step = 0
    detect_ms: Annotated[float, "milliseconds from its last sign to its being declared lost"] = 0.0
    resume_ms: Annotated[float, "milliseconds from there to the heir's first instruction"] = 0.0
    redone: Annotated[int, "instructions that ran again"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hot(Event):
    """A stage has a hot standby again."""

    kind = "hot"
    node: Annotated[str, "the standby"]
    stage: Stage
    exposure_ms: Annotated[float, "milliseconds without one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(Event):
    """No copy of a stage is left. A new era begins from a checkpoint, or from step 0."""

    kind = "rollback"
    era: Annotated[int, "the number of the new era"] = 0
    step: Annotated[int, "the step that training goes on from"]
    work_lost: Annotated[int, "0 where every node was let go and a last checkpoint was whole; else 1"] = 1
