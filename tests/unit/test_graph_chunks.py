"""A graph's chunks: every edge is in one of them, with its right ends; and layers on chunks are those on the graph."""

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from culm.graphs import GAT, GCN, Graph, GraphLayer
from culm.graphs.datasets import blocks
from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job, parse_job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import dataset_of
from culm.pipeline.user_code.graph.chunks import ChunkedGraph
from culm.pipeline.user_code.graph.partition import PARTITIONERS
from culm.pipeline.user_code.graph.passes import sources_of
from culm.pipeline.user_code.model import ModelSource
from culm.pipeline.user_code.samples import samples_of

VERTICES, CHUNKS = 90, 5


def graph_of(vertices: int, ends: list[tuple[int, int]], seed: int = 0) -> Graph:
    """With an own weight for each edge, so that one is told from another."""
    both = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2)
    draw = torch.Generator().manual_seed(seed)
    return Graph(
        sources=both[:, 0].contiguous(),
        targets=both[:, 1].contiguous(),
        features=torch.randn(vertices, 6, generator=draw),
        labels=torch.arange(vertices) % 3,
        train=torch.arange(vertices) % 2 == 0,
        weights=torch.arange(1, len(ends) + 1, dtype=torch.float32),
    )


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Few edges or many, loops and edges that are there twice among them; some vertices have none."""
    vertices = draw(st.integers(1, 14))
    end = st.integers(0, vertices - 1)
    return graph_of(vertices, draw(st.lists(st.tuples(end, end), max_size=40)))


def edges_of(chunked: ChunkedGraph) -> Counter[tuple[int, int, float]]:
    """As the chunks have them: numbers in the graph of both ends, and the weight."""
    found: Counter[tuple[int, int, float]] = Counter()
    for number in range(len(chunked)):
        chunk = chunked.chunk(number)
        taken = [chunked.chunk(q).vertices[rows] for q, (rows, _) in chunk.taken.items()]
        numbers = torch.cat([chunk.vertices, *taken])
        assert len(numbers) == chunk.source_count
        assert list(chunk.taken) == sorted(chunk.taken)
        ends = zip(numbers[chunk.sources].tolist(), chunk.vertices[chunk.targets].tolist(), strict=True)
        found.update((s, t, w) for (s, t), w in zip(ends, chunk.weights.tolist(), strict=True))
    return found


@pytest.mark.parametrize("by", PARTITIONERS)
@settings(max_examples=60)
@given(graph=graphs(), data=st.data())
def test_every_edge_is_in_one_chunk_with_its_ends(by: str, graph: Graph, data: st.DataObject) -> None:
    if by == "metis":
        pytest.importorskip("pymetis", reason="the partitioner metis needs pymetis")
    count = data.draw(st.integers(1, graph.vertices))
    chunked = ChunkedGraph(graph, count, by)
    assert len(chunked) == count
    vertices = torch.cat([chunked.chunk(p).vertices for p in range(count)])
    assert sorted(vertices.tolist()) == list(range(graph.vertices)), "each vertex is in one chunk"
    assert all(chunked.chunk(p).size for p in range(count)), "none is empty"
    assert graph.weights is not None
    wanted = zip(graph.sources.tolist(), graph.targets.tolist(), graph.weights.tolist(), strict=True)
    assert edges_of(chunked) == Counter(wanted)


@pytest.mark.parametrize("by", PARTITIONERS)
@settings(max_examples=60)
@given(graph=graphs(), data=st.data())
def test_rows_that_are_taken_are_the_same_from_both_sides(by: str, graph: Graph, data: st.DataObject) -> None:
    """A chunk's server asks with the taker's chunk not made: what it answers is what the taker expects."""
    if by == "metis":
        pytest.importorskip("pymetis", reason="the partitioner metis needs pymetis")
    count = data.draw(st.integers(1, graph.vertices))
    taker, giver = ChunkedGraph(graph, count, by), ChunkedGraph(graph, count, by)
    for p, before in enumerate(taker.neighbours.before):
        assert p in before
        assert before == tuple(sorted({p, *taker.chunk(p).taken}))
        for q in before:
            asked = giver.rows(p, of=q)
            wanted = taker.chunk(p).taken[q].rows if q != p else torch.arange(taker.chunk(p).size)
            assert asked.tolist() == wanted.tolist()
    for q, after in enumerate(taker.neighbours.after):
        assert after == tuple(p for p, before in enumerate(taker.neighbours.before) if q in before)


def test_a_vertex_adds_up_its_neighbours_in_the_order_of_their_numbers() -> None:
    graph = graph_of(6, [(5, 0), (1, 0), (3, 0), (4, 2), (0, 2)])
    chunked = ChunkedGraph(graph, 1)
    assert chunked.chunk(0).sources.tolist() == [1, 3, 5, 0, 4]
    assert chunked.chunk(0).starts.tolist() == [0, 3, 3, 5, 5, 5, 5]


def test_a_vertex_alone_in_each_chunk() -> None:
    graph = graph_of(4, [(0, 0), (1, 0), (1, 0), (3, 2)])
    chunked = ChunkedGraph(graph, 4)
    assert chunked.neighbours.before == ((0, 1), (1,), (2, 3), (3,))
    assert edges_of(chunked)[1, 0, 2.0] == 1
    with pytest.raises(JobError, match=r"5 chunks are asked for, and the graph has 4 vertices; set it to 4 or less"):
        ChunkedGraph(graph, 5)


def job_of(layers: str = "culm.graphs:gcn", more: str = "", graph: str = "", steps: int = 5) -> Job:
    return parse_job(f"""
[job]
name = "chunks"
steps = {steps}
[graph]
data = "culm.graphs.datasets:blocks"
args = {{ vertices = {VERTICES}, classes = 3, features = 6 }}
layers = 2
chunks = {CHUNKS}
{graph}
[model]
layers = "{layers}"
args = {{ sizes = [6, 8, 3]{more} }}
[train]
loss = "culm.graphs:cross_entropy"
optimizer = "torch.optim:SGD"
optimizer_args = {{ lr = 0.5, momentum = 0.9 }}
""")


def dense(graph: Graph) -> torch.Tensor:
    """[V, V]: the weight of the edge from a column to a row."""
    assert graph.weights is not None
    found = torch.zeros(graph.vertices, graph.vertices)
    return found.index_put((graph.targets, graph.sources), graph.weights, accumulate=True)


def dense_gat(layer: GAT, graph: Graph, x: torch.Tensor) -> torch.Tensor:
    """Attention over the matrix of all pairs, minus infinity where there is no edge."""
    z = layer.linear(x).view(len(x), layer.heads, layer.outputs)
    logits = (z * layer.target).sum(-1)[:, None] + (z * layer.source).sum(-1)[None]  # [V, V, heads], by target
    absent = torch.ones(len(x), len(x), dtype=torch.bool).index_put((graph.targets, graph.sources), torch.tensor(False))
    shares = functional.leaky_relu(logits, 0.2).masked_fill(absent[:, :, None], -torch.inf).softmax(1)
    out = torch.einsum("tsh,shk->thk", shares, z)
    out = (out.mean(1) if layer.last else out.flatten(1)) + layer.bias
    return out if layer.last else functional.elu(out)


def losses_without_chunks(job: Job, graph: Graph) -> list[float]:
    """The job as dense matrices over all vertices at once."""
    source = ModelSource(job)
    model = [source.build(i) for i in range(2)]
    matrix = dense(graph)
    optimizer = torch.optim.SGD([p for layer in model for p in layer.parameters()], lr=0.5, momentum=0.9)
    found = []
    for _ in range(job.job.steps):
        x = graph.features
        for layer in model:
            if isinstance(layer, GAT):
                x = dense_gat(layer, graph, x)
            else:
                assert isinstance(layer, GCN)
                x = layer.linear(matrix @ x)
                x = x if layer.last else x.relu()
        loss = functional.cross_entropy(x[graph.train], graph.labels[graph.train])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("by", PARTITIONERS)
@pytest.mark.parametrize(("layers", "more"), [("gcn", ""), ("gat", ", heads = 2")])
def test_chunks_train_as_the_whole_graph_does(layers: str, more: str, by: str) -> None:
    if by == "metis":
        pytest.importorskip("pymetis", reason="the partitioner metis needs pymetis")
    job = job_of(f"culm.graphs:{layers}", more, f'partitioner = "{by}"')
    wanted = losses_without_chunks(job, blocks(vertices=VERTICES, classes=3, features=6))
    assert run_plain(job).losses == pytest.approx(wanted, rel=1e-4)
    assert wanted[-1] < 0.9 * wanted[0], "it learns, so later losses have gone through backwards"


class Spread(GraphLayer):
    """Adds up neighbours, without a parameter."""

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        return values[0]


class Blind(GCN):
    """Gives what it takes no gradient."""

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        return super().apply_vertex(*(x.detach() for x in values))


def spread_first(sizes: list[int]) -> list[Any]:
    """Wu et al., Simplifying Graph Convolutional Networks (ICML 2019), at half its depth."""
    return [Spread, partial(GCN, sizes[0], sizes[2], True)]


def blind_last(sizes: list[int]) -> list[Any]:
    return [partial(GCN, sizes[0], sizes[1]), partial(Blind, sizes[1], sizes[2], True)]


class DropsInPlace(GCN):
    """Dropout on the vertices' own values, which are the chunk's features."""

    wants_own = True

    def apply_vertex(self, *values: torch.Tensor) -> torch.Tensor:
        gathered, own = values
        return super().apply_vertex(gathered + functional.dropout(own, 0.5, inplace=True))


class ScalesUnseen(GCN):
    """Writes where no version is counted, before it adds up neighbours."""

    def gather(self, chunk: Any, values: torch.Tensor) -> torch.Tensor:
        values.data.mul_(2.0)
        return super().gather(chunk, values)


def drops_in_place(sizes: list[int]) -> list[Any]:
    return [partial(DropsInPlace, sizes[0], sizes[1]), partial(GCN, sizes[1], sizes[2], True)]


def scales_unseen(sizes: list[int]) -> list[Any]:
    return [partial(GCN, sizes[0], sizes[1]), partial(ScalesUnseen, sizes[1], sizes[2], True)]


def loss_that_shifts_labels(output: torch.Tensor, chunk: Any) -> Any:
    chunk.labels.add_(1).remainder_(3)
    return output.sum(), 1


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        (
            "drops_in_place",
            r"layer 0: apply_vertex of layer 0 \(DropsInPlace\) writes into what it is given; write nothing",
        ),
        ("scales_unseen", r"layer 1: layer 1 \(ScalesUnseen\) writes into its chunk or its input"),
    ],
)
def test_a_layer_that_writes_into_what_is_kept_is_refused_before_the_start(layers: str, said: str) -> None:
    """Features were changed for good, a bit more in each epoch, and most by the server that redid most."""
    with pytest.raises(JobError, match=said):
        check_job(job_of(f"{__name__}:{layers}"))


def test_a_loss_that_writes_into_the_chunk_is_refused_before_the_start() -> None:
    job = job_of()
    section = job.train.model_copy(update={"loss": f"{__name__}:loss_that_shifts_labels"})
    with pytest.raises(JobError, match=r"train\.loss: the loss writes into its chunk"):
        check_job(job.model_copy(update={"train": section}))


WEIGHT = torch.nn.Parameter(torch.ones(3))


def loss_with_parameters(output: torch.Tensor, chunk: Any) -> Any:
    return (output * WEIGHT).sum(), 1


def test_a_loss_with_parameters_to_train_is_refused_before_the_start() -> None:
    job = job_of()
    section = job.train.model_copy(update={"loss": f"{__name__}:loss_with_parameters"})
    with pytest.raises(JobError, match=r"train\.loss: the loss has a parameter of shape \[3\]"):
        check_job(job.model_copy(update={"train": section}))


@pytest.mark.parametrize(("layers", "more"), [("gcn", ", dropout = 0.5"), ("gat", ", heads = 2, dropout = 0.5")])
def test_layers_that_write_nowhere_pass(layers: str, more: str) -> None:
    check_job(job_of(f"culm.graphs:{layers}", more))


def test_a_first_layer_without_parameters() -> None:
    job, graph = job_of(f"{__name__}:spread_first"), blocks(vertices=VERTICES, classes=3, features=6)
    layer = ModelSource(job).build(1)
    assert isinstance(layer, GCN)
    x = dense(graph) @ (dense(graph) @ graph.features)
    first = functional.cross_entropy(layer.linear(x)[graph.train], graph.labels[graph.train]).item()
    found = run_plain(job).losses
    assert found[0] == pytest.approx(first, rel=1e-5)
    assert found[-1] < found[0]


def test_a_layer_that_gives_no_gradient_ends_the_backward_there() -> None:
    job = job_of(f"{__name__}:blind_last")
    for index, now in run_plain(job).layers:
        before = ModelSource(job).build(index).state_dict()
        same = {torch.equal(before[name], now[name]) for name in now}
        assert same == {index == 0}, "a gradient of zeros changes nothing in SGD"


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("last", [False, True])
def test_attention_over_chunks_is_that_over_all_pairs(heads: int, last: bool) -> None:
    graph = blocks(vertices=40, features=6)
    chunked = ChunkedGraph(graph, 4, "hash")
    torch.manual_seed(1)
    layer = GAT(6, 5, heads, last)
    values = {p: chunked.chunk(p).features for p in range(4)}
    wanted = dense_gat(layer, graph, graph.features)
    for p in range(4):
        chunk = chunked.chunk(p)
        assert torch.allclose(layer(chunk, sources_of(chunk, values)), wanted[chunk.vertices], atol=1e-5)


def test_attention_of_a_vertex_without_edges_is_its_bias() -> None:
    graph = graph_of(3, [(0, 1), (2, 1)])
    chunk = ChunkedGraph(graph, 1).chunk(0)
    layer = GAT(6, 5, last=True)
    x = graph.features.clone().requires_grad_()
    out = layer(chunk, x)
    assert out[0].tolist() == out[2].tolist() == layer.bias.tolist()
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("by", ["range", "hash"])
def test_a_layer_of_torch_geometric_gives_the_same(by: str) -> None:
    """Same weights, same graph: the outputs and the gradients of the weights and of the features."""
    nn = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    graph = blocks(vertices=50, features=6)
    torch.manual_seed(2)
    theirs, ours = nn.GCNConv(6, 4), GCN(6, 4, last=True)
    theirs.load_state_dict({"bias": torch.randn(4), "lin.weight": ours.linear.weight.detach().clone()})
    ours.linear.bias.data.copy_(theirs.bias)
    x, y = graph.features.clone().requires_grad_(), graph.features.clone().requires_grad_()
    away = graph.sources != graph.targets  # they add the loops themselves
    wanted = theirs(x, torch.stack([graph.sources[away], graph.targets[away]]))
    chunked = ChunkedGraph(graph, 4, by)
    found = torch.empty(50, 4)
    for p in range(4):
        chunk = chunked.chunk(p)
        values = {q: y[chunked.chunk(q).vertices] for q in chunked.neighbours.before[p]}
        found = found.index_copy(0, chunk.vertices, ours(chunk, sources_of(chunk, values)))
    assert torch.allclose(found, wanted, atol=1e-5)
    scale = torch.randn(50, 4)
    (found * scale).sum().backward()  # type: ignore[no-untyped-call]
    (wanted * scale).sum().backward()
    pairs = [
        (y.grad, x.grad),
        (ours.linear.weight.grad, theirs.lin.weight.grad),
        (ours.linear.bias.grad, theirs.bias.grad),
    ]
    for mine, other in pairs:
        assert mine is not None
        assert torch.allclose(mine, other, atol=1e-5)


def test_nodes_whose_graphs_differ_anywhere_are_told_apart() -> None:
    """Of samples three chunks are compared, and edges are in none."""
    job, graph = job_of(), blocks(vertices=VERTICES, classes=3, features=6)
    assert graph.weights is not None

    def told(of: Graph, by: str = "range") -> str:
        return samples_of(job, "data", ChunkedGraph(of, CHUNKS, by))

    same = told(graph)
    assert told(replace(graph, sources=graph.sources.clone())) == same == samples_of(job, "data", dataset_of(job))
    others = [
        replace(graph, sources=graph.sources.roll(1)),
        replace(graph, weights=graph.weights * 2),
        replace(graph, weights=None),
        replace(graph, train=~graph.train),
        replace(graph, test=None),
        replace(graph, features=graph.features.index_fill(0, torch.tensor([25]), 0.0)),
    ]
    found = {told(each) for each in others} | {told(graph, "hash")}
    assert same not in found
    assert len(found) == len(others) + 1
