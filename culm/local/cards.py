"""Which card each node of a local cluster computes on: one after the other, as ``torchrun`` has it for its ranks."""

from collections.abc import Mapping
from itertools import takewhile

VISIBLE = "CUDA_VISIBLE_DEVICES"  # CUDA's own variable: the cards that a process sees, by number or UUID


def cards_of(environment: Mapping[str, str]) -> list[str]:
    """The cards that a process with this environment sees, as ``VISIBLE`` names them."""
    shown = environment.get(VISIBLE)
    if shown is not None:  # CUDA takes none that follows one which is not there
        return list(takewhile(lambda card: card not in ("", "-1"), map(str.strip, shown.split(","))))
    import torch  # a second, that only a job for cards takes

    return [str(card) for card in range(torch.cuda.device_count())]


def card_for(number: int, cards: list[str]) -> dict[str, str]:
    """What the environment of the node with this number says: where there are more nodes than cards they share them."""
    return {VISIBLE: cards[number % len(cards)]} if cards else {}
