"""A loss that is a sum with its count: a step's gradient is a mean over all that counts, in every cut."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from culm.oracle.plain_loop import run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.job import Job
from culm.pipeline.user_code.check import check_job
from culm.pipeline.user_code.data import Microbatches
from culm.pipeline.user_code.model import ModelSource
from tests.unit.exactness import ADAMW, SGD, gives_the_plain_loops_bits, make_job

HERE = "tests.unit.test_reduction"
IGNORED = -100


class Ragged(Dataset[Any]):
    """Some samples count for nothing: microbatches of three have from none to three that do."""

    def __init__(self, none: bool = False) -> None:
        self.none = none

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        counts = index % 3 == 0 and not self.none
        return torch.randn(8, generator=generator), torch.tensor(index % 4 if counts else IGNORED)


def summed(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = nn.functional.cross_entropy(logits, target, ignore_index=IGNORED, reduction="sum")
    return total, (target != IGNORED).sum()


def alone(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return summed(logits, target)[0]


def below_zero(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
    return summed(logits, target)[0], -1


def in_words(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, str]:
    return summed(logits, target)[0], "three"


calls = [0]


def counting(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Its count depends on how often it was called: an heir calls it again."""
    calls[0] += 1
    return summed(logits, target)[0], logits.shape[0] + calls[0]


def job_of(stages: int = 2, microbatches: int = 3, none: bool = False, loss: str = "summed", **train: Any) -> Job:
    job = make_job(stages, microbatches, SGD if "clip_norm" in train else ADAMW, True, count=4)
    data = job.data.model_copy(update={"dataset": f"{HERE}:Ragged", "args": {"none": none}})
    changes = {"loss": f"{HERE}:{loss}", "reduction": "sum", **train}
    return job.model_copy(update={"data": data, "train": job.train.model_copy(update=changes)})


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [1, 5])
@pytest.mark.parametrize("clips", [0.05, None], ids=["clipped", "unclipped"])
def test_every_cut_gives_the_plain_loops_bits(
    stages: int, microbatches: int, schedule: str, clips: float | None
) -> None:
    job = job_of(stages, microbatches, clip_norm=clips)
    job = job.model_copy(update={"pipeline": job.pipeline.model_copy(update={"schedule": schedule})})
    check_job(job)
    gives_the_plain_loops_bits(job)


def test_a_step_is_the_mean_over_all_that_counts() -> None:
    """To rounding: torch over the whole batch at once, whatever its microbatches are."""
    job = job_of(1, 4, clip_norm=None, optimizer_args={"lr": 0.1})
    job = job.model_copy(
        update={
            "job": job.job.model_copy(update={"steps": 1}),
            "model": job.model.model_copy(update={"layers": "tests.unit.exactness:plain_layers"}),
        }
    )
    source = ModelSource(job)
    data = Microbatches(job, source.dataset())
    found = [data.microbatch(0, 0, m) for m in range(4)]
    x, target = (torch.cat([pair[part] for pair in found]) for part in range(2))
    model = nn.Sequential(*(source.build(i) for i in range(source.layer_count)))
    loss = nn.functional.cross_entropy(model(x), target, ignore_index=IGNORED)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    plain = run_plain(job)
    assert plain.losses[0] == pytest.approx(loss.item())
    for (_, state), layer in zip(plain.layers, model, strict=True):
        for name, tensor in layer.state_dict().items():
            assert torch.allclose(state[name], tensor, atol=1e-6)


def test_a_step_in_which_nothing_counts_changes_nothing() -> None:
    job = job_of(2, 3, none=True)
    gives_the_plain_loops_bits(job)
    source, plain = ModelSource(job), run_plain(job)
    assert plain.losses == [0.0] * job.job.steps
    for index, state in plain.layers:
        built = source.build(index).state_dict()
        assert all(torch.equal(tensor, built[name]) for name, tensor in state.items())


@pytest.mark.parametrize(
    ("loss", "reduction", "said"),
    [
        ("alone", "sum", 'the loss returned a Tensor, and train.reduction is "sum"; return a pair'),
        ("summed", "mean", "the loss is not a single number; return the mean over the microbatch, or set train.reduct"),
        ("below_zero", "sum", "the loss gives the count -1; return how many summands the loss has"),
        ("counting", "sum", "the loss gives another count when it is run again"),
        ("in_words", "sum", "the loss gives the count three"),
    ],
)
def test_a_loss_of_another_kind_is_named(loss: str, reduction: str, said: str) -> None:
    with pytest.raises(JobError) as error:
        check_job(job_of(loss=loss, reduction=reduction))
    assert said in str(error.value)
