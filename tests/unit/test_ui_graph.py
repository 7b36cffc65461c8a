"""The dashboard of a run on a graph: its chunks, its queues, its workers, and its words."""

from pathlib import Path
from typing import Any

import pytest

from culm.pipeline.counting import STEPS, amount, of_chunks
from culm.pipeline.money.codec import to_line
from culm.pipeline.resources import TensorWorkers
from culm.protos import coordinator_pb2 as pb
from culm.ui.chunk_map import chunk_map, chunks_by_server, in_ranges
from culm.ui.tensor_work import TensorWork, age_in_words, workers_in_words
from tests.unit.test_ui_history import event
from tests.unit.test_ui_pages import figures, page, words

TWO = '[[0, 1, ["n0", "n0", "n1", "n1"], []], [1, 2, ["n0", "n0", "n1", "n1"], []]]'
ALONE = TWO.replace("n1", "n0")


def planned(number: int, at: float, step: int, stages: str = TWO) -> Any:
    graph = {"chunks": 4, "staleness": 1, "refresh": 10, "fresh_from": 58}
    facts = {"steps": 60, "stage_count": 2, "samples_per_step": 4, "samples_per_epoch": 4, "stages": stages}
    return event(number, at, "plan", step, **facts, **graph)


def used(number: int, at: float, server: str, waiting: int, done: int, incarnation: int = 1) -> Any:
    split = dict.fromkeys(("forward", "backward", "redundant", "apply", "bubble", "idle"), at)
    work = {"workers": 2, "tasks_waiting": waiting, "tasks_done": done, "tasks_repeated": 1}
    sums = {"worker_seconds": done / 10, "gigabyte_seconds": done / 50}
    return event(number, at, "usage", 3, node=server, incarnation=incarnation, seconds=at, **split, **work, **sums)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    events = [event(1 + i, 0.1, "joined", node=f"n{i}", incarnation=1, address="h:1") for i in range(2)]
    events.append(planned(3, 1, 0))
    for step in range(4):
        at = 2.0 + 2 * step
        events.append(event(10 + 10 * step, at, "commit", step + 1, step=step, loss=1.0))
        for i, server in enumerate(("n0", "n1")):
            events.append(used(11 + 10 * step + i, at, server, waiting=3 + i, done=100 * (step + 1)))
    path = tmp_path / "run.jsonl"
    path.write_text("".join(to_line(each) + "\n" for each in events))
    return path


def add(log: Path, *events: Any) -> None:
    with log.open("a") as file:
        file.writelines(to_line(each) + "\n" for each in events)


def test_the_page_tells_chunks_queues_and_work(log: Path) -> None:
    app = page("graph", log, 7.9)  # the recording ends with the fourth commit
    told = figures(app)
    assert told["Chunks"] == "4"
    assert told["Values of other chunks"] == "1 epoch old"
    assert (told["Tensor workers"], told["Tasks waiting"]) == ("2", "7")
    assert (told["Tasks done"], told["Workers' time"], told["GB-seconds"]) == ("600", "1 min 0 s", "12")
    assert told["Epochs a second"] == "0.5"
    text = words(app)
    for each in ("of 2 graph servers", "at each of 2 servers", "2 repeated", "fresh again in epoch 10", "n0 2 chunks"):
        assert each in " ".join(text.split())
    for title in ("tasks that wait for a worker", "tensor workers at a server", "tasks a second", "workers that have"):
        assert title in text


def test_the_table_has_a_line_for_each_server(log: Path) -> None:
    rows = page("graph", log, 7.9).dataframe[0].value.to_dict("records")
    assert [(row["server"], row["chunks"], row["tasks waiting"], row["done"]) for row in rows] == [
        ("n0", "0–1", "3", "300"),
        ("n1", "2–3", "4", "300"),
    ]


def test_chunks_of_a_lost_server_are_the_others(log: Path) -> None:
    add(log, event(60, 9, "lost", 4, node="n1", stages="0,1", detect_ms="5"), planned(61, 9.1, 4, ALONE))
    add(log, event(62, 12, "commit", 5, step=4, loss=1.0))
    for name in ("graph", "topology"):
        told = " ".join(words(page(name, log, 11)).split())
        assert "n0 4 chunks" in told
        assert "n1 lost" in told


def test_epochs_are_spoken_of_where_others_have_steps(log: Path) -> None:
    add(log, event(60, 9, "lost", 4, node="n1", stages="0,1", detect_ms="5"), planned(61, 9.1, 4, ALONE))
    add(log, event(62, 12, "commit", 5, step=4, loss=1.0), event(63, 20, "stalled", 5, step=5, awaited="n0"))
    overview = page("overview", log, 12)
    told = figures(overview)
    assert "Epochs a second" in told
    assert "An epoch" in told
    assert not any("amples" in name for name in told)
    assert "epoch 5 of 60" in words(overview)
    assert overview.segmented_control(key="over").options == ["epoch", "time"]
    assert "An epoch" in figures(page("cost", log, 12))
    for name in ("incidents", "events"):
        assert "epoch" in page(name, log, 12).dataframe[0].value.columns
    assert "epoch 4" in " ".join(words(page("incidents", log, 12, incident="60")).split())
    rows = page("nodes", log, 12).dataframe[0].value.to_dict("records")
    assert [row["chunks"] for row in rows] == ["0–3"]


def test_the_end_has_no_queue(log: Path) -> None:
    add(log, event(60, 9, "done", 60, step=60))
    told = figures(page("graph", log, 9))
    assert (told["Tasks waiting"], told["Tensor workers"], told["Tasks done"]) == ("–", "–", "800")


def test_a_process_that_was_started_again_is_added() -> None:
    work = TensorWork()
    work.take("n0", 1, TensorWorkers(done=5, seconds=1.0, gigabyte_seconds=0.5))
    work.take("n0", 1, TensorWorkers(done=7, seconds=2.0, gigabyte_seconds=1.0))
    work.take("n0", 1, TensorWorkers(done=5, seconds=1.0))  # the log tells what an open page has seen already
    work.take("n0", 2, TensorWorkers(done=1, repeated=1, seconds=0.5))
    work.take("n0", 1, TensorWorkers(done=9, seconds=3.0))  # of a process that is gone
    work.take("n1", 1, TensorWorkers(done=10, seconds=4.0))
    assert work.total() == TensorWorkers(done=18, repeated=1, seconds=6.5, gigabyte_seconds=1.0)


def status_of(step: int, most: int = 1) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        step=step, graph=pb.GraphStatus(chunks=4, staleness=most, refresh=10 if most else 1, fresh_from=58)
    )


@pytest.mark.parametrize(
    ("step", "most", "age", "note"),
    [
        (3, 0, "of this epoch", "staleness 0: a chunk waits for others"),
        (0, 1, "of this epoch", "staleness 1: fresh in epoch 10"),
        (3, 1, "1 epoch old", "staleness 1: fresh again in epoch 10"),
        (11, 3, "1 epoch old", "staleness 3: fresh again in epoch 20"),
        (14, 3, "3 epochs old", "staleness 3: fresh again in epoch 20"),
        (55, 1, "1 epoch old", "staleness 1: fresh again in epoch 58"),
        (58, 1, "of this epoch", "staleness 1: fresh to the end"),
    ],
)
def test_the_age_of_values_follows_from_the_job(step: int, most: int, age: str, note: str) -> None:
    assert age_in_words(status_of(step, most)) == (age, note)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ([], ("0", "no server has told of any yet")),
        ([0, 0], ("0", "the graph servers compute all themselves")),
        ([2, 2], ("2", "at each of 2 servers")),
        ([1, 3], ("1–3", "at a server")),
        ([4], ("4", "at the server")),
    ],
)
def test_workers_are_counted_at_servers(counts: list[int], told: tuple[str, str]) -> None:
    status = pb.GetStatusResponse()
    for count in counts:
        node = status.nodes.add()
        node.resources.tensor_workers.workers = count
    assert workers_in_words(status) == told


def test_the_map_names_chunks_alone_or_in_ranges() -> None:
    assert in_ranges([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    status = pb.GetStatusResponse()
    status.plan.stages.add(owners=["a"] * 600 + ["b"] * 600)
    for name in ("a", "b"):
        status.nodes.add(id=name, state="active")
    assert chunks_by_server(status)["b"] == list(range(600, 1200))
    assert "0–599" in chunk_map(status, [])
    assert "600–1199" in chunk_map(status, [])


def test_a_graph_counts_epochs() -> None:
    assert of_chunks(0) is STEPS
    assert (of_chunks(8).step, of_chunks(8).samples) == ("epoch", 8)
    assert [amount(x) for x in (0.0, 0.0123, 9.5, 1234.5)] == ["0", "0.0123", "9.5", "1,234"]


def test_the_workers_that_a_run_wants_are_told_beside_those_that_are_there() -> None:
    node = pb.NodeStatus(id="n0", resources=pb.Resources(tensor_workers=pb.TensorWorkers(workers=2)))
    status = pb.GetStatusResponse(nodes=[node], workers_wanted=4)
    assert workers_in_words(status) == ("2", "at the server; 4 wanted")
