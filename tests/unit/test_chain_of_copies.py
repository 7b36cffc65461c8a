"""When all copies of a stage are gone at once, in a ring of owners and predecessors."""

from statistics import mean

import pytest

from culm.coordinator.copy_costs import Costs
from culm.simulator.markets.chain_of_copies import AUTO, HOUR, Chain, Outcome
from culm.simulator.markets.trace import Change

NODES = 12
COSTS = Costs(step=10.0, of_step=lambda copies: 0.5 * (copies - 2), to_seed=0.0, rollback=300.0)


def added(count: int = NODES) -> list[Change]:
    return [Change(at=0.0, kind="add", node=f"n{i}") for i in range(count)]


def removed(at: float, *numbers: int) -> list[Change]:
    return [Change(at=at, kind="remove", node=f"n{i}") for i in numbers]


def run(changes: list[Change], copies: int = 2, seed: int = 0, seeding: float = 10.0) -> Outcome:
    return Chain(changes=changes, copies=copies, seed=seed, seeding=seeding, costs=COSTS).run()


def share(changes: list[Change], copies: int, seeds: int = 400, seeding: float = 10.0) -> float:
    return mean(run(changes, copies, seed, seeding).rollbacks for seed in range(seeds))


def test_one_node_at_a_time_takes_no_second_copy() -> None:
    changes = [*added(), *(change for i in range(6) for change in removed(100.0 * (i + 1), i))]
    assert share(changes, 2, seeds=50) == 0.0


def test_two_at_once_take_a_stage_if_they_are_neighbours() -> None:
    """Of 11 other nodes two are neighbours."""
    changes = [*added(), *removed(100.0, 3, 8)]
    assert share(changes, 2) == pytest.approx(2 / 11, abs=0.06)
    assert share(changes, 3, seeds=50) == 0.0


def test_three_at_once_take_a_stage_of_three_copies_if_they_stand_in_a_row() -> None:
    """Of 220 threes 12 stand in a row."""
    changes = [*added(), *removed(100.0, 3, 8, 5)]
    assert share(changes, 3, seeds=1000) == pytest.approx(12 / 220, abs=0.025)


def test_a_copy_counts_once_it_is_seeded() -> None:
    """A second neighbour goes before, or after, the copies of the first are seeded anew."""
    before, after = ([*added(), *removed(100.0, 3), *removed(at, 8)] for at in (109.0, 111.0))
    assert share(before, 2) == pytest.approx(2 / 11, abs=0.06)
    assert share(after, 2, seeds=50) == 0.0


def test_stages_that_go_together_are_one_rollback() -> None:
    changes = [*added(), *removed(100.0, *range(6)), *removed(100.8, *range(6, 11))]
    outcome = run(changes)
    assert outcome.rollbacks == 1
    assert outcome.bulks == (11,)


def test_whoever_comes_is_seeded_first_and_takes_a_place_in_the_ring() -> None:
    late = [Change(at=100.0, kind="add", node="late")]
    gone = [Change(at=150.0, kind="remove", node="late")]
    assert run([*added(2), *late, *gone]).bulks == (), "it still started"
    changes = [*added(2), *late, *removed(200.0, 0), *removed(300.0, 1)]
    assert run(changes).rollbacks == 0, "the newcomer has a copy of everything"
    assert run([*added(2), *late, *removed(120.0, 0), *removed(130.0, 1)]).rollbacks == 1


def test_a_machine_that_comes_again_holds_nothing() -> None:
    again = [Change(at=101.0, kind="add", node="n0")]
    changes = [*added(2), *removed(100.0, 0), *again, *removed(120.0, 1)]
    assert run(changes).rollbacks == 1


def test_auto_begins_with_two_copies_and_has_more_after_bulks() -> None:
    calm = [*added(), *removed(HOUR, 0), *removed(2 * HOUR, 1)]
    assert run(calm, AUTO).copies == pytest.approx(2.0)
    bulky = [*added(), *removed(HOUR, 0, 1, 2), *removed(10 * HOUR, 3)]
    assert run(bulky, AUTO).copies > 2.5


def test_the_same_seed_gives_the_same() -> None:
    changes = [*added(), *removed(100.0, 3, 8), *removed(200.0, 4, 5, 6)]
    assert [run(changes, AUTO, seed) for seed in range(20)] == [run(changes, AUTO, seed) for seed in range(20)]
