"""A stage refuses what a layer may not touch, also where nobody has checked the job, and where it comes late."""

import pytest

from culm.pipeline.errors import JobError
from tests.hostile.job_files import make_job
from tests.hostile.stages import train

HABITS = "tests.hostile.habits"
FORWARDS = {
    "a buffer that is made": "makes its buffer kept anew",
    "a buffer that grows": "makes its buffer kept anew",
}


def refuses(name: str, said: str, splits: bool) -> None:
    """Trains without a check before, as where a coordinator and nodes are started by hand."""
    job = make_job(layers=f"{HABITS}:refused", dataset=f"{HABITS}:numbers", args=f'name = "{name}"', stages=1)
    with pytest.raises(JobError, match=said) as error:
        train(job, (), splits)
    assert str(error.value).startswith("model.layers: ")


@pytest.mark.parametrize("splits", [False, True], ids=["whole", "in two halves"])
@pytest.mark.parametrize("name", FORWARDS)
def test_what_a_layer_may_not_touch_is_refused_at_work(name: str, splits: bool) -> None:
    refuses(name, FORWARDS[name], splits)
