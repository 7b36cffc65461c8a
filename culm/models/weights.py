"""Weights in a Hugging Face folder: those of a layer are read, from the shards that hold them."""

import json
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Weights:
    """``files``: the shard of each tensor, by the tensor's name in it."""

    folder: Path
    files: Mapping[str, str]

    def read_into(self, model: nn.Module) -> None:
        """All that the model has. Raises JobError for a parameter that is not there, or of another shape."""
        wanted: dict[str, list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            known = next((x for x in self._names_of(name, model) if x in self.files), None)
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

    def _names_of(self, name: str, model: Any) -> list[str]:
        """Under which a tensor may be in the folder."""
        # A folder that was saved from the model without a head has names without the model's prefix. One of a model
        # with ties has one tensor for several names: where they are untied now, each begins with it.
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        ties = getattr(model, "_tied_weights_keys", None)
        tied = [ties[name]] if isinstance(ties, dict) and name in ties else []
        return [known for each in (name, *tied) for known in (each, each.removeprefix(prefix))]


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


def _put(found: torch.Tensor, tensor: torch.Tensor, name: str, folder: Path) -> None:
    if found.shape != tensor.shape:
        what = f"{name} in {folder} has the shape {list(found.shape)}, and the config wants {list(tensor.shape)}"
        raise JobError(what, WHERE, "let the config in the folder be that of its weights")
    with torch.no_grad():
        tensor.copy_(found)
