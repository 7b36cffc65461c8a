"""What a model of Hugging Face is made of: a config, the class for a head, and the files that it begins with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from culm.models.anatomy import WHERE
from culm.models.lora import Settings
from culm.models.weights import Weights, part, weights_at
from culm.pipeline.errors import JobError
from culm.pipeline.text import closest

try:
    import transformers
except ImportError as missing:
    raise JobError("transformers is not installed", "model.layers", 'pip install "culm[hf]"') from missing

MEND = "correct the config, install what it names, or write the model's layers yourself"
START = "decoder_start_token_id"
HEADS = 'head may be "CausalLM", "MaskedLM" or "Seq2SeqLM"'


@dataclass(frozen=True, kw_only=True)
class Source:
    """``weights``: to begin with, if any; ``apart``: parameters that the architecture ties, and they do not."""

    config: Any
    head: str
    dtype: str
    attention: str | None
    lora: Settings | None
    weights: Weights | None = None
    apart: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: str,
        head: str = "CausalLM",
        dtype: str = "float32",
        attention: str | None = None,
        lora: Settings | None = None,
        **config: Any,
    ) -> Self:
        """A model from a job's ``model.args``, to be initialized. Raises JobError."""
        return cls(config=_config_of(model, config), head=head, dtype=dtype, attention=attention, lora=lora)

    def from_files(self, model: str) -> Self:
        """The same, to begin with the weights in a folder, if it has any. Raises JobError."""
        weights = weights_at(model)
        if weights is None:
            return self
        with torch.device("meta"):
            return replace(self, weights=weights, apart=weights.apart(self.make()))

    def make(self, experts: str = "eager") -> nn.Module:
        """The whole model, on torch's present device. ``experts``: eager, one after the other, or batched_mm, as shapes
        that do not depend on values want it.
        """
        auto = getattr(transformers, f"AutoModelFor{self.head}", None)
        dtype = getattr(torch, self.dtype, None)
        if auto is None:
            raise JobError(f"transformers has no AutoModelFor{self.head}", WHERE, HEADS)
        if not isinstance(dtype, torch.dtype):
            raise JobError(f"torch has no dtype {self.dtype!r}", WHERE, 'dtype may be "float32" or "bfloat16"')
        try:
            made: nn.Module = auto.from_config(
                self.config, dtype=dtype, attn_implementation=self.attention, experts_implementation=experts
            )
        except Exception as error:  # of many kinds, by what the architecture lacks or the config says
            kind = type(self.config).__name__
            is_other = getattr(self.config, "is_encoder_decoder", False) and self.head != "Seq2SeqLM"
            mend = 'an encoder with a decoder wants head = "Seq2SeqLM"' if is_other else MEND
            raise JobError(f"transformers makes no model of this {kind}: {_first_line(error)}", WHERE, mend) from error
        part(made, self.apart)
        return made


def _config_of(model: str, changes: Mapping[str, Any]) -> Any:
    is_folder = Path(model).is_dir()
    if not is_folder and model not in transformers.CONFIG_MAPPING:
        folder = Path(model).absolute()
        what = f"no model at {model!r}: there is no folder {folder}, and transformers knows no such architecture"
        raise JobError(what, WHERE, "name a folder with a config.json, or an architecture such as gpt2 or llama")
    try:
        if is_folder:
            made = transformers.AutoConfig.from_pretrained(model, local_files_only=True)
        else:
            made = transformers.AutoConfig.for_model(model)
        known = {*made.to_dict(), *made.attribute_map, *vars(made)}
        known |= {"num_labels"}  # a property, by which transformers makes names of classes
        known |= {START} if made.is_encoder_decoder else set()  # T5's config has it where it is set
        if odd := sorted(changes.keys() - known):
            mend = closest(odd[0], sorted(known))
            raise JobError(f"{type(made).__name__} has no setting {odd[0]!r}", WHERE, mend or "leave it out")
        if is_folder:
            made = transformers.AutoConfig.from_pretrained(model, local_files_only=True, **changes)
        else:
            made = transformers.AutoConfig.for_model(model, **changes)
    except JobError:
        raise
    except Exception as error:  # of many kinds, by what is wrong with a folder or a setting
        mend = "name a folder with a config.json, or an architecture, and settings that its config has"
        raise JobError(f"no model at {model!r}: {_first_line(error)}", WHERE, mend) from error
    for name, value in vars(made).items():
        if name.endswith("layerdrop") and value:
            what = f"{name} = {value} leaves out whole blocks by chance, which Culm cannot do"
            raise JobError(what, WHERE, f"set {name} = 0.0, and dropout in its place")
    if getattr(made, "output_router_logits", False):
        what = (
            "output_router_logits = True has transformers add the routers' loss, and a job's loss sees the logits alone"
        )
        raise JobError(what, WHERE, "set output_router_logits = false; the routers learn from the job's loss then")
    return made


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__
