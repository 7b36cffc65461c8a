"""Small sizes of transformers' architectures, and lines of tokens to train them with."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch.utils.data import Dataset

from culm.models import hf

TOKENS = 99  # in the vocabulary
UNTIED = {"tie_word_embeddings": False}
# Small sizes, under all the names that architectures have for them.
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": TOKENS,
    "max_position_embeddings": 64,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 3,
    "n_layers": 3,
    "n_heads": 4,
    "d_model": 32,
    "n_positions": 64,
    "rotary_dim": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# The same of an encoder with a decoder.
SIZES_OF_BOTH: dict[str, Any] = {
    **SIZES,
    "d_ff": 64,
    "d_kv": 8,
    "num_heads": 4,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "decoder_vocab_size": TOKENS,
    "decoder_start_token_id": 2,
}


def settings_of(architecture: str, ties: Mapping[str, Any] = UNTIED) -> dict[str, Any]:
    """``ties``: none, or ``{}`` for those that the architecture has by itself."""
    config = transformers.AutoConfig.for_model(architecture)
    known = {*config.to_dict()} | ({"decoder_start_token_id"} if config.is_encoder_decoder else set())
    sizes = SIZES_OF_BOTH if config.is_encoder_decoder else SIZES
    found = {name: size for name, size in sizes.items() if name in known and name not in config.attribute_map}
    if kinds := getattr(config, "layer_types", None):
        found["layer_types"] = (list(dict.fromkeys(kinds)) * 3)[:3]
    return {**found, **ties}


class Lines(Dataset[Any]):
    """Tokens of different lengths, padded on the right, with what the model's forward calls a mask."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        length = 4 + index % 5
        tokens = 3 + (torch.arange(8) * (index + 5)) % (TOKENS - 3)
        mask = torch.arange(8) < length
        return {"input_ids": tokens * mask, "attention_mask": mask.long()}, torch.where(mask, tokens, hf.IGNORED)


class Moved(Lines):
    """The target is the token after each, as ``culm.datasets.tokens:blocks`` gives it."""

    def __getitem__(self, index: int) -> Any:
        given, target = super().__getitem__(index)
        return given, torch.cat([target[1:], torch.tensor([hf.IGNORED])])


class Pairs(Lines):
    """The same, and labels of other lengths, as an encoder with a decoder learns them."""

    def __getitem__(self, index: int) -> Any:
        given, _ = super().__getitem__(index)
        tokens = 3 + (torch.arange(6) * (index + 7)) % (TOKENS - 3)
        labels = torch.where(torch.arange(6) < 2 + index % 4, tokens, hf.IGNORED)
        return {**given, "labels": labels}, labels
