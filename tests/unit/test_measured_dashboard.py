"""What measures the dashboard can be read, on a machine without a browser too."""

import os
import time

from benchmarks import dashboard
from culm.ui.screens import cost, events, incidents, nodes, overview, topology


def test_it_looks_at_the_pages_that_are_drawn_again() -> None:
    here = (overview, topology, incidents, nodes, cost, events)
    assert list(dashboard.PAGES) == [module.__name__.rpartition(".")[2] for module in here]


def test_the_cpu_of_a_process_is_a_share_of_a_core() -> None:
    began = time.perf_counter()
    share = dashboard.share_of_a_core(os.getpid(), 0.05)
    assert 0.0 <= share <= (time.perf_counter() - began) / 0.05
