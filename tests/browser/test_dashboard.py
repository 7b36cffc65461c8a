"""The dashboard in a real browser, on a live cluster: every page before and after its button took a node.

Needs playwright and a Chromium: ``make browser`` installs the first; CULM_CHROMIUM names the second, if playwright has
none of its own. Pictures of all pages go to the folder that CULM_SCREENSHOTS names, else to a temporary one.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from culm.local.cluster import LocalCluster
from culm.local.ports import free_port, is_free
from culm.local.training import train
from culm.oracle.plain_loop import run_plain
from culm.pipeline.job import load_job
from culm.protos import coordinator_pb2 as pb
from culm.protos.coordinator_pb2_grpc import CoordinatorStub

playwright = pytest.importorskip("playwright.sync_api", reason="make browser installs it")

ROOT = Path(__file__).parents[2]
PAGES = ("overview", "topology", "incidents", "nodes", "timetable", "cost", "events")
STEPS = 60
PATIENCE = 60_000.0  # milliseconds


class Browser:
    """One window, and every host that it asked for anything."""

    def __init__(self, context: Any, url: str, pictures: Path) -> None:
        self.page = context.new_page()
        self.hosts: set[str] = set()
        self._url, self._pictures = url, pictures
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def open(self, name: str) -> None:
        self.page.goto(self._url if name == "overview" else f"{self._url}/{name}")
        self.page.locator(".culm-head").first.wait_for()
        self.page.get_by_text("Culm · ").wait_for()

    def wider_than_its_page(self) -> int:
        """Pixels that one would have to scroll to the side."""
        return int(self.page.evaluate("() => (m => m.scrollWidth - m.clientWidth)(document.querySelector('.stMain'))"))

    def picture(self, name: str) -> None:
        self.page.wait_for_load_state("networkidle")
        self.page.screenshot(path=self._pictures / f"{name}.png")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("CULM_SCREENSHOTS") or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        path = os.environ.get("CULM_CHROMIUM") or None
        try:
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.getuid() == 0 else [])
        except playwright.Error as error:
            pytest.skip(f"no Chromium: {error}")
        yield browser
        browser.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    changes = [f"job.steps={STEPS}", "model.args.width=128", "pipeline.stages=3"]
    job = load_job(ROOT / "examples/stdlib_gpt.toml", changes)
    zones = {f"n{i}": {"CULM_ZONE": f"zone-{'abc'[i % 3]}", "CULM_REGION": "here"} for i in range(4)}
    with LocalCluster(job, ROOT / "examples", 4, folder=tmp_path / "run", environments=zones) as cluster:
        yield cluster


@pytest.fixture
def dashboard(cluster: LocalCluster) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "culm", "ui", "--coordinator", cluster.address, "--listen", f"127.0.0.1:{port}"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while is_free(port):
            assert server.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def test_every_page_before_and_after_the_button(
    cluster: LocalCluster, dashboard: str, chromium: Any, pictures: Path
) -> None:
    light, dark, phone = (
        Browser(chromium.new_context(viewport={"width": w, "height": 900}, color_scheme=s), dashboard, pictures)
        for w, s in ((1280, "light"), (1280, "dark"), (390, "light"))
    )
    pressed: list[str] = []

    def look(stub: CoordinatorStub, status: pb.GetStatusResponse, deaths: list[tuple[str, float]]) -> None:
        if status.step >= 12 and not pressed:
            for name in PAGES:
                light.open(name)
                light.picture(f"{name}-before")
            light.open("topology")
            light.page.get_by_role("button", name="Preempt a node").click()
            dialog = light.page.get_by_role("dialog")
            dialog.get_by_role("combobox").click()
            light.page.get_by_role("option", name="n1").click()
            dialog.get_by_role("button", name="Preempt it now").click()
            light.page.get_by_text("is preempted").wait_for()
            pressed.append("n1")
            light.open("incidents")
            light.page.get_by_text("median of lost nodes").wait_for()
            for name in PAGES:
                light.open(name)
                light.picture(f"{name}-after")
        elif status.step >= STEPS - 15 and len(pressed) == 1:
            for name in PAGES:
                dark.open(name)
                dark.picture(f"{name}-dark")
                phone.open(name)
                phone.picture(f"{name}-phone")
                assert phone.wider_than_its_page() == 0
            pressed.append("dark")

    outcome = train(cluster, lambda status, events, outcome: None, look)
    assert [loss["node"] for loss in outcome.losses_of_nodes] == ["n1"]
    assert outcome.sha256 == run_plain(cluster.job).sha256
    assert len(pressed) == 2
    assert light.hosts | dark.hosts | phone.hosts == {urlsplit(dashboard).netloc}, "no request leaves the machine"


def test_the_first_page_is_found_by_its_name(chromium: Any, tmp_path: Path) -> None:
    """``/overview`` is what one types; Streamlit itself knows the first page by ``/`` alone."""
    port = free_port()
    command = [sys.executable, "-m", "culm", "ui", "--demo", "--listen", f"127.0.0.1:{port}"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while is_free(port):
            assert server.poll() is None
            time.sleep(0.1)
        url = f"http://127.0.0.1:{port}"
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
    finally:
        server.terminate()
        server.wait()
