"""Every page, run by Streamlit itself without a browser, on a run with a lost node."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from culm.pipeline.money.codec import to_line
from tests.unit.test_ui_history import START, a_run_with_a_lost_node, event

PATIENCE = 60.0
SCRIPT = """
from pathlib import Path
from culm.ui.recorded import Recorded
from culm.ui.screens import {page}
{page}.show(Recorded(Path({log!r}), clock=iter([0.0] + [{at}] * 100).__next__))
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(to_line(event) + "\n" for event in a_run_with_a_lost_node()))
    return path


def page(name: str, log: Path, at: float = 9.5) -> AppTest:
    """The page as it is so many seconds into the run."""
    app = AppTest.from_string(SCRIPT.format(page=name, log=str(log), at=at), default_timeout=PATIENCE).run()
    assert not app.exception
    return app


def test_the_overview_tells_progress_and_money(log: Path) -> None:
    app = page("overview", log)
    told = {metric.label: metric.value for metric in app.metric}
    assert told["Loss"] == "1.6000"
    assert told["Samples a second"] == "5"
    assert told["Goodput"] == "76.5%"
    assert told["A million tokens"] == "–"


def test_the_overview_tells_what_was_evaluated_last(log: Path) -> None:
    told = event(20, 9.4, "evaluated", 4, step=4, loss=0.25, **{"metric.accuracy": 0.5})
    with log.open("a") as file:
        file.write(to_line(told) + "\n")
    shown = {metric.label: metric.value for metric in page("overview", log).metric}
    assert (shown["Evaluated: loss"], shown["Evaluated: accuracy"]) == ("0.25", "0.5")


def test_the_overview_tells_the_epoch_and_the_learning_rate(log: Path) -> None:
    told = event(20, 9.4, "commit", 6, step=5, loss=1.5, learning_rate=0.0125)
    planned = event(21, 9.4, "plan", 6, steps=10, stage_count=2, stages="[]", samples_per_step=8, samples_per_epoch=32)
    with log.open("a") as file:
        file.write(to_line(told) + "\n" + to_line(planned) + "\n")
    app = page("overview", log)
    assert "learning rate 0.0125" in {metric.delta for metric in app.metric}
    assert "step 6 of 10, epoch 1.50" in app.get("progress")[0].proto.text


def test_a_stage_without_a_standby_is_warned_of(log: Path) -> None:
    assert "Without a hot standby: stage 0" in page("topology", log, 7.0).warning[0].value
    assert not page("topology", log, 5.0).warning


def test_a_run_that_stands_still_has_a_banner(log: Path) -> None:
    stalled = a_run_with_a_lost_node()[-1]
    stalled.kind, stalled.time = "stalled", START + 20.0
    stalled.fields["step"] = "5"
    stalled.fields["awaited"] = "n2 with stage 1 (in 1F3 for 9 s)"
    with log.open("a") as file:
        file.write(to_line(stalled) + "\n")
    assert "Waiting for n2 with stage 1" in page("overview", log, 20.0).error[0].value
    assert not page("overview", log, 5.0).error


def test_the_preemptions_are_listed_with_their_times(log: Path) -> None:
    app = page("preemptions", log)
    assert {metric.label: metric.value for metric in app.metric}["Resumed after (median)"] == "50 ms"
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["node"], row["detect"], row["promote"], row["resume"], row["restored"], row["redone"]) == (
        "n0",
        "40 ms",
        "10 ms",
        "50 ms",
        "3000 ms",
        3,
    )


def test_the_nodes_are_those_that_are_there(log: Path) -> None:
    before = page("nodes", log, 5.0).dataframe[0].value.to_dict("records")
    assert [(row["node"], row["stages"]) for row in before] == [("n0", "0"), ("n1", "1"), ("n2", "")]
    after = page("nodes", log).dataframe[0].value.to_dict("records")
    assert [(row["node"], row["stages"]) for row in after] == [("n1", "0, 1"), ("n2", "")]


def test_nothing_can_be_preempted_where_that_is_not_allowed(log: Path) -> None:
    app = page("nodes", log)
    assert not app.button
    assert "--allow-kill" in app.caption[-1].value


def test_the_cost_page_has_a_bill_for_every_node_and_names_those_without_a_price(log: Path) -> None:
    app = page("cost", log)
    assert [row["node"] for row in app.dataframe[-1].value.to_dict("records")] == ["n0", "n1", "n2"]
    assert "No price is known for n1, n2" in app.warning[0].value


def test_events_can_be_chosen_by_kind_and_by_words(log: Path) -> None:
    app = page("events", log)
    assert len(app.dataframe[0].value) == 9
    app.multiselect(key="kinds").set_value(["lost", "plan"]).run()
    assert set(app.dataframe[0].value["kind"]) == {"lost", "plan"}
    app.text_input(key="words").set_value("LOST, bec").run()
    assert list(app.dataframe[0].value["kind"]) == ["lost"]


@pytest.mark.parametrize("name", ["overview", "topology", "preemptions", "nodes", "cost", "events"])
def test_before_anything_has_happened_every_page_is_there(name: str, log: Path) -> None:
    page(name, log, 0.0)


def test_the_app_shows_its_first_page(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CULM_UI_LOG", str(log))
    monkeypatch.setenv("CULM_UI_SPEED", str(START))
    app = AppTest.from_file(str(Path(__file__).parents[2] / "ui" / "app.py"), default_timeout=PATIENCE).run()
    assert not app.exception
    assert "Spent" in [metric.label for metric in app.metric]
