"""The page on messages quotes those that the code has."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ROOMS = ("coordinator", "culm", "pipeline", "stage_server", "ui")
QUOTED = [
    *re.findall(r"^### `(.+)`$", PAGE, re.M),
    *re.findall(r"^\| `(.+?)` \|", PAGE, re.M),
]
GAP = "\0"  # stands for a value in a message


@cache
def said() -> tuple[str, ...]:
    """Every text in the code, a mark in place of each value."""
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "_pb2" not in path.name]
    return tuple({text for path in files for node in ast.walk(ast.parse(path.read_text())) if (text := _text(node))})


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or GAP for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.sub(r"%[sdr]|%\.\d+r|%g|\{\d\}", GAP, node.value)
    return ""


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 50
    assert len(set(QUOTED)) == len(QUOTED)


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_message_is_in_the_code(quoted: str) -> None:
    parts = [re.escape(part.strip(" ,")) for part in quoted.split("…") if part.strip(" ,")]
    form = re.compile(rf"{'.*'.join(parts)}", re.S)
    assert any(form.search(text) for text in said()), "the code says it in other words: change the page"
