"""Traces: three formats, and what is wrong with a bad one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.commands.replay import played
from culm.coordinator.state import BulksBefore
from culm.pipeline.errors import JobError
from culm.simulator.markets.trace import Change, at_most, bulks_before, hastened, read_trace, write_trace


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def test_events_as_the_field_writes_them(tmp_path: Path) -> None:
    path = written(tmp_path, "0,add,node1\n0,add,node2\n601200,remove,node1\n")
    assert read_trace(path) == [
        Change(at=0.0, kind="add", node="node1"),
        Change(at=0.0, kind="add", node="node2"),
        Change(at=601.2, kind="remove", node="node1"),
    ]


def test_counts_become_machines_and_which_of_them_go_is_drawn(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "2021-12-10, 13:07:45, 2\n2021-12-10, 13:08:45, 3\n2021-12-10, 13:08:15, 1\n2021-12-11, 13:07:45, 2\n",
    )
    changes = read_trace(path)
    assert [(c.at, c.kind) for c in changes] == [
        (0.0, "add"),
        (0.0, "add"),
        (60.0, "add"),
        (60.0, "remove"),  # the clock went back: it counts from now
        (60.0, "remove"),
        (86400.0, "add"),
    ]
    assert changes == read_trace(path)
    assert {tuple(c.node for c in read_trace(path, seed)) for seed in range(20)} > {tuple(c.node for c in changes)}


NAMES = st.text("abc-.", min_size=1, max_size=4)


@given(
    machines=st.dictionaries(NAMES, st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1),
    zone=st.sampled_from(["", "us-east-1a"]),
    price=st.one_of(st.none(), st.floats(0, 100)),
)
def test_what_is_written_reads_back(
    machines: dict[str, tuple[float, float]],
    zone: str,
    price: float | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    changes = []
    for name, (at, life) in machines.items():
        changes.append(Change(at=at, kind="add", node=name, zone=zone, price=price))
        changes.append(Change(at=at + life, kind="notice", node=name, zone=zone, seconds_left=30.0))
        changes.append(Change(at=at + life, kind="remove", node=name, zone=zone))
    changes.sort(key=lambda change: change.at)
    path = tmp_path_factory.mktemp("traces") / "trace"
    path.write_text(write_trace(changes))
    assert read_trace(path) == changes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the trace is empty; give one of"),
        ("0,add,node1\n5,gone,node1\n", "line 2: '5,gone,node1' is no event; write time_ms"),
        ("0,add,node1\n\n-5,remove,node1\n", "line 3: '-5,remove,node1' is no event"),
        ("²,add,node1\n", "line 1: '²,add,node1' is no event"),
        (f"{'9' * 400},add,node1\n", "is no event"),  # no float is so large
        (f"{'9' * 5000},add,node1\n", "is no event"),  # Python reads no number of so many digits
        ("2021-12-10, 13:07:45, 2\n2021-12-10, 13:07:46+00:00, 3\n", "line 2: '2021-12-10, 13:07:46+00:00, 3' is"),
        ("2021-12-10, 13:07:45, 1000001\n", "line 1: 1000001 machines cannot be"),  # there is a name for each
        ("hello\n", "line 1: 'hello' is neither an event nor a count"),
        ("2021-12-10, 13:07:45, 2\n2021-12-10, 13:07, many\n", "line 2: '2021-12-10, 13:07, many' is neither"),
        ("2021-12-10, 13:07:45, -2\n", "line 1: -2 machines cannot be"),
        ('{"at": 0, "kind": "add", "node": "a"}\n{"at": -1, "kind": "add", "node": "b"}\n', "line 2: at: input should"),
        ('{"at": 0, "kind": "add", "node": "a"}\n{"at"\n', "line 2: invalid JSON"),
        ('{"at": 0, "kind": "add", "name": "a"}\n', "line 1: node: field required"),
        ("0,add,node1\n0,add,node1\n", "node1 is added twice, at 0 s"),
        ("0,remove,node1\n", "node1 goes before it comes, at 0 s"),
    ],
)
def test_a_bad_trace_is_told_by_its_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(JobError) as caught:
        read_trace(written(tmp_path, text))
    assert says in str(caught.value)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="No such file"):
        read_trace(tmp_path / "nowhere")


def test_one_who_rents_two_takes_another_when_one_goes() -> None:
    trace = [
        Change(at=0.0, kind="add", node="a"),
        Change(at=0.0, kind="add", node="b"),
        Change(at=1.0, kind="add", node="c"),
        Change(at=2.0, kind="add", node="d"),
        Change(at=3.0, kind="remove", node="c"),
        Change(at=4.0, kind="remove", node="a"),
        Change(at=5.0, kind="add", node="e"),
    ]
    assert [(c.at, c.kind, c.node) for c in at_most(trace, 2)] == [
        (0.0, "add", "a"),
        (0.0, "add", "b"),
        (4.0, "remove", "a"),
        (4.0, "add", "d"),
    ]


def test_a_hastened_trace_shortens_its_pauses_and_keeps_its_bursts() -> None:
    names = [Change(at=at, kind="add", node=f"m{at}") for at in (0.0, 0.5, 100.5, 101.5, 1101.5)]
    assert [change.at for change in hastened(names, 100.0)] == pytest.approx([0.0, 0.005, 1.005, 1.015, 11.015])
    # Within a second of one another: as they were. Of 100 s one stays, and the other 99 pass in 0.99.
    played = [change.at for change in hastened(names, 100.0, burst=1.0)]
    assert played == pytest.approx([0.0, 0.5, 2.49, 3.49, 14.48])


def test_a_replay_costs_what_the_hours_of_its_trace_cost() -> None:
    """A trace that has prices itself was replayed at a hundredth of them."""
    trace = [Change(at=0.0, kind="add", node="a", price=0.9), Change(at=3600.0, kind="add", node="b")]
    changes, seconds = played(trace, 7200.0, 100.0, 0.0)
    assert seconds == pytest.approx(72.0)
    first, second = changes
    assert first.price is not None
    assert first.price * seconds == pytest.approx(0.9 * 7200.0)
    assert (second.at, second.price) == (36.0, None)


def test_of_each_bulk_its_share_of_the_machines_is_told() -> None:
    """Removals within a second of the one before are one bulk."""
    added = [Change(at=0.0, kind="add", node=f"n{i}") for i in range(10)]
    gone = [(3600.0, 0), (3600.9, 1), (3601.8, 2), (7200.0, 3)]
    changes = [*added, *(Change(at=at, kind="remove", node=f"n{i}") for at, i in gone)]
    assert bulks_before(changes) == BulksBefore((3 / 10, 1 / 7), 2.0)
    assert bulks_before(added) == BulksBefore((), 0.0)
