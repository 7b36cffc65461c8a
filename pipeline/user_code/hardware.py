"""What the bits of a result depend on in a machine: processor, instruction set, accelerator, torch's modes; in words.

torch and the libraries under it (oneDNN, MKL, cuBLAS) choose their kernels by these at run time. Another kernel adds up
in another order.
"""

import os
import platform
from pathlib import Path
from typing import Any

import torch

from culm.pipeline.job import Job

# Variables by which users choose other kernels.
VARIABLES = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
)


def hardware_of(job: Job) -> str:
    """This machine, as far as it matters to the job. Call ``device_of`` first: it sets torch up.

    Where an accelerator computes, hosts may differ in all but their instruction set: they build layers and load data.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    words = [platform.machine()]
    if job.job.device == "cpu":
        words += [_processor(), capability]
        libraries: tuple[tuple[str, Any], ...] = (("oneDNN", torch.backends.mkldnn), ("MKL", torch.backends.mkl))
        words += [f"{name} {'on' if library.is_available() else 'off'}" for name, library in libraries]
        words += [f"{name}={os.environ[name]}" for name in VARIABLES if os.environ.get(name)]
    else:
        cudnn: Any = torch.backends.cudnn
        index = torch.cuda.current_device()
        major, minor = torch.cuda.get_device_capability(index)
        words += [capability, torch.cuda.get_device_name(index), f"sm_{major}{minor}"]
        words.append(f"CUDA {torch.version.cuda or torch.version.hip}, cuDNN {cudnn.version()}")
        words.append(f"cuBLAS {os.environ.get('CUBLAS_WORKSPACE_CONFIG', 'as usual')}")
        words.append(f"TF32 {'on' if cudnn.allow_tf32 else 'off'} in cuDNN")
        words.append(f"deterministic {'on' if torch.are_deterministic_algorithms_enabled() else 'off'}")
    words.append(f"matmul {torch.get_float32_matmul_precision()}")
    return ", ".join(word for word in words if word)


def _processor() -> str:
    """Vendor, family and model as Linux tells them, else what Python knows."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found: dict[str, str] = {}
    for line in text.split("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    known = [found.get(name, "") for name in ("vendor_id", "model name", "CPU implementer", "CPU part")]
    family = [f"{name} {found[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in found]
    return " ".join([*filter(None, known), *family])
