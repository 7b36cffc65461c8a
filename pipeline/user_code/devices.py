"""Where a job computes: the CPU, or the machine's accelerator."""

import os
from typing import Any

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job


def device_of(job: Job) -> torch.device:
    """The job's device on this machine, set up so that the same work gives the same bits.

    Raises JobError where the machine has none. To be called before anything else uses an accelerator.
    """
    if job.job.device == "cpu":
        settle(job)
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS sums in a fixed order with it, says torch
    if not torch.cuda.is_available():
        mend = 'run it where torch.cuda.is_available(), or say device = "cpu"'
        raise JobError("torch finds no CUDA device on this machine", "job.device", mend)
    settle(job)
    return torch.device("cuda")


def settle(job: Job) -> None:
    """Sets torch's threads and its deterministic kernels as the job wants them.

    To be called again after the user's code has run: a module may set them when it is imported, or on one node alone.
    """
    if torch.get_num_threads() != job.job.threads:
        torch.set_num_threads(job.job.threads)
    on_card = job.job.device != "cpu"
    if on_card:
        torch.backends.cudnn.benchmark = False
    if on_card or job.job.threads > 1:
        # Some kernels, such as an index's backward on the CPU or attention's on a card, let their threads add in the
        # order in which they come. torch has others, with the same bits each time, or raises. If it only warned, it
        # would take the faster ones. On the CPU with one thread there is one order anyhow.
        torch.use_deterministic_algorithms(True)
        deterministic: Any = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = False  # it costs time, and nobody may read that
