"""Ended runs in a folder, and their comparison."""

from pathlib import Path

import pytest

from culm.pipeline.money.codec import to_line
from culm.ui.runs import Runs, overlay, row
from tests.unit.test_ui_history import a_run_with_a_lost_node, event


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [to_line(each) + "\n" for each in a_run_with_a_lost_node()]
    (tmp_path / "first.jsonl").write_text("".join([*lines, to_line(event(20, 12, "done", 5, step=5)) + "\n"]))
    (tmp_path / "second.jsonl").write_text("".join(lines))
    (tmp_path / "broken.jsonl").write_text("no event\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "notes.txt").write_text("not a log")
    return tmp_path


def test_every_log_is_a_run_and_a_bad_one_says_so(folder: Path) -> None:
    told = {run.name: row(run) for run in Runs(folder).all()}
    assert set(told) == {"first", "second", "broken", "empty"}
    assert (told["first"]["how"], told["second"]["how"]) == ("finished", "broke off")
    assert "this is no event" in str(told["broken"]["how"])
    assert told["empty"]["how"] == "the file holds no event"
    assert (told["first"]["steps"], told["first"]["incidents"], told["first"]["seconds"]) == (5, 1, 11.0)


def test_nodes_that_take_each_others_place_are_as_many_as_there_were_at_once(folder: Path) -> None:
    run = next(run for run in Runs(folder).all() if run.name == "first")
    assert row(run)["most nodes"] == 3
    run.look.history.population[:] = [(1.0, 1), (2.0, 0), (3.0, 1)]
    assert row(run)["most nodes"] == 1


def test_a_run_without_a_price_has_no_cost(folder: Path) -> None:
    assert row(Runs(folder).all()[0])["dollars"] is None


def test_a_file_that_has_changed_is_read_anew(folder: Path) -> None:
    runs = Runs(folder)
    before = {run.name: run for run in runs.all()}
    with (folder / "second.jsonl").open("a") as file:
        file.write(to_line(event(20, 12, "done", 5, step=5)) + "\n")
    (folder / "empty.jsonl").unlink()
    after = {run.name: run for run in runs.all()}
    assert row(after["second"])["how"] == "finished"
    assert after["first"] is before["first"]
    assert "empty" not in after


def test_the_curves_of_several_runs_are_one_table(folder: Path) -> None:
    runs = [run for run in Runs(folder).all() if not run.problem]
    columns = overlay(runs, "time", "loss")
    assert set(columns["run"]) == {"first", "second"}
    assert columns["x"][:5] == [1, 2, 3, 4, 7], "seconds since the first plan"
    assert overlay(runs, "step", "evaluation")["x"] == []


def test_a_name_leads_to_no_other_folder(folder: Path) -> None:
    runs = Runs(folder)
    assert runs.path_of("first") == folder / "first.jsonl"
    assert runs.path_of("../first") is None
    assert Runs(folder / "missing").all() == []
