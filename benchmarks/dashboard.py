"""What the dashboard costs: the time to a page's first text, and the server's CPU for a page that stays open.

``python -m benchmarks.dashboard`` runs four nodes whose layers are paced off the CPU, ``culm ui``, and a Chromium that
looks at each page. Aims: first text within 2 s from a server that has served a page before, and under 3 % of a core
for an open page. Needs playwright and a Chromium, as ``make browser`` does; CULM_CHROMIUM names one.

The browser draws on the same machine. Its CPU is not the server's, but on busy cores both wait for each other: the
time to a first text is worth something only while the load is below the number of cores.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.paced import job_file
from benchmarks.processes import cpu_seconds
from culm.local.cluster import LocalCluster
from culm.local.ports import free_port, is_free
from culm.local.training import train
from culm.pipeline.errors import JobError
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

ROOT = Path(__file__).parents[1]
PAGES = ("overview", "topology", "incidents", "nodes", "cost", "events")  # those that are drawn again and again
STEPS = 1_000_000  # more than there is time for
NODES = 4
SETTLED_STEP = 40  # before it there is little to draw
PATIENCE = 120_000.0  # milliseconds
FIRST_TEXT, SHARE = 2.0, 0.03  # the aims: seconds, and of a core


class Measured(Exception):
    """All figures are there: the run may end."""


@contextmanager
def served(coordinator: str) -> Iterator[tuple[str, int]]:
    """A dashboard of its own: its address, and its process."""
    port = free_port()
    command = [sys.executable, "-m", "culm", "ui", "--coordinator", coordinator, "--listen", f"127.0.0.1:{port}"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while is_free(port):
            if server.poll() is not None:
                raise JobError("culm ui has ended before it served a page", "the dashboard", "run culm ui by hand")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", server.pid
    finally:
        server.terminate()
        server.wait()


@contextmanager
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # not everybody who measures something else has it

    with sync_playwright() as driver:
        words = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = driver.chromium.launch(executable_path=os.environ.get("CULM_CHROMIUM") or None, args=words)
        yield browser
        browser.close()


def opened(browser: Any, url: str, page: str) -> tuple[Any, float]:
    """A window of its own on a page, and the seconds until its first text."""
    window = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    window.set_default_timeout(PATIENCE)
    began = time.perf_counter()
    window.goto(url if page == "overview" else f"{url}/{page}", wait_until="commit")
    window.locator(".culm-head strong").first.wait_for()
    return window, time.perf_counter() - began


def closed(window: Any) -> None:
    """With its session on the server."""
    window.context.close()


def share_of_a_core(pid: int, seconds: float, look: Any = None) -> float:
    """Of the process, in so many seconds. The browser does what it has to meanwhile, if ``look`` is a window."""
    before, began = cpu_seconds(pid), time.perf_counter()
    if look is not None:
        look.wait_for_timeout(1e3 * seconds)
    else:
        time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began)


def measure(coordinator: str, rounds: int, seconds: float) -> None:
    """Prints a line for each page, and what holds."""
    with served(coordinator) as (url, pid), chromium() as browser:
        window, cold = opened(browser, url, "overview")
        closed(window)
        print(f"first text of the first page that the server serves: {cold:.2f} s; load {os.getloadavg()[0]:.1f}")
        texts, shares = [], []
        for page in PAGES:
            times = []
            for number in range(rounds):
                window, took = opened(browser, url, page)
                times.append(took)
                if number < rounds - 1:
                    closed(window)
            window.wait_for_timeout(5e3)  # the rest of the page comes after the first text
            share = share_of_a_core(pid, seconds, window)
            closed(window)
            texts.append(statistics.median(times))
            shares.append(share)
            spread = f"{min(times):.2f} to {max(times):.2f}"
            print(f"{page:10} first text {texts[-1]:.2f} s ({spread}), open {share:.1%} of a core", flush=True)
        alone = share_of_a_core(pid, seconds)
        print(f"no page open: {alone:.1%} of a core; load {os.getloadavg()[0]:.1f}")
        print(f"first text within {FIRST_TEXT:g} s: {'holds' if max(texts) <= FIRST_TEXT else 'does not hold'}")
        print(f"under {SHARE:.0%} of a core: {'holds' if max(shares) < SHARE else 'does not hold'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often each page is opened")
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long a page stays open")
    arguments = parser.parse_args()
    paced = {"steps": STEPS, "stages": NODES, "microbatches": 8, "forward": 0.02, "backward": 0.04}
    with tempfile.TemporaryDirectory() as folder:
        job = load_job(job_file(Path(folder), **paced, redundancy="lazy"))
        with LocalCluster(job, ROOT, NODES, folder=Path(folder) / "run") as cluster:

            def look(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
                if status.step >= SETTLED_STEP:
                    measure(cluster.address, arguments.rounds, arguments.seconds)
                    raise Measured

            with suppress(Measured):
                train(cluster, lambda status, events, outcome: None, look)


if __name__ == "__main__":
    main()
