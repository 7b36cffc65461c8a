"""Runs a layer or the loss on one microbatch, and tells the bits of all that comes of it.

Refuses what a node could not do again: parameters that change beside the optimizer, buffers that come or go, random
numbers that a backward draws.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import numpy as np
import torch
from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.tensors.as_sent import lay_out
from culm.pipeline.tensors.bits import digest_of, same_bits
from culm.pipeline.tensors.layout import copy_of, in_one_memory, is_plain
from culm.pipeline.tensors.pytrees import NotAPytree, Pytree, as_text, mapped, parts_of, refuse_unsendable, tensors_in
from culm.pipeline.user_code.buffer_places import in_norms, places_of_buffers, put
from culm.pipeline.user_code.forwards import Forwards
from culm.pipeline.user_code.imports import RAISED, described
from culm.pipeline.user_code.refusals import (
    DENSE,
    changes_buffer,
    changes_buffers_late,
    changes_parameter,
    draws_in_backward,
    gives_sparse,
    hooks_input,
    mend_of_chance,
    names_buffer_twice,
    no_loss,
    returned_odd,
    uses_stranger,
    writes_gradient,
    writes_over,
)
from culm.pipeline.user_code.streams import drawn_between, generator_states, seed_all
from culm.pipeline.user_code.writing import Memory

Bits = dict[str, str]  # of what a run gave, by its name in words: an output's, a gradient's, a buffer's


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run gave. ``reached``: whether the backward came to what waits for a gradient."""

    output: Pytree
    reached: bool
    bits: Bits
    memory: Memory


@dataclass(frozen=True, slots=True)
class Forward:
    """One that has run. ``leaves``: its input; ``y``: its output, and ``output``: a copy; ``buffers``: their bits."""

    leaves: list[torch.Tensor]
    y: list[torch.Tensor]
    output: Pytree
    buffers: Bits
    memory: Memory


class Trial:
    """A layer as it was built. Every run begins with the values of buffers that it was built with."""

    def __init__(self, layer: nn.Module, name: str, trained: bool, splits: bool, forwards: Forwards) -> None:
        """``trained``: whether layers before it wait for a gradient; ``splits``: whether backwards have two halves."""
        self._forwards = forwards
        self._layer = lay_out(layer)
        self._name = name
        self._trained = trained
        self._splits = splits
        self._parameters = dict(layer.named_parameters())
        self._places = places_of_buffers(layer)
        self._built = dict(layer.named_buffers())
        self._buffers = {name: buffer.clone() for name, buffer in self._built.items()}

    def run(self, x: Pytree, seed: int, backward: bool, exchanged: Collection[str] = ()) -> Ran:
        """x: tensors [B, ...]; ``seed``: of every generator that the layer may draw from. Raises JobError.

        ``exchanged``: buffers that are other tensors than those that the layer was built with.
        """
        self._drop_gradients()
        forward = self._forward(x, seed, exchanged)
        if backward:
            self._backward(forward, f"the backward of {self._name}")
        return self._ran(forward)

    def run_ahead(self, x: Pytree, seed: int, next_x: Pytree, next_seed: int) -> tuple[Ran, Ran]:
        """Forward, the next microbatch's forward, and backward of the first one: as in a pipeline."""
        self._drop_gradients()
        # A norm's buffers stay the tensors that they are, as on a node.
        exchanged = self._built.keys() - in_norms(self._layer)
        forward = self._forward(x, seed, exchanged)
        of_next = self._ran(self._forward(next_x, next_seed, exchanged))
        if not all(map(same_bits, forward.y, tensors_in(forward.output))):
            raise writes_over(self._name)
        self._backward(forward, f"the backward of {self._name} after the next microbatch's forward")
        return self._ran(forward), of_next

    def run_exchanged(self, x: Pytree, seed: int, in_place: Bits) -> Ran:
        """The same, with every buffer exchanged, as nodes do. ``in_place``: what it gave with none exchanged.

        Raises JobError naming a buffer that the layer uses under another name as well.
        """
        ran = self.run(x, seed, backward=True, exchanged=self._built)
        if ran.bits != in_place and self.run(x, seed, backward=True).bits == in_place:
            one = (name for name in self._built if self.run(x, seed, True, exchanged=[name]).bits != in_place)
            raise names_buffer_twice(self._name, next(one, ", ".join(self._built)))
        return ran

    def needs_output(self, x: Pytree, seed: int, undisturbed: Bits, places: frozenset[int]) -> bool:
        """Whether the backward reads what the forward gave at one of these, so that nobody may write there in between.

        undisturbed: what it gave where nobody did.
        """
        if self._forwards.runs_again:  # what comes next is given a copy
            return False
        self._drop_gradients()
        forward = self._forward(x, seed, ())
        try:
            with torch.no_grad():
                for place in places:
                    forward.y[place].zero_()
            self._backward(forward, f"the backward of {self._name}")
        except (RuntimeError, JobError):  # torch has counted a version, or lets nobody write there at all
            return True
        return self._bits(forward) != undisturbed

    def _drop_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def _forward(self, x: Pytree, seed: int, exchanged: Collection[str]) -> Forward:
        leaf = leaf_of(x, self._trained)
        alone = self._memory_alone(leaf, seed) if self._forwards.runs_again else None
        self._put_buffers_back(exchanged)
        versions = self._versions()
        seed_all(seed)
        # In training the input is no leaf either, so it may be written in place; and it keeps its strides.
        given = mapped(copy_of, leaf)
        inputs = Written(given)
        y = self._output(given, seed)
        if any(tensor._backward_hooks for tensor in tensors_in(given)):
            raise hooks_input(self._name)
        self._refuse_changes(versions)
        outputs = tensors_in(y)
        # A copy: a buffer may lie in the output's memory, and the next run writes into buffers.
        output = mapped(lambda tensor: copy_of(tensor.detach()).requires_grad_(tensor.requires_grad), y)
        memory = alone or self._memory(inputs, leaf, outputs)
        return Forward(tensors_in(leaf), outputs, output, self._bits_of_buffers(), memory)

    def _memory(self, inputs: "Written", leaf: Pytree, outputs: Sequence[torch.Tensor]) -> Memory:
        own = [
            *((f"the buffer {name}", buffer) for name, buffer in self._layer.named_buffers()),
            *((f"the parameter {name}", parameter) for name, parameter in self._parameters.items()),
        ]
        there = [
            (i, j) for (i, x), (j, y) in product(enumerate(inputs.tensors), enumerate(outputs)) if in_one_memory(x, y)
        ]
        kept = {i: name for i, y in enumerate(outputs) for name, tensor in own if in_one_memory(tensor, y)}
        overlapping = [(i, j) for (i, x), (j, y) in combinations(enumerate(outputs), 2) if in_one_memory(x, y)]
        return Memory(inputs.since(leaf), frozenset(there), kept, frozenset(overlapping))

    def _memory_alone(self, leaf: Pytree, seed: int) -> Memory | None:
        """Of a forward that is run once: one that is to be run again is given a copy. None where it raises."""
        self._put_buffers_back(())
        seed_all(seed)
        given = mapped(copy_of, leaf)
        inputs = Written(given)
        try:
            outputs = tensors_in(self._forwards.once(self._layer, given))
        except RAISED:  # the forward that follows says it
            return None
        return self._memory(inputs, leaf, outputs)

    def _output(self, given: Pytree, seed: int) -> Pytree:
        try:
            y = self._forwards.run(self._layer, given, seed)
        except JobError:
            raise
        except RAISED as error:
            what = f"{self._name} raised {described(error)}"
            raise JobError(what, "model.layers", _mend_of(error, "correct the layer or what feeds it")) from error
        try:
            tensors = tensors_in(y)
            refuse_unsendable(y)
        except NotAPytree as error:
            raise returned_odd(self._name, error) from error
        if not tensors:
            raise returned_odd(self._name, f"a {type(y).__name__}")
        handed = next((n for n, p in self._parameters.items() if any(tensor is p for tensor in tensors)), "")
        if handed and self._forwards.is_mixed:
            # autocast keeps one copy of it for all layers of a process, and one for each stage.
            what = f"{self._name} hands on its parameter {handed}, whose copy in bfloat16 would depend on the cut"
            raise JobError(what, "model.layers", 'hand on a view of it (weight.view_as(weight)), or train in "fp32"')
        if not all(map(is_plain, tensors)):
            raise JobError(f"{self._name} returned a tensor that is sparse, nested or quantized", "model.layers", DENSE)
        return y

    def _backward(self, forward: Forward, name: str) -> None:
        outputs = [tensor for tensor in forward.y if tensor.requires_grad]
        if not outputs:
            return
        versions, buffers = self._versions(), self._bits_of_buffers()
        ends = [tensor for tensor in (*forward.leaves, *self._parameters.values()) if tensor.requires_grad]
        known = {id(end) for end in ends}
        if strangers := [leaf for leaf in leaves_behind(outputs) if id(leaf) not in known]:
            raise uses_stranger(self._name, tuple(strangers[0].shape))
        splits = self._splits and any(leaf.requires_grad for leaf in forward.leaves)
        run_backward(outputs, name, "model.layers", ends if splits else None)
        if self._bits_of_buffers() != buffers:
            raise changes_buffers_late(self._name)
        self._refuse_changes(versions)

    def _versions(self) -> dict[str, int]:
        return {name: parameter._version for name, parameter in self._parameters.items()}

    def _ran(self, forward: Forward) -> Ran:
        waiting = forward.leaves if self._trained else [p for p in self._parameters.values() if p.requires_grad]
        reached = not waiting or any(tensor.grad is not None for tensor in waiting)
        return Ran(forward.output, reached, self._bits(forward), forward.memory)

    def _put_buffers_back(self, exchanged: Collection[str]) -> None:
        for name, value in self._buffers.items():
            if name in exchanged:  # those that it was built with keep what the last run has left in them
                put(self._places[name], value.clone())
            else:
                self._built[name].data.copy_(value)
                put(self._places[name], self._built[name])

    def _refuse_changes(self, versions: dict[str, int]) -> None:
        now = dict(self._layer.named_parameters())
        for name in sorted({*now, *self._parameters}):
            if now.get(name) is not self._parameters.get(name) or now[name]._version != versions[name]:
                raise changes_parameter(self._name, name)
        buffers = dict(self._layer.named_buffers())
        for name in sorted({*buffers, *self._buffers}):
            if name not in buffers or name not in self._buffers or _kind(buffers[name]) != _kind(self._buffers[name]):
                raise changes_buffer(self._name, name)
        for name, parameter in self._parameters.items():
            if parameter.grad is not None and parameter.grad.layout is not torch.strided:
                raise gives_sparse(self._name, name)

    def _bits(self, forward: Forward) -> Bits:
        found = bits_of("output", forward.output)
        for i, leaf in enumerate(forward.leaves):
            if leaf.grad is not None:
                found[numbered("gradient of its input", i, len(forward.leaves))] = digest_of(leaf.grad)
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = digest_of(parameter.grad)
        return found | forward.buffers

    def _bits_of_buffers(self) -> Bits:
        return {f"buffer {name}": digest_of(buffer) for name, buffer in self._layer.named_buffers()}


def refuse_loss(loss: Any, output: Pytree) -> None:
    """Raises JobError for a loss that would train nothing of the model, or not all of it.

    ``output``: of the last layer. If it has no graph nothing trains; one process alone would raise as well.
    """
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise no_loss(loss)
    if not loss.is_floating_point():
        raise JobError(f"the loss has dtype {loss.dtype}", "train.loss", "return a floating point number")
    # A layer passes a gradient on now and then, or ``check_job`` would have refused it.
    if not any(tensor.requires_grad for tensor in tensors_in(output)):
        what = "the model's output has no graph: no parameter would train on this microbatch"
        mend = "let every forward pass on what depends on the parameters, without detach, item or no_grad"
        raise JobError(what, "model.layers", mend)
    if not loss.requires_grad:
        what = "the loss has no graph: no gradient goes back from it"
        raise JobError(what, "train.loss", "compute it from the output with torch, without detach, item or no_grad")


def leaves_behind(outputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """What a backward from these would give gradients to."""
    found, seen = list[torch.Tensor](), set[Any]()
    to_see = [tensor.grad_fn for tensor in outputs]
    while to_see:
        node = to_see.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found.append(leaf)
        to_see += [before for before, _ in node.next_functions]
    return found


def run_backward(
    outputs: Sequence[torch.Tensor], name: str, where: str, ends: Sequence[torch.Tensor] | None = None
) -> None:
    """Backward with gradients that are the same for tensors of the same shapes.

    Raises JobError if it draws numbers, or writes into the gradients.

    ``ends``: where it goes to, as each half of a backward that is split says it; all of them have the same bits.
    """
    # Not of ones alone: through a softmax, or a norm, their gradient is zero whatever came before.
    draws = torch.Generator().manual_seed(0)
    gradients = [torch.randn(y.shape, generator=draws).to(y.dtype) if y.dim() else None for y in outputs]
    kept = [gradient.clone() if gradient is not None else None for gradient in gradients]
    before = generator_states()
    try:
        torch.autograd.backward(outputs, gradients, inputs=ends)
    except RAISED as error:
        raise JobError(f"{name} raised {described(error)}", where, _mend_of(error, "correct the code")) from error
    drawn = drawn_between(before, generator_states())
    if drawn:
        raise draws_in_backward(name, drawn, where)
    if not all(g is None or k is None or same_bits(g, k) for g, k in zip(gradients, kept, strict=True)):
        raise writes_gradient(name, where)


def _kind(buffer: torch.Tensor) -> Any:
    return (tuple(buffer.shape), buffer.dtype) if is_plain(buffer) else None


def leaf_of(x: Pytree, wants_gradient: bool) -> Pytree:
    """What a stage's input would be. In a container only those tensors require a gradient that have required one."""
    if isinstance(x, torch.Tensor):
        return x.detach().requires_grad_(wants_gradient and (x.is_floating_point() or x.is_complex()))
    return mapped(lambda tensor: tensor.detach().requires_grad_(wants_gradient and tensor.requires_grad), x)


class Written:
    """Which of the tensors that it is given user code changes."""

    def __init__(self, given: Pytree) -> None:
        self.tensors = tensors_in(given)
        self._versions = [tensor._version for tensor in self.tensors]

    def since(self, before: Pytree) -> frozenset[int]:
        """By place. ``before``: the same tensors, which it was not given."""
        return frozenset(
            place
            for place, (tensor, version, old) in enumerate(
                zip(self.tensors, self._versions, tensors_in(before), strict=True)
            )
            if tensor._version != version or not same_bits(tensor, old)  # writes through .data count no version
        )


def bits_of(name: str, tree: Pytree) -> Bits:
    """Of each of its tensors, and how they lie in it."""
    tensors, structure = parts_of(tree)
    found = {numbered(name, i, len(tensors)): digest_of(tensor) for i, tensor in enumerate(tensors)}
    return found | ({f"structure of the {name}": as_text(structure)} if structure != 0 else {})


def numbered(name: str, place: int, count: int) -> str:
    """What a tensor is called of which there are so many."""
    return name if count == 1 else f"{name} {place}"


def _mend_of(error: BaseException, mend: str) -> str:
    if chance := mend_of_chance(error):
        return chance
    if "use_reentrant" in str(error):
        return 'call checkpoint(use_reentrant=False), or set pipeline.schedule to "1f1b": "zb-h1" splits backwards'
    return mend


# What torch itself keeps in a module's attributes; buffers are compared by themselves.
_OF_TORCH = {*vars(nn.Module())}


def attributes_of(module: nn.Module) -> Bits:
    """The bits of numbers, text and tensors that the module and those within it keep as plain attributes, by name."""
    return {
        f"{f'{path}.' if path else ''}{key}": bits
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if key not in _OF_TORCH and (bits := _plain(value))
    }


def _plain(value: Any, depth: int = 3) -> str:
    """What tells one value from another; nothing for what is no plain data."""
    if isinstance(value, nn.Parameter):  # in a list beside the module's own, as an LSTM keeps its
        return ""
    if isinstance(value, torch.Tensor):
        return digest_of(value) if value.layout is torch.strided and not value.is_meta else ""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.tobytes().hex()}" if value.dtype.kind in "biufc" else ""
    if isinstance(value, bool | int | float | complex | str):
        return repr(value)
    if depth and isinstance(value, dict):
        return str([(repr(key), _plain(each, depth - 1)) for key, each in value.items()])
    if depth and isinstance(value, list | tuple | deque):
        return str([_plain(each, depth - 1) for each in value])
    return ""
