"""The job's model: its layers, any of which any node can build, and the loss, optimizer and dataset beside them."""

import copy
import hashlib
import importlib
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pipeline.data import Microbatches
from pipeline.errors import JobError
from pipeline.job import Job, job_to_toml
from pipeline.streams import layer_seed, seed_all

Constructor = Callable[[], nn.Module]


def load_callable(path: str, where: str) -> Callable[..., Any]:
    """The object behind "module:callable". Raises JobError when there is none."""
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        mend = "install it, or run from the folder that holds it"
        raise JobError(f"module {module_name!r} cannot be imported ({error})", where, mend) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise JobError(f"module {module_name!r} has no {attribute!r}", where, "correct the name")
        found = getattr(found, part)
    if not callable(found):
        raise JobError(f"{path!r} cannot be called", where, "name a function or a class")
    return found  # type: ignore[no-any-return]


class ModelSource:
    """Builds any layer of the job's model at its initial state. ``layers`` is called under the job's seed."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.loss = load_callable(job.train.loss, "train.loss")
        self._optimizer = load_callable(job.train.optimizer, "train.optimizer")
        self._dataset = load_callable(job.data.dataset, "data.dataset")
        self._factory = load_callable(job.model.layers, "model.layers")
        seed_all(job.job.seed)
        made = _called(self._factory, job.model.args, "model.layers")
        if not isinstance(made, nn.Sequential | list | tuple):
            what = f"it returned a {type(made).__name__}, not a list of layers"
            raise JobError(what, f"model.layers, {job.model.layers}", "return an nn.Sequential or a list")
        self._layers: Sequence[nn.Module | Constructor] = list(made)
        for index, layer in enumerate(self._layers):
            if not callable(layer):
                what = f"layer {index} is a {type(layer).__name__}, neither a module nor a constructor"
                raise JobError(what, f"model.layers, {job.model.layers}", "return nn.Modules or functools.partials")
        if len(self._layers) < job.pipeline.stages:
            what = f"{job.pipeline.stages} stages for a model of {len(self._layers)} layers"
            raise JobError(what, "pipeline.stages", f"set it to {len(self._layers)} or less")
        _refuse_tied(self._layers, f"model.layers, {job.model.layers}")

    @property
    def layer_count(self) -> int:
        return len(self._layers)

    def build(self, index: int) -> nn.Module:
        """The layer at its initial state, in training mode; a module of its own at every call."""
        layer = self._layers[index]
        if isinstance(layer, nn.Module):
            return copy.deepcopy(layer).train()
        seed_all(layer_seed(self._job.job.seed, index))
        module = _called(layer, {}, f"model.layers, layer {index}")
        if not isinstance(module, nn.Module):
            what = f"the constructor of layer {index} returned a {type(module).__name__}, not an nn.Module"
            raise JobError(what, f"model.layers, {self._job.model.layers}", "let it return an nn.Module")
        return module.train()

    def parameter_counts(self) -> list[int]:
        """Parameters of each layer, counted without allocating those that constructors make."""
        counts = []
        for index, layer in enumerate(self._layers):
            if isinstance(layer, nn.Module):
                module = layer
            else:
                with torch.device("meta"):
                    module = self.build(index)
            counts.append(sum(p.numel() for p in module.parameters()))
        return counts

    def optimizer(self, parameters: Iterable[torch.Tensor]) -> torch.optim.Optimizer:
        """The job's optimizer over these parameters."""
        arguments = {"params": list(parameters), **self._job.train.optimizer_args}
        made = _called(self._optimizer, arguments, "train.optimizer_args")
        if not isinstance(made, torch.optim.Optimizer):
            raise JobError(f"{self._job.train.optimizer!r} makes no optimizer", "train.optimizer", "name one")
        return made

    def dataset(self) -> Any:
        """The job's map-style dataset, made under the job's seed."""
        seed_all(self._job.job.seed)
        made = _called(self._dataset, self._job.data.args, "data.dataset")
        if not (hasattr(made, "__getitem__") and hasattr(made, "__len__")) or len(made) == 0:
            what = f"{self._job.data.dataset!r} gives no dataset with samples"
            raise JobError(what, "data.dataset", "return a map-style Dataset with __len__ and __getitem__")
        return made

    def fingerprint(self) -> str:
        """Hash of all that the bits depend on: the job, the user's code, torch and Python. Nodes must agree on it."""
        versions = f"{torch.__version__}\n{platform.python_version()}\n{job_to_toml(self._job)}"
        digest = hashlib.sha256(versions.encode())
        for name, path in sorted(self._sources()):
            digest.update(name.encode())
            digest.update(path.read_bytes())
        return digest.hexdigest()

    def _sources(self) -> set[tuple[str, Path]]:
        """(module, file) of the user's code: the packages that the job names, or that define what it names."""
        job = self._job
        named = {name.partition(":")[0] for name in (job.model.layers, job.data.dataset, job.train.loss)}
        named.add(job.train.optimizer.partition(":")[0])
        used = [*self._layers, self._factory, self._dataset, self.loss, self._optimizer]
        named |= {m for made in used if (m := getattr(getattr(made, "func", made), "__module__", None))}
        roots = {name.partition(".")[0] for name in named} - {"torch", "functools", "builtins"}
        found = set()
        for name, module in list(sys.modules.items()):
            source = getattr(module, "__file__", None)
            if name.partition(".")[0] in roots and source and source.endswith(".py"):
                found.add((name, Path(source)))
        return found


def _called(factory: Callable[..., Any], arguments: dict[str, Any], where: str) -> Any:
    try:
        return factory(**arguments)
    except JobError:
        raise
    except Exception as error:  # the user's code may raise anything: it becomes the one line they need
        what = f"{getattr(factory, '__name__', factory)!s} raised {type(error).__name__}: {error}"
        raise JobError(what, where, "correct the code or its arguments") from error


def _refuse_tied(layers: Sequence[nn.Module | Constructor], where: str) -> None:
    seen: dict[int, int] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters() if isinstance(layer, nn.Module) else ():
            if seen.setdefault(id(parameter), index) != index:
                what = f"layers {seen[id(parameter)]} and {index} share a parameter"
                raise JobError(what, where, "give each layer parameters of its own")


def check_job(job: Job) -> None:
    """Runs one microbatch forward through every layer, so that a mistake in the job shows before anything starts.

    Raises JobError naming the layer.
    """
    source = ModelSource(job)
    dataset = source.dataset()
    try:
        x, target = Microbatches(job, dataset).microbatch(0, 0, 0)
    except Exception as error:
        what = f"the dataset gives no microbatch of (input, target): {type(error).__name__}: {error}"
        raise JobError(what, "data.dataset", "let every item be an (input, target) pair of tensors") from error
    with torch.no_grad():
        for index in range(source.layer_count):
            layer = source.build(index)
            name = f"layer {index} ({type(layer).__name__})"
            try:
                x = layer(x)
            except Exception as error:
                what = f"{name} raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                raise JobError(what, "model.layers", "correct the layer or what feeds it") from error
            if not isinstance(x, torch.Tensor):
                what = f"{name} returned a {type(x).__name__}, not a tensor"
                raise JobError(what, "model.layers", "let every layer take one tensor and return one")
        try:
            loss = source.loss(x, target)
        except Exception as error:
            what = f"the loss raised {type(error).__name__}: {error}"
            raise JobError(what, "train.loss", "let it take the last layer's output and the target") from error
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise JobError("the loss is no single number", "train.loss", "return the mean over the microbatch")
    source.optimizer([torch.zeros(1, requires_grad=True)])
