"""Low-rank adapters (LoRA) on a model of Hugging Face, by peft: everything else is frozen."""

# Each layer gets its adapters where it is built, after its weights were read. They are drawn under the layer's own
# seed, so every node draws the same. A layer without adapters has nothing to train: no optimizer state, and its reduced
# gradient is empty.

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from culm.pipeline.errors import JobError
from culm.pipeline.text import closest

WHERE = "model.args"
Settings = Mapping[str, Any]  # as peft's LoraConfig takes them


def adapt(model: nn.Module, settings: Settings, everywhere: bool = True) -> None:
    """Adds the adapters that the settings ask for, and freezes the rest. Raises JobError.

    ``everywhere``: the model is whole, and has to have some of the modules that get adapters.
    """
    peft = _peft()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft says which of its defaults it has changed for this kind of module
            peft.inject_adapter_in_model(config_of(settings), model)
    except peft.utils.error.NoMatchingPeftModuleError as error:
        if everywhere:
            mend = "set lora.target_modules to names that the model's modules have, such as q_proj or c_attn"
            raise JobError(f"no module of the model gets an adapter: {_line(error)}", WHERE, mend) from error
        model.requires_grad_(False)
    except ValueError as error:
        raise JobError(f"peft makes no adapters: {_line(error)}", WHERE, "correct lora's settings") from error


def save_adapters(folder: str, model: nn.Module, values: Mapping[str, Any], settings: Settings) -> None:
    """Writes a folder that peft's ``PeftModel.from_pretrained`` loads over the model that was adapted.

    ``model``: the whole one, without adapters; ``values``: all of its state with adapters, by name.
    """
    peft = _peft()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(model, config_of(settings))
    model.load_state_dict(values)
    adapted.save_pretrained(folder)


def config_of(settings: Settings) -> Any:
    """peft's config. Raises JobError for a setting that it does not have."""
    made = _peft().LoraConfig
    known = sorted(vars(made())) if settings else []
    if odd := [name for name in settings if name not in known]:
        raise JobError(f"LoraConfig has no setting {odd[0]!r}", WHERE, closest(odd[0], known) or "leave it out")
    try:
        return made(**settings)
    except (TypeError, ValueError) as error:
        raise JobError(f"peft takes no such settings: {_line(error)}", WHERE, "correct lora's settings") from error


def _peft() -> Any:
    try:
        import peft  # seconds of imports, which a model without adapters does without
    except ImportError as missing:
        raise JobError("peft is not installed", WHERE, 'pip install "culm[hf]"') from missing
    return peft


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
