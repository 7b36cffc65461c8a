"""The layers of an encoder with a decoder of Hugging Face: what the encoder gives goes through all decoder blocks."""

# A sample is what transformers wants: input_ids for the encoder; for the decoder decoder_input_ids, or labels, which
# the model's own forward shifts to the right; masks for either.
#
#     EncoderEmbed   as Embed, and hands on the tokens too
#     Block          of the encoder
#     DecoderEmbed   runs the model from the encoder's last block to the decoder's first one: the encoder's final norm,
#                    and the decoder's embeddings. What the encoder gives is ``encoded`` from here on
#     Block          of the decoder. It runs the model with the encoder's output in place of the encoder
#     Head           as without an encoder
#
# Masks may follow from tokens, and the decoder's from labels. So each layer is given those of its side, as they were
# in the sample.

from typing import Any

import torch
from torch import nn

from culm.models.anatomy import Anatomy, Piece
from culm.models.pieces import DECODER_INPUT, EMBEDDED, INPUT, LABELS, Between, Layer, stop
from culm.models.source import START

DECODER_EMBEDDED = "decoder_inputs_embeds"


class EncoderEmbed(Layer):
    """Tokens to hidden states."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, piece: Piece) -> None:
        super().__init__(model, anatomy, piece)
        self.block_at(0, 0).at = stop

    def forward(self, x: Any) -> Any:
        known = x if isinstance(x, dict) else {}
        if LABELS not in known and DECODER_INPUT not in known and DECODER_EMBEDDED not in known:
            raise ValueError(f'a sample\'s input is no dict with "{LABELS}" or "{DECODER_INPUT}" for the decoder')
        given = dict(known)
        if DECODER_INPUT in given or DECODER_EMBEDDED in given:
            given.pop(LABELS, None)  # the loss has them
        return Between(hidden=self.until_stopped(given), others=given).pytree()


class DecoderEmbed(Layer):
    """The encoder's last hidden states, and the decoder's tokens, to the decoder's first ones."""

    def __init__(self, model: Any, anatomy: Anatomy, piece: Piece) -> None:
        super().__init__(model, anatomy, piece)
        self._encoded: torch.Tensor | None = None  # while a forward runs
        self.block_at(1, 0).at = stop
        model.get_encoder().register_forward_hook(self._encoder_gave)

    def _encoder_gave(self, _: nn.Module, __: Any, output: Any) -> None:
        self._encoded = output[0]

    def forward(self, x: Any) -> Any:
        given = Between.of(x)
        last = self.block_at(0, -1)
        last.output = self.output_of(0, -1, given)
        try:
            hidden = self.until_stopped(given.inputs())
            others = {name: value for name, value in given.others.items() if name not in (INPUT, EMBEDDED)}
            return Between(hidden=hidden, encoded=self._encoded, others=others).pytree()
        except (AttributeError, ValueError) as error:
            if START in str(error):
                what = f"labels cannot be shifted: the config has no {START}; set it in model.args, for T5 to 0"
                raise ValueError(what) from error
            raise
        finally:
            last.output = self._encoded = None
