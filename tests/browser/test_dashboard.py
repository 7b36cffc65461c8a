"""The dashboard in a real browser, on a live cluster: its button takes a node, and the bits stay the same.

Needs playwright and a Chromium: ``make browser`` installs the first; CULM_CHROMIUM names the second, if playwright has
none of its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from culm.local.cluster import LocalCluster
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub
from tests.browser.looking import LIGHT, PATIENCE, windows
from tests.browser.serving import ROOT, dashboard

STEPS = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    changes = [f"job.steps={STEPS}", "model.args.width=128", "pipeline.stages=3"]
    job = load_job(ROOT / "examples/stdlib_gpt.toml", changes)
    zones = {f"n{i}": {"CULM_ZONE": f"zone-{'abc'[i % 3]}", "CULM_REGION": "here"} for i in range(4)}
    with LocalCluster(job, ROOT / "examples", 4, folder=tmp_path / "run", environments=zones) as cluster:
        yield cluster


def test_the_button_takes_a_node(cluster: LocalCluster, chromium: Any) -> None:
    pressed: list[str] = []
    with dashboard("--coordinator", cluster.address) as url, windows(chromium, url, (LIGHT,)) as (window,):

        def press(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
            if status.step < 12 or pressed:
                return
            window.open("topology")
            window.page.get_by_role("button", name="Preempt a node").click()
            dialog = window.page.get_by_role("dialog")
            dialog.get_by_role("combobox").click()
            window.page.get_by_role("option", name="n1").click()
            assert window.faults() == []
            window.picture("dialog")
            dialog.get_by_role("button", name="Preempt it now").click()
            window.page.get_by_text("is preempted").wait_for()
            pressed.append("n1")
            window.open("incidents")
            window.page.get_by_text("median of lost nodes").wait_for()

        outcome = train(cluster, lambda status, events, outcome: None, press)
        assert [loss["node"] for loss in outcome.losses_of_nodes] == pressed == ["n1"]
        assert outcome.sha256 == run_plain(cluster.job).sha256
        assert window.hosts == {urlsplit(url).netloc}, "no request leaves the machine"


def test_the_first_page_is_found_by_its_name(chromium: Any) -> None:
    """``/overview`` is what one types; Streamlit itself knows the first page by ``/`` alone."""
    with dashboard("--demo") as url:
        page = chromium.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{url}/overview?window=all")
        page.locator(".culm-head").first.wait_for()
        page.wait_for_url(f"{url}/?window=all")
        assert page.get_by_role("dialog").count() == 0
        assert page.get_by_role("link", name="Overview").count() == 1, "the menu has it once"
        page.goto(f"{url}/nodes")
        page.locator(".culm-head").first.wait_for()
        assert page.url == f"{url}/nodes"
