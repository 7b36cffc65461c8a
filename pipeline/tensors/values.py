"""A value: the tensors behind one key, and the facts that travel with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from culm.pipeline.tensors.digests import digest_of_bytes
from culm.pipeline.tensors.pytrees import NotAPytree, Pytree, as_text, mapped, of_text, parts_of, rebuilt
from culm.pipeline.tensors.raw import bytes_of

# The tensors of an activation, and of the gradients of one, are numbered as ``pytrees.parts_of`` gives them:
#
#     output.0, constant.1, output.2    an activation, each of its tensors; a constant requires no gradient
#     output.0                          its gradients: those tensors alone to which one came
#
# What the loss compares the last output with travels beside every activation, from stage to stage: whoever has a
# microbatch's input has its target too, and each sample is loaded once. It comes behind the output, so an output's
# tensors have the places that they have alone.
OUTPUT, CONSTANT = "output", "constant"
TWO_TENSORS = as_text(parts_of((torch.empty(0), torch.empty(0)))[1])  # the structure of an output and its target


@dataclass(frozen=True, eq=False)
class Value:
    """Named tensors in order. ``squared_norms`` and ``tallies`` belong to reduced gradients (see tensor.proto).

    ``structure``: of an activation and its target, as text; empty of any other value.
    """

    tensors: tuple[tuple[str, torch.Tensor], ...]
    squared_norms: tuple[float, ...] = ()
    tallies: tuple[float, ...] = ()
    structure: str = ""

    @staticmethod
    def single(tensor: torch.Tensor) -> "Value":
        """A gradient, or an activation that requires one."""
        return Value(((f"{OUTPUT}.0", tensor),))

    @staticmethod
    def activation(output: Pytree, target: Pytree) -> "Value":
        """A stage's output, and the microbatch's target, without their graphs. A tensor's name tells whether it
        requires a gradient, which a target never does.
        """
        if isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor):  # as most are
            both = (_named(0, output), (f"{CONSTANT}.1", target.detach()))
            return Value(both, structure=TWO_TENSORS)
        tensors, structure = parts_of((output, mapped(torch.Tensor.detach, target)))
        return Value(tuple([_named(i, x) for i, x in enumerate(tensors)]), structure=as_text(structure))

    def output_and_target(self) -> tuple[Pytree, Pytree]:
        """Of an activation. A tensor requires a gradient if it does in one process. Raises NotAPytree."""
        tensors = [_own(name, tensor) for name, tensor in self.tensors]
        if self.structure == TWO_TENSORS and len(tensors) == 2:  # as most are
            return tensors[0], tensors[1]
        pair = rebuilt(of_text(self.structure, len(tensors)), tensors)
        if type(pair) is not tuple or len(pair) != 2:
            raise NotAPytree("an activation without a target beside it")
        return pair[0], pair[1]

    @staticmethod
    def gradients(by_place: Mapping[int, torch.Tensor]) -> "Value":
        """Of an activation's tensors, by their place in it, in order."""
        return Value(tuple([(f"{OUTPUT}.{place}", gradient) for place, gradient in by_place.items()]))

    def by_place(self) -> dict[int, torch.Tensor]:
        """The gradients of ``gradients``."""
        return {int(name.removeprefix(f"{OUTPUT}.")): tensor for name, tensor in self.tensors}

    def part(self, place: int) -> "Value":
        """Of ``gradients``: the one at this place, alone; nothing where there is none."""
        found = self.by_place().get(place)
        return Value.gradients({0: found} if found is not None else {})

    @property
    def facts(self) -> tuple[float, ...]:
        """The numbers that travel with its tensors."""
        return (*self.squared_norms, *self.tallies)

    @cached_property
    def digest(self) -> int:
        """Of its bytes, facts and structure as they were when somebody first asked, or where it was made."""
        return digest_of_bytes((bytes_of(tensor) for _, tensor in self.tensors), self.facts, self.structure)

    def digest_of(self, data: Sequence[memoryview]) -> int:
        """The same, where the bytes of all its tensors are at hand."""
        if "digest" not in self.__dict__:
            self.made_with(digest_of_bytes(data, self.facts, self.structure))
        return self.digest

    def made_with(self, digest: int) -> "Value":
        """This value, whose digest is known."""
        self.__dict__["digest"] = digest  # where a cached property keeps it
        return self

    def elsewhere(self, tensors: tuple[tuple[str, torch.Tensor], ...]) -> "Value":
        """The same value with its bytes in other memory; the digest stays the one it was made with."""
        return replace(self, tensors=tensors).made_with(self.digest)

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        found = 0
        for _, tensor in self.tensors:
            found += tensor.nbytes
        return found

    def tensor(self) -> torch.Tensor:
        """The tensor of a value that has one."""
        ((_, tensor),) = self.tensors
        return tensor


def _named(place: int, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
    return f"{OUTPUT if tensor.requires_grad else CONSTANT}.{place}", tensor.detach()


def _own(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor for one forward, a leaf of its graph."""
    requires = name.startswith(OUTPUT) and (tensor.is_floating_point() or tensor.is_complex())
    return tensor.detach().requires_grad_() if requires else tensor.detach()
