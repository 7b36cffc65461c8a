"""Pipelines take turns: in any ownership a step takes as long as its busiest node and the way through the pipe."""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from culm.pipeline.choice import Left, choose
from culm.pipeline.flow import awaited
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.schedule import Schedule
from culm.pipeline.turns import turns_of

FORWARD, BACKWARD = 1, 2  # parts of time
Owners = list[list[str]]  # of each stage, by pipeline


def in_rows(pipelines: int, replicas: int, stages: int) -> Owners:
    """Rows of nodes, each with some pipelines that follow each other."""
    return [[f"{s}.{p * replicas // pipelines}" for p in range(pipelines)] for s in range(stages)]


def crossed(pipelines: int, replicas: int, stages: int) -> Owners:
    """Every other stage deals its pipelines out one by one: nodes of two stages have all neighbours there are."""
    rows = in_rows(pipelines, replicas, stages)
    return [[f"{s}.{p % replicas}" for p in range(pipelines)] if s % 2 else rows[s] for s in range(stages)]


def parts_of_time(owners: Owners, microbatches: int, turns: Sequence[int]) -> int:
    """How long a step takes if nodes choose by these turns, and nothing takes time but forwards and backwards."""
    stages, pipelines = len(owners), len(owners[0])
    duties = [Duty(p, s) for s in range(stages) for p in range(pipelines)]
    done: set[Instruction] = set()
    ran: Counter[tuple[Duty, str]] = Counter()
    running: list[tuple[int, str, Instruction]] = []
    now = 0

    def left(duty: Duty) -> Left:
        f, b = ran[duty, "F"], ran[duty, "B"]
        graphs = sum(Instruction(duty, "F", m) in done for m in range(f)) - b
        return Left(
            duty=duty,
            turn=turns[duty.pipeline],
            forward=Instruction(duty, "F", f) if f < microbatches else None,
            backward=Instruction(duty, "B", b) if graphs else None,
            graphs=graphs,
        )

    def missing(instruction: Instruction) -> Instruction | None:
        needed = awaited(instruction, stages)
        return needed if needed not in done else None

    while len(done) < 2 * microbatches * len(duties):
        busy = {node for _, node, _ in running}
        for node in {owners[d.stage][d.pipeline] for d in duties} - busy:
            mine = [left(duty) for duty in duties if owners[duty.stage][duty.pipeline] == node]
            if (chosen := choose(mine, Schedule(microbatches), stages, missing)) is not None:
                ran[chosen.duty, chosen.op] += 1
                heapq.heappush(running, (now + (FORWARD if chosen.op == "F" else BACKWARD), node, chosen))
        assert running, "all stand still"
        now = running[0][0]
        while running and running[0][0] == now:
            done.add(heapq.heappop(running)[-1])
    return now


def ideal(owners: Owners, microbatches: int) -> int:
    """The busiest node's work, and the way of one microbatch through the stages that other nodes run."""
    work = Counter(node for stage in owners for node in stage)
    through = len({stage[0] for stage in owners}) - 1
    return (max(work.values()) * microbatches + through) * (FORWARD + BACKWARD)


def after_a_loss(lost: str, heirs: tuple[str, str]) -> Owners:
    """Eight pipelines on four replicas of two stages: the lost node's two go to two others of its stage."""
    given = itertools.cycle(heirs)
    return [[next(given) if node == lost else node for node in stage] for stage in in_rows(8, 4, 2)]


LOSSES = [
    (f"{stage}.{lost}", heirs)
    for stage in range(2)
    for lost in range(4)
    for heirs in itertools.permutations([f"{stage}.{r}" for r in range(4) if r != lost], 2)
]


@pytest.mark.parametrize(("lost", "heirs"), LOSSES)
def test_whoever_is_lost_and_whoever_inherits_no_node_waits_for_anothers_turn(
    lost: str, heirs: tuple[str, str]
) -> None:
    owners = after_a_loss(lost, heirs)
    assert parts_of_time(owners, 4, turns_of(owners)) == ideal(owners, 4) == 39


def test_by_their_number_they_would_wait() -> None:
    taken = Counter(parts_of_time(after_a_loss(*loss), 4, range(8)) for loss in LOSSES)
    assert taken == {39: 20, 51: 28}


@pytest.mark.parametrize("shape", [(8, 3, 2), (8, 3, 4), (4, 4, 2), (8, 1, 2), (8, 2, 4), (5, 2, 3), (16, 5, 4)])
@pytest.mark.parametrize("dealt", [in_rows, crossed])
def test_in_other_shapes_the_busiest_node_and_the_pipe_tell_how_long_a_step_takes(
    dealt: Callable[[int, int, int], Owners], shape: tuple[int, int, int]
) -> None:
    owners = dealt(*shape)
    assert parts_of_time(owners, 4, turns_of(owners)) <= ideal(owners, 4)


@pytest.mark.parametrize("shape", [(1, 1, 3), (4, 4, 2), (8, 3, 2), (8, 1, 1), (125, 125, 8)])
def test_in_rows_pipelines_go_by_number(shape: tuple[int, int, int]) -> None:
    owners = in_rows(*shape)
    for node in set(owners[0]):
        turns = [turn for turn, owner in zip(turns_of(owners), owners[0], strict=True) if owner == node]
        assert turns == list(range(len(turns)))


def test_a_node_with_all_stages_takes_one_after_the_other() -> None:
    assert turns_of([["n0"] * 5, ["n0"] * 5]) == (0, 1, 2, 3, 4)


def test_without_stages_there_is_nothing_to_run() -> None:
    assert turns_of([]) == ()
