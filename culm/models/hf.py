"""Language models of Hugging Face's transformers as layers: ``layers = "culm.models.hf:layers"``.

Embeddings, each block, and the head are a layer each. A node builds those that it holds, and reads no weights but
theirs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from culm.models.anatomy import WHERE, Anatomy, Piece, anatomy_of, tied_names
from culm.models.encoder_decoder import DecoderEmbed, EncoderEmbed
from culm.models.lora import Settings, adapt, save_adapters
from culm.models.pieces import Block, Embed, Head, Layer, build
from culm.models.source import MEND, Source
from culm.pipeline.errors import JobError
from culm.pipeline.private import open_up
from culm.pipeline.user_code.tied import tied

# Files of which a tokenizer has one at least. Of a folder without any transformers would make one that knows no word.
TOKENIZERS = ("tokenizer*", "vocab*", "spiece.model", "sentencepiece*")
# These heads look at hidden states alone. Another one may look at tokens: a decoder's head for classes takes the last
# one that is no padding.
OF_HIDDEN_STATES = ("CausalLM", "MaskedLM", "Seq2SeqLM")
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
    architecture as transformers knows it ("gpt2", "llama", "t5")
    ``head``: as in transformers' AutoModelFor...
    ``attention``: its implementation, if not the one that transformers chooses
    ``lora``: settings of peft's LoraConfig, such as ``{"r": 8, "target_modules": ["c_attn"]}``: adapters alone train
    ``config``: settings of the config that are to be others

    A sample's input is a tensor of tokens [T], or a dict with "input_ids" and what else the model's forward takes,
    such as "attention_mask"; with ``head = "Seq2SeqLM"`` also "labels" or "decoder_input_ids". The last layer gives
    logits. Parameters that several layers use are one (rule 22).
    """
    source = Source.of(model, head, dtype, attention, lora, **config).from_files(model)
    with torch.device("meta"):
        whole: Any = source.make()
    count = getattr(source.config.get_text_config(), "num_hidden_layers", None)
    if not isinstance(count, int) or count < 1:
        raise JobError(f"the config of {model} has no number of blocks (num_hidden_layers)", WHERE, MEND)
    anatomy = anatomy_of(partial(source.make, experts="batched_mm"), count)
    if head not in OF_HIDDEN_STATES:
        anatomy = replace(anatomy, reads_tokens=True)
    pieces = anatomy.pieces
    made: list[Callable[[], nn.Module]] = [
        partial(build, _kind(piece, anatomy), source, anatomy, piece) for piece in pieces
    ]
    if lora is not None:
        with torch.device("meta"):
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
    source = Source.of(model, head, **args).from_files(model)
    whole: Any = source.make()
    # "3.model.lm_head.weight": the layer, its attribute, and the name in the whole model.
    values = {name.split(".", 2)[2]: tensor for name, tensor in weights.items()}
    if source.lora is not None:
        save_adapters(folder, whole, values, source.lora)
        open_up(folder)
        return
    own = set(whole.state_dict())
    odd = sorted(own ^ values.keys())
    if odd:
        what = f"{odd[0]} is in {'the model' if odd[0] in own else 'the checkpoint'} alone"
        raise JobError(what, WHERE, "export with the version of transformers with which the job was trained")
    whole.load_state_dict(values)
    whole.save_pretrained(folder)
    open_up(folder)


def save_tokenizer(folder: str, places: Iterable[str]) -> str:
    """Adds the tokenizer of the first of these folders that has one, and returns that folder; empty: none has.

    Raises JobError for one that cannot be loaded.
    """
    for place in places:
        if any(found for name in TOKENIZERS for found in Path(place).glob(name)):
            try:
                transformers.AutoTokenizer.from_pretrained(place, local_files_only=True).save_pretrained(folder)
            except Exception as error:  # of many kinds, by what is wrong with a file
                what = f"the tokenizer cannot be loaded: {' '.join(str(error).split())[:200]}"
                raise JobError(what, place, "mend its files, or save one by hand") from error
            return place
    return ""


def _kind(piece: Piece, anatomy: Anatomy) -> type[Layer]:
    if piece.block is not None:
        return Block
    if piece.stack == len(anatomy.stacks):
        return Head
    return (EncoderEmbed, DecoderEmbed)[piece.stack] if anatomy.has_encoder else Embed


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
