"""Brings what lies outside of docs/ into the site: pages such as README.md, and the files that pages link to.

On GitHub a page's links are paths in the repository. MkDocs knows docs/ alone. So each page or file from outside gets a
place in the site, and links to it, or from it, are written anew. A link to nothing stays as it is: MkDocs refuses it.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Pages outside of docs/, and their places in the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "deploy/kubernetes/README.md": "deploy/kubernetes.md",
    "deploy/skypilot/README.md": "deploy/skypilot.md",
    "deploy/vm/README.md": "deploy/vm.md",
}
SOURCES = {place: path for path, place in PAGES.items()}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:)([^)#\s]+)(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages from outside, and what pages link to beside them."""
    pages = [source(file.src_uri) for file in files if file.is_documentation_page()]
    for path, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    for target in sorted({target for path in (*pages, *PAGES) for target in links(path)}):
        if place_of(target).startswith("files/"):
            files.append(File.generated(config, place_of(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Writes links anew that leave docs/, or come from outside of it."""
    path = source(page.file.src_uri)

    def anew(link: re.Match[str]) -> str:
        target = resolved(path, link[1])
        if not (ROOT / target).is_file():
            return link[1]
        return posixpath.relpath(place_of(target), posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(anew, markdown)


def source(place: str) -> str:
    """The path in the repository of a page of the site."""
    return SOURCES.get(place, f"docs/{place}")


def place_of(path: str) -> str:
    """The place in the site of a file of the repository."""
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}")


def resolved(path: str, link: str) -> str:
    """The path in the repository that a page's link means."""
    return os.path.normpath(os.path.join(os.path.dirname(path), link))


def links(path: str) -> Iterator[str]:
    """The files of the repository that a page links to."""
    for link in LINK.findall((ROOT / path).read_text()):
        if (ROOT / resolved(path, link)).is_file():
            yield resolved(path, link)
