"""Which redundancy is chosen for what was observed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator.redundancy import Observed, choose, prices
from culm.pipeline.plan import Redundancy

LAZY = Redundancy()
# Forward 10 ms, backward 20 ms, four stages, eight microbatches.
SEEN = Observed(step=0.33, forward=0.08, backward=0.16, bubble=0.09, microbatches=8, gradient_bytes=4e6)


def test_while_nothing_is_lost_nothing_is_changed() -> None:
    assert choose(SEEN, LAZY) == (LAZY, "")


def test_bubbles_are_filled_where_losses_are_frequent() -> None:
    choice, why = choose(replace(SEEN, lost_per_second=1 / 20), LAZY)
    assert choice == Redundancy(eager=True)
    assert why == (
        "eager: with a lost node every 20 s, a step of 330 ms and bubbles of 90 ms it takes 0.0 ms of a step "
        "and leaves 80 ms to redo when a node is lost"
    )


def test_losses_too_rare_to_matter_change_nothing() -> None:
    assert choose(replace(SEEN, lost_per_second=1 / 3600), LAZY) == (LAZY, "")


def test_gradients_are_shipped_over_a_fast_link_without_bubbles() -> None:
    seen = replace(SEEN, bubble=0.0, lost_per_second=1 / 20, bytes_per_second=1e11)
    assert choose(seen, LAZY)[0] == Redundancy(ship_every=1)
    assert choose(replace(seen, bytes_per_second=1e8), LAZY)[0] == LAZY, "seven shipments would take 280 ms of a step"


def test_the_bubble_is_spent_once() -> None:
    """Where forwards run ahead take all of it, shipping costs what it takes."""
    seen = replace(SEEN, bubble=0.08, lost_per_second=1 / 20, bytes_per_second=1e9)
    of_step = {price.choice: price.of_step for price in prices(seen)}
    assert of_step[Redundancy(True, 4)] == 0.004
    assert of_step[Redundancy(False, 4)] == 0.0


@given(
    st.floats(0, 1), st.floats(0.001, 1), st.floats(0.001, 1), st.integers(1, 64), st.floats(0, 1), st.floats(0, 1e10)
)
def test_the_choice_is_never_dearer_than_the_present_one(
    bubble: float, forward: float, backward: float, microbatches: int, losses: float, speed: float
) -> None:
    step = forward + backward + bubble
    seen = Observed(
        step=step,
        forward=forward,
        backward=backward,
        bubble=bubble,
        microbatches=microbatches,
        gradient_bytes=1e8,
        bytes_per_second=speed,
        lost_per_second=losses,
    )
    found = {price.choice: price.expected(seen) for price in prices(seen)}
    for present in found:
        choice, why = choose(seen, present)
        assert found[choice] <= found[present]
        assert (choice == present) == (why == "")
