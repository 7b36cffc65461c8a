"""Weights that are evaluated as training goes on: the plain loop's numbers, and not a bit of the weights changes."""

import math
import random
from typing import Any

import pytest
import torch
from torch import nn

from culm import metrics
from culm.oracle.plain_loop import run_plain
from culm.pipeline import tally
from culm.pipeline.errors import JobError
from culm.pipeline.evaluations import NEVER, Evaluations
from culm.pipeline.identity import changes
from culm.pipeline.job import Job, job_to_toml, parse_job, with_values
from culm.pipeline.keys import ACTIVATION, EVALUATED, Key
from culm.pipeline.tally import TallyForm
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import EvaluatedMicrobatches, dataset_of
from culm.pipeline.user_code.layer_shapes import LayerShapes
from culm.stage_server.streams.stream_bounds import RunShape, key_problem
from tests.unit.exactness import ADAMW, SGD, gives_the_plain_loops_bits, make_job

HERE = "tests.unit.test_evaluation"


def right(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A mean over the microbatch."""
    return (output.argmax(1) == target).float().mean()


def drawn(output: torch.Tensor, target: torch.Tensor) -> tuple[float, float]:
    return random.random() + float(torch.rand(())), 3.0


def broken(output: torch.Tensor, target: torch.Tensor) -> float:
    raise ValueError("no such class")


def spelt(output: torch.Tensor, target: torch.Tensor) -> str:
    return "0.5"


def of_eight(output: torch.Tensor, target: torch.Tensor) -> float:
    if len(target) < 8:
        raise ValueError("five samples are too few")
    return 1.0


def summed(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
    return nn.functional.cross_entropy(output, target, reduction="sum"), len(target)


def layers(count: int = 4) -> list[nn.Module]:
    """Some parts are in evaluation mode while others train."""
    frozen = nn.BatchNorm1d(8).eval()
    made = [[nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(inplace=True)] for _ in range(count - 2)]
    return [nn.Sequential(nn.Linear(8, 8), frozen), *(nn.Sequential(*each) for each in made), nn.Linear(8, 4)]


def job_of(stages: int = 2, optimizer: tuple[str, str] = SGD, values: dict[str, Any] | None = None) -> Job:
    """Five samples are left over for the last microbatch of an evaluation."""
    job = make_job(stages, 3, optimizer, clip=True, count=4)
    asked = {"dataset": "tests.unit.exactness:dataset", "every": 2, "samples": 29, "microbatch": 8}
    asked["metrics"] = {"accuracy": "culm.metrics:accuracy", "right": f"{HERE}:right"}
    evaluate = {f"evaluate.{key}": value for key, value in asked.items()}
    return with_values(job, {**evaluate, "model.layers": f"{HERE}:layers", **(values or {})})


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("optimizer", [ADAMW, SGD], ids=["adamw", "sgd"])
def test_what_stages_evaluate_is_the_plain_loops(stages: int, optimizer: tuple[str, str]) -> None:
    gives_the_plain_loops_bits(job_of(stages, optimizer))


def test_so_it_is_with_sums_and_backwards_in_two_halves_and_mixed_precision() -> None:
    gives_the_plain_loops_bits(job_of(values={"train.loss": f"{HERE}:summed", "train.reduction": "sum"}))
    gives_the_plain_loops_bits(job_of(3, values={"pipeline.schedule": "zb-h1"}))
    gives_the_plain_loops_bits(job_of(values={"train.precision": "bf16-mixed"}))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_what_is_trained_on_is_measured_too(reduction: str) -> None:
    loss = {"train.loss": f"{HERE}:summed"} if reduction == "sum" else {}
    measured = {"accuracy": "culm.metrics:accuracy", "right": f"{HERE}:right", "drawn": f"{HERE}:drawn"}
    job = job_of(3, values={**loss, "train.reduction": reduction, "train.metrics": measured})
    check_job(job)
    gives_the_plain_loops_bits(job)
    plain, without = run_plain(job), run_plain(with_values(job, {"train.metrics": {}}))
    assert plain.sha256 == without.sha256
    assert [set(found) for found in plain.metrics] == [{*measured}] * job.job.steps
    assert not changes(job, with_values(job, {"train.metrics": {}}))
    for name in ("broken", "spelt"):
        with pytest.raises(JobError, match=r"train\.metrics\.x"):
            check_job(with_values(job, {"train.metrics": {"x": f"{HERE}:{name}"}}))


def test_no_bit_of_the_weights_depends_on_it() -> None:
    asked = job_of(values={"evaluate.metrics": {"drawn": f"{HERE}:drawn"}})
    plain, without = run_plain(asked), run_plain(asked.model_copy(update={"evaluate": None}))
    assert plain.sha256 == without.sha256
    assert plain.losses == without.losses
    assert not without.evaluations
    assert list(plain.evaluations) == [2, 4], "every second step, and the last one"


@pytest.mark.parametrize("pipelines", [1, 2, 3, 5])
@pytest.mark.parametrize("samples", [1, 7, 24, 25])
def test_every_sample_is_evaluated_once(pipelines: int, samples: int) -> None:
    asked = Evaluations(every=1, samples=samples, size=4, pipelines=pipelines)
    found = [i for p in range(pipelines) for m in range(asked.microbatches) for i in asked.samples_of(p, m)]
    assert found == list(range(samples))


def test_when_weights_are_evaluated() -> None:
    asked = Evaluations(every=3, samples=4, size=2)
    assert [step for step in range(9) if asked.in_step(step, 8)] == [3, 6, 8]
    assert asked.end(8) == 9
    assert [step for step in range(7) if asked.in_step(step, 6)] == [3, 6]
    assert [step for step in range(9) if NEVER.in_step(step, 8)] == []
    assert NEVER.end(8) == 8


def test_what_pipelines_tell_is_told_apart() -> None:
    form = TallyForm(counted=True, measured=("accuracy",))
    told = [6.0, 2.0, 1.0, 2.0, 3.0, 1.0, 0.0, 2.0]  # of two microbatches
    assert (form.trained, tally.losses(told, form), tally.counted(told, form, 1)) == (4, [6.0, 3.0], 3.0)
    assert (tally.loss(told, form, 2), tally.measured(told, form, 2)) == (3.0, (0.25,))
    assert [*form.counts] == [1, 3]
    assert tally.learning_rate(told, form) is None
    rated = TallyForm(measured=("accuracy",), rate=True)
    told = [6.0, 1.0, 2.0, 0.5, 3.0, 0.0, 2.0, 0.5]
    assert (rated.trained, [*rated.counts], tally.losses(told, rated)) == (4, [2], [6.0, 3.0])
    assert (tally.measured(told, rated, 2), tally.learning_rate(told, rated)) == ((0.25,), 0.5)
    assert tally.learning_rate([6.0, 1.0, 2.0, math.nan], rated) is None, "its optimizer has none"
    form = TallyForm(metrics=("accuracy",))
    assert (form.trained, form.evaluated, form.told(2, 1)) == (1, 4, 6)
    first, second = [0.5, 0.25, 8.0, 4.0, 3.0, 4.0], [1.5, 1.0, 4.0, 2.0, 0.0, 2.0]
    trained, evaluated = tally.parted([*first, *second], form.evaluated, 2)
    assert trained == [0.5, 0.25, 1.5, 1.0]
    assert tally.means(evaluated, form.evaluated, 2) == (2.0, 0.5)
    assert all(map(math.isnan, tally.means([0.0] * 4, 4, 1))), "nothing counts"


def test_a_microbatch_that_counts_nothing_has_samples_all_the_same() -> None:
    job = with_values(job_of(), {"pipeline.pipelines": 3, "evaluate.samples": 8})
    data = EvaluatedMicrobatches(job, dataset_of(job, "evaluate"))
    for x, other in zip(data.microbatch(2, 0, 0), data.microbatch(4, 2, 0), strict=True):
        assert torch.equal(x, other)


def test_a_key_of_an_evaluation_that_there_is_not_is_refused() -> None:
    asked = Evaluations(every=2, samples=8, size=2, pipelines=2)  # two microbatches of each pipeline
    run = RunShape(pipelines=2, microbatches=3, steps=5, layers=(LayerShapes({}, {}, {}),) * 2, evaluations=asked)
    for step, kind, index, fits in (
        *((2, EVALUATED, 1, True), (2, EVALUATED, 2, False), (3, EVALUATED, 0, False), (0, EVALUATED, 0, False)),
        *((4, ACTIVATION, 2, True), (5, EVALUATED, 1, True), (5, ACTIVATION, 0, False), (6, EVALUATED, 0, False)),
    ):
        assert bool(key_problem(Key(0, step, 1, kind, 0, index), run)) != fits, (step, kind, index)


class Flagged(nn.Linear):
    """Keeps a flag of its own beside ``training``, as some modules do."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.on = True

    def train(self, mode: bool = True) -> "Flagged":
        self.on = mode
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        y: torch.Tensor = super().forward(x)
        return y * 2.0 if self.on else y


class Merging(nn.Linear):
    """Merges an adapter into its weight in evaluation mode, in a way that torch counts as no change."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.adapter = nn.Parameter(torch.ones(8, 8))

    def train(self, mode: bool = True) -> "Merging":
        if not mode:
            self.weight.data += self.adapter
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        return x @ (self.weight + self.adapter)


class Counting(nn.Linear):
    """Was it evaluated? Then it trains otherwise."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.evaluated = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # x: [B, 8]
        self.evaluated = self.evaluated or not self.training
        y: torch.Tensor = super().forward(x)
        return -y if self.evaluated else y


def with_a(kind: str) -> list[nn.Module]:
    return [{"flagged": Flagged, "merging": Merging, "counting": Counting}[kind](), nn.Linear(8, 8), nn.Linear(8, 4)]


def of_a(kind: str) -> Job:
    return job_of(values={"model.layers": f"{HERE}:with_a", "model.args": {"kind": kind}, "evaluate.every": 1})


def test_a_layer_trains_again_by_its_own_method() -> None:
    job = of_a("flagged")
    check_job(job)
    gives_the_plain_loops_bits(job)
    assert run_plain(job).sha256 == run_plain(job.model_copy(update={"evaluate": None})).sha256


def test_a_layer_that_an_evaluation_changes_is_refused_before_anything_starts() -> None:
    for kind, said in (
        ("merging", "changes its parameter weight in an evaluation"),
        ("counting", "once it was evaluated"),
    ):
        with pytest.raises(JobError, match=rf"evaluate: layer 0 \({kind.title()}\) .*{said}"):
            check_job(of_a(kind))


def test_a_parameter_that_changes_only_in_the_run_ends_it_there() -> None:
    job = of_a("merging")
    with pytest.raises(JobError, match="changes its parameter weight itself"):
        gives_the_plain_loops_bits(job)


def test_metrics() -> None:
    scores = torch.tensor([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    assert metrics.accuracy(scores, torch.tensor([1, 1, -100])) == (1.0, 2.0)
    assert metrics.mean_absolute_error(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 2.0])) == (3.0, 2.0)
    logits = torch.eye(4).view(2, 2, 4)
    assert metrics.token_accuracy(logits, torch.tensor([[0, 1], [-100, 0]])) == (2.0, 3.0)
    assert metrics.next_token_accuracy(logits, torch.tensor([[3, 0], [3, -100]])) == (1.0, 1.0)
    with pytest.raises(ValueError, match=r"\[4, 1\] and \[4\], and have to be of one shape"):
        metrics.mean_absolute_error(torch.zeros(4, 1), torch.zeros(4))
    with pytest.raises(ValueError, match=r"culm\.metrics:token_accuracy takes"):
        metrics.accuracy(logits, torch.zeros(2, 2))
    with pytest.raises(ValueError, match="and have to be"):
        metrics.accuracy(torch.eye(4), torch.zeros(4, 1))
    with pytest.raises(ValueError, match=r"culm\.metrics:accuracy takes"):
        metrics.token_accuracy(torch.eye(4), torch.zeros(4))


def test_a_job_keeps_its_section_and_says_what_is_wrong_with_it() -> None:
    job = job_of()
    assert parse_job(job_to_toml(job)) == job
    for values, said in (
        ({"evaluate.samples": 51}, r"evaluate\.samples: 51 samples are to be evaluated, and the whole dataset has 50"),
        (
            {"evaluate.metrics": {"x": f"{HERE}:broken"}},
            r"evaluate\.metrics\.x: the metric x raised ValueError",
        ),
        ({"evaluate.metrics": {"x": "torch:argmax"}}, r"evaluate\.metrics\.x: the metric x raised"),
        ({"evaluate.metrics": {"x": f"{HERE}:layers"}}, r"evaluate\.metrics\.x: the metric x raised TypeError"),
        ({"evaluate.metrics": {"x": "torch:stack"}}, r"evaluate\.metrics\.x"),
        ({"evaluate.metrics": {"loss": f"{HERE}:right"}}, "'loss' cannot be a metric's name"),
        ({"evaluate.metrics": {"step": f"{HERE}:right"}}, "'step' cannot be a metric's name"),
        ({"train.metrics": {"loss": f"{HERE}:right"}}, "'loss' cannot be a metric's name"),
        ({"train.metrics": {"samples_per_second": f"{HERE}:right"}}, "'samples_per_second' cannot be a metric's name"),
        ({"evaluate.metrics": {"x": f"{HERE}:spelt"}}, r"evaluate\.metrics\.x: it returned a str"),
        ({"evaluate.metrics": {"x": f"{HERE}:of_eight"}}, r"evaluate\.metrics\.x: .*five samples are too few"),
        ({"evaluate.metrics": {"x": "nowhere:thing"}}, r"evaluate\.metrics\.x: module 'nowhere' cannot be imported"),
    ):
        with pytest.raises(JobError, match=said):
            check_job(with_values(job, values))
    check_job(job)
