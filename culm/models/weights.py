"""Weights in a Hugging Face folder: those of a layer are read, from the shards that hold them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import nn

from culm.pipeline.errors import JobError

WHERE = "model.args"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
OTHERS = ("pytorch_model*", "*.safetensors", "tf_model*", "flax_model*", "*.gguf")
ROWS = 4096  # of two tensors that are compared


@dataclass(frozen=True)
class Weights:
    """``files``: the shard of each tensor, by the tensor's name in it."""

    folder: Path
    files: Mapping[str, str]

    def read_into(self, model: nn.Module) -> None:
        """All that the model has. Raises JobError for a parameter that is not there, or of another shape."""
        wanted: dict[str, list[tuple[str, torch.Tensor]]] = {}
        ties = ties_of(model)
        for name, tensor in model.state_dict(keep_vars=True).items():
            # A folder of a model with ties may have one tensor for several names. Where they are untied now, each
            # begins with it.
            first = ties.get(name, name)
            others = [other for other, source in ties.items() if source == first]
            known = next((x for each in (name, first, *others) if (x := self._name_of(each, model))), None)
            if known is not None:
                wanted.setdefault(self.files[known], []).append((known, tensor))
            elif isinstance(tensor, nn.Parameter):
                mend = "save the folder from this architecture and head; where files name tensors otherwise than "
                mend += "modules do, as those of experts, Culm cannot read them yet"
                raise JobError(f"{self.folder} has no weights for {name}", WHERE, mend)
        for file, named in wanted.items():
            with safe_open(self.folder / file, framework="pt") as shard:
                for name, tensor in named:
                    _put(shard.get_tensor(name), tensor, name, self.folder)

    def apart(self, model: nn.Module) -> tuple[str, ...]:
        """Of the parameters that the model ties to others, those that have values of their own in the folder.

        transformers does not tie these either: such are the folders of T5 1.1, whose config cannot say so.
        """
        own = dict(model.named_parameters(remove_duplicate=False))
        found = []
        for name, source in ties_of(model).items():
            one, other = self._name_of(name, model), self._name_of(source, model)
            is_tied = name in own and own[name] is own.get(source)
            if is_tied and one is not None and other is not None and not self._are_equal(one, other):
                found.append(name)
        return tuple(found)

    def _are_equal(self, one: str, other: str) -> bool:
        with (
            torch.device("cpu"),  # the slices have values, whatever the device on which the model is being made
            safe_open(self.folder / self.files[one], framework="pt") as first,
            safe_open(self.folder / self.files[other], framework="pt") as second,
        ):
            a, b = first.get_slice(one), second.get_slice(other)
            if a.get_shape() != b.get_shape():
                return False
            rows = range(0, a.get_shape()[0], ROWS)
            return all(torch.equal(a[row : row + ROWS], b[row : row + ROWS]) for row in rows)

    def _name_of(self, name: str, model: Any) -> str | None:
        """Under which the folder has it; one that was saved without a head has names without the model's prefix."""
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        return next((known for known in (name, name.removeprefix(prefix)) if known in self.files), None)


def weights_at(model: str) -> Weights | None:
    """Those of a folder; None where it has none, or where it is no folder."""
    folder = Path(model)
    if (folder / INDEX).is_file():
        return Weights(folder, json.loads((folder / INDEX).read_text())["weight_map"])
    if (folder / SINGLE).is_file():
        with safe_open(folder / SINGLE, framework="pt") as file:
            return Weights(folder, dict.fromkeys(file.keys(), SINGLE))
    others = sorted(path.name for pattern in OTHERS for path in folder.glob(pattern)) if folder.is_dir() else []
    if others:
        what = f"{folder} has weights in another format ({others[0]})"
        raise JobError(what, WHERE, "save it with transformers' save_pretrained, which writes safetensors")
    return None


def ties_of(model: nn.Module) -> dict[str, str]:
    """By parameter, the one that its architecture ties it to, whatever the config says."""
    found: dict[str, str] = {}
    for prefix, module in model.named_modules():
        ties = getattr(module, "_tied_weights_keys", None)
        for name, source in ties.items() if isinstance(ties, dict) else ():
            found[f"{prefix}.{name}".lstrip(".")] = f"{prefix}.{source}".lstrip(".")
    return found


def part(model: nn.Module, names: Iterable[str]) -> None:
    """Makes each a parameter of its own, with the values that it has."""
    for name in names:
        holder, _, last = name.rpartition(".")
        tied = model.get_parameter(name)
        setattr(model.get_submodule(holder), last, nn.Parameter(tied.detach().clone(), tied.requires_grad))


def _put(found: torch.Tensor, tensor: torch.Tensor, name: str, folder: Path) -> None:
    if found.shape != tensor.shape:
        what = f"{name} in {folder} has the shape {list(found.shape)}, and the config wants {list(tensor.shape)}"
        raise JobError(what, WHERE, "let the config in the folder be that of its weights")
    with torch.no_grad():
        tensor.copy_(found)
