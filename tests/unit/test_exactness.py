"""Stages run one after the other, as a pipeline runs them, give the plain loop's bits."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from culm.oracle.plain_loop import run_plain
from culm.pipeline.clip import clip_scale
from culm.pipeline.tensors.values import Value
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.stage import Stage
from tests.unit.exactness import (
    ADAGRAD,
    ADAMW,
    NADAM,
    SGD,
    build_all,
    digest,
    gives_the_plain_loops_bits,
    gradient_of,
    make_job,
    norms_of,
    run_of,
    run_stages,
    whole_sums,
)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
@pytest.mark.parametrize(("optimizer", "clip"), [(ADAMW, True), (ADAMW, False), (SGD, True), (SGD, False)])
def test_the_calm_pipeline_is_the_plain_loop(
    stages: int, microbatches: int, optimizer: tuple[str, str], clip: bool
) -> None:
    job = make_job(stages, microbatches, optimizer, clip, count=7)
    gives_the_plain_loops_bits(job)


def test_norms_of_large_layers_are_the_plain_loops() -> None:
    job = make_job(2, 2, ADAMW, True, count=1)
    model = job.model.model_copy(update={"layers": "tests.unit.exactness:wide_layers"})
    gives_the_plain_loops_bits(job.model_copy(update={"model": model}))


@pytest.mark.parametrize("layers", ["layers", "varied_layers", "careless_layers"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_backwards_in_two_halves_give_the_same_bits(stages: int, layers: str) -> None:
    job = make_job(stages, 5, ADAMW, True, count=6)
    args = {"varied_layers": {}, "careless_layers": {"count": 2}}.get(layers, job.model.args)
    model = job.model.model_copy(update={"layers": f"tests.unit.exactness:{layers}", "args": args})
    split = job.pipeline.model_copy(update={"schedule": "zb-h1"})
    job = job.model_copy(update={"model": model, "pipeline": split})
    gives_the_plain_loops_bits(job)


@pytest.mark.parametrize("optimizer", [ADAMW, SGD, NADAM, ADAGRAD])
def test_a_copy_made_in_the_middle_of_a_step_goes_on_alike(optimizer: tuple[str, str]) -> None:
    """Export takes the state of the step's beginning, whatever forwards have done to buffers since."""
    job = make_job(2, 3, optimizer, True, count=5)
    source = ModelSource(job)
    held = build_all(source)
    run_stages(job, held, source, range(2))
    runner = Stage(job, 0, held, True, True, source.loss)
    runner.begin_step(2)
    x, target = Microbatches(job, source.dataset()).microbatch(2, 0, 0)
    runner.forward(0, x, target)
    copies = build_all(ModelSource(job))
    assert digest(copies) != digest(held), "the copies are copies, and behind"
    for layer, copy in zip(held, copies, strict=True):
        copy.install(layer.export())
    run_stages(job, copies, source, range(2, 4))
    assert digest(copies) == run_plain(job).sha256


def test_work_done_again_gives_the_same_bits() -> None:
    """A step begun a second time starts from the step's beginning: same random numbers, same buffers."""
    job = make_job(1, 3, ADAMW, True, count=4)
    source = ModelSource(job)
    held = build_all(source)
    runner = Stage(job, 0, held, True, True, source.loss)
    data = Microbatches(job, source.dataset())
    runner.begin_step(0)
    for m in range(2):
        runner.forward(m, *data.microbatch(0, 0, m))
    runner.backward(0, {})
    run_stages(job, held, source, range(4))
    assert digest(held) == run_plain(job).sha256


def test_an_heir_goes_on_from_shipped_gradients() -> None:
    """And one that has to give a result again of a microbatch that is in them changes none."""
    job = make_job(1, 4, ADAMW, True, count=3)
    job = job.model_copy(update={"model": job.model.model_copy(update={"layers": "tests.unit.exactness:plain_layers"})})
    source = ModelSource(job)
    data = Microbatches(job, source.dataset())
    stages = [Stage(job, 0, build_all(source), True, True, source.loss) for _ in range(3)]
    owner, heir, whole = stages
    for stage in stages:
        stage.begin_step(0)
    for m in range(4):
        for stage in (owner, whole) if m < 2 else (heir, whole):
            stage.forward(m, *data.microbatch(0, 0, m))
            stage.backward(m, {})
        if m == 1:
            owner.forward(2, *data.microbatch(0, 0, 2))  # forwards are ahead
            shipped = owner.accumulated(2)
            assert shipped is not None
            heir.resume(2, shipped)
            heir.forward(1, *data.microbatch(0, 0, 1))
            heir.backward(1, {}, accumulates=False)
    of_heir = gradient_of([heir])
    for index, value in gradient_of([whole]).items():
        mine = of_heir[index]
        assert mine.tallies == value.tallies
        assert mine.squared_norms == value.squared_norms
        for (name, a), (other, b) in zip(mine.tensors, value.tensors, strict=True):
            assert name == other
            assert torch.equal(a, b)


def test_stages_whose_forwards_change_buffers_ship_nothing() -> None:
    job = make_job(1, 2, SGD, False, count=3)
    source = ModelSource(job)
    stage = Stage(job, 0, build_all(source), True, True, source.loss)
    stage.begin_step(0)
    stage.forward(0, *Microbatches(job, source.dataset()).microbatch(0, 0, 0))
    stage.backward(0, {})
    assert stage.accumulated(1) is None


def test_a_layer_in_half_precision_is_copied_with_its_optimizer_state_as_it_is() -> None:
    """NAdam keeps a product in float32 beside bfloat16 parameters: casting it would change the bits."""

    def layer() -> HeldLayer:
        torch.manual_seed(0)
        module = nn.Linear(8, 8, dtype=torch.bfloat16)
        return HeldLayer(0, module, torch.optim.NAdam(module.parameters(), lr=0.013), CPU)

    def train(held: HeldLayer, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            gradients = tuple((f"grad.{n}", torch.randn_like(p)) for n, p in held.module.named_parameters())
            held.apply(Value(gradients), 1.0, 0)

    held, copy = layer(), layer()
    train(held, range(3))
    copy.install(held.export())
    train(held, range(3, 20))
    train(copy, range(3, 20))
    assert digest([copy]) == digest([held])


def test_random_numbers_from_anywhere_are_the_same_on_every_node() -> None:
    """A dataset and layers that draw from torch's, Python's and numpy's generators; complex activations."""
    job = make_job(3, 3, ADAMW, True, count=2)
    job = job.model_copy(
        update={
            "model": job.model.model_copy(update={"layers": "tests.unit.exactness:careless_layers"}),
            "data": job.data.model_copy(update={"dataset": "tests.unit.exactness:Augmented"}),
        }
    )
    plain = run_plain(job)
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    source = ModelSource(job)
    held = build_all(source)
    losses = run_stages(job, held, source, range(job.job.steps))
    assert losses == plain.losses
    assert digest(held) == plain.sha256


@pytest.mark.parametrize("clips", [False, True])
def test_a_gradients_norm_is_taken_only_where_the_job_clips(clips: bool) -> None:
    job = make_job(1, 1, SGD, clips, count=3)
    source = ModelSource(job)
    stage = Stage(job, 0, build_all(source), True, True, source.loss)
    stage.begin_step(0)
    stage.forward(0, *Microbatches(job, source.dataset()).microbatch(0, 0, 0))
    stage.backward(0, {})
    assert any(value.squared_norms for value in gradient_of([stage]).values()) is clips


@pytest.mark.parametrize("order", range(4))
def test_pipelines_that_alternate_keep_their_own_buffers_and_gradients(order: int) -> None:
    """Of one stage on one node, in whatever order their instructions come (rule 21)."""
    job = make_job(1, 3, ADAMW, True, count=4)
    job = job.model_copy(update={"pipeline": job.pipeline.model_copy(update={"pipelines": 3})})
    source = ModelSource(job)
    held, data, draw = build_all(source), Microbatches(job, source.dataset()), random.Random(order)
    run = run_of(job, source, held)
    stages = [Stage(job, p, held, True, True, source.loss) for p in range(3)]
    for step in range(job.job.steps):
        left = [[(op, m) for m in range(3) for op in "FB"] for _ in stages]
        for p, stage in enumerate(stages):
            stage.begin_step(step)
            if draw.random() < 0.5:  # forwards ahead of backwards
                left[p].sort(key=lambda one: one[0] == "B")
        while any(left):
            p = draw.choice([p for p, mine in enumerate(left) if mine])
            op, m = left[p].pop(0)
            if op == "F":
                stages[p].forward(m, *data.microbatch(step, p, m))
            else:
                stages[p].backward(m, {})
        values = whole_sums(held, [stages], job.train.clip_norm is not None, run)
        scale = clip_scale(norms_of(values), job.train.clip_norm)
        for layer in held:
            layer.apply(values[layer.index], scale, 0)
    assert digest(held) == run_plain(job).sha256
