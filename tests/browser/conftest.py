"""A Chromium for all tests of the dashboard: playwright's own, or the one that CULM_CHROMIUM names."""

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="make browser installs it")
    with playwright.sync_playwright() as driver:
        path = os.environ.get("CULM_CHROMIUM") or None
        try:
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.getuid() == 0 else [])
        except playwright.Error as error:
            pytest.skip(f"no Chromium: {error}")
        yield browser
        browser.close()
