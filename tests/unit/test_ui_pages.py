"""Every page, run by Streamlit itself without a browser, on a run with a lost node."""

import re
from datetime import UTC
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from culm.pipeline.money.codec import to_line
from culm.protos import coordinator_pb2 as pb
from culm.ui.screens.cost import bill
from culm.ui.screens.timetable import missing
from tests.unit.test_ui_history import START, a_run_with_a_lost_node, event

PATIENCE = 60.0
APP = Path(__file__).parents[2] / "ui" / "app.py"
SCRIPT = """
from pathlib import Path
from culm.ui.recorded import Recorded
from culm.ui.screens import {page}
{page}.show(Recorded(Path({log!r}), clock=iter([0.0] + [{at} - 2.0] * 100).__next__))
"""
PAGES = ["overview", "topology", "incidents", "nodes", "cost", "events"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    path.write_text("".join(to_line(event) + "\n" for event in a_run_with_a_lost_node()))
    return path


def add(log: Path, *events: Any) -> None:
    with log.open("a") as file:
        file.writelines(to_line(each) + "\n" for each in events)


def page(name: str, log: Path, at: float = 9.5, **query: str) -> AppTest:
    """The page as it is so many seconds into the run. A recording begins with its first commit, after 2 s."""
    app = AppTest.from_string(SCRIPT.format(page=name, log=str(log), at=at), default_timeout=PATIENCE)
    for key, value in query.items():
        app.query_params[key] = value
    app.run()
    assert not app.exception
    assert not app.error
    return app


def words(app: AppTest) -> str:
    """All that the page writes as HTML, without the markup."""
    bodies = (each.proto.body for each in app.get("html"))
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)) for body in bodies)


def figures(app: AppTest) -> dict[str, str]:
    bodies = " ".join(each.proto.body for each in app.get("html"))
    return {unescape(k): unescape(v) for k, v in re.findall(r"<dt>([^<]*)</dt><dd><b>([^<]*)</b>", bodies)}


def test_the_overview_tells_progress_and_money(log: Path) -> None:
    told = figures(page("overview", log))
    assert (told["Loss"], told["Samples a second"], told["Goodput"], told["1,000 samples"]) == (
        "1.6000",
        "5.33",
        "76.5%",
        "–",
    )


def test_the_overview_tells_what_was_evaluated_last(log: Path) -> None:
    add(log, event(20, 9.4, "evaluated", 4, step=4, loss=0.25, **{"metric.accuracy": 0.5}))
    told = figures(page("overview", log))
    assert (told["Evaluated: loss"], told["Evaluated: accuracy"]) == ("0.25", "0.5")


def test_the_overview_tells_the_epoch_and_the_learning_rate(log: Path) -> None:
    told = event(20, 9.4, "commit", 6, step=5, loss=1.5, learning_rate=0.0125)
    planned = event(21, 9.4, "plan", 6, steps=10, stage_count=2, stages="[]", samples_per_step=8, samples_per_epoch=32)
    add(log, told, planned)
    app = page("overview", log)
    assert "learning rate 0.0125" in words(app)
    assert "step 6 of 10, epoch 1.50" in words(app)


def test_a_finished_run_reads_as_a_success_with_what_there_is(log: Path) -> None:
    add(
        log,
        event(20, 9.2, "done", 5, step=5),
        event(21, 9.3, "left", 5, node="n1"),
        event(22, 9.4, "left", 5, node="n2"),
    )
    app = page("overview", log, 9.5)
    assert "finished" in words(app)
    assert "What there is" in words(app)
    assert "the nodes have gone, and the log names no checkpoint" in words(app)
    assert not app.warning
    assert "The nodes have gone: the run is over." in words(page("topology", log, 9.5))


def test_a_stage_without_a_standby_is_warned_of(log: Path) -> None:
    assert "Without a hot standby: stage 0" in words(page("topology", log, 7.0))
    assert "Without a hot standby" not in words(page("topology", log, 5.0))


def test_a_run_that_stands_still_says_what_it_waits_for(log: Path) -> None:
    add(log, event(20, 20.0, "stalled", 5, step=5, awaited="n2 with stage 1 (in 1F3 for 9 s)"))
    assert "Waiting for n2 with stage 1" in words(page("overview", log, 20.0))
    assert "No commit for" not in words(page("overview", log, 5.0))


def test_the_incidents_are_listed_with_their_times(log: Path) -> None:
    app = page("incidents", log)
    assert figures(app)["Resumed after"] == "90 ms"
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["what"], row["detected"], row["resumed"], row["restored"], row["redone"]) == (
        "n0 was lost",
        "40 ms",
        "90 ms",
        "3040 ms",
        "3",
    )


def test_an_incident_has_a_page_of_its_own(log: Path) -> None:
    told = words(page("incidents", log, incident="9"))
    for each in ("n0 was lost", "last sign of life", "declared lost", "+40 ms", "redundancy restored", "+3.0 s"):
        assert each in told
    assert "its stream broke" in told
    assert "instructions redone 3" in " ".join(told.split())


def test_a_link_to_an_incident_of_another_run_says_so(log: Path) -> None:
    assert "This run has no incident 77." in words(page("incidents", log, incident="77"))


def test_the_nodes_are_those_that_are_there(log: Path) -> None:
    before = page("nodes", log, 5.0).dataframe[0].value.to_dict("records")
    assert [(row["node"], row["stages"]) for row in before] == [("n0", "0"), ("n1", "1"), ("n2", "")]
    after = page("nodes", log).dataframe[0].value.to_dict("records")
    assert [(row["node"], row["stages"]) for row in after] == [("n1", "0, 1"), ("n2", "")]


def used(number: int, at: float, node: str) -> Any:
    """Half of two processors, a quarter of the memory."""
    split = dict.fromkeys(("forward", "backward", "redundant", "apply", "idle"), at / 10) | {"bubble": at / 2}
    took = {"seconds": at, "cpu_seconds": at, "processors": 2.0, "resident_bytes": 1 << 30, "memory_bytes": 1 << 32}
    return event(number, at, "usage", 5, node=node, incarnation=2, **split, **took)


def test_what_nodes_take_is_charted(log: Path) -> None:
    add(log, *(used(20 + i, 9.0 + i, "n1") for i in range(8)))
    app = page("nodes", log, 20.0)
    told = words(app)
    for title in ("CPU: share of the processors that it may use", "memory: share of what it may use", "bubbles"):
        assert title in told
    assert "accelerator" not in told
    assert "50%" in told
    row = next(row for row in app.dataframe[0].value.to_dict("records") if row["node"] == "n1")
    assert row["memory"] == "1.1 GB of 4.3 GB"


def test_a_recorded_run_says_that_it_has_no_log_lines(log: Path) -> None:
    assert "A recorded run has no log lines" in words(page("nodes", log))


def test_alerts_that_fire_stand_on_every_page(log: Path) -> None:
    add(log, event(20, 9.6, "rollback", 2, step=2, era=1), event(21, 30.0, "warned", 2, node="n1"))
    for name in ("overview", "nodes"):
        told = words(page(name, log, 20.0))
        assert "CulmRolledBack" in told
        assert "or nodes computed differently." in told
    assert "CulmRolledBack" not in words(page("overview", log, 40.0)), "the recording is over"


def test_no_cell_of_a_table_is_none(log: Path) -> None:
    for name in ("incidents", "nodes", "cost", "events"):
        for table in page(name, log).dataframe:
            assert not table.value.isna().any().any(), name


LIVE = """
from dataclasses import replace
from pathlib import Path
from culm.ui.recorded import Recorded
from culm.ui.screens.cost import to_come
from culm.ui.screens.widgets import preempt

class Live(Recorded):
    recorded = False

    def look(self):
        return replace(super().look(), problem={problem!r})

{part}(Live(Path({log!r}), clock=iter([0.0] + [3.0] * 100).__next__))
"""


@pytest.mark.parametrize("problem", ["", "The coordinator does not answer."])
def test_nothing_can_be_preempted_where_that_is_not_allowed(log: Path, problem: str) -> None:
    app = AppTest.from_string(
        LIVE.format(part="preempt", log=str(log), problem=problem), default_timeout=PATIENCE
    ).run()
    assert not app.exception
    assert not app.button
    assert ("--allow-kill" in words(app)) is not bool(problem)


@pytest.mark.parametrize("problem", ["", "The coordinator does not answer."])
def test_nobody_knows_the_end_while_the_coordinator_is_away(log: Path, problem: str) -> None:
    app = AppTest.from_string(LIVE.format(part="to_come", log=str(log), problem=problem), default_timeout=PATIENCE)
    assert ("a forecast takes" in words(app.run())) is not bool(problem)


def test_of_a_recorded_run_nothing_is_said_about_preempting(log: Path) -> None:
    app = page("nodes", log)
    assert not app.button
    assert "--allow-kill" not in words(app)


def test_a_narrow_page_tells_events_as_a_list(log: Path) -> None:
    bodies = [each.proto.body for each in page("events", log).get("html")]
    (told,) = [body for body in bodies if "culm-events" in body]
    assert told.count("<li>") == 9
    assert "</span> <b>lost</b><p>lost, because</p></li>" in told


def test_rows_that_are_missing_are_told_in_one_line() -> None:
    assert missing({"n1": "n1 does not answer"}) == "A row is missing: n1 does not answer"
    told = missing({f"n{i}": f"n{i} does not answer" for i in range(200)})
    assert told == (
        "200 rows are missing, those of n0, n1, n2, n3, n4, n5 and 194 more. The first one: n0 does not answer"
    )


def test_a_bill_ends_with_the_run() -> None:
    assert bill(pb.NodeCost(node="n0", joined=1.0), UTC, over=True)["to"] == "the run's end"
    assert bill(pb.NodeCost(node="n0", joined=1.0), UTC)["to"] == "now"


NEVER = """
from culm.ui.screens import {page}
from culm.ui.source import Live
{page}.show(Live("127.0.0.1:1"))
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("topology", "Nothing is known of the run yet."),
        ("incidents", "Nothing is known of the run yet."),
        ("nodes", "Nothing is known of the run yet."),
        ("cost", "No node has joined yet."),
        ("events", "No event is known yet."),
    ],
)
def test_where_nobody_has_ever_answered_there_is_no_empty_table(name: str, said: str) -> None:
    app = AppTest.from_string(NEVER.format(page=name), default_timeout=PATIENCE).run()
    assert not app.exception
    assert not app.dataframe
    assert said in words(app)
    assert figures(app).get("Spent", "–") == "–"


def test_the_cost_page_has_a_bill_for_every_node_and_names_those_without_a_price(log: Path) -> None:
    app = page("cost", log)
    assert [row["node"] for row in app.dataframe[-1].value.to_dict("records")] == ["n0", "n1", "n2"]
    assert "No price is known for n1, n2" in words(app)


def test_events_can_be_chosen_by_kind_and_by_words(log: Path) -> None:
    app = page("events", log)
    assert len(app.dataframe[0].value) == 9
    app.multiselect(key="kinds").set_value(["lost", "plan"]).run()
    assert set(app.dataframe[0].value["kind"]) == {"lost", "plan"}
    app.text_input(key="words").set_value("LOST, bec").run()
    assert list(app.dataframe[0].value["kind"]) == ["lost"]


@pytest.mark.parametrize("name", PAGES)
def test_before_anything_has_happened_every_page_is_there(name: str, log: Path) -> None:
    lines = log.read_text().splitlines(keepends=True)
    log.write_text(lines[0])
    page(name, log, 2.0)


BROKEN = """
from culm.ui.screens.widgets import guarded
def draw(source):
    raise ValueError("a [link](http://x)\\nand more")
guarded(draw)(None)
"""


def test_what_a_page_cannot_draw_is_one_line(log: Path) -> None:
    app = AppTest.from_string(BROKEN, default_timeout=PATIENCE).run()
    assert not app.exception
    assert app.error[0].value.startswith("This part of the page could not be drawn\\: a \\[link\\]")
    assert "\n" not in app.error[0].value


def whole(monkeypatch: pytest.MonkeyPatch, **settings: str) -> AppTest:
    for name, value in settings.items():
        monkeypatch.setenv(f"CULM_UI_{name}", value)
    app = AppTest.from_file(str(APP), default_timeout=PATIENCE).run()
    assert not app.exception
    return app


def test_the_app_shows_its_first_page(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Spent" in figures(whole(monkeypatch, LOG=str(log), SPEED=str(START)))


def test_a_log_that_is_none_is_said_in_one_line(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_text("nonsense\n")
    app = whole(monkeypatch, LOG=str(log), SPEED="1")
    assert "this is no event" in app.error[0].value


def test_a_run_of_the_folder_is_shown_by_its_link(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOG": "demo", "RUNS": str(log.parent)}.items():
        monkeypatch.setenv(f"CULM_UI_{name}", value)
    app = AppTest.from_file(str(APP), default_timeout=PATIENCE)
    app.query_params["run"] = "run"
    app.run()
    assert not app.exception
    assert "broke off" in words(app)
    app.button(key="back").click().run()
    assert "broke off" not in words(app)


RUNS = """
from pathlib import Path
from culm.ui.runs import Runs
from culm.ui.screens import runs
runs.show(Runs(Path({folder!r})))
"""


def test_ended_runs_are_compared(log: Path) -> None:
    app = AppTest.from_string(RUNS.format(folder=str(log.parent)), default_timeout=PATIENCE).run()
    assert not app.exception
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["run"], row["how"], row["steps"], row["last loss"]) == ("run", "broke off", "5", "1.6000")
    assert "None" not in str(row)


def test_the_cost_page_tells_what_is_to_come(log: Path) -> None:
    assert "3 calm steps are known beside the first one, and a forecast takes 5" in words(page("cost", log, at=5.0))
    planned = event(20, 9.5, "plan", 5, steps=100, stage_count=2, stages="[]", samples_per_step=8)
    add(log, planned, *(event(21 + i, 9.6 + 0.1 * i, "commit", 6 + i, step=5 + i, loss=1.5) for i in range(7)))
    told = figures(page("cost", log, at=10.15))
    # Five steps as of now, of 0.1 s; 84 as three of 1 s and these five. The lost node took 2 of 9.15 s.
    assert told["Time left"] == f"{(5 * 0.1 + 84 * 3.5 / 8) / (1 - 2 / 9.15):.0f} s"
    assert told["Still to pay"] == "–"
