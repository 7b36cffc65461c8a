"""Every page of the dashboard in every state of a run, in a real browser: is anything wrong with what it shows?

Each state is looked at in a wide light window and in a dark one of a phone's width, the calm run also the other way
round. ``tests/browser/looking.py`` says what is looked for. Runs are real: two nodes that train, a graph's servers with
their workers, the recorded run, and coordinators of 40 and 200 nodes, which are simulated.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from culm.local.cluster import LocalCluster
from culm.local.ports import free_port
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from culm.terminal.client import connect
from culm.ui.recorded import DEMO
from tests.browser.crowd import GRID, LINE, Shape, attended
from tests.browser.looking import ALL, LIGHT, Window, needs_axe, windows
from tests.browser.serving import ROOT, dashboard
from tests.browser.slow_samples import PACE

PAGES = ("overview", "topology", "incidents", "nodes", "timetable", "cost", "events")
ON_A_GRAPH = (PAGES[0], "graph", *PAGES[1:])
PATIENCE = 240.0  # seconds until a state is there, on a machine that has much else to do
SABOTAGE = """() => document.querySelector('.stMainBlockContainer').insertAdjacentHTML('afterbegin',
  '<p style="width:3000px">it is nan here</p><p style="color:#ddd">one cannot read this</p><img src="data:,">' +
  '<div data-testid="stAlert">Traceback</div>')"""
SMALL = {"width": 32, "depth": 2, "heads": 2, "context": 32}


def look_at(
    seen: Iterable[Window], state: str, word: str, pages: Iterable[str], before: Callable[[], None] = lambda: None
) -> list[str]:
    """What is wrong with the pages of a run that is said to stand so. ``before``: done before each page is opened."""
    found = []
    for window in seen:
        for page in pages:
            before()
            window.open(page, word)
            found += window.faults()
            window.picture(f"{state}-{page.replace('?', '-').replace('=', '-').replace('/', '')}")
    return found


def until(stub: CoordinatorStub, what: str, holds: Callable[[pb.GetStatusResponse], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds(stub.GetStatus(pb.GetStatusRequest(), timeout=PATIENCE, wait_for_ready=True)):
        assert time.monotonic() < end, f"never was there: {what}"
        time.sleep(0.1)


def test_what_is_wrong_with_a_page_is_found(chromium: Any) -> None:
    needs_axe()
    with dashboard("--demo") as url, windows(chromium, url, (LIGHT,)) as (window,):
        window.open("overview")
        assert window.faults() == []
        window.page.evaluate(SABOTAGE)
        found = " ".join(window.faults())
    rules = ("critical: image-alt", "serious: color-contrast")
    for each in ("cannot be drawn: Traceback", "an empty word: it is nan here", "pixels too wide", *rules):
        assert each in found


def test_two_nodes(chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calm, in an incident, after it, without their coordinator, and done."""
    pace = tmp_path / "pace"
    pace.write_text("0.02")
    monkeypatch.setenv(PACE, str(pace))
    changes = [f"model.args.{name}={value}" for name, value in SMALL.items()]
    changes += ["data.args.context=32", "data.tokens_per_sample=32", "data.microbatch=1", "pipeline.stages=2"]
    changes += ["job.steps=1200", "data.dataset=tests.browser.slow_samples:dataset"]
    zones = {f"n{i}": {"CULM_ZONE": f"zone-{'ab'[i % 2]}", "CULM_REGION": "here"} for i in range(3)}
    job = load_job(ROOT / "examples/stdlib_gpt.toml", changes)
    found = []
    with (
        LocalCluster(job, ROOT, 2, folder=tmp_path / "run", respawn=False, environments=zones) as cluster,
        dashboard("--coordinator", cluster.address) as url,
        windows(chromium, url, ALL) as (light, dark, phone, dark_phone),
    ):
        channel, stub = connect(cluster.address, patience=PATIENCE)
        both = (light, dark_phone)
        with channel:
            until(stub, "a curve", lambda status: status.step > 30)
            found += look_at((light, dark, phone, dark_phone), "calm", "running", PAGES)

            cluster.kill("n1")
            until(stub, "a lost node", lambda status: len(status.nodes) == 1)
            found += look_at(both, "incident", "running", PAGES)
            light.open("overview")
            light.page.get_by_text("Without a hot standby: stage").wait_for()

            cluster.add("n2")
            until(stub, "a standby", lambda status: len(status.nodes) == 2 and not any(status.exposure.values()))
            found += look_at(both, "after", "running", PAGES)
            light.open("events?kinds=lost")
            light.page.get_by_text("1 of ").wait_for()

            cluster.kill("coordinator")
            found += look_at(both, "away", "no answer", PAGES)
            light.page.get_by_text("does not answer").first.wait_for()

            cluster.check()
            pace.write_text("0")
            until(stub, "the end", lambda status: status.phase == "done")
            found += look_at(both, "done", "finished", PAGES)
    assert found == []


def test_a_graph(chromium: Any, tmp_path: Path) -> None:
    """Two servers with two workers, and one of the servers lost."""
    changes = ["job.steps=12000", "graph.workers=2", "model.layers=benchmarks.graph_paced:layers"]
    job = load_job(ROOT / "examples/blocks.toml", [*changes, "model.args={sizes = [16, 32, 4]}"])
    with (
        LocalCluster(job, ROOT, 2, folder=tmp_path / "run", respawn=False) as cluster,
        dashboard("--coordinator", cluster.address) as url,
        windows(chromium, url) as seen,
    ):
        channel, stub = connect(cluster.address, patience=PATIENCE)
        with channel:
            until(stub, "a curve", lambda status: status.step > 10)
            found = look_at(seen, "graph", "running", ON_A_GRAPH)
            cluster.kill("n1")
            until(stub, "a lost server", lambda status: len(status.nodes) == 1)
            found += look_at(seen, "graph-incident", "running", ("overview", "graph", "incidents"))
    assert found == []


@pytest.mark.parametrize("shape", [LINE, GRID], ids=["40 in a line", "200 in a grid"])
def test_many_nodes(chromium: Any, tmp_path: Path, shape: Shape) -> None:
    """Calm, and after three of them were lost."""
    name = f"of-{shape.nodes}"
    with (
        attended(shape, tmp_path) as crew,
        dashboard("--coordinator", crew.address) as url,
        windows(chromium, url) as seen,
    ):
        crew.train(10)
        found = look_at(seen, name, "running", PAGES, before=lambda: crew.train(1))
        crew.lose(3)
        crew.train(1)
        of_losses = ("overview", "topology", "incidents", "cost")
        found += look_at(seen, f"{name}-incident", "running", of_losses, before=lambda: crew.train(1))
    assert found == []


def test_recorded_runs(chromium: Any, tmp_path: Path) -> None:
    """The demo, which plays; and two of a folder, which are over and are compared."""
    for name in ("first", "second"):
        copy(DEMO, tmp_path / f"{name}.jsonl.gz")
    with dashboard("--demo", "--runs", str(tmp_path)) as url, windows(chromium, url) as seen:
        found = look_at(seen, "demo", "", (*PAGES, "runs"))
        found += look_at(seen, "ended", "finished", [f"{page}?run=first" for page in PAGES[1:]])
        found += look_at(seen, "ended", "finished", ["?run=first"])
    assert found == []


def test_where_nobody_answers(chromium: Any) -> None:
    with dashboard("--coordinator", f"127.0.0.1:{free_port()}") as url, windows(chromium, url) as seen:
        found = look_at(seen, "nobody", "no answer", PAGES)
    assert found == []
