"""The log of a service: plain lines, and lines of JSON that say who speaks and where it stands."""

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from culm.pipeline import log_lines
from culm.pipeline.errors import JobError
from culm.pipeline.log_lines import JsonLines, PlainLines, last_line, speak_as
from culm.terminal import logs


def record(text: str, *words: object, level: int = logging.INFO) -> logging.LogRecord:
    return logging.LogRecord("culm.stage", level, "", 0, text, words, None)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a process with a log of JSON lines writes."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines({"service": "stage", "run": "gpt2", "node": ""}))
    root = logging.getLogger()
    root.addHandler(handler)
    yield written
    root.removeHandler(handler)


def lines(written: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_json_line_says_when_who_and_what(log: io.StringIO) -> None:
    logging.getLogger("culm.stage").warning("went on from %s", "step 3")
    (line,) = lines(log)
    at = datetime.fromisoformat(str(line.pop("time")))
    assert at.tzinfo is not None
    assert line == {
        "level": "warning",
        "logger": "culm.stage",
        "message": "went on from step 3",
        "service": "stage",
        "run": "gpt2",
    }


def test_where_it_stands_is_looked_up_for_each_line(log: io.StringIO) -> None:
    standing: dict[str, str | int] = {"node": "n0", "step": 0}
    speak_as(lambda: standing)
    logging.getLogger("culm").warning("first")
    standing["step"] = 7
    logging.getLogger("culm").warning("second")
    assert [(line["node"], line["step"]) for line in lines(log)] == [("n0", 0), ("n0", 7)]


def test_the_reason_of_an_end_has_the_form_of_the_log(log: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    last_line("stage", "port 7070 is in use")
    (line,) = lines(log)
    assert (line["level"], line["message"]) == ("error", "port 7070 is in use")
    assert capsys.readouterr().err == ""


def test_without_a_log_of_json_the_reason_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    speak_as(lambda: {"node": "n0"})
    last_line("stage", "port 7070 is in use")
    assert capsys.readouterr().err == "culm stage: port 7070 is in use\n"


def test_a_line_stays_one_line_in_both_forms() -> None:
    odd = record("from %s", "a\nb\x1b[31mc")
    assert PlainLines().format(odd).endswith(" culm.stage from a bc")
    assert json.loads(JsonLines({}).format(odd))["message"] == "from a bc"


@pytest.mark.parametrize(
    ("variable", "text", "mend"), [("CULM_LOG_FORMAT", "jsonl", "did you mean json?"), ("CULM_LOG", "LOUD", "DEBUG")]
)
def test_a_value_that_is_none_is_refused_with_the_mend(
    variable: str, text: str, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(JobError) as refused:
        logs.set_up({})
    assert variable in str(refused.value)
    assert mend in str(refused.value)


def test_warnings_and_what_ends_the_process_are_json_too() -> None:
    code = (
        f"import warnings; from {log_lines.__name__} import install; install('json', 'INFO', {{'node': 'n0'}});"
        "warnings.warn('old'); raise ValueError('https://me:secret@host broke')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    warned, ended = [json.loads(line) for line in done.stderr.splitlines()]
    assert "old" in warned["message"]
    assert (ended["level"], ended["node"], ended["message"]) == ("critical", "n0", "the process ends: ValueError")
    assert "ValueError: https://me:***@host broke" in ended["exception"]
