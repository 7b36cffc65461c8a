"""Every test computes with one thread: bits depend on it."""

import gc
import os

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# A busy machine may take its time over an example: how long that is says nothing about the code.
settings.register_profile("culm", deadline=None)
settings.load_profile("culm")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("CULM_SOAK") != "1":
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason="make soak"))


def pytest_collection_finish() -> None:
    """What was imported and collected stays: the garbage collector does not look through it again and again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="accept the transcripts as they are now")
