"""Each ``culm`` in a page's shell examples is a command line that the parser takes."""

import argparse
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from culm.__main__ import make_parser

ROOT = Path(__file__).parents[2]
OF_CODE = ROOT / "docs/commands.md"  # tests/unit/test_command_help.py tries its examples
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/*/README.md")]
IN_A_LINE = re.compile(r"(?:^|[\s/])(culm [a-z]+.*)$")
ELSEWHERE = re.compile(r"\b(?:kubectl|docker|ssh)\b")  # a command for another shell, which quotes it


@cache
def parser() -> argparse.ArgumentParser:
    return make_parser()


def command_lines(text: str) -> list[list[str]]:
    """The words of each one, up to what a shell does with its output. What a shell would fill in is a word."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        for line in block.replace("\\\n", " ").splitlines():
            said = IN_A_LINE.search(line.split("#")[0])
            if said and not ELSEWHERE.search(line):
                filled = re.sub(r"\$\(\w+\)|\$\w+", "x", re.split(r" [>&|]", said[1])[0])
                found.append(shlex.split(filled))
    return found


@pytest.mark.parametrize("page", sorted(set(PAGES) - {OF_CODE}), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_parser_takes_the_commands_of_a_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in command_lines(page.read_text()):
        try:
            parser().parse_args(words[1:])
        except SystemExit:
            pytest.fail(f"{' '.join(words)}: {capsys.readouterr().err}")


def test_pages_have_commands() -> None:
    assert sum(len(command_lines(page.read_text())) for page in PAGES) > 50
