"""The pages tell the truth about the repository: rules that are cited exist, and so do files that are named."""

import re
import subprocess
from pathlib import Path

import pytest

from culm import __version__

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"\brules? (\d+(?:(?:, | and | to )\d+)*)", re.IGNORECASE)
NAMED = re.compile(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|toml|md|yml|yaml|proto))`")


def texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed if name.endswith((".py", ".md", ".proto")) and "_pb2" not in name]


def rules() -> set[int]:
    return {int(number) for number in re.findall(r"^## (\d+)\. ", (ROOT / "docs/rules.md").read_text(), re.M)}


def test_every_rule_that_is_cited_is_in_the_list() -> None:
    known = rules()
    assert known >= set(range(1, 19))
    unknown = {
        f"{path.relative_to(ROOT)}: rule {number}"
        for path in texts()
        for cited in CITED.findall(path.read_text())
        for number in re.findall(r"\d+", cited)
        if int(number) not in known
    }
    assert unknown == set()


@pytest.mark.parametrize("page", [path for path in texts() if path.suffix == ".md"], ids=lambda path: path.stem)
def test_a_page_names_files_that_are_there(page: Path) -> None:
    assert [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()] == []


def test_no_page_has_both_sides_of_a_merge() -> None:
    marks = re.compile(r"^(?:<{7}|>{7}) ", re.M)
    assert [str(path.relative_to(ROOT)) for path in texts() if marks.search(path.read_text())] == []


NAMES = re.compile(r"`([\w./]+\.py)`")


@pytest.mark.parametrize("room", ["coordinator", "stage_server/worker"])
def test_the_tables_name_every_module_that_decides(room: str) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    said = {Path(name).name for name in NAMES.findall(page)}
    assert {path.name for path in (ROOT / room).glob("*.py") if path.stem != "__init__"} <= said


def test_every_test_that_the_rules_name_is_there() -> None:
    told = re.findall(r"\*Tests?:\*(.*?)(?=\n\n|\Z)", (ROOT / "docs/rules.md").read_text(), re.S)
    named = {name for words in told for name in re.findall(r"`([A-Za-z_]+)`", words)}
    assert len(named) > 15
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert named <= {defined or set_to for defined, set_to in re.findall(r"\b(?:class|def) (\w+)|\b(\w+) =", tests)}


def test_the_list_of_changes_knows_the_version() -> None:
    page = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(r"^## \[Unreleased\]$", page, re.M)
    assert __version__ in page
