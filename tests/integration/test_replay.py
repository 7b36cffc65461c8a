"""A trace that happens to real processes: what it says is done to them, and the simulator is told the same."""

import json
from pathlib import Path

import pytest

from culm.__main__ import main
from culm.local.played_market import ended_before
from culm.simulator.markets.trace import Change, write_trace

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "digits_mlp.toml")


def trace(tmp_path: Path) -> str:
    """Four machines; one goes, one comes."""
    changes = [Change(at=0.0, kind="add", node=f"m{i}") for i in range(4)]
    changes += [
        Change(at=200.0, kind="remove", node="m1"),
        Change(at=250.0, kind="add", node="m4"),
        Change(at=800.0, kind="remove", node="m4"),
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text(write_trace(changes))
    return str(path)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param([], id="one pipeline"),
        pytest.param(
            ["--set", "pipeline.pipelines=2", "--set", "pipeline.stages=2"],
            id="two replicas of two stages",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_machines_go_and_come_as_the_trace_says(
    settings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["replay", EXAMPLE, *settings, "--trace", trace(tmp_path), "--speed", "100", "--hours", "0.17"]
    words += ["--machines", "4"]
    assert main([*words, "--set", "job.steps=100000", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    predicted, measured = told["predicted"], told["measured"]
    assert predicted["losses"] == measured["losses"] == 1
    assert predicted["rollbacks"] == measured["rollbacks"] == 0
    assert measured["steps"] > 0
    assert predicted["cost"] == pytest.approx(measured["cost"], rel=0.2)


@pytest.mark.slow
def test_a_plan_validates_itself_with_real_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The market of a trace whose one machine goes after 500 s, which are 5 of the replay's."""
    monkeypatch.chdir(tmp_path)
    changes = [Change(at=0.0, kind="add", node=f"m{i}") for i in range(3)]
    changes += [Change(at=at, kind=kind, node="m3") for at, kind in ((0.0, "add"), (500.0, "remove"))]  # type: ignore[arg-type]
    path = tmp_path / "trace.jsonl"
    path.write_text(write_trace([*changes, Change(at=1e6, kind="add", node="m4")]))
    words = ["plan", EXAMPLE, "--nodes", "4", "--price", "1", "--trace", str(path), "--seeds", "1"]
    assert main([*words, "--set", "job.steps=1000", "--validate", "12", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    predicted, measured = told["validation"]["predicted"], told["validation"]["measured"]
    assert measured["steps"] > 0
    assert predicted["losses"] == measured["losses"]
    assert predicted["cost"] == pytest.approx(measured["cost"], rel=0.2)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--speed", "0"], "--speed: '0' is too small"),
        (["--hours", "0"], "--hours: '0' is too small"),
        (["--set", "pipeline.stages=5"], "the trace begins with 4 machines, too few for 5 stages"),
    ],
)
def test_bad_words_are_told_in_a_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", EXAMPLE, "--trace", trace(tmp_path), *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_a_job_that_is_over_before_the_trace_is_told() -> None:
    """Its idle rest looked like a prediction that was wrong by 18,000 %."""
    assert "after 3 of 18 s: what the trace has after that" in ended_before(True, 3.2, 18.0)
    assert ended_before(False, 18.0, 18.0) == ended_before(True, 18.0, 18.0) == ""
