"""Every test computes with one thread: bits depend on it. A test that waits without end fails, and says where."""

import gc
import os
import signal
from collections.abc import Iterator
from types import FrameType

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Ends a test that waits for what it has missed: its fixtures then end its processes, and other tests run on.

    That is well before ``faulthandler_timeout`` ends everything, which is left for what hangs within C. 0: no bound.
    """
    seconds = int(float(item.config.getini("faulthandler_timeout")) * 2 / 3)

    def fail(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"{item.nodeid} has not ended in {seconds} s: the traceback shows what it waits for")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="accept the transcripts as they are now")
