"""What a page of the dashboard is looked at for, in a real browser: ``faults`` names all that is wrong with it.

A page is wrong with a traceback or a part that could not be drawn, an error of its scripts, a cell or figure that says
None or nan, more width than its window, and with what axe-core counts as critical or serious. axe-core looks at the
whole page: nothing of Streamlit's own frame (its header, menu and tables) has to be left out.

CULM_AXE names axe-core's script, ``axe.min.js``; ``make browser`` takes it from npm. CULM_SCREENSHOTS names a folder,
into which a picture of each page goes, as high as the page.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

PATIENCE = 60_000.0  # milliseconds
HIGHEST = 6_000  # pixels of a picture
GRAVE = ("critical", "serious")
# The page is drawn: its script has run to its end, and what the browser draws of it is there.
DRAWN = """() => {
  const app = document.querySelector('[data-testid="stApp"]');
  const all = (whole, part) => [...document.querySelectorAll(whole)]
    .every(each => each.offsetParent === null || each.querySelector(part));  // what is not shown has no canvas
  return app !== null && app.dataset.testScriptState === 'notRunning'
    && document.body.innerText.includes('Culm · ')  // the last line of every page
    && document.querySelector('[data-testid="stSkeleton"]') === null
    && all('[data-testid="stVegaLiteChart"]', 'canvas, svg') && all('[data-testid="stDataFrame"]', 'canvas');
}"""
# Pixels that one would have to scroll to the side.
TOO_WIDE = """() => Math.max(0, ...[document.documentElement, document.querySelector('.stMain')]
  .map(each => each.scrollWidth - each.clientWidth))"""
# Texts, and the cells of tables, which are a canvas with a table for screen readers inside.
EMPTY_WORDS = r"""() => [...document.body.innerText.split('\n'),
  ...[...document.querySelectorAll('canvas td')].map(each => each.textContent)]
  .filter(each => /\b(None|nan|NaN|null|undefined)\b/.test(each))"""
BROKEN = """() => [...document.querySelectorAll('[data-testid="stException"], [data-testid="stAlert"]')]
  .map(each => each.innerText).filter(each => /Traceback|could not be drawn/.test(each) || each.includes('Error:'))"""
AXE = """() => axe.run({resultTypes: ['violations']}).then(found => found.violations.map(each => [each.impact,
  each.id, each.nodes.slice(0, 3).map(node => node.target.join(' ')).join(', ')]))"""


class View(NamedTuple):
    name: str
    width: int
    scheme: str


LIGHT, DARK = View("light", 1440, "light"), View("dark", 1440, "dark")
PHONE, DARK_PHONE = View("phone", 390, "light"), View("dark-phone", 390, "dark")
BOTH, ALL = (LIGHT, DARK_PHONE), (LIGHT, DARK, PHONE, DARK_PHONE)


class Window:
    """One window on the dashboard at ``url``, and every host that it asked for anything."""

    def __init__(self, context: Any, url: str, view: View) -> None:
        self.page = context.new_page()
        self.hosts: set[str] = set()
        self.view = view
        self._url = url
        self._raised: list[str] = []
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))
        self.page.on("pageerror", lambda error: self._raised.append(f"an error of a script: {error}"))

    def open(self, name: str, word: str = "") -> None:
        """Shows a page, a query behind its name perhaps. ``word``: how the run is to stand: waited for."""
        self.page.goto(f"{self._url}/{'' if name == 'overview' else name}", wait_until="domcontentloaded")
        if word:
            self.page.locator(".culm-head .culm-pill", has_text=word).first.wait_for()
        self.page.wait_for_function(DRAWN)

    def faults(self) -> list[str]:
        """Of the page that is open, each with where it is."""
        found, self._raised = self._raised, []
        found += [f"cannot be drawn: {each}" for each in self.page.evaluate(BROKEN)]
        found += [f"an empty word: {each}" for each in self.page.evaluate(EMPTY_WORDS)]
        if (pixels := self.page.evaluate(TOO_WIDE)) > 0:
            found.append(f"{pixels} pixels too wide")
        found += [f"{impact}: {rule} at {where}" for impact, rule, where in self.violations() if impact in GRAVE]
        place = self.page.url.removeprefix(self._url)
        return [f"{place} ({self.view.name}): {each}" for each in found]

    def violations(self) -> list[tuple[str, str, str]]:
        """What axe-core finds: impact, rule, and the first places. Without CULM_AXE nothing is found."""
        if not (path := os.environ.get("CULM_AXE")):
            return []
        self.page.evaluate(Path(path).read_text(encoding="utf-8"))
        return [tuple(each) for each in self.page.evaluate(AXE)]

    def picture(self, name: str) -> None:
        folder = os.environ.get("CULM_SCREENSHOTS")
        if not folder:
            return
        Path(folder).mkdir(parents=True, exist_ok=True)
        high = int(self.page.evaluate("() => document.querySelector('.stMain').scrollHeight"))
        self.page.set_viewport_size({"width": self.view.width, "height": max(900, min(high, HIGHEST))})
        self.page.wait_for_function(DRAWN)
        self.page.screenshot(path=Path(folder) / f"{name}-{self.view.name}.png")
        self.page.set_viewport_size({"width": self.view.width, "height": 900})


@contextmanager
def windows(chromium: Any, url: str, views: tuple[View, ...] = BOTH) -> Iterator[list[Window]]:
    contexts = [
        chromium.new_context(
            viewport={"width": view.width, "height": 900}, color_scheme=view.scheme, timezone_id="Europe/Berlin"
        )
        for view in views
    ]
    try:
        yield [Window(context, url, view) for context, view in zip(contexts, views, strict=True)]
    finally:
        for context in contexts:
            context.close()


def needs_axe() -> None:
    if not os.environ.get("CULM_AXE"):
        pytest.skip("CULM_AXE names no axe.min.js: make browser takes it from npm, where npm is installed")
