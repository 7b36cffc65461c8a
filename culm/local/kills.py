"""The faults that a user asks for: ``--kill NODE@STEP[:INSTRUCTION]``."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from culm.pipeline.errors import JobError
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.job import Job
from culm.pipeline.places import KINDS
from culm.pipeline.text import plain, shortened

DEFAULT = "backward"
OF_STAGES = ("sum", "ship", "ready")  # a node does these for a stage, so they are named with a stage: ready:1
EXAMPLE = "2B3"
DIGITS = "0123456789"


@dataclass(frozen=True, slots=True)
class Kill:
    """The node kills itself with -9 at an instruction of a step."""

    node: str
    step: int
    instruction: str

    @property
    def at(self) -> str:
        return f"{self.step}:{self.instruction}"

    def __str__(self) -> str:
        return f"{self.node}@{self.at}"


def parse_kill(text: str, nodes: int, job: Job) -> Kill:
    """``n1@12:2B3``, ``1@12`` or ``n1@12:send:2B3``. Raises JobError, in one line, for what this job never reaches."""
    steps = job.evaluations.end(job.job.steps)
    form = "write NODE@STEP[:INSTRUCTION], such as n1@12:2B3 or n1@12:send"
    match = re.fullmatch(r"(?:n|node-?)?([0-9]{1,9})@([0-9]{1,18})(?::(.+))?", text.strip())
    if match is None:
        raise JobError(f"{shortened(plain(text), 80)!r} does not name a kill", "--kill", form)
    node, step, instruction = int(match[1]), int(match[2]), match[3] or DEFAULT
    if node >= nodes:
        raise JobError(f"there is no node n{node}", f"--kill {text}", f"name one of n0 to n{nodes - 1}")
    if step >= steps:
        raise JobError(f"the run has no step {step}", f"--kill {text}", f"name one of 0 to {steps - 1}")
    _check_instruction(instruction, f"--kill {text}", job, step)
    return Kill(f"n{node}", step, instruction)


def missed_in_words(kills: Sequence[Kill], deaths: Iterable[tuple[str, float]]) -> str:
    """Which nodes were lost less often than ``--kill`` asked for; nothing where each kill came."""
    lost = Counter(node for node, _ in deaths)
    wanted = Counter(kill.node for kill in kills)
    missed = [f"{node} {lost[node]} of {count}" for node, count in wanted.items() if lost[node] < count]
    what = "some kills did not come, since a node dies only at what it runs itself; times that each was lost"
    return f"{what}: {', '.join(missed)}" if missed else ""


def refuse_past(kills: Iterable[Kill], step: int) -> None:
    """Raises JobError for a kill in a step before this one, with which a resumed run begins."""
    for kill in kills:
        if kill.step < step:
            what = f"the resumed run begins with step {step}, so it never comes to step {kill.step}"
            raise JobError(what, f"--kill {kill}", f"name a step from {step} on")


def _check_instruction(instruction: str, where: str, job: Job, step: int) -> None:
    """Raises JobError unless some node reaches the instruction in this step."""
    kind, colon, label = instruction.partition(":")
    if kind not in KINDS:
        kind, colon, label = "", ":", instruction
    stages = max(job.pipeline.stages, job.pipeline.most_stages or 0)
    if not colon:
        return
    if kind in OF_STAGES:
        if not re.fullmatch(r"[0-9]{1,9}", label) or int(label) >= stages:
            what = f"{instruction!r} names none of the {stages} stages"
            raise JobError(what, where, f"write {kind}:0 to {kind}:{stages - 1}, or {kind} alone")
        return
    named = re.fullmatch(r"(?:p([0-9]{1,9})/)?([0-9]{1,9})[A-Z][0-9]{1,9}", label)
    if kind == "commit" or named is None:
        what = f"{instruction!r} is not an instruction"
        raise JobError(what, where, f"write a label such as {EXAMPLE}, or one of {', '.join(KINDS)}")
    pipeline, stage = int(named[1] or 0), int(named[2])
    if pipeline >= job.pipeline.pipelines:
        what = f"there is no pipeline {pipeline}"
        raise JobError(what, where, f"name one of 0 to {job.pipeline.pipelines - 1}; the first one's is {EXAMPLE}")
    if stage >= stages:
        raise JobError(f"there is no stage {stage}", where, f"name one of 0 to {stages - 1}")
    duty, evaluated = Duty(pipeline, stage), job.evaluations.in_step(step, job.job.steps)
    known = [str(each) for each in job.schedule.order(duty, stages)] if step < job.job.steps else []
    known += [str(Instruction(duty, "E", m)) for m in range(evaluated)]
    if label not in known:
        most = max(int(re.sub(".*[A-Z]", "", each)) for each in known)
        mend = f"stage {stage} runs {', '.join(sorted({f'{k.rstrip(DIGITS)}0' for k in known}))} to .. {most}"
        raise JobError(f"stage {stage} never runs {label}", where, mend)
