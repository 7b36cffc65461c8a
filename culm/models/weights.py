"""Weights in a Hugging Face folder: those of a layer are read, from the shards that hold them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from culm.pipeline.errors import JobError

WHERE = "model.args"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True)
class Weights:
    """``files``: the shard of each tensor, by the tensor's name in it."""

    folder: Path
    files: Mapping[str, str]

    def read_into(self, model: nn.Module) -> None:
        """Every parameter that the model has. Raises JobError for one that is not there, or of another shape."""
        prefix = f"{getattr(model, 'base_model_prefix', '')}."
        wanted: dict[str, list[tuple[str, nn.Parameter]]] = {}
        for name, parameter in model.named_parameters():
            # A folder that was saved from the model without a head has names without the model's prefix.
            known = next((x for x in (name, name.removeprefix(prefix)) if x in self.files), None)
            if known is None:
                mend = "save the folder from this architecture and head, in safetensors"
                raise JobError(f"{self.folder} has no weights for {name}", WHERE, mend)
            wanted.setdefault(self.files[known], []).append((known, parameter))
        for file, named in wanted.items():
            with safe_open(self.folder / file, framework="pt") as shard:
                for name, parameter in named:
                    _put(shard.get_tensor(name), parameter, name, self.folder)


def weights_at(model: str) -> Weights | None:
    """Those of a folder; None where it has none, or where it is no folder."""
    folder = Path(model)
    if (folder / INDEX).is_file():
        return Weights(folder, json.loads((folder / INDEX).read_text())["weight_map"])
    if (folder / SINGLE).is_file():
        with safe_open(folder / SINGLE, framework="pt") as file:
            return Weights(folder, dict.fromkeys(file.keys(), SINGLE))
    return None


def _put(found: torch.Tensor, parameter: nn.Parameter, name: str, folder: Path) -> None:
    if found.shape != parameter.shape:
        what = f"{name} in {folder} has the shape {list(found.shape)}, and the config wants {list(parameter.shape)}"
        raise JobError(what, WHERE, "let the config in the folder be that of its weights")
    with torch.no_grad():
        parameter.copy_(found)
