"""The pages as a site: every page has a place, every link an end, and MkDocs builds it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1", re.M | re.S)
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]+)\)")
NAMED = re.compile(r"""\b(?:id|name)=["']([^"']+)["']""")


def pages() -> list[Path]:
    """All that GitHub shows, and the site."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*/README.md")])


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them, and those that it gives itself."""
    text = FENCED.sub("", page.read_text())
    names: set[str] = set(NAMED.findall(text))
    for heading in re.findall(r"^#+ (.+)$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        count = 0
        while (unique := f"{name}-{count}" if count else name) in names:
            count += 1
        names.add(unique)
    return names


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCED.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without MkDocs: names of Python objects in it stay text."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


def nav(entries: list[Any]) -> list[str]:
    """The pages that a part of the navigation names, in order."""
    named: list[str] = []
    for entry in entries:
        value = entry if isinstance(entry, str) else next(iter(entry.values()))
        named.extend([value] if isinstance(value, str) else nav(value))
    return named


def test_every_page_has_one_place_in_the_navigation() -> None:
    told = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)
    places = {f"{page.stem}.md" for page in ROOT.glob("docs/*.md")}
    places |= {"index.md", "contributing.md", "changelog.md"}
    places |= {f"deploy/{page.parent.name}.md" for page in ROOT.glob("deploy/*/README.md")}
    assert sorted(nav(told["nav"])) == sorted(places), "mkdocs.yml: add each new page to nav"


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="no mkdocs-material: pip install 'culm[docs]'")
def test_mkdocs_builds_the_site(tmp_path: Path) -> None:
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 'href="deploy/kubernetes.html"' in (tmp_path / "index.html").read_text()
    assert (tmp_path / "files/examples/digits_mlp.toml").read_bytes() == (
        ROOT / "examples/digits_mlp.toml"
    ).read_bytes()
