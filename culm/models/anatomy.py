"""Where a Hugging Face model can be cut: which of its modules run before its blocks, and which after them."""

# A model of transformers is a class of its own for each architecture, and its forward calls its modules by name. So
# nothing is assumed of the names. The model is built of tensors without memory and run once on these, and each module
# that has parameters is seen when it is called:
#
#     before the first block     embeddings, their norms            the first layer's
#     blocks                     modules of the one list that has   a layer each
#                                as many as the config says
#     after the last block       final norm, head                   the last layer's

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from culm.models.private import without_memory
from culm.pipeline.errors import JobError

WHERE = "model.args"
BATCH, TOKENS = 2, 5  # of the input that the model is tried with: none of a model's own sizes, by chance


@dataclass(frozen=True)
class Anatomy:
    """Names as ``named_modules`` gives them. ``tuples``: the blocks whose forward returns a tuple."""

    blocks: str
    count: int
    before: frozenset[str]
    after: frozenset[str]
    tuples: frozenset[int]


def anatomy_of(make: Callable[[], nn.Module], count: int) -> Anatomy:
    """``make``: gives the model; ``count``: of its blocks. Raises JobError for one that cannot be cut."""
    mode = without_memory()
    with mode:
        model = make().eval()
    name, blocks = _blocks(model, count)
    watch = _Watch(model, blocks)
    with mode, torch.no_grad():
        try:
            model(input_ids=torch.zeros(BATCH, TOKENS, dtype=torch.long), use_cache=False)
        except Exception as error:  # whatever a model's own code raises on tensors without values
            what = f"{type(model).__name__} cannot be tried without values: {type(error).__name__}: {error}"
            raise JobError(
                what, WHERE, "write its layers yourself: a list of modules, each taking the last's output"
            ) from error
    return watch.anatomy(name)


def module_at(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name)


def shared_names(model: nn.Module) -> list[list[str]]:
    """The names of each parameter, in the model's order; of one that is used in several places there are several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return list(names.values())


def tied_names(model: nn.Module, anatomy: Anatomy) -> dict[int, dict[str, str]]:
    """By layer, its parameters that other layers use as well: the name in the layer, and one that all of them have."""
    found: dict[int, dict[str, str]] = {}
    for names in shared_names(model):
        places: dict[int, str] = {}
        for name in names:
            places.setdefault(_layer_with(name, anatomy), name)
        for layer, name in places.items() if len(places) > 1 else ():
            found.setdefault(layer, {})[f"model.{name}"] = names[0]
    return found


def _layer_with(name: str, anatomy: Anatomy) -> int:
    """The layer that has the parameter."""
    if name.startswith(f"{anatomy.blocks}."):
        return int(name.removeprefix(f"{anatomy.blocks}.").partition(".")[0]) + 1
    is_before = any(name.startswith(f"{module}.") for module in anatomy.before)
    return 0 if is_before else anatomy.count + 1


def _blocks(model: nn.Module, count: int) -> tuple[str, nn.ModuleList]:
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count}
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) != 1:
        found = f"{len(outer)} lists of {count} blocks ({', '.join(outer)})" if outer else f"no list of {count} blocks"
        raise JobError(f"{type(model).__name__} has {found}", WHERE, "write its layers yourself: a list of modules")
    return outer[0], lists[outer[0]]


class _Watch:
    """Sees which modules of a model are called, and when."""

    def __init__(self, model: nn.Module, blocks: nn.ModuleList) -> None:
        self._model = model
        self._count = len(blocks)
        self._calls: dict[str, set[bool]] = {}  # by module: whether the last block had run
        self._tuples: set[int] = set()
        self._over = False
        within = {id(module) for module in blocks.modules()}
        self._outside = [name for name, m in model.named_modules() if id(m) not in within and _own(m)]
        for name in self._outside:
            module_at(model, name).register_forward_pre_hook(self._called(name))
        for number, block in enumerate(blocks):
            block.register_forward_hook(self._returned(number))

    def _called(self, name: str) -> Callable[..., None]:
        return lambda *_: self._calls.setdefault(name, set()).add(self._over)

    def _returned(self, number: int) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, tuple):
                self._tuples.add(number)
            self._over = number == self._count - 1

        return hook

    def anatomy(self, blocks: str) -> Anatomy:
        for name in self._outside:
            times = self._calls.get(name)
            if times is None or len(times) > 1:
                when = "is never called by itself" if times is None else "is called before its blocks and after them"
                what = f"{name or 'the model'} of {type(self._model).__name__} has parameters and {when}"
                raise JobError(what, WHERE, "write the model's layers yourself: a list of modules")
        before = frozenset(name for name in self._outside if not any(self._calls[name]))
        after = frozenset(self._outside) - before
        return Anatomy(blocks, self._count, before, after, frozenset(self._tuples))


def _own(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))
