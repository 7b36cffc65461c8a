"""Jobs drawn at random give the plain loop's bits however they are cut, or are refused before they start.

Before tensors had the same addresses everywhere 8 of the first 200 came to other weights.
"""

import os
from random import Random

import pytest

from culm.oracle.plain_loop import Stopped, run_plain
from culm.pipeline.errors import JobError
from culm.pipeline.user_code.check import check_job
from tests.hostile.cut_runs import CutRun
from tests.hostile.random_jobs import random_cut, random_job, recipes

SOAK = os.environ.get("CULM_SOAK") == "1"
TOGETHER = 15  # seeds
SEEDS = 2000 if SOAK else 4 * TOGETHER
# Open: the plain loop raises in these, which check_job could have told.
OPEN = (558, 1534)


def is_trained(seed: int) -> bool:
    """False where the job is refused, or its numbers become infinite."""
    job = random_job(seed)
    try:
        check_job(job)
        plain = run_plain(job).sha256
    except (JobError, Stopped):
        return False
    draw = Random(seed)
    for wired in (False, True, True) if SOAK else (seed % 2 == 0, True):
        cut = random_cut(draw, job, len(recipes(seed)), wired)
        try:
            found = CutRun(job, cut).train()
        except JobError:  # a layer does only now and then what is refused, which a node finds out
            return False
        assert found == plain, f"seed {seed}, {cut}"
    return True


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("first", range(0, SEEDS, TOGETHER))
def test_every_cut_gives_the_plain_loops_bits(first: int) -> None:
    trained = [is_trained(seed) for seed in range(first, first + TOGETHER) if seed not in OPEN]
    assert sum(trained) > TOGETHER / 4, "most of them prove nothing"
