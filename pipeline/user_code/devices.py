"""Where a job computes: the CPU, or the machine's accelerator."""

import os

import torch

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job


def device_of(job: Job) -> torch.device:
    """The job's device on this machine, set up so that the same work gives the same bits.

    Raises JobError where the machine has none. To be called before anything else uses an accelerator.
    """
    if job.job.device == "cpu":
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS sums in a fixed order with it, says torch
    if not torch.cuda.is_available():
        mend = 'run it where torch.cuda.is_available(), or say device = "cpu"'
        raise JobError("torch finds no CUDA device on this machine", "job.device", mend)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda")
