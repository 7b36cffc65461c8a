"""What the bits of a result depend on in a machine: processor, instruction set, accelerator, torch's modes; in words.

torch and the libraries under it (oneDNN, MKL, cuBLAS) choose their kernels by these at run time. Another kernel adds up
in another order.
"""

import os
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from culm.pipeline.job import Job
from culm.pipeline.user_code.compiling import compiler_in_words, refuse_settings

# Variables by which users choose other kernels, where a processor computes and where a card does.
VARIABLES = (
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_CPU_ISA_HINTS",
    "DNNL_CPU_ISA_HINTS",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
)
OF_CARDS = (
    "NVIDIA_TF32_OVERRIDE",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "TORCH_CUDNN_V8_API_DISABLED",
)
# torch's switches, by which the user's code chooses other kernels: those of torch.backends that are not as torch has
# them from the start are told. Switches of later versions of torch are among them; one that torch lacks is passed over.
SWITCHES: Mapping[str, Any] = {
    "mkldnn.enabled": True,
    "mkldnn.deterministic": False,
    "mkldnn.conv.fp32_precision": "none",
    "mkldnn.rnn.fp32_precision": "none",
}
SWITCHES_OF_CARDS: Mapping[str, Any] = {
    "cudnn.enabled": True,
    "cudnn.deterministic": False,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "cuda.matmul.allow_fp16_accumulation": False,
    "cuda.flash_sdp_enabled": True,
    "cuda.mem_efficient_sdp_enabled": True,
    "cuda.math_sdp_enabled": True,
    "cuda.cudnn_sdp_enabled": True,
    "cuda.fp16_bf16_reduction_math_sdp_allowed": False,
}


def hardware_of(job: Job) -> str:
    """This machine, as far as it matters to the job. Call ``device_of`` first: it sets torch up.

    Where an accelerator computes, hosts may differ in all but their instruction set: they build layers and load data.
    What is as usual is not told: so a checkpoint of a version that knew fewer switches goes on.
    """
    capability = torch.backends.cpu.get_cpu_capability()
    words = [platform.machine()]
    if job.job.device == "cpu":
        words += [_processor(), capability]
        libraries: tuple[tuple[str, Any], ...] = (("oneDNN", torch.backends.mkldnn), ("MKL", torch.backends.mkl))
        words += [f"{name} {'on' if library.is_available() else 'off'}" for name, library in libraries]
        words += _variables(VARIABLES)
        words += _switches(SWITCHES)
        # With several threads it always is (``devices.settle``).
        words.append(
            "deterministic on" if job.job.threads == 1 and torch.are_deterministic_algorithms_enabled() else ""
        )
        words.append("denormal numbers off" if _flushes_denormal() else "")
    else:
        cudnn: Any = torch.backends.cudnn
        index = torch.cuda.current_device()
        major, minor = torch.cuda.get_device_capability(index)
        words += [capability, torch.cuda.get_device_name(index), f"sm_{major}{minor}"]
        words.append(f"CUDA {torch.version.cuda or torch.version.hip}, cuDNN {cudnn.version()}")
        words.append(f"cuBLAS {os.environ.get('CUBLAS_WORKSPACE_CONFIG', 'as usual')}")
        words.append(f"TF32 {_cudnn_tf32()} in cuDNN")
        words.append(f"deterministic {'on' if torch.are_deterministic_algorithms_enabled() else 'off'}")
        words += _variables(OF_CARDS)
        words += _switches(SWITCHES_OF_CARDS)
    words.append(f"matmul {_matmul_precision()}")
    if job.train.compile:
        refuse_settings()
        words.append(compiler_in_words())
    return ", ".join(word for word in words if word)


def _variables(names: Iterable[str]) -> list[str]:
    return [f"{name}={os.environ[name]}" for name in names if os.environ.get(name)]


def _switches(usual: Mapping[str, Any]) -> list[str]:
    """Those of ``torch.backends`` that are not as usual."""
    out = []
    for name, value in usual.items():
        found: Any = torch.backends
        for part in name.split("."):
            found = getattr(found, part, None)
        found = found() if callable(found) else found
        if found is not None and found != value:
            out.append(f"{name} {found}")
    return out


def _flushes_denormal() -> bool:
    """Whether ``torch.set_flush_denormal`` was called; torch tells it in no other way."""
    return (torch.tensor(5e-324, dtype=torch.float64) * 1).item() == 0.0


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the user's code has set it by torch.backends, of which torch's older question knows nothing
        backends: Any = torch.backends
        of_kind = f"oneDNN {backends.mkldnn.matmul.fp32_precision}, cuda {backends.cuda.matmul.fp32_precision}"
        return f"as torch.backends says ({backends.fp32_precision}, {of_kind})"


def _cudnn_tf32() -> str:
    cudnn: Any = torch.backends.cudnn
    try:
        return "on" if cudnn.allow_tf32 else "off"
    except RuntimeError:
        return f"as torch.backends says ({cudnn.conv.fp32_precision}, {cudnn.rnn.fp32_precision})"


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
