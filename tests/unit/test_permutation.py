"""The order of very many samples: each comes once an epoch, in an order of its own, and no memory is taken for it."""

import itertools
import tracemalloc
from collections import Counter

import pytest
import torch
from torch.utils.data import Dataset

from culm.pipeline.user_code.data import MOST_IN_MEMORY, Microbatches
from culm.pipeline.user_code.permutation import place_of
from tests.unit.exactness import ADAMW, make_job


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 63, 64, 65, 1000, 4097])
def test_every_sample_comes_once(length: int) -> None:
    assert sorted(place_of(i, length, 7) for i in range(length)) == list(range(length))


def test_another_seed_is_another_order_and_neighbours_do_not_stay_together() -> None:
    one, other = ([place_of(i, 10_000, seed) for i in range(10_000)] for seed in (1, 2))
    assert one != other
    assert sum(abs(a - b) == 1 for a, b in itertools.pairwise(one)) < 10
    # Chi-squared over a hundred cells, of where the first tenth of the order lies: 99 in the mean, 14 its deviation.
    cells = Counter(place // 100 for place in one[:1000])
    assert sum((cells[i] - 10) ** 2 / 10 for i in range(100)) < 99 + 5 * 14


class Huge(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(index), torch.tensor(0)


def test_a_thousand_million_samples_take_no_memory() -> None:
    assert len(Huge()) > MOST_IN_MEMORY
    job = make_job(1, 4, ADAMW, True, count=1)
    job = job.model_copy(update={"data": job.data.model_copy(update={"shuffle": True, "microbatch": 8})})
    tracemalloc.start()
    found = [Microbatches(job, Huge()).microbatch(step, 0, m)[0] for step in range(5) for m in range(4)]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    indices = torch.cat(found).tolist()
    assert len(set(indices)) == 5 * 4 * 8
    assert max(indices) > 9 * 10**8
    assert most < 1 << 20
