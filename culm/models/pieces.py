"""The layers of a model of Hugging Face: each is the whole model, of which all but a piece is taken out."""

# What is left still has transformers' own forward, which makes masks, positions and rotary tables as this architecture
# wants them.
#
#     Embed    runs the model up to its first block, and gives what that block would be given
#     Block    runs the model with what it was given in place of the output of the block before, and gives the block's
#              output; the first one of a list takes it in place of its input
#     Head     runs the model with what it was given in place of the last block's output, and gives the logits
#
# In place of other blocks are ``Passing`` modules, which hand on what they are given; in place of embeddings and norms
# outside of the layer are ``Blank`` ones, whose output nobody uses. A parameter has the name that it has in the whole
# model, so a layer's state is a part of the model's. An encoder with a decoder: ``encoder_decoder.py``.
#
# From layer to layer goes the hidden state [B, T, H] alone, or a dict:
#
#     hidden           the hidden state
#     carried          what else the block before returned and the next one takes, such as T5's position bias
#     encoded          in a decoder with an encoder, what the encoder gave: each decoder block takes it
#     attention_mask   and whatever else a sample has for the model's forward
#     input_ids        where not only the embeddings read them, as a head that looks for each row's last token

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from culm.models.anatomy import WHERE, Anatomy, Piece, module_at, shared_names
from culm.models.lora import adapt
from culm.models.placeholders import Blank, Passing
from culm.models.source import Source
from culm.pipeline.errors import JobError

HIDDEN, CARRIED, ENCODED = "hidden", "carried", "encoded"
INPUT, EMBEDDED = "input_ids", "inputs_embeds"
DECODER_INPUT, LABELS = "decoder_input_ids", "labels"


class Stopped(Exception):
    """The rest of the model's forward is not wanted. ``output``: what was to be found out."""

    def __init__(self, output: Any) -> None:
        self.output = output


def stop(output: Any) -> None:
    raise Stopped(output)


@dataclass(frozen=True, kw_only=True)
class Between:
    """What goes from layer to layer. ``others``: inputs of the model's forward."""

    hidden: torch.Tensor
    carried: tuple[torch.Tensor | None, ...] = ()
    encoded: torch.Tensor | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, x: Any) -> "Between":
        if isinstance(x, torch.Tensor):
            return cls(hidden=x)
        others = {name: value for name, value in x.items() if name not in (HIDDEN, CARRIED, ENCODED)}
        return cls(hidden=x[HIDDEN], carried=x.get(CARRIED, ()), encoded=x.get(ENCODED), others=others)

    def pytree(self) -> Any:
        carried = {CARRIED: self.carried} if self.carried else {}
        encoded = {ENCODED: self.encoded} if self.encoded is not None else {}
        more = {**carried, **encoded, **self.others}
        return {HIDDEN: self.hidden, **more} if more else self.hidden

    def inputs(self) -> dict[str, Any]:
        """Of the model's forward, which is to come to this place."""
        if self.encoded is not None:
            return {**self.others, "encoder_outputs": BaseModelOutput(last_hidden_state=self.encoded)}
        if INPUT in self.others or EMBEDDED in self.others:
            return dict(self.others)
        return {INPUT: self.no_tokens(), **self.others}

    def no_tokens(self) -> torch.Tensor:
        """In place of tokens, [B, T], where no token's number matters any more."""
        return torch.zeros(self.hidden.shape[:2], dtype=torch.long, device=self.hidden.device)


class Layer(nn.Module):
    """A part of the model. ``model``: the whole one, with nothing left in it but this layer's modules."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, piece: Piece) -> None:
        super().__init__()
        self.model = model
        self._anatomy, self._piece = anatomy, piece

    def until_stopped(self, inputs: Mapping[str, Any]) -> Any:
        try:
            self.model(**inputs, use_cache=False)
        except Stopped as stopped:
            return stopped.output
        raise AssertionError("the model's forward did not come to the layer's end")

    def block_at(self, stack: int, block: int) -> Passing:
        """One that is not this layer's; of a negative number, from the stack's end."""
        blocks: Any = module_at(self.model, self._anatomy.stacks[stack].name)
        found: Passing = blocks[block]
        return found

    def output_of(self, stack: int, block: int, given: Between) -> tuple[torch.Tensor | None, ...]:
        """What the block returned, by what it handed on; None where nobody takes it."""
        found = self._anatomy.stacks[stack]
        carried = dict(zip(found.handed_on[block], given.carried, strict=True))
        return (given.hidden, *(carried.get(number) for number in range(1, found.returned[block])))


class Embed(Layer):
    """Tokens to hidden states."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, piece: Piece) -> None:
        super().__init__(model, anatomy, piece)
        self.block_at(0, 0).at = stop

    def forward(self, x: Any) -> Any:
        inputs = dict(x) if isinstance(x, dict) else {INPUT: x}
        hidden = self.until_stopped(inputs)
        goes_on = self._anatomy.reads_tokens
        return Between(hidden=hidden, others={n: v for n, v in inputs.items() if goes_on or n != INPUT}).pytree()


class Block(Layer):
    """Hidden states to hidden states."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, piece: Piece) -> None:
        super().__init__(model, anatomy, piece)
        assert piece.block is not None
        self._number, self._stack = piece.block, anatomy.stacks[piece.stack]
        self._given: torch.Tensor | None = None  # to the first block, while a forward runs
        block = module_at(model, f"{self._stack.name}.{self._number}")
        if not self._number:
            block.register_forward_pre_hook(self._put, with_kwargs=True)
        block.register_forward_hook(self._take)

    def _put(self, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return ((self._given, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": self._given})

    def _take(self, _: nn.Module, __: Any, output: Any) -> None:
        stop(output if isinstance(output, (tuple, list)) else (output,))

    def forward(self, x: Any) -> Any:
        given = Between.of(x)
        if not self._number:
            self._given = given.hidden
            try:
                output = self.until_stopped(given.inputs())
            finally:
                self._given = None
        else:
            before = self.block_at(self._piece.stack, self._number - 1)
            before.output = self.output_of(self._piece.stack, self._number - 1, given)
            try:
                output = self.until_stopped(given.inputs())
            finally:
                before.output = None
        carried = tuple(output[number] for number in self._stack.handed_on[self._number])
        return Between(hidden=output[0], carried=carried, encoded=given.encoded, others=given.others).pytree()


class Head(Layer):
    """Hidden states to logits."""

    def forward(self, x: Any) -> torch.Tensor:
        given = Between.of(x)
        stack = len(self._anatomy.stacks) - 1
        last = self.block_at(stack, -1)
        last.output = self.output_of(stack, -1, given)
        inputs = given.inputs()
        if inputs.pop(LABELS, None) is not None and given.encoded is not None:  # the model would take a loss as well
            inputs[DECODER_INPUT] = given.no_tokens()
        try:
            logits: torch.Tensor = self.model(**inputs, use_cache=False).logits
            return logits
        finally:
            last.output = None


def build(kind: type[Layer], source: Source, anatomy: Anatomy, piece: Piece) -> nn.Module:
    """A layer with its initial values, drawn as transformers draws them, or read from the model's files."""
    device = torch.get_default_device()
    with torch.device("meta"):
        model = source.make()
    own = anatomy.modules_of(piece)
    for stack in anatomy.stacks:
        for block in range(stack.count):
            if (name := f"{stack.name}.{block}") not in own:
                _replace(model, name, Passing(module_at(model, name), stack.returned[block]))
    for name in _outermost(frozenset[str]().union(*anatomy.outside) - own):
        _replace(model, name, Blank(module_at(model, name)))
    if piece.block is not None:
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
    if piece.stack < len(anatomy.stacks):
        # Those of the model itself, beside its modules, are the head's, such as BART's bias of the logits.
        for name, _ in list(model.named_buffers(recurse=False)):
            setattr(model, name, None)
    if source.lora is not None:
        adapt(model, source.lora, everywhere=False)
    return kind(model, anatomy, piece)


def _outermost(names: frozenset[str]) -> list[str]:
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
