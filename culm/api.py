"""What ``import culm`` gives to scripts and notebooks: the same runs as on the command line.

    import culm

    outcome = culm.run("job.toml", nodes=4, overrides={"job.steps": 100})
    model.load_state_dict(outcome.weights)

A script needs no ``if __name__ == "__main__"`` around that: a node imports what the job names, and never the script,
unless the job names something of the script.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from culm.commands.checkpoint import chosen, unreadable
from culm.commands.run import check_files, node_count, try_out
from culm.local import nursery
from culm.local.cluster import LocalCluster
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, job_of, job_to_toml, load_job, with_values
from culm.pipeline.user_code.edited import Imported
from culm.pipeline.user_code.imports import refuse_while_importing
from culm.pipeline.user_code.naming import with_paths
from culm.pipeline.user_code.streams import put_generators_back, whole_states
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome, RunFailed
from culm.terminal.progress import display

__all__ = [
    "Job",
    "JobError",
    "Outcome",
    "RunFailed",
    "Verification",
    "load_job",
    "make_job",
    "microbatches",
    "plain_state",
    "run",
    "save_job",
    "verify",
]

Shape = tuple[int, int]  # replicas, stages
OnStep = Callable[[int, float], None]
_imported = Imported()


def make_job(**sections: Mapping[str, Any] | None) -> Job:
    """A job from its sections, with the keys of a job file: ``make_job(job={"steps": 100}, model={"layers": f}, ...)``.

    Where a job file has "module:callable", a function or a class may stand that nodes can import from where this
    process has it: one at the top level of a module, or of a script whose program is under ``if __name__ ==
    "__main__"``. Raises JobError in one line for every way in which a job can be wrong.
    """
    job = job_of({name: with_paths(keys, f"make_job, {name}.") for name, keys in sections.items()}, "make_job")
    _imported.refuse_edited(job.code)
    return job


def save_job(job: Job, path: str | Path) -> None:
    """Writes the job as a job file, for the command line or another machine. Raises OSError."""
    Path(path).write_text(job_to_toml(job), encoding="utf-8")


class _Told:
    """Which steps ``on_step`` has heard of."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._count = 0  # of the run's losses

    def tell(self, outcome: Outcome) -> None:
        self._count = min(self._count, len(outcome.losses))  # fewer after a rollback
        for loss in outcome.losses[self._count :]:
            self._on_step(outcome.first_step + self._count, loss)
            self._count += 1


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Trying a job seeds every generator and sets torch's switches: the script's own are put back."""
    import torch

    states, threads = whole_states(), torch.get_num_threads()
    strict, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic: Any = torch.utils.deterministic
    fills = deterministic.fill_uninitialized_memory
    try:
        yield
    finally:
        put_generators_back(states)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        deterministic.fill_uninitialized_memory = fills


def run(
    job: Job | str | Path,
    *,
    nodes: int | None = None,
    spares: int = 0,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    on_step: OnStep | None = None,
    resume: str = "",
    new_run: bool = False,
    progress: bool = False,
) -> Outcome:
    """Trains a job on this machine, with a process for each node, and returns once the run is over.

    job: a job file, or what ``load_job`` or ``make_job`` gives. nodes: one for each stage by default; spares: beside
    these. overrides: ``{"section.key": value}``. on_step: called with (step, loss) of each step, in order, soon after
    it is committed; where the run goes back to a checkpoint, again with the steps that follow. resume: a URL of
    checkpoints.
    new_run: writes over whole checkpoints that lie at the job's own URL. progress: shown on stderr.

    Nodes import what the job names from where this process does: as ``sys.path`` has it, the job file's folder second
    in it; without a file, the current folder last. Logs go to ``runs/`` in the current folder.
    Raises JobError for a job that cannot run, RunFailed for a run that ends before its last step.
    """
    loaded = _read(job, overrides)
    count = _node_count(loaded, nodes, spares)
    check_files(loaded, resume, "", new_run)
    nursery.warm_up()
    with _undisturbed():
        _try_out(loaded)
    from culm.local.training import train

    told = _Told(on_step) if on_step is not None else None
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(loaded, None, count, resume=resume))
        shown = stack.enter_context(display(loaded.job.name)) if progress else None

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
            if shown is not None:
                shown.watch(status, events, outcome)
            if told is not None:
                told.tell(outcome)

        return train(cluster, note)


@dataclass(frozen=True)
class Verification:
    """What ``verify`` found. ``difference``: the first place where a run left the plain loop, in words; empty: none."""

    difference: str
    sha256: str  # of the plain loop's weights
    kills: tuple[str, ...] = ()  # those that came, such as "n1@4:1B3"

    @property
    def identical(self) -> bool:
        return not self.difference


def verify(
    job: Job | str | Path,
    *,
    nodes: int | None = None,
    spares: int = 0,
    kills: int = 3,
    seed: int = 0,
    shapes: Sequence[Shape] = (),
    overrides: Mapping[str, Any] = MappingProxyType({}),
) -> Verification:
    """Trains a job in a plain PyTorch loop and on local clusters, as ``culm verify`` does, and compares all bits.

    The clusters: a calm one, and one that loses ``kills`` nodes at places that ``seed`` draws. With ``shapes``, such as
    ``[(1, 1), (2, 3)]``, replicas by stages: one of each shape instead, and none is lost. Raises as ``run`` does.
    """
    loaded = _read(job, overrides)
    count = _node_count(loaded, nodes, spares)
    nursery.warm_up()
    from culm.oracle.plain_loop import run_plain
    from culm.oracle.verification import Killer, compare, train_on_cluster

    with _undisturbed():
        _try_out(loaded)
        plain = run_plain(loaded)
    killer = Killer(loaded, 0 if shapes else kills, seed, len(plain.losses))
    named = {f"{r}x{s}": (r * s, with_values(loaded, {"pipeline.stages": s})) for r, s in shapes}
    for name, (size, each) in (named or {"calm": (count, loaded), "killed": (count + min(kills, 2), loaded)}).items():
        strikes = killer if name == "killed" else None
        outcome = train_on_cluster(each, None, size, [], name, plain=True, killer=strikes, shows=False)
        if (difference := compare(name, plain, outcome)) is not None:
            return Verification(str(difference), plain.sha256, tuple(map(str, killer.done)))
    return Verification("", plain.sha256, tuple(map(str, killer.done)))


def microbatches(
    job: Job | str | Path, *, first_step: int = 0, overrides: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[list[tuple[Any, Any]]]:
    """The pairs (input, target) of each step, from ``first_step`` to the job's last: those that training takes, in its
    order, pipeline by pipeline. They lie on the CPU. Raises JobError.
    """
    loaded = _read(job, overrides)
    if first_step < 0:
        raise JobError(f"there is no step {first_step}", "first_step", "count steps from 0")
    from culm.pipeline.user_code.data import dataset_of, microbatches_of

    with _undisturbed():
        data = microbatches_of(loaded, "data", dataset_of(loaded))
    places = [(p, m) for p in range(loaded.pipeline.pipelines) for m in range(loaded.pipeline.microbatches)]

    def of_step(step: int) -> list[tuple[Any, Any]]:
        with _undisturbed():
            return [data.microbatch(step, *place) for place in places]

    return map(of_step, range(first_step, loaded.job.steps))


def plain_state(url: str, *, step: int | None = None, best: bool = False) -> dict[str, Any]:
    """What plain PyTorch goes on with, of a checkpoint: the newest under the URL, or that of a step, or the best one.

    ``step``: how many steps are applied; ``model``, ``optimizer``, ``scheduler``: for ``load_state_dict``. Of other
    optimizers that the job's groups name the last two are in ``others``, by name; ``average`` has averaged weights. All
    lies on the CPU. Imports the job's code. Raises JobError, also for a state with which PyTorch would go on otherwise.
    """
    from culm.pipeline.checkpoints.manifest import CheckpointCorrupt
    from culm.stage_server.compute.plain_state import plain_state as state_in

    where = url
    try:
        where = chosen(url, step, best).url
        _look_in(os.getcwd())
        with _undisturbed():
            return state_in(where)
    except CheckpointCorrupt as error:
        raise JobError(error.problem, where, "take the one before, by its step") from error
    except OSError as error:
        raise unreadable(error, where) from error


def _look_in(folder: str) -> None:
    """It is importable, where nothing of that name lies elsewhere."""
    if folder not in map(os.path.abspath, sys.path):
        sys.path.append(folder)


def _read(job: Job | str | Path, overrides: Mapping[str, Any]) -> Job:
    """The job with its overrides. What it names can be imported from then on. Raises JobError."""
    refuse_while_importing("a run")
    given: object = job  # a notebook may give anything
    if not isinstance(given, Job | str | os.PathLike):
        mend = "give the path of a job file, or what culm.make_job or culm.load_job gives"
        raise JobError(f"it is a {type(given).__name__}", "job", mend)
    if isinstance(job, Job):
        _look_in(os.getcwd())
    elif (folder := str(Path(job).resolve().parent)) not in sys.path:
        sys.path.insert(1, folder)
    read = with_values(job if isinstance(job, Job) else load_job(job), with_paths(overrides, "overrides, ") or {})
    _imported.refuse_edited(read.code)
    return read


def _node_count(job: Job, nodes: int | None, spares: int) -> int:
    given: dict[str, object] = {"nodes": nodes, "spares": spares}
    for name, count in given.items():
        if count is not None and (not isinstance(count, int) or isinstance(count, bool)):
            raise JobError(f"it is a {type(count).__name__}", name, "give a whole number")
    return node_count(job, nodes, spares, "nodes and spares")


def _try_out(job: Job) -> None:
    try_out(job)
    _imported.refuse_edited(job.code)  # what it has imported is seen
