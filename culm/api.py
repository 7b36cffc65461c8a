"""What ``import culm`` gives to scripts and notebooks: the same runs as on the command line.

    import culm

    outcome = culm.run("job.toml", nodes=4, overrides={"job.steps": 100})
    model.load_state_dict(outcome.weights)

A script needs no ``if __name__ == "__main__"`` around that: a node imports what the job names, and never the script.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from culm.commands.run import node_count, refuse_to_write_over, try_out
from culm.local import nursery
from culm.local.cluster import LocalCluster
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, load_job, with_values
from culm.pipeline.user_code.streams import put_generators_back, whole_states
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome, RunFailed
from culm.terminal.progress import display

__all__ = ["Job", "JobError", "Outcome", "RunFailed", "load_job", "run"]

OnStep = Callable[[int, float], None]


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
    strict = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        put_generators_back(states)
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict)


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
    """Trains a job on this machine, with a process for each node, and returns once its last step is committed.

    job: a job file, or what ``load_job`` gives. nodes: one for each stage by default; spares: beside these.
    overrides: ``{"section.key": value}``. on_step: called with (step, loss) of each step, in order, soon after it is
    committed; where the run goes back to a checkpoint, again with the steps that follow. resume: a URL of checkpoints.
    new_run: writes over whole checkpoints that lie at the job's own URL. progress: shown on stderr.

    What the job names is imported from its file's folder or the current one. Logs go to ``runs/`` in the current one.
    Raises JobError for a job that cannot run, RunFailed for a run that ends before its last step.
    """
    folder = Path.cwd() if isinstance(job, Job) else Path(job).resolve().parent
    loaded = job if isinstance(job, Job) else load_job(job)
    loaded = with_values(loaded, overrides)
    if str(folder) not in sys.path:
        sys.path.insert(1, str(folder))
    count = node_count(loaded, nodes, spares)
    nursery.warm_up()
    with _undisturbed():
        try_out(loaded)
    refuse_to_write_over(loaded, resume, new_run)
    from culm.local.training import train

    told = _Told(on_step) if on_step is not None else None
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(loaded, folder, count, resume=resume))
        shown = stack.enter_context(display(loaded.job.name)) if progress else None

        def note(status: pb.GetStatusResponse, events: list[pb.ListEventsResponse], outcome: Outcome) -> None:
            if shown is not None:
                shown.watch(status, events, outcome)
            if told is not None:
                told.tell(outcome)

        return train(cluster, note)
