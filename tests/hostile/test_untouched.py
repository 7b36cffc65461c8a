"""A stage refuses what a layer may not touch, also where nobody has checked the job, and where it comes late."""

import pytest
import torch

from culm.pipeline.errors import JobError
from culm.pipeline.user_code.model import ModelSource
from culm.stage_server.compute.device import CPU
from culm.stage_server.compute.layer import HeldLayer
from culm.stage_server.compute.stage import Stage
from tests.hostile.habits import WIDTH
from tests.hostile.job_files import make_job
from tests.hostile.stages import job_of_parts, train

HABITS = "tests.hostile.habits"
FORWARDS = {
    "a norm's bound": "changes its parameter table.weight",
    "a clamp": "changes its parameter inner.weight",
    "a codebook": "changes its parameter codes",
    "a buffer that is made": "makes its buffer kept anew",
    "a buffer that grows": "makes its buffer kept anew",
}
BACKWARDS = {
    "torch's numbers": "draws random numbers from torch's generator",
    "numpy's numbers": "draws random numbers from numpy's generator",
    "numpy's under checkpoint()": "draws random numbers from numpy's generator",
}
# A backward in two halves runs no such hooks, and makes such gradients dense.
WHOLE = {
    "a step in a backward": "changes its parameter inner.weight",
    "a sparse gradient": "gradient of table.weight of layer 0 .* is sparse",
}


def refuses(name: str, said: str, splits: bool) -> None:
    """Trains without a check before, as where a coordinator and nodes are started by hand."""
    job = make_job(layers=f"{HABITS}:refused", dataset=f"{HABITS}:numbers", args=f'name = "{name}"', stages=1)
    with pytest.raises(JobError, match=said) as error:
        train(job, (), splits)
    assert str(error.value).startswith("model.layers: ")


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "in two halves"])
@pytest.mark.parametrize("name", [*FORWARDS, *BACKWARDS])
def test_what_a_layer_may_not_touch_is_refused_at_work(name: str, splits: bool) -> None:
    refuses(name, (FORWARDS | BACKWARDS)[name], splits)


@pytest.mark.parametrize("name", WHOLE)
def test_what_a_whole_backward_may_not_do_is_refused_at_work(name: str) -> None:
    refuses(name, WHOLE[name], splits=False)


def test_a_parameter_that_a_later_forward_changes_is_named() -> None:
    job = job_of_parts(HABITS, "late", "numbers")
    source = ModelSource(job)
    held = [HeldLayer.build(source, i, CPU) for i in range(source.layer_count)]
    stage = Stage(job, 0, held, True, True, source.loss)
    stage.begin_step(0)
    x, target = torch.zeros(3, WIDTH, dtype=torch.long), torch.zeros(3, dtype=torch.long)
    for m in range(2):
        stage.forward(m, x, target)
    with pytest.raises(JobError, match=r"layer 1 \(Later\) changes its parameter inner.weight itself"):
        stage.forward(2, x, target)
