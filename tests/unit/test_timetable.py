"""A step as a timetable: when it was, who did what, what it waited for, and its ideal."""

from dataclasses import replace
from itertools import pairwise

import pytest

from culm.pipeline.critical_path import by_kind, critical_path
from culm.pipeline.ideal_step import ideal_of
from culm.pipeline.instruction import Duty
from culm.pipeline.timetable import Arrival, Doing, TimedSpan, Timetable, are_apart
from tests.short import activation, reduced_gradient, unit
from tests.unit.hand_made import ZERO, a_step, did, ran


def test_a_step_lasts_from_its_first_forward_to_its_last_apply() -> None:
    step = a_step()
    assert (step.begin, step.end, step.committed) == (ZERO, ZERO + 10.5, ZERO + 10.15)
    assert step.owners() == {Duty(0, 0): "n0", Duty(0, 1): "n1"}
    assert not step.is_empty


def test_the_uses_of_a_nodes_time_are_the_whole_step() -> None:
    step = a_step()
    n0, n1 = (step.shares(lane) for lane in step.lanes)
    assert sum(n0.values()) == pytest.approx(10.5)
    assert sum(n1.values()) == pytest.approx(10.5)
    assert [n0["forward"], n0["backward"], n0["bubble"]] == pytest.approx([2.0, 4.0, 3.3])
    assert n1["bubble"] == pytest.approx(1.2), "what lies before the step does not count"


def test_spans_have_the_names_of_instructions() -> None:
    names = [span.name for span in a_step().lanes[0].spans]
    assert names[:4] == ["0F0", "0F1", "waits for 1B0", "0B0"]
    assert names[-3:] == ["reduce 0", "waits for the commit", "apply"]
    assert are_apart(a_step().lanes[0].spans)
    assert not are_apart([ran(0, "F", 0, 0.0, 1.0), ran(0, "F", 1, 0.9, 2.0)])


def test_the_ideal_does_the_same_work_without_ways() -> None:
    ideal = ideal_of(a_step())
    assert ideal is not None
    assert ideal.seconds == pytest.approx(1.0 + 2 * (0.95 + 2.0) + 2.0)
    assert ideal.busiest_seconds == pytest.approx(6.0)
    assert ideal.bubble("n0") == pytest.approx(ideal.seconds - 6.0)


def test_without_a_node_there_is_no_ideal() -> None:
    step = a_step()
    first = Timetable(step=7, schedule=step.schedule, lanes=step.lanes[1:])
    assert ideal_of(first) is None


def test_a_step_in_which_a_node_was_lost_has_no_ideal() -> None:
    """Some instructions are missing, or ran twice."""
    step = a_step()
    n0, n1 = step.lanes
    twice = replace(n0, spans=(*n0.spans, ran(1, "F", 0, 11.0, 12.0)))
    missing = replace(n1, spans=tuple(s for s in n1.spans if s.name != "1F1"))
    assert ideal_of(Timetable(step=7, schedule=step.schedule, lanes=(twice, n1))) is None
    assert ideal_of(Timetable(step=7, schedule=step.schedule, lanes=(n0, missing))) is None


def test_the_critical_path_is_all_of_the_step_up_to_the_first_stages_apply() -> None:
    path = critical_path(a_step())
    assert all(a.end == pytest.approx(b.begin) for a, b in pairwise(path))
    assert (path[0].begin, path[-1].end) == (ZERO, ZERO + 10.4)
    told = {what: (round(seconds, 6), count) for what, (seconds, count) in by_kind(path).items()}
    assert told == {
        "forward": (2.9, 3),
        "travel": (0.2, 2),
        "taken": (0.2, 2),
        "between": (0.4, 4),
        "backward": (6.0, 3),
        "reduce": (0.1, 1),
        "ready": (0.05, 1),
        "commit": (0.4, 1),
        "applied": (0.05, 1),
        "apply": (0.1, 1),
    }


def test_a_node_that_reports_late_is_on_the_path() -> None:
    """A standby is ready when it has the gradient: n1's, of stage 0."""
    step = a_step()
    n0, n1 = step.lanes
    reduced = replace(n1, ready=(*n1.ready, (0, ZERO + 10.05)))
    path = critical_path(Timetable(step=7, schedule=step.schedule, lanes=(n0, reduced)))
    commit = next(leg for leg in path if leg.what == "commit")
    assert commit.name == "stage 0 of n1 is ready"
    assert commit.seconds == pytest.approx(0.2)


def test_a_standby_reports_a_gradient_that_comes_while_it_runs_ahead() -> None:
    step = a_step()
    n0, n1 = step.lanes
    ahead = TimedSpan(doing=Doing.REDUNDANT, begin=ZERO + 9.0, end=ZERO + 10.15, instruction=unit(0, "F", 1))
    busy = did(Doing.COMMIT, 7.7, 9.0)
    spans = (*n1.spans[:-2], busy, ahead, n1.spans[-1])
    came = Arrival(reduced_gradient(0, 0), ZERO + 10.0)
    standby = replace(n1, spans=spans, arrivals=(*n1.arrivals, came), ready=(*n1.ready, (0, ZERO + 10.05)))
    path = critical_path(Timetable(step=7, schedule=step.schedule, lanes=(n0, standby)))
    assert all(a.end == pytest.approx(b.begin) for a, b in pairwise(path))
    last = [(leg.what, leg.node, round(leg.seconds, 6)) for leg in path[-6:]]
    assert last == [
        ("reduce", "n0", 0.1),
        ("travel", "n1", 0.2),
        ("ready", "n1", 0.05),
        ("commit", "n0", 0.2),
        ("applied", "n0", 0.05),
        ("apply", "n0", 0.1),
    ]


def test_a_node_that_starts_late_by_itself_is_on_the_path() -> None:
    """It applied the step before for long: what it takes had been there."""
    step = a_step()
    n0, n1 = step.lanes
    late = replace(n0, spans=n0.spans[:1]), replace(n1, spans=(ran(1, "F", 0, 1.5, 2.5), did(Doing.APPLY, 3.0, 3.1)))
    path = critical_path(Timetable(step=7, schedule=step.schedule, lanes=late))
    assert [(leg.what, round(leg.seconds, 6)) for leg in path] == [
        ("forward", 1.0),
        ("travel", 0.1),
        ("taken", 0.4),
        ("forward", 1.0),
        ("between", 0.5),
        ("apply", 0.1),
    ]
    early = replace(late[1], arrivals=(), spans=(ran(1, "B", 0, 0.5, 2.5), did(Doing.APPLY, 3.0, 3.1)))
    path = critical_path(Timetable(step=7, schedule=step.schedule, lanes=(late[0], early)))
    assert (path[0].what, path[0].begin, path[0].end) == ("between", ZERO, ZERO + 0.5)


def test_a_tensor_that_was_there_before_it_was_made_shows_that_clocks_differ() -> None:
    step = a_step()
    assert step.least_skew() == 0.0
    n0, n1 = step.lanes
    early = replace(n1, arrivals=(Arrival(activation(0, 0), ZERO + 0.7), *n1.arrivals[1:]))
    assert Timetable(step=7, schedule=step.schedule, lanes=(n0, early)).least_skew() == pytest.approx(0.3)


def test_an_empty_step_has_no_path() -> None:
    nothing = Timetable(step=0, schedule=a_step().schedule, lanes=())
    assert nothing.is_empty
    assert (nothing.seconds, critical_path(nothing), ideal_of(nothing)) == (0.0, (), None)


def test_what_is_waited_for_has_a_name() -> None:
    assert did(Doing.BUBBLE, 0, 1).name == "waits for a tensor"
    assert did(Doing.SUM, 0, 1, stage=2).name == "sum 2, bucket 0"
