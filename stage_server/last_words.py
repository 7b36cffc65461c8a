"""What a node says when something has raised there: which work it was, and why, in one line."""

from culm.pipeline.errors import JobError
from culm.pipeline.instruction import Instruction
from culm.pipeline.plan import Plan
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.imports import place_of
from culm.pipeline.user_code.refusals import mend_of_chance
from culm.protos import coordinator_pb2 as pb
from culm.stage_server.worker.work import (
    Apply,
    Arrange,
    Audit,
    Check,
    Install,
    Load,
    Reduce,
    Resume,
    Run,
    Save,
    Sum,
    Work,
)

START = pb.FailedWork(what="start", first_layer=0, end_layer=1)


def reason_of(error: BaseException) -> str:
    """One line. A JobError says by itself what, where and the mend."""
    if isinstance(error, JobError):
        return str(error)
    first = str(error).strip().partition("\n")[0]
    if mend := mend_of_chance(error):  # torch goes on to advise what would let the bits vary
        return f"{type(error).__name__}: {first.partition(', but you set')[0]}; {mend}"
    said = f"{type(error).__name__}: {first}" if first else type(error).__name__
    notes = (str(each).strip().partition("\n")[0] for each in getattr(error, "__notes__", ()))  # the job's own, too
    beside = [*notes, place_of(error)]
    return f"{said} ({', '.join(filter(None, beside))})" if any(beside) else said


def work_of(work: Work[Value] | Load, plan: Plan, building: int | None) -> pb.FailedWork:
    """The same for whoever does it. ``building``: the layer that was being built."""
    if building is not None:
        return pb.FailedWork(what="build", first_layer=building, end_layer=building + 1)
    if isinstance(work, Run):
        return _failed(work.instruction.of_stage, work.step, plan.stages[work.instruction.stage].layers)
    if isinstance(work, Load):
        what = f"load {work.microbatch} of pipeline {work.pipeline}{' of the evaluation' if work.evaluated else ''}"
        return _failed(what, work.step, range(plan.stages[-1].end_layer))
    if isinstance(work, Reduce):
        return _failed("reduce", work.step, plan.stages[work.stage].layers)
    if isinstance(work, Sum):
        return _failed("sum", work.step, [work.layer])
    if isinstance(work, Resume):
        return _failed("resume", work.step, plan.stages[work.duty.stage].layers)
    if isinstance(work, Apply):
        return _failed("apply", work.step, [layer for layer, _ in work.gradients])
    if isinstance(work, Install):
        return _failed("install", work.version, [work.layer])
    if isinstance(work, Save):
        return _failed("save", work.step, work.layers)
    if isinstance(work, Audit):
        return _failed(Instruction(work.duty, "F", work.microbatch).of_stage, work.step, work.layers)
    if isinstance(work, Check):
        return _failed("check", work.version, [work.layer])
    assert isinstance(work, Arrange)
    return _failed("arrange", work.step, work.layers)


def _failed(what: str, step: int, layers: "range | list[int] | tuple[int, ...]") -> pb.FailedWork:
    first, end = (min(layers), max(layers) + 1) if layers else (0, 0)
    return pb.FailedWork(what=what, step=step, first_layer=first, end_layer=end)
