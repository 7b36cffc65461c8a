"""A timetable as a chart, and its page."""

from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from culm.pipeline.critical_path import critical_path
from culm.pipeline.ideal_step import ideal_of
from culm.pipeline.schedule import Schedule
from culm.pipeline.timetable import USES, Timetable
from culm.ui.charts import config
from culm.ui.gantt import MOST, WAITING, gantt, path_lines, shares
from culm.ui.palette import WORK
from tests.unit.hand_made import a_step, lanes
from tests.unit.test_ui_pages import figures, words


def test_every_node_has_a_row_and_its_ideal_has_one() -> None:
    step = a_step()
    spec = gantt(step, ideal_of(step))
    bars, names, commit = spec["layer"]
    rows = ["n0 · 0", "n1 · 1", " ", "ideal n0", "ideal n1"]
    assert bars["encoding"]["y"]["scale"]["domain"] == rows
    assert {bar["row"] for bar in bars["data"]["values"]} == {*rows} - {" "}
    assert bars["params"][0]["bind"] == "scales"
    assert "0F0" in {text["what"] for text in names["data"]["values"]}
    assert commit["data"]["values"][0]["at"] == 10_150.0
    assert all(0.0 <= bar["begin"] <= bar["end"] <= 10_500.0 for bar in bars["data"]["values"])


def test_a_name_is_shown_where_its_bar_has_room_for_it() -> None:
    _, names, _ = gantt(a_step(), None)["layer"]
    shown = names["encoding"]["opacity"]
    assert "scale('x', datum.ms)" in shown["condition"]["test"], "by pixels, so also on a phone and after zooming"
    assert shown["value"] == 0
    assert all(text["ms"] > 0 for text in names["data"]["values"])


def test_it_looks_as_the_other_charts_do() -> None:
    spec = gantt(a_step(), None, "dark")
    assert spec["config"] == config("dark")
    titles = {layer["encoding"]["x"]["title"] for layer in spec["layer"]}
    assert titles == {"milliseconds since the step began"}, "layers without one would take it from the others"
    legend = spec["layer"][0]["encoding"]["color"]["legend"]
    assert legend["columns"] * legend["labelLimit"] <= 360, "a phone shows all of it"


def test_every_use_but_the_gaps_has_a_colour_of_its_own() -> None:
    assert {*WORK, *WAITING} == {*USES} - {"between"}
    for scheme in ("light", "dark"):
        assert len({colour.on(scheme) for colour in WORK.values()}) == len(WORK)


def test_forty_nodes_have_lower_rows_without_names() -> None:
    many = tuple(replace(lane, node=f"{lane.node}-{i}") for i in range(20) for lane in lanes())
    spec = gantt(Timetable(step=1, schedule=Schedule(2), lanes=many), None)
    assert spec["height"] == {"step": 14}
    assert len(spec["layer"]) == 2
    assert len(spec["layer"][0]["encoding"]["y"]["scale"]["domain"]) == 40


def test_of_a_huge_step_the_longest_bars_are_shown() -> None:
    many = tuple(replace(lane, node=f"{lane.node}-{i}") for i in range(1000) for lane in lanes())
    bars = gantt(Timetable(step=1, schedule=Schedule(2), lanes=many), None)["layer"][0]["data"]["values"]
    assert len(bars) == MOST


def test_the_tables_tell_where_the_time_went() -> None:
    step = a_step()
    n0, _ = shares(step, ideal_of(step))
    assert (n0["node"], n0["stages"], n0["forward"], n0["backward"]) == ("n0", "0", 2000.0, 4000.0)
    assert shares(step, None)[0].get("ideal bubble") is None
    lines = path_lines(critical_path(step))
    assert lines[0] == {"what": "backward", "node": "n1", "ms": 4000.0, "times": 2}


PAGE = """
from culm.pipeline.rpc.timetables import Gathered
from culm.ui.screens.timetable import shown
from tests.unit.hand_made import a_step
shown(Gathered((a_step(),), range(3, 8), {"n2": "n2 does not answer"}), "step")
"""


def test_the_page_shows_a_step() -> None:
    app = AppTest.from_string(PAGE, default_timeout=60.0).run()
    assert not app.exception
    assert figures(app)["Step 7"] == "10.5 s"
    assert "n2 does not answer" in app.warning[0].value
    assert "steps 3 to 7" in app.caption[0].value
    assert len(app.dataframe) == 2
    assert "1.18 times the ideal" in words(app)


def test_an_ideal_without_tensor_workers_is_no_aim() -> None:
    app = AppTest.from_string(PAGE.replace('"step")', '"epoch", helped=True)'), default_timeout=60.0).run()
    assert not app.exception
    assert "times the ideal" not in words(app)
    assert "of the servers' own work: workers tell none" in words(app)


RECORDED = """
from pathlib import Path
from culm.ui.recorded import DEMO, Recorded
from culm.ui.screens import timetable
timetable.show(Recorded(DEMO))
"""


def test_a_recording_has_no_timetable() -> None:
    app = AppTest.from_string(RECORDED, default_timeout=60.0).run()
    assert not app.exception
    assert "There is none in a recording" in words(app)
    assert not app.number_input, "there is no step to choose"


LIVE = """
from culm.pipeline.text import plain
from culm.protos import coordinator_pb2 as pb
from culm.ui.look import Look
from culm.ui.screens import timetable

class Somebody:
    name = {name!r}
    still = False

    def look(self):
        status = pb.GetStatusResponse(phase="running")
        status.plan.stages.add(first_layer=0, end_layer=1, owners=["n0"])
        status.plan.members.add(node="n0", incarnation=1, address={address!r})
        return Look(status=status, at=1.0, problem={problem!r})

timetable.show(Somebody())
"""


def test_a_node_is_asked(tmp_path: Path) -> None:
    from tests.integration.test_timetables import served

    server, address = served(5)
    try:
        app = AppTest.from_string(
            LIVE.format(name=str(tmp_path), address=address, problem=""), default_timeout=60.0
        ).run()
        assert not app.exception
        assert "Step 4" in figures(app)
        app.number_input(key="timetable_step").set_value(2).run()
        assert "Step 2" in figures(app)
        app.number_input(key="timetable_step").set_value(50).run()
        assert "step 50 is not over yet" in app.warning[0].value
    finally:
        server.stop(None)


def test_nobody_answers(tmp_path: Path) -> None:
    script = LIVE.format(name=str(tmp_path), address="127.0.0.1:1", problem="")
    app = AppTest.from_string(script, default_timeout=60.0).run()
    assert not app.exception
    assert "no node answers" in app.warning[0].value


def test_nobody_is_asked_once_the_run_is_over_and_all_have_gone(tmp_path: Path) -> None:
    script = LIVE.format(name=str(tmp_path), address="127.0.0.1:1", problem="nobody answers").replace("running", "done")
    app = AppTest.from_string(script, default_timeout=60.0).run()
    assert not app.exception
    assert not app.warning
    assert "nobody tells timetables any more" in words(app)


@pytest.mark.parametrize("ideal", [True, False])
def test_a_step_that_nobody_ran_is_an_empty_chart(ideal: bool) -> None:
    nothing = Timetable(step=0, schedule=Schedule(1), lanes=())
    assert gantt(nothing, ideal_of(nothing) if ideal else None)["layer"][0]["data"]["values"] == []
