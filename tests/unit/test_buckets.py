"""Layers that are cut into buckets: the same elements in every plan, shared out evenly, and the plain loop's bits."""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from culm.coordinator import replicas
from culm.coordinator.gradient_bytes import most_sent
from culm.coordinator.placement import place, promote
from culm.coordinator.zones import GRADIENT_BYTES
from culm.oracle.plain_loop import run_plain
from culm.pipeline import buckets
from culm.pipeline.buckets import LEAST, Slice
from culm.pipeline.clip import NORM_CHUNK, clip_scale
from culm.pipeline.job import Job
from culm.pipeline.plan import Buckets, Plan, StagePlan
from culm.pipeline.plan_bounds import plan_problem
from culm.pipeline.plan_codec import plan_from_proto, plan_to_proto
from culm.pipeline.tensors.values import Value
from culm.pipeline.ties import Addend
from culm.pipeline.tree import Block
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.layer_shapes import LayerShapes, of_buckets
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.blocks import joined
from culm.stage_server.compute.stage import Stage, merged
from tests.unit.exactness import ADAMW, build_all, digest, make_job, norms_of


def test_a_layer_has_as_many_buckets_as_there_are_pipelines_if_they_are_large_enough() -> None:
    assert [buckets.count(n * LEAST, 4) for n in (0.0, 0.5, 1.9, 2.0, 3.9, 4.0, 99.0)] == [1, 1, 1, 2, 3, 4, 4]
    assert buckets.count(99 * LEAST, 1) == 1, "one owner adds up all of it"
    assert buckets.counts([LEAST, 1.0], 4) == (), "as every plan of small layers was before"
    assert buckets.counts([9 * LEAST, 1.0], 4) == (4, 1)


@pytest.mark.parametrize("into", [1, 2, 3, 8])
@pytest.mark.parametrize(
    "sizes", [[9 * LEAST], [0, 5, 4 * LEAST + 7, 3, LEAST, 0, 1, 5 * LEAST], [NORM_CHUNK + 1] * 40], ids=str
)
def test_a_cut_has_every_element_once_in_whole_chunks(sizes: list[int], into: int) -> None:
    found = buckets.cut(sizes, into)
    assert len(found) == into
    flat = [x for slices in found for x in slices]
    assert flat == sorted(flat)
    for parameter, size in enumerate(sizes):
        mine = [x for x in flat if x.parameter == parameter]
        assert (mine[0].start, mine[-1].end) == (0, size)
        assert all(one.end == other.start for one, other in pairwise(mine))
        assert all(x.start % NORM_CHUNK == 0 for x in mine)
    elements = [sum(x.end - x.start for x in slices) for slices in found]
    assert max(elements) - min(elements) <= 2 * NORM_CHUNK


def test_one_bucket_is_the_whole_layer() -> None:
    assert buckets.cut([3, 0, 2 * NORM_CHUNK], 1) == ((Slice(0, 0, 3), Slice(1, 0, 0), Slice(2, 0, 2 * NORM_CHUNK)),)
    assert buckets.cut([], 1) == ((),)


# ---- in plans --------------------------------------------------------------------------------------------------------

LARGE = (100.0 * LEAST, 1.0, 4.0 * LEAST)  # the first layer has most of the stage


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_every_owner_of_a_large_layer_adds_up_its_part(nodes: int) -> None:
    (stage,) = place([f"n{i}" for i in range(nodes)], LARGE, 1, copies=2, pipelines=8)
    assert stage.buckets.counts == (8, 1, 4)
    of_first = Counter(stage.reducers[p] for p in stage.places_of(0))
    assert set(of_first.values()) <= {8 // nodes, 8 // nodes + 1}
    # As a ring all-reduce, where the buckets divide evenly.
    predicted, ring = most_sent((stage,), LARGE), GRADIENT_BYTES * sum(LARGE) * 2 * (nodes - 1) / nodes
    assert predicted == pytest.approx(ring, rel=0.15 if 8 % nodes else 0.03)


def test_one_owner_has_no_reducers_and_keeps_the_cut() -> None:
    stages = place(["n0", "n1"], LARGE, 1, copies=2, pipelines=8)
    left, _ = promote(stages, ["n1"], LARGE)
    assert left is not None
    assert left[0].buckets == Buckets((8, 1, 4))
    assert left[0].run_by("n2", ()).buckets.counts == (8, 1, 4)


def test_a_lost_owner_leaves_the_slots_of_the_others_as_they_are() -> None:
    (stage,) = place([f"n{i}" for i in range(4)], LARGE, 1, copies=2, pipelines=8)
    left, _ = promote((stage,), ["n2"])  # by a coordinator that does not know the layers
    assert left is not None
    kept = [
        (one, other) for one, other in zip(stage.buckets.reducers, left[0].buckets.reducers, strict=True) if one != "n2"
    ]
    assert all(one == other for one, other in kept)
    assert "n2" not in left[0].buckets.reducers


def plan_of(stages: tuple[StagePlan, ...]) -> Plan:
    return Plan(term=1, generation=1, era=0, step=0, stages=stages)


def test_buckets_have_the_same_numbers_however_the_model_is_cut() -> None:
    nodes = [f"n{i}" for i in range(6)]
    one, three = (plan_of(place(nodes, LARGE, count, copies=2, pipelines=8)) for count in (1, 3))
    assert one.bucket_numbers == three.bucket_numbers == (range(8), range(8, 9), range(9, 13))
    assert [three.buckets(s) for s in range(3)] == [*three.bucket_numbers]
    assert [one.places_of(bucket) for bucket in (0, 7, 8, 12)] == [[(0, 0)], [(0, 7)], [(1, 0)], [(2, 3)]]
    assert all(three.reducer_of(2, bucket) in three.stages[2].owners for bucket in three.buckets(2))
    assert plan_from_proto(plan_to_proto(three)).stages == three.stages


def test_a_plan_with_other_buckets_than_reducers_is_refused() -> None:
    stages = place(["n0", "n1"], LARGE, 1, copies=2, pipelines=8)
    good = plan_of(stages)
    message = plan_to_proto(good)
    message.members.add(node="n0", incarnation=1)
    message.members.add(node="n1", incarnation=1)
    assert plan_problem(message, 3, 4, 8) == ""
    del message.stages[0].reducers[-1]
    assert "12 reducers; it needs 13" in plan_problem(message, 3, 4, 8)
    for cut in ([8, 1], [8, 1, 9], [8, 0, 4]):
        del message.stages[0].buckets[:]
        message.stages[0].buckets.extend(cut)
        assert "buckets; each layer has one to 8" in plan_problem(message, 3, 4, 8)


def test_slots_by_bucket_are_even() -> None:
    slots = replicas.reducers(("a", "b", "c"), replicas.by_bucket((8.0, 1.0), (4, 1)))
    assert Counter(slots) == {"a": 2, "b": 2, "c": 1}


# ---- in compute ------------------------------------------------------------------------------------------------------


WIDE = "tests.unit.exactness:wide_layers"


def in_buckets(layers: str, optimizer: tuple[str, str], clip: bool) -> Job:
    """Of two pipelines, whose layers are a callable's."""
    job = make_job(1, 1, optimizer, clip, count=2)
    args = job.model.args if layers == WIDE else {}
    model = job.model.model_copy(update={"layers": layers, "args": args})
    return job.model_copy(update={"model": model, "pipeline": job.pipeline.model_copy(update={"pipelines": 2})})


def gives_the_plain_loops_bits(job: Job, numbers: list[range]) -> None:
    """Two nodes run a pipeline each; each bucket is added up by itself, and applied with the others of its layer.

    ``numbers``: the buckets of each layer.
    """
    source = ModelSource(job)
    data = Microbatches(job, source.dataset())
    nodes = [build_all(source) for _ in range(2)]
    last = numbers[-1].stop
    stages = [Stage(job, p, held, True, True, source.loss) for p, held in enumerate(nodes)]
    for held in nodes:
        for layer, mine in zip(held, numbers, strict=True):
            layer.cut.arrange([Addend(bucket) for bucket in mine])
    for step in range(job.job.steps):
        for p, stage in enumerate(stages):
            stage.begin_step(step)
            stage.forward(0, *data.microbatch(step, p, 0))
            stage.backward(0, {})
        parts = [merged([stage], Block(p, p + 1), 2) for p, stage in enumerate(stages)]
        assert sorted(parts[0]) == [Addend(bucket) for bucket in range(last)]
        reduced: dict[int, Value] = {}
        for layer, mine in zip(nodes[0], numbers, strict=True):
            whole = []
            for bucket in mine:
                use = {Block(p, p + 1): part[Addend(bucket)] for p, part in enumerate(parts)}
                whole.append(layer.sum_up([use], 2, job.train.clip_norm is not None))
            norms = tuple(norm for value in whole for norm in value.squared_norms)
            reduced[layer.index] = replace(joined(whole), squared_norms=norms)
        scale = clip_scale(norms_of(reduced), job.train.clip_norm)
        for held in nodes:
            for layer in held:
                layer.apply(reduced[layer.index], scale, 0)
    plain = run_plain(job)
    assert [digest(held) for held in nodes] == [plain.sha256] * 2


@pytest.mark.parametrize("clip", [True, False])
def test_a_layer_in_buckets_has_the_plain_loops_bits(clip: bool) -> None:
    # The buckets of layers 0 and 1 are less than a chunk.
    gives_the_plain_loops_bits(in_buckets(WIDE, ADAMW, clip), [range(3), range(3, 5), range(5, 6), range(6, 7)])


class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(24, 8).t()), nn.Parameter(torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 24]
        return nn.functional.linear(x, self.weight, self.bias)


def strided_layers() -> list[Any]:
    def convolution() -> nn.Module:
        inner = nn.Conv2d(2, 6, 2)
        inner.weight.data = inner.weight.data.contiguous(memory_format=torch.channels_last)
        return nn.Sequential(nn.Unflatten(1, (2, 2, 2)), inner, nn.Flatten(), nn.Linear(6, 24))

    return [convolution, Transposed, partial(nn.Linear, 8, 4)]


@pytest.mark.parametrize("clip", [True, False], ids=["clipped", "not clipped"])
@pytest.mark.parametrize("fused", ["true", "false"], ids=["fused", "not fused"])
@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD"])
def test_parameters_with_strides_of_their_own_have_them_too(optimizer: str, fused: str, clip: bool) -> None:
    """An optimizer that is fused goes through memory, and gave elements the gradients of other ones."""
    momentum = ", momentum = 0.9" if optimizer == "SGD" else ""
    named = f"torch.optim:{optimizer}", f"lr = 0.02, fused = {fused}{momentum}"
    job = in_buckets(f"{__name__}:strided_layers", named, clip)
    gives_the_plain_loops_bits(job, [range(2), range(2, 4), range(4, 5)])


def test_what_may_be_sent_of_a_bucket_is_what_compute_gives() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(3 * LEAST // 1000, 1000), torch.nn.BatchNorm1d(1000))
    shapes = of_buckets(LayerShapes.of(layer), 2)
    assert [sorted(each) for each in shapes] == [
        ["buffer.1.num_batches_tracked", "buffer.1.running_mean", "buffer.1.running_var", "grad.0.weight"],
        ["grad.0.bias", "grad.0.weight", "grad.1.bias", "grad.1.weight"],
    ]
    first, second = (each["grad.0.weight"] for each in shapes)
    assert first[0] == second[0] == "float32"
    assert first[1][0] + second[1][0] == 3 * LEAST // 1000 * 1000
    assert of_buckets(LayerShapes.of(layer), 1) == [LayerShapes.of(layer).reduced]
