"""Text of the standard library of which some bytes are hidden, for a masked language model such as BERT."""

import torch
from torch.utils.data import Dataset

from culm.examples.stdlib_gpt import dataset as text
from culm.models.hf import IGNORED

MASK, VOCABULARY = 256, 257
SHARE = 0.15  # of the bytes


class Masked(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Bytes [T] of which some are MASK, and these alone as labels [T]; which ones are hidden is drawn each time."""

    def __init__(self, context: int) -> None:
        self._text = text(context)

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window, _ = self._text[index]
        hidden = torch.rand(window.shape) < SHARE  # by torch's generator, which Culm seeds for each sample
        return window.masked_fill(hidden, MASK), window.masked_fill(~hidden, IGNORED)


def dataset(context: int = 512) -> Masked:
    return Masked(context)
