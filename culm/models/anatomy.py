"""Where a Hugging Face model can be cut: which of its modules run before its blocks, and which after them."""

# A model of transformers is a class of its own for each architecture, and its forward calls its modules by name. So
# nothing is assumed of the names. The model is built of tensors without memory and run once on these, and each module
# that has parameters is seen when it is called:
#
#     a decoder, or an encoder               an encoder with a decoder                a layer
#
#     embeddings, their norms                the encoder's embeddings                 one
#     blocks                                 the encoder's blocks                     each
#                                            its final norm, the decoder's embeddings one
#                                            the decoder's blocks                     each
#     final norm, head                       final norm, head                         one
#
# Blocks are the modules of one list. A block is cut off from the others if all that depends on parameters and reaches
# it is its input, what else the block before it returned, or the encoder's output. The trial follows tensors by
# identity and by whether they require a gradient, and refuses what reaches a block on another way.

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from culm.models.private import without_memory
from culm.pipeline.errors import JobError

WHERE = "model.args"
WRITE = "write the model's layers yourself: a list of modules, each taking the last's output"
BATCH, TOKENS, OF_DECODER = 2, 5, 3  # of the input that the model is tried with: none of a model's own sizes, by chance


@dataclass(frozen=True)
class Stack:
    """Blocks that run one after the other: a list of modules, by the name that ``named_modules`` gives it.

    ``returned``: how many values each block returns as a tuple; 0 for a tensor alone
    ``handed_on``: which of these, by number, the next block takes beside the first one
    """

    name: str
    returned: tuple[int, ...]
    handed_on: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        return len(self.returned)


@dataclass(frozen=True)
class Piece:
    """What becomes one layer: a block of a stack, or all modules before it (after the last, if there is no such)."""

    stack: int
    block: int | None = None


@dataclass(frozen=True)
class Anatomy:
    """``outside``: the names of modules that have parameters and lie in no block, before each stack and after all.
    ``reads_tokens``: whether others than the embeddings want to know the tokens.
    """

    stacks: tuple[Stack, ...]
    outside: tuple[frozenset[str], ...]
    reads_tokens: bool = False

    @property
    def has_encoder(self) -> bool:
        """Whether the first stack is an encoder's, and the second a decoder's."""
        return len(self.stacks) > 1

    @property
    def pieces(self) -> list[Piece]:
        """In the order of layers."""
        found = []
        for number, stack in enumerate(self.stacks):
            found += [Piece(number), *(Piece(number, block) for block in range(stack.count))]
        return [*found, Piece(len(self.stacks))]

    def modules_of(self, piece: Piece) -> frozenset[str]:
        if piece.block is None:
            return self.outside[piece.stack]
        return frozenset((f"{self.stacks[piece.stack].name}.{piece.block}",))


def anatomy_of(make: Callable[[], nn.Module], count: int) -> Anatomy:
    """``make``: gives the model; ``count``: of its blocks, if it is no encoder with a decoder.

    Raises JobError for one that cannot be cut.
    """
    mode = without_memory()
    with mode:
        model = make().eval()
    watch = _Watch(model, count)
    with mode, torch.enable_grad():
        watch.tokens = torch.zeros(BATCH, TOKENS, dtype=torch.long)
        inputs = {"input_ids": watch.tokens}
        if watch.encoder is not None:
            inputs["decoder_input_ids"] = torch.zeros(BATCH, OF_DECODER, dtype=torch.long)
        try:
            model(**inputs, use_cache=False)
        except JobError:
            raise
        except Exception as error:  # whatever a model's own code raises on tensors without values
            said = str(error).strip().partition("\n")[0]
            what = f"{type(model).__name__} cannot be tried without values: {type(error).__name__}: {said}"
            raise JobError(what, WHERE, WRITE) from error
    return watch.anatomy()


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
    layers = {name: layer for layer, piece in enumerate(anatomy.pieces) for name in anatomy.modules_of(piece)}
    found: dict[int, dict[str, str]] = {}
    for names in shared_names(model):
        places: dict[int, str] = {}
        for name in names:
            places.setdefault(_layer_with(name, layers), name)
        for layer, name in places.items() if len(places) > 1 else ():
            found.setdefault(layer, {})[f"model.{name}"] = names[0]
    return found


def _layer_with(name: str, layers: dict[str, int]) -> int:
    """The layer that has the parameter."""
    module = name.rpartition(".")[0]
    while module and module not in layers:
        module = module.rpartition(".")[0]
    return layers[module]


def _sides_of(model: Any) -> tuple[str, str]:
    """The names of the encoder and of the decoder."""
    names = {id(module): name for name, module in model.named_modules()}
    try:
        return names[id(model.get_encoder())], names[id(model.get_decoder())]
    except (AttributeError, KeyError) as error:
        what = f"{type(model).__name__} does not tell its encoder and its decoder"
        raise JobError(what, WHERE, WRITE) from error


def _only_list(model: nn.Module, within: str, count: int | None) -> str:
    """The name of the one list of blocks in a part of the model."""
    part = module_at(model, within)
    lists: list[str] = [
        name
        for name, module in part.named_modules(prefix=within)
        if isinstance(module, nn.ModuleList) and len(module) and count in (None, len(module))
    ]
    outer = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    if len(outer) != 1:
        of = "blocks" if count is None else f"{count} blocks"
        found = f"{len(outer)} lists of {of} ({', '.join(outer)})" if outer else f"no list of {of}"
        raise JobError(f"{within or type(model).__name__} has {found}", WHERE, WRITE)
    return outer[0]


class _Watch:
    """Sees which modules of a model are called, and when, and what reaches its blocks."""

    def __init__(self, model: Any, count: int) -> None:
        self._model = model
        sides = _sides_of(model) if model.config.is_encoder_decoder else None
        self.encoder = module_at(model, sides[0]) if sides is not None else None
        self._lists = [_only_list(model, side, None) for side in sides] if sides else [_only_list(model, "", count)]
        self._over = 0  # how many stacks have run
        self._within = False  # whether one is running
        self._calls: dict[str, set[int]] = {}  # by module: how many stacks had run
        self._output: list[Any] = []  # of the block that has run last
        self._encoded: Any = None
        self.tokens: torch.Tensor | None = None  # that the model is given
        self._reads_tokens = False  # whether blocks are given them too, as those whose experts follow from tokens
        self._returned: list[list[int]] = [[] for _ in self._lists]
        self._handed_on: list[list[tuple[int, ...]]] = [[] for _ in self._lists]
        in_blocks = {id(module) for name in self._lists for module in module_at(model, name).modules()}
        self._outside = [name for name, m in model.named_modules() if id(m) not in in_blocks and _own(m)]
        for name in self._outside:
            module_at(model, name).register_forward_pre_hook(self._called(name))
        for number, name in enumerate(self._lists):
            blocks: Any = module_at(model, name)
            for place, block in enumerate(blocks):
                block.register_forward_pre_hook(self._begins(f"{name}.{place}", number, place), with_kwargs=True)
                block.register_forward_hook(self._ends(number, place == len(blocks) - 1))
        if self.encoder is not None:
            self.encoder.register_forward_hook(self._encoder_ends)

    def _called(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            if self._within:
                raise self._refusal(f"{name} has parameters and is called between two blocks")
            self._calls.setdefault(name, set()).add(self._over)

        return hook

    def _encoder_ends(self, _: nn.Module, __: Any, output: Any) -> None:
        self._encoded = output[0]

    def _begins(self, name: str, stack: int, place: int) -> Callable[..., None]:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            if stack != self._over or place != len(self._returned[stack]):
                raise self._refusal(f"{name} is not called once, in the order of its list")
            given = list(_tensors_in((args, kwargs)))
            self._reads_tokens |= any(tensor is self.tokens for tensor in given)
            hidden = args[0] if args else kwargs.get("hidden_states")
            before = self._output if place else []
            if place and hidden is not before[0]:
                raise self._refusal(f"{name} is not given what the block before it returned")
            if place:
                taken = {n for n, value in enumerate(before) if n and any(value is tensor for tensor in given)}
                self._handed_on[stack].append(tuple(sorted(taken)))
            known = {id(value) for value in (hidden, self._encoded, *before)}
            if any(tensor.requires_grad and id(tensor) not in known for tensor in given):
                raise self._refusal(f"{name} is given what other parameters than the blocks' have made")
            self._within = True

        return hook

    def _ends(self, stack: int, is_last: bool) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            is_tuple = isinstance(output, (tuple, list))
            self._output = list(output) if is_tuple else [output]
            self._returned[stack].append(len(output) if is_tuple else 0)
            if is_last:
                self._handed_on[stack].append(())
                self._over, self._within = stack + 1, False

        return hook

    def _refusal(self, what: str) -> JobError:
        return JobError(f"{type(self._model).__name__} cannot be cut: {what}", WHERE, WRITE)

    def anatomy(self) -> Anatomy:
        if self._over != len(self._lists):
            raise self._refusal("not all of its blocks are called")
        # A table may stand there for others alone, which are called and have its parameters, as the one of T5.
        called: dict[int, str] = {}  # by parameter, the module with it that is called first
        for name in self._calls:
            for parameter in module_at(self._model, name).parameters(recurse=False):
                called.setdefault(id(parameter), name)
        outside: list[set[str]] = [set() for _ in range(len(self._lists) + 1)]
        for name in self._outside:
            own = [id(p) for p in module_at(self._model, name).parameters(recurse=False)]
            users = {called.get(each, "") for each in own} if name not in self._calls else {name}
            times = {time for user in users for time in self._calls.get(user, ())}
            if not times or "" in users:
                raise self._refusal(f"{name or 'the model'} has parameters and is never called by itself")
            if name in self._calls and len(times) > 1:
                raise self._refusal(f"{name or 'the model'} has parameters and is called before blocks and after them")
            outside[min(times)].add(name)
        stacks = (
            Stack(name, tuple(returned), tuple(handed_on))
            for name, returned, handed_on in zip(self._lists, self._returned, self._handed_on, strict=True)
        )
        return Anatomy(tuple(stacks), tuple(map(frozenset, outside)), self._reads_tokens)


def _own(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """Those in tuples, lists and dicts."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from _tensors_in(value)
    elif isinstance(values, dict):
        yield from _tensors_in(list(values.values()))
