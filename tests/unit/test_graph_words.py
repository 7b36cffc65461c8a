"""In what words a terminal tells a graph's run: graph servers, chunks and epochs, and the job's metrics."""

import pytest
from rich.console import Console

from culm.coordinator.replicas import laid_out, moved_in_words
from culm.coordinator.standbys import repair
from culm.pipeline.counting import STEPS, of_chunks, ranges
from culm.protos import coordinator_pb2 as pb
from culm.terminal.outcome import Outcome
from culm.terminal.progress import Lines, nodes_table, tensor_workers_in_words

TWO_LAYERS = [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("numbers", "said"),
    [([], ""), ([4], "4"), ([0, 1, 2, 3], "0-3"), ([6, 0, 1], "0-1, 6"), ([1, 3, 5], "1, 3, 5")],
)
def test_neighbours_are_told_together(numbers: list[int], said: str) -> None:
    assert ranges(numbers) == said


def test_what_moves_is_told_in_the_runs_own_words() -> None:
    before = laid_out([["n0", "n0"], ["n1", "n1"]], TWO_LAYERS, 8, [1.0, 1.0])[0]
    after = laid_out([["n0", "n0"]], TWO_LAYERS, 8, [1.0, 1.0])[0]
    assert moved_in_words(0, before, after, of_chunks(8)) == "n0 runs layer 0 of chunks 4-7 in place of n1"
    assert moved_in_words(0, before, after, STEPS) == "n0 runs stage 0 of pipelines 4, 5, 6, 7 in place of n1"


def test_a_new_copy_of_a_layer_is_told_as_one() -> None:
    stages = laid_out([["n0", "n0"]], TWO_LAYERS, 8, [1.0, 1.0])
    assert repair(stages, ["n0", "n1"], counting=of_chunks(8))[1] == [
        "n1, a spare, is seeded as standby of layer 0",
        "n1, which holds the fewest copies, is seeded as standby of layer 1",
    ]


def status(chunks: int) -> pb.GetStatusResponse:
    found = pb.GetStatusResponse(step=11, steps=60, samples_per_second=80.0)
    if chunks:
        found.graph.chunks = chunks
    for stage in range(2):
        found.plan.stages.add(first_layer=stage, end_layer=stage + 1, owners=["n0"] * 4 + ["n1"] * 4)
    for name in ("n0", "n1"):
        found.nodes.add(id=name, state="active", stages=[0, 1])
    return found


def shown(found: pb.GetStatusResponse) -> str:
    console = Console(width=200, record=True)
    with console.capture() as capture:
        console.print(nodes_table(found))
    return capture.get()


def test_a_server_is_shown_with_its_chunks() -> None:
    table = shown(status(chunks=8))
    assert "graph server" in table
    assert "chunks" in table
    assert "0-3" in table
    assert "4-7" in table
    assert "stage" not in table
    table = shown(status(chunks=0))
    assert "stages" in table
    assert "0 (p0, p1, p2, p3)" in table


def test_tensor_workers_are_counted_once_though_each_offers_itself_to_every_server() -> None:
    found = status(chunks=8)
    assert not tensor_workers_in_words(found)
    for node, done in zip(found.nodes, (30, 12), strict=True):
        node.resources.tensor_workers.workers = 2
        node.resources.tensor_workers.done = done
    assert tensor_workers_in_words(found) == "tensor workers: 2, 42 tasks done"
    found.workers_wanted = 3
    found.nodes[0].resources.tensor_workers.repeated = 1
    said = "tensor workers: 2 of 3 that are wanted, 42 tasks done, 1 of them given to a second worker"
    assert tensor_workers_in_words(found) == said


@pytest.mark.parametrize(("chunks", "said"), [(8, "epoch 11/60"), (0, "step 11/60")])
def test_the_jobs_metrics_are_told_on_the_way(chunks: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(losses=[0.5] * 11, metrics={10: {"accuracy": 0.875}})
    committed = pb.ListEventsResponse(kind="commit", fields={"step": "10", "loss": "0.5"})
    Lines("blocks").watch(status(chunks), [committed], outcome)
    assert f"blocks | {said}  loss 0.5000  accuracy 0.8750" in capsys.readouterr().err
