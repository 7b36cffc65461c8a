"""Slurm: the coordinator is a job on a partition that stays, the stage servers are an array on one that may preempt.

    culm up ──sbatch──► coordinator ──address──► the cluster's folder ◄── stage servers, one a task of the array
                                                  (on a file system that all machines of the Slurm cluster share)

Slurm requeues a task whose machine it takes or loses (``--requeue``), so it comes back as a node that holds nothing. It
tells the task by SIGTERM, as long before the end as the partition's GraceTime says; the task hands the seconds that are
left to its stage server as a notice (``engines.slurm_task``).
"""

import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from culm.engines.command import last_words, refusals_of, run
from culm.engines.engine import Tell, Wish
from culm.engines.local import lines_of
from culm.engines.services import await_coordinator, make_kit, read_address
from culm.local import clusters
from culm.local.clusters import Record
from culm.pipeline import private
from culm.pipeline.errors import JobError
from culm.terminal import interrupts

WHERE = "--on slurm"
DOWN = "down"  # a file of the cluster's folder: whoever finds it ends for good, and hands over nothing
DOWN_SECONDS = 120.0  # Slurm kills what has not ended after its KillWait, 30 s unless it is set otherwise
POLL_SECONDS = 0.5
COORDINATOR, STAGES = "coordinator", "stages"
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "OUT_OF_MEMORY", "BOOT_FAIL"}
_run = partial(run, where=WHERE, mend="see whether Slurm's controller answers", seconds=DOWN_SECONDS)


class Slurm:
    more = "scontrol requeue JOB_TASK brings a task back that Slurm still knows"
    options: Mapping[str, str] = {
        "partition": "where the stage servers run; default: the cluster's default",
        "coordinator_partition": "where the coordinator runs, which should not preempt; default: that of the stages",
        "sbatch": "more words for the sbatch of the stage servers, such as '--gres=gpu:1 --cpus-per-task=8'",
        "coordinator_sbatch": "the same for the coordinator's",
        "coordinator_host": "under which name the machines reach the coordinator's; default: its own host name",
        "python": "the interpreter on the machines; default: the path of this one",
    }

    def up(self, folder: Path, wish: Wish, tell: Tell) -> Record:
        _refuse_without_client()
        make_kit(folder, wish)
        record = Record(name=wish.name, job=wish.job, engine="slurm", certificates=str(folder / "certs" / "operator"))
        for part, (words, script) in _jobs(folder, wish).items():
            private.write_text(folder / f"{part}.sh", script)
            with interrupts.held():  # a job that is submitted and not on record would stay
                job = _run([*words, str(folder / f"{part}.sh")]).strip().partition(";")[0]
                record = replace(record, handles={**record.handles, part: job})
                clusters.write(folder, record)
        jobs = record.handles

        def state() -> str:
            states = _states(jobs.values())
            if all(each.partition(" ")[0] in ENDED for each in states.get(COORDINATOR, ["ENDED"])):
                said = last_words(lines_of(folder / f"slurm-{COORDINATOR}.out"))
                raise JobError(f"the coordinator's job {jobs[COORDINATOR]} ended: {said}", WHERE, f"see {folder}")
            words = ", ".join(f"{part} {_counted(each)}" for part, each in states.items())
            return f"waiting for jobs {jobs[COORDINATOR]} and {jobs[STAGES]}: {words}"

        record = replace(record, address=await_coordinator(lambda: read_address(folder), state, tell))
        clusters.write(folder, record)
        return record

    def plan(self, folder: Path, wish: Wish) -> str:
        jobs = _jobs(folder, wish).items()
        return "\n".join(f"{shlex.join(words)} {part}.sh\n{script}" for part, (words, script) in jobs)

    def refusals(self, folder: Path, wish: Wish) -> list[JobError]:
        def test(part: str, words: list[str], script: str) -> None:
            _refuse_without_client()
            private.write_text(folder / f"{part}.sh", script)
            where = f"{WHERE}, {part}"
            _run([*words, "--test-only", str(folder / f"{part}.sh")], where=where)

        return refusals_of(partial(test, part, *job) for part, job in _jobs(folder, wish).items())

    def reach(self, folder: Path, record: Record) -> str:
        """Its job writes it down: Slurm may have started it again elsewhere."""
        return read_address(folder) or record.address

    def parts(self, folder: Path, record: Record) -> Mapping[str, str]:
        return {part: _counted(each) for part, each in _states(record.handles.values()).items()}

    def logs(self, folder: Path, record: Record) -> Mapping[str, Callable[[], Iterator[str]]]:
        files = [*sorted(folder.glob("*.log")), *sorted(folder.glob("slurm-*.out"))]
        return {file.stem: partial(lines_of, file) for file in files if file.stat().st_size}

    def down(self, folder: Path, record: Record) -> list[str]:
        private.write_text(folder / DOWN, "")
        jobs = list(record.handles.values())
        ran = list(_states(jobs))
        if ran:
            _run(["scancel", *jobs], allowed="nvalid job id")  # one that has ended by now
        deadline = time.monotonic() + DOWN_SECONDS
        while left := _states(jobs):
            if time.monotonic() > deadline:
                words = ", ".join(f"{part}: {_counted(each)}" for part, each in left.items())
                raise JobError(f"Slurm has not ended {words}", record.name, "see squeue, and try again")
            time.sleep(POLL_SECONDS)
        clusters.write(folder, replace(record, handles={}))
        return ran


def _refuse_without_client() -> None:
    if shutil.which("sbatch") is None:
        mend = "run this on a machine from which jobs are submitted to Slurm"
        raise JobError("there is no sbatch here", WHERE, mend)


def _jobs(folder: Path, wish: Wish) -> dict[str, tuple[list[str], str]]:
    """By part, how it is submitted, and the script that it runs."""
    options, here = wish.options, str(folder.resolve())
    stages = options.get("partition", "")
    stays = options.get("coordinator_partition", stages)
    array = f"--array=0-{wish.nodes - 1} {options.get('sbatch', '')}"
    found = {}
    for part, partition, output, more, words in (
        (COORDINATOR, stays, "", options.get("coordinator_sbatch", ""), [options.get("coordinator_host", "")]),
        (STAGES, stages, "-%a", array, []),
    ):
        submit = ["sbatch", "--parsable", f"--job-name=culm-{wish.name}-{part}"]
        submit += [f"--output={here}/slurm-{part}{output}.out", "--open-mode=append", "--requeue"]
        submit += [*([f"--partition={partition}"] if partition else []), *shlex.split(more)]
        task = [options.get("python", sys.executable), "-m", "culm.engines.slurm_task", part, here, *words]
        found[part] = submit, f"#!/bin/sh\nexec {shlex.join(task)}\n"
    return found


def _counted(states: list[str]) -> str:
    """``3 RUNNING, 1 PENDING (BeginTime)``."""
    return ", ".join(f"{count} {state}" for state, count in Counter(states).items())


def _states(jobs: Iterable[str]) -> dict[str, list[str]]:
    """By part, in Slurm's words, those of its jobs that it still knows: one word for each task of the array."""
    numbers = ",".join(jobs)
    if not numbers:
        return {}
    listed = _run(["squeue", "--noheader", "--array", "--jobs", numbers, "--format", "%j|%T|%r"], allowed="Invalid job")
    found: dict[str, list[str]] = {}
    for line in listed.splitlines():
        name, state, reason = line.split("|")
        part = COORDINATOR if name.endswith(f"-{COORDINATOR}") else STAGES
        found.setdefault(part, []).append(state if reason == "None" else f"{state} ({reason})")
    return found
