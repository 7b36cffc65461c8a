"""Random streams: which seed a piece of work draws from, so that doing it again draws the same numbers."""

import random
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

# Each piece of work has a seed of its own, and the generators are seeded before it. So work that is done again, or on
# another node, draws the same numbers, whatever ran there before.


def _seed(text: str) -> int:
    # Not Python's hash, which is another one in every process.
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def stream_seed(seed: int, step: int, pipeline: int, microbatch: int, layer: int) -> int:
    """For one layer's forward of one microbatch; 63 bits."""
    return _seed(f"forward:{seed}:{step}:{pipeline}:{microbatch}:{layer}")


def sample_seed(seed: int, step: int, pipeline: int, microbatch: int) -> int:
    """For what the dataset draws while it makes one microbatch, such as augmentation; 63 bits."""
    return _seed(f"sample:{seed}:{step}:{pipeline}:{microbatch}")


def layer_seed(seed: int, layer: int) -> int:
    """For a layer's initial values, wherever it is built; 63 bits."""
    return _seed(f"layer:{seed}:{layer}")


def epoch_seed(seed: int, epoch: int) -> int:
    """For the order of samples in an epoch; 63 bits."""
    return _seed(f"epoch:{seed}:{epoch}")


def seed_all(seed: int) -> None:
    """Seeds every generator that user code may draw from without one of its own: torch's, Python's and numpy's."""
    torch.default_generator.manual_seed(seed)  # torch.manual_seed gives the same numbers and takes 80 times as long
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


def torch_states() -> dict[str, bytes]:
    """Where torch's generators are, by whose they are in words. A few microseconds."""
    states = {"torch's": torch.default_generator.get_state().numpy().tobytes()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["torch's CUDA"] = torch.cuda.get_rng_state().numpy().tobytes()
    return states


def numpy_states() -> dict[str, Any]:
    """The same of numpy's; 40 microseconds."""
    state: Any = np.random.get_state(legacy=False)
    return {"numpy's": (state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"])}


def generator_states() -> dict[str, Any]:
    """The same of every generator that ``seed_all`` seeds."""
    return {**torch_states(), **numpy_states(), "Python's": random.getstate()}


def whole_states() -> tuple[Any, ...]:
    """Where every generator is that ``seed_all`` seeds, for ``put_generators_back``."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return torch.default_generator.get_state(), cuda, np.random.get_state(), random.getstate()


def put_generators_back(states: tuple[Any, ...]) -> None:
    """Has each generator go on from where it was."""
    host, cuda, of_numpy, of_python = states
    torch.default_generator.set_state(host)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
    np.random.set_state(of_numpy)
    random.setstate(of_python)


def drawn_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Whose generator has been drawn from, in words; nothing where none has."""
    return next((whose for whose, state in before.items() if after[whose] != state), "")
