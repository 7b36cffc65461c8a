"""torch.compile for a job's layers, set up so that what a layer gives depends on its input alone, wherever it runs."""

# By itself torch.compile goes by what a process has run before, and by its machine:
#
#     shapes        after a second shape it compiles for sizes of any kind, and takes that for the first shape as well:
#                   with other bits. It notes so on disk, for later processes. Here every shape is compiled by itself
#     limits        after eight kinds of input it goes on without compiling. Here there is no limit
#     gaps          around what it cannot compile it goes on in Python. Here a layer is compiled as a whole, or refused
#     tuning        it may time several kernels and take the fastest. Here it times nothing
#     the compiler  kernels are C++, made on each machine: so the compiler is part of the run's identity
#
# A compiled dropout draws its seed from torch's generator, which is seeded before every forward. Its backward draws
# nothing. What torch's configuration is set to holds for one thread: so it is set where a layer is called.
#
# What the user's code compiles by itself has none of that. Its graphs are in torch's count, and not in Culm's.

import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.job import Job

WHERE = "train.compile"
NO_LIMIT = 2**31 - 1
# Of torch._inductor.config: whatever the environment says, kernels are chosen without timing any.
SETTINGS: dict[str, Any] = {
    "deterministic": True,
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "max_autotune_gemm": False,
    "coordinate_descent_tuning": False,
    "freezing": False,
    "fallback_random": False,
    "compile_threads": 1,  # processes of its own would outlive a node that is killed
}
# Other variables that begin so choose kernels, but for those with one of the words.
PREFIXES = ("TORCHINDUCTOR_", "TORCHDYNAMO_", "TORCH_COMPILE_")
NEUTRAL = ("CACHE", "COMPILE_THREADS", "WORKER", "VERBOSE", "PROFILE")

# What torch.use_deterministic_algorithms(False) writes, which Culm calls as well: the default.
BY_TORCH = "torch._inductor.config.deterministic = False"

_own_graphs = 0  # compiled for Culm in this process


def compiled(job: Job, layer: nn.Module) -> nn.Module:
    """The layer itself, whose forward is compiled if the job says so. Its parameters keep their names.

    Raises JobError for one that has been compiled into something else.
    """
    if not job.train.compile:
        return layer
    if isinstance(layer, torch.jit.ScriptModule):
        what = f"a layer is TorchScript ({layer.original_name}), which torch.compile cannot compile"
        raise JobError(what, WHERE, "give the module itself, not torch.jit.script of it")
    layer.forward = _Compiled(layer)
    return layer


class _Compiled:
    """The forward of one layer."""

    def __init__(self, layer: nn.Module) -> None:
        self._layer = weakref.ref(layer)  # no circle: a layer's memory is given back once nobody has it
        bound: Any = layer.forward
        self._takes_layer = hasattr(bound, "__func__")
        self._run: Callable[..., Any] = torch.compile(
            bound.__func__ if self._takes_layer else bound, backend=_inductor, dynamic=False, fullgraph=True
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch._dynamo.config as settings
        from torch._dynamo.exc import TorchDynamoException, TorchRuntimeError

        if settings.recompile_limit != NO_LIMIT:  # in this thread
            settings.recompile_limit = settings.accumulated_recompile_limit = NO_LIMIT
        layer = self._layer()
        try:
            return self._run(layer, *args, **kwargs) if self._takes_layer else self._run(*args, **kwargs)
        except TorchRuntimeError:  # the layer's own mistake, such as a wrong shape
            raise
        except TorchDynamoException as error:
            what = f"torch.compile cannot compile the whole of a {type(layer).__name__}: {_reason(error)}"
            raise JobError(what, WHERE, f"change that part of its forward, or leave {WHERE} out") from error


def _reason(error: Exception) -> str:
    """The first line of what torch says, and the last place in the user's code that it names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    places = [line for line in lines if line.startswith('File "')]
    found = re.match(r'File "(?:.*/)?(.+)", (line \d+)', places[-1]) if places else None
    return f"{lines[0]} ({found[1]}, {found[2]})" if found else lines[0]


def _inductor(graph: Any, inputs: Any) -> Any:
    """The backend: torch's own one."""
    from torch._inductor.compile_fx import compile_fx

    global _own_graphs
    _own_graphs += 1
    return compile_fx(graph, inputs, config_patches=SETTINGS)


def refuse_compiled(layer: nn.Module, index: int) -> None:
    """Raises JobError for a layer that the job's code has compiled, as a whole or in part."""
    if any(_is_compiled(module) for module in layer.modules()):
        raise _compiles_itself(f"layer {index}")


def _is_compiled(module: nn.Module) -> bool:
    dynamo = sys.modules.get("torch._dynamo")  # where nobody has imported it, nobody has compiled anything
    wrapped = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
    return wrapped or module._compiled_call_impl is not None


def refuse_others() -> None:
    """Raises JobError once this process has run what others than Culm have had compiled."""
    told = sys.modules.get("torch._dynamo.utils")
    if told is not None and told.counters["stats"]["unique_graphs"] > _own_graphs:
        raise _compiles_itself("a forward, the loss or a metric")


def _compiles_itself(who: str) -> JobError:
    what = f"{who} uses torch.compile itself, with which bits depend on what the process ran before"
    return JobError(what, "model.layers", "take it out; train.compile = true compiles every layer")


def refuse_settings() -> None:
    """Raises JobError where the job's code has configured torch.compile: other threads would not have that."""
    if _own_graphs:  # it was looked at before, and torch leaves settings of its own there
        return
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    for config in (dynamo, functorch, inductor):
        told: Callable[[], str] = config.codegen_config
        for line in told().splitlines():
            if line.strip() != BY_TORCH:
                raise JobError(f"the job's code sets {line.strip()}", WHERE, "leave torch's configuration as it is")


def compiler_in_words() -> str:
    """What compiled layers' bits depend on beside the processor. Raises JobError where nothing can be compiled."""
    chosen = [(name, value) for name, value in sorted(os.environ.items()) if name.startswith(PREFIXES)]
    choices = [f"{name}={value}" for name, value in chosen if not any(word in name for word in NEUTRAL)]
    return ", ".join([f"compiled by {_compiler()}", *choices])


@cache
def _compiler() -> str:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.cpu_vec_isa import pick_vec_isa
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        told = subprocess.run([get_cpp_compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    except (InvalidCxxCompiler, OSError, subprocess.CalledProcessError) as error:
        mend = f"install one (apt install g++), name it in CXX, or leave {WHERE} out"
        raise JobError("torch.compile finds no C++ compiler on this machine", WHERE, mend) from error
    return f"{told.splitlines()[0]} for {str(pick_vec_isa()) or 'no vectors'}"
