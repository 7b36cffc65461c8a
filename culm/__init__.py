"""Culm trains PyTorch models on machines that may vanish at any moment.

In Python: ``culm.run`` and ``culm.verify`` do what the commands of these names do, with a job file or with a job that
``culm.make_job`` makes. ``culm.plain_state`` and ``culm.microbatches`` are for going on in plain PyTorch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from culm.api import (
        Job,
        JobError,
        Outcome,
        RunFailed,
        Verification,
        load_job,
        make_job,
        microbatches,
        plain_state,
        run,
        save_job,
        verify,
    )

__version__ = "0.1.0"  # the one place: pyproject.toml reads it, and culm --version says it

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


def __getattr__(name: str) -> Any:
    # Not before somebody asks: every process imports this, also those that have no torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from culm import api

    return getattr(api, name)
