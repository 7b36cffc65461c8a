"""What a commit decides from the norms and losses of its step: the clip scale, or that nothing is applied."""

import math

import pytest
import torch

from culm.pipeline import tally
from culm.pipeline.clip import NORM_CHUNK, SKIPPED, clip_scale, fault_in
from culm.pipeline.tally import LOSS_ALONE, TallyForm, in_order
from culm.stage_server.compute.blocks import all_finite, squared_norms

NAN, INF = math.nan, math.inf
SUMS = TallyForm(counted=True)


@pytest.mark.parametrize(
    ("norms", "losses", "said"),
    [
        ({0: 1.0, 1: 2.0}, (0.5,), ""),
        ({}, (), ""),
        ({0: 1.0}, (0.5, NAN), "the loss of microbatch 1 is nan"),
        ({0: 1.0}, (-INF,), "the loss of microbatch 0 is -inf"),
        ({1: NAN, 0: 1.0}, (0.5,), "the gradient of layer 1"),
        ({1: INF, 0: NAN}, (0.5,), "the gradient of layer 0"),
        ({0: 1.7e308, 1: 1.7e308}, (0.5,), "the norm of the whole gradient"),
    ],
)
def test_the_first_number_that_is_not_finite_is_named(
    norms: dict[int, float], losses: tuple[float, ...], said: str
) -> None:
    assert said in fault_in(norms, losses)
    assert bool(said) == bool(fault_in(norms, losses))


def test_of_several_pipelines_the_microbatch_is_named_as_everywhere_else() -> None:
    """Two pipelines of three microbatches: it was called microbatch 4."""
    assert fault_in({}, (0.0, 0.0, 0.0, 0.0, NAN, 0.0), 2) == "the loss of microbatch 1 of pipeline 1 is nan"


def test_no_scale_is_taken_for_a_step_that_is_skipped() -> None:
    assert clip_scale([1e300], 5e-324) != SKIPPED
    assert clip_scale([], None) != SKIPPED


def test_losses_are_added_one_after_the_other() -> None:
    assert tally.loss([1.0, 1e100, 1.0, -1e100], LOSS_ALONE, 1) == 0.0, "a compensated sum gives another mean"


def test_a_sum_is_divided_by_the_whole_count() -> None:
    tallies = [6.0, 2.0, 3.0, 1.0, 1.0, 5.0, 0.0, 0.0]  # a sum and a count each
    assert tally.losses(tallies, SUMS) == [6.0, 3.0, 1.0, 0.0]
    assert tally.counted(tallies, SUMS, 2) == 8.0
    assert tally.loss(tallies, SUMS, 2) == 1.25
    assert (tally.counted([0.0, 0.0], SUMS, 1), tally.loss([0.0, 0.0], SUMS, 1)) == (0.0, 0.0)
    assert (tally.counted([], SUMS, 1), tally.loss([], SUMS, 1), tally.loss([], LOSS_ALONE, 1)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("clip", [None, 0.5, 100.0])
def test_a_count_divides_the_gradient_and_its_norm(clip: float | None) -> None:
    assert clip_scale([16.0, 9.0], clip, 4.0) == (0.25 if clip != 0.5 else 0.5 / (5.0 / 4.0 + 1e-6) / 4.0)
    assert clip_scale([16.0, 9.0], clip, 0.0) == SKIPPED
    assert clip_scale([1e300], clip, 1e300) != SKIPPED


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_one_element_among_many_is_found(dtype: torch.dtype, value: float) -> None:
    gradients = [torch.full((7, 33), 3.0, dtype=dtype), torch.ones(5, dtype=dtype)]
    assert all_finite(gradients)
    gradients[0][3, 7] = value
    assert not all_finite(gradients)


def test_infinities_of_both_signs_and_sums_that_overflow() -> None:
    assert not all_finite([torch.tensor([INF]), torch.tensor([-INF])])
    assert all_finite([torch.full((9,), 3e38), torch.full((9,), -3e38, dtype=torch.float64)])
    assert all_finite([torch.full((70000,), 60000.0, dtype=torch.float16)])
    assert all_finite([])


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_norm_is_a_sum_over_chunks_of_each_tensor(dtype: torch.dtype) -> None:
    """So it does not depend on the pieces in which a gradient comes, as long as each is of whole chunks."""
    gradients = [torch.randn(700, 1000, dtype=dtype), torch.randn(40, 50, dtype=dtype), torch.randn((), dtype=dtype)]
    expected = 0.0
    for gradient in gradients:
        for chunk in torch.split(gradient.flatten(), NORM_CHUNK):
            real = torch.view_as_real(chunk) if dtype.is_complex else chunk
            expected += float(torch.linalg.vector_norm(real, dtype=torch.float64)) ** 2
    assert in_order(squared_norms(gradients)) == expected
    pieces = [*torch.split(gradients[0].flatten(), 2 * NORM_CHUNK), *gradients[1:]]
    assert squared_norms(pieces) == squared_norms(gradients)
    assert squared_norms([]) == ()


def test_a_norm_does_not_depend_on_how_a_gradient_lies_in_memory() -> None:
    gradient = torch.randn(400, 900)
    turned = gradient.t().contiguous().t()
    assert turned.stride() != gradient.stride()
    assert squared_norms([turned]) == squared_norms([gradient])
