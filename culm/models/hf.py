"""Language models of Hugging Face's transformers as layers: ``layers = "culm.models.hf:layers"``.

Embeddings, each block, and the head are a layer each. A node builds those that it holds, and reads no weights but
theirs.
"""

# A layer is the whole model, of which all but its own modules are taken out: what is left still has transformers' own
# forward, which makes masks, positions and rotary tables as this architecture wants them.
#
#     Embed    runs the model up to its first block, and gives what that block would be given
#     Block    runs the model with what it was given in place of the block's input, and gives the block's output
#     Head     runs the model with what it was given in place of the last block's output, and gives the logits
#
# In place of other blocks are ``Passing`` modules, which hand on what they are given; in place of embeddings and norms
# outside of the layer are ``Blank`` ones, whose output nobody uses. A parameter has the name that it has in the whole
# model, so a layer's state is a part of the model's.

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from culm.models.anatomy import WHERE, Anatomy, anatomy_of, module_at, shared_names, tied_names
from culm.models.lora import Settings, adapt, save_adapters
from culm.models.placeholders import Blank, Passing
from culm.models.weights import Weights, weights_at
from culm.pipeline.errors import JobError
from culm.pipeline.text import closest
from culm.pipeline.user_code.tied import tied

try:
    import transformers
except ImportError as missing:
    raise JobError("transformers is not installed", "model.layers", 'pip install "culm[hf]"') from missing

HIDDEN = "hidden"
INPUT = "input_ids"
MEND = "correct the config, install what it names, or write the model's layers yourself"
IGNORED = -100  # a label that counts for nothing, as in all of transformers


def layers(
    model: str,
    head: str = "CausalLM",
    dtype: str = "float32",
    attention: str | None = None,
    lora: Settings | None = None,
    **config: Any,
) -> list[Callable[[], nn.Module]]:
    """The model's layers, to be built where they are held. Raises JobError.

    ``model``: a folder with a config.json, and the weights to start from if they are there too, or the name of an
    architecture as transformers knows it ("gpt2", "llama")
    ``head``: as in transformers' AutoModelFor...
    ``attention``: its implementation, if not the one that transformers chooses
    ``lora``: settings of peft's LoraConfig, such as ``{"r": 8, "target_modules": ["c_attn"]}``: adapters alone train
    ``config``: settings of the config that are to be others

    A sample's input is a tensor of tokens [T], or a dict with "input_ids" and what else the model's forward takes, such
    as "attention_mask". The last layer gives logits. Parameters that several layers use are one (rule 22).
    """
    source = _Source(
        config=_config_of(model, config),
        head=head,
        dtype=dtype,
        attention=attention,
        weights=weights_at(model),
        lora=lora,
    )
    count = getattr(source.config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(count, int) or count < 1:
        raise JobError(f"the config of {model} has no number of blocks (num_hidden_layers)", WHERE, MEND)
    anatomy = anatomy_of(partial(source.make, experts="batched_mm"), count)
    blocks = [partial(_build, Block, source, anatomy, number) for number in range(count)]
    first, last = (partial(_build, kind, source, anatomy, None) for kind in (Embed, Head))
    made: list[Callable[[], nn.Module]] = [first, *blocks, last]
    with torch.device("meta"):
        whole = source.make()
        if lora is not None:
            adapt(whole, lora)
    this = object()  # another call makes another model
    for layer, names in tied_names(whole, anatomy).items():
        made[layer] = tied(made[layer], {name: (this, label) for name, label in names.items()})
    return made


def save_folder(
    folder: str, weights: Mapping[str, torch.Tensor], model: str, head: str = "CausalLM", **args: Any
) -> None:
    """Writes a folder that transformers' ``from_pretrained`` loads; of a job with ``lora`` one of peft's adapters.

    ``weights``: of a run, as ``"{layer}.{name}"``; all else: the job's ``model.args``. Raises JobError.
    """
    known = {name: args.pop(name) for name in ("dtype", "attention", "lora") if name in args}
    lora = known.get("lora")
    source = _Source(
        config=_config_of(model, args),
        head=head,
        dtype=known.get("dtype", "float32"),
        attention=known.get("attention"),
        weights=None,
        lora=lora,
    )
    whole: Any = source.make()
    # "3.model.lm_head.weight": the layer, its attribute, and the name in the whole model.
    values = {name.split(".", 2)[2]: tensor for name, tensor in weights.items()}
    if lora is not None:
        save_adapters(folder, whole, values, lora)
        return
    own = set(whole.state_dict())
    odd = sorted(own ^ values.keys())
    if odd:
        what = f"{odd[0]} is in {'the model' if odd[0] in own else 'the checkpoint'} alone"
        raise JobError(what, WHERE, "export with the version of transformers with which the job was trained")
    whole.load_state_dict(values)
    whole.save_pretrained(folder)


def next_token(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of each token after the first.

    logits: [B, T, V]; tokens: [B, T], -100 where one counts for nothing.
    """
    return each_token(logits[:, :-1], tokens[:, 1:])


def next_token_sum(logits: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as a sum, and over how many tokens it is: for ``reduction = "sum"``, where samples differ in length."""
    return each_token_sum(logits[:, :-1], tokens[:, 1:])


def each_token_sum(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``each_token`` as a sum, and over how many labels it is."""
    flat, counts = logits.flatten(0, 1).float(), labels != IGNORED
    total = nn.functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total, counts.sum()


def each_token(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the labels, such as of masked tokens.

    logits: [B, T, V]; labels: [B, T], -100 where none is asked for.
    """
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)


def _config_of(model: str, changes: Mapping[str, Any]) -> Any:
    is_folder = Path(model).is_dir()
    if not is_folder and model not in transformers.CONFIG_MAPPING:
        what = f"no model at {model!r}: there is no such folder, and transformers knows no such architecture"
        raise JobError(what, WHERE, "name a folder with a config.json, or an architecture such as gpt2 or llama")
    try:
        if is_folder:
            made = transformers.AutoConfig.from_pretrained(model, local_files_only=True)
        else:
            made = transformers.AutoConfig.for_model(model)
        known = {*made.to_dict(), *made.attribute_map, *vars(made)}
        if odd := sorted(changes.keys() - known):
            mend = closest(odd[0], sorted(known))
            raise JobError(f"{type(made).__name__} has no setting {odd[0]!r}", WHERE, mend or "leave it out")
        if is_folder:
            return transformers.AutoConfig.from_pretrained(model, local_files_only=True, **changes)
        return transformers.AutoConfig.for_model(model, **changes)
    except JobError:
        raise
    except Exception as error:  # of many kinds, by what is wrong with a folder or a setting
        mend = "name a folder with a config.json, or an architecture, and settings that its config has"
        raise JobError(f"no model at {model!r}: {_first_line(error)}", WHERE, mend) from error


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) if lines else type(error).__name__


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What the whole model is made of."""

    config: Any
    head: str
    dtype: str
    attention: str | None
    weights: Weights | None
    lora: Settings | None

    def make(self, experts: str = "eager") -> nn.Module:
        """The whole model, on torch's present device. ``experts``: eager, one after the other, or batched_mm, as shapes
        that do not depend on values want it.
        """
        auto = getattr(transformers, f"AutoModelFor{self.head}", None)
        dtype = getattr(torch, self.dtype, None)
        if auto is None:
            raise JobError(
                f"transformers has no AutoModelFor{self.head}", WHERE, 'head may be "CausalLM" or "MaskedLM"'
            )
        if not isinstance(dtype, torch.dtype):
            raise JobError(f"torch has no dtype {self.dtype!r}", WHERE, 'dtype may be "float32" or "bfloat16"')
        try:
            made: nn.Module = auto.from_config(
                self.config, dtype=dtype, attn_implementation=self.attention, experts_implementation=experts
            )
        except Exception as error:  # of many kinds, by what the architecture lacks or the config says
            kind = type(self.config).__name__
            raise JobError(f"transformers makes no model of this {kind}: {_first_line(error)}", WHERE, MEND) from error
        return made


class _Stopped(Exception):
    """The rest of the model's forward is not wanted. ``hidden``: [B, T, H]."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden


class _Layer(nn.Module):
    """A part of the model. ``model``: the whole one, with nothing left in it but this layer's modules."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def _until_stopped(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        try:
            self.model(**inputs, use_cache=False)
        except _Stopped as stopped:
            return stopped.hidden
        raise AssertionError("the model's forward did not come to the layer's end")


def _stop(hidden: torch.Tensor) -> torch.Tensor:
    raise _Stopped(hidden)


def _with(hidden: torch.Tensor, others: Mapping[str, Any]) -> Any:
    """What goes from layer to layer: the hidden states alone, unless there is a mask or the like."""
    return {HIDDEN: hidden, **others} if others else hidden


def _inputs(x: Any) -> tuple[torch.Tensor, dict[str, Any], dict[str, Any]]:
    """Hidden states, what goes with them, and the forward's inputs; no token's number matters any more."""
    others = {name: value for name, value in x.items() if name != HIDDEN} if isinstance(x, dict) else {}
    hidden = x[HIDDEN] if isinstance(x, dict) else x
    tokens = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
    return hidden, others, {INPUT: tokens, **others}


class Embed(_Layer):
    """Tokens to hidden states."""

    @staticmethod
    def modules_of(anatomy: Anatomy, _: int | None) -> Iterable[str]:
        return anatomy.before

    def __init__(self, model: nn.Module, anatomy: Anatomy, _: int | None) -> None:
        super().__init__(model)
        module_at(model, f"{anatomy.blocks}.0").at = _stop  # type: ignore[assignment]

    def forward(self, x: Any) -> Any:
        inputs = dict(x) if isinstance(x, dict) else {INPUT: x}
        return _with(self._until_stopped(inputs), {name: v for name, v in inputs.items() if name != INPUT})


class Block(_Layer):
    """Hidden states to hidden states."""

    @staticmethod
    def modules_of(anatomy: Anatomy, number: int | None) -> Iterable[str]:
        return [f"{anatomy.blocks}.{number}"]

    def __init__(self, model: nn.Module, anatomy: Anatomy, number: int | None) -> None:
        super().__init__(model)
        self._given: torch.Tensor | None = None  # while a forward runs
        block = module_at(model, f"{anatomy.blocks}.{number}")
        block.register_forward_pre_hook(self._put, with_kwargs=True)
        block.register_forward_hook(self._take)

    def _put(self, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return ((self._given, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": self._given})

    def _take(self, _: nn.Module, __: Any, output: Any) -> None:
        _stop(output[0] if isinstance(output, tuple) else output)

    def forward(self, x: Any) -> Any:
        hidden, others, inputs = _inputs(x)
        self._given = hidden
        try:
            return _with(self._until_stopped(inputs), others)
        finally:
            self._given = None


class Head(_Layer):
    """Hidden states to logits."""

    @staticmethod
    def modules_of(anatomy: Anatomy, _: int | None) -> Iterable[str]:
        return anatomy.after

    def __init__(self, model: nn.Module, anatomy: Anatomy, _: int | None) -> None:
        super().__init__(model)
        self._last = f"{anatomy.blocks}.{anatomy.count - 1}"

    def forward(self, x: Any) -> torch.Tensor:
        hidden, _, inputs = _inputs(x)
        last = module_at(self.model, self._last)
        last.at = lambda _: hidden  # type: ignore[assignment]
        try:
            logits: torch.Tensor = self.model(**inputs, use_cache=False).logits
            return logits
        finally:
            last.at = None  # type: ignore[assignment]


def _build(kind: Any, source: _Source, anatomy: Anatomy, number: int | None) -> nn.Module:
    """A layer with its initial values, drawn as transformers draws them, or read from the model's files."""
    device = torch.get_default_device()
    with torch.device("meta"):
        model = source.make()
    own = set(kind.modules_of(anatomy, number))
    for block in range(anatomy.count):
        if (name := f"{anatomy.blocks}.{block}") not in own:
            _replace(model, name, Passing(module_at(model, name), block in anatomy.tuples))
    for name in _outermost((anatomy.before | anatomy.after) - own):
        _replace(model, name, Blank(module_at(model, name)))
    if kind is Block:
        for name in [n for n, m in model.named_modules() if isinstance(m, nn.Dropout) and not n.startswith((*own,))]:
            _replace(model, name, nn.Identity())
    shared = [names for names in shared_names(model) if len(names) > 1]
    model.to_empty(device=device)  # which gives each name memory of its own
    for first, *others in shared:
        for name in others:
            parent, _, last = name.rpartition(".")
            setattr(module_at(model, parent), last, model.get_parameter(first))
    if device.type != "meta":
        _initialize(model)
        if source.weights is not None:
            source.weights.read_into(model)
    if source.lora is not None:
        adapt(model, source.lora, everywhere=False)
    layer: nn.Module = kind(model, anatomy, number)
    return layer


def _outermost(names: Iterable[str]) -> list[str]:
    """Those that lie in no other one."""
    found: list[str] = []
    for name in sorted(names):
        if not any(name.startswith(f"{other}.") for other in found):
            found.append(name)
    return found


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    holder = module_at(model, parent)
    if isinstance(holder, nn.ModuleList):
        holder[int(own)] = module
    else:
        setattr(holder, own, module)


def _initialize(model: Any) -> None:
    """Values as the architecture draws them. Raises JobError where it leaves some undefined."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    with torch.no_grad():
        for _, tensor in tensors:
            tensor.fill_(torch.nan if tensor.is_floating_point() else 0)
    for module in model.modules():
        module.__dict__.pop("_is_hf_initialized", None)
    model.initialize_weights()
    left = [name for name, tensor in tensors if tensor.is_floating_point() and bool(tensor.isnan().any())]
    if left:
        what = f"{type(model).__name__} gives {left[0]} no initial values without its files"
        raise JobError(what, WHERE, "start from a folder with weights, or write the model's layers yourself")
