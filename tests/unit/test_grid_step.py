"""How long a step takes whose stages have several owners, calm and with lost nodes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culm.coordinator.placement import place, promote
from culm.coordinator.step_cost import Situation, step_cost
from culm.coordinator.zones import GRADIENT_BYTES
from culm.pipeline.choice import Left, choose
from culm.pipeline.flow import awaited
from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.plan import Stages
from culm.pipeline.schedule import Schedule
from culm.simulator.markets.grid_step import GridStep, GridWork, StageSeconds
from culm.simulator.markets.step_time import Durations, calm

F, B = 0.01, 0.02
D, M = 4, 4
NODES = [f"n{i}" for i in range(8)]
PARAMETERS = 2.0**24  # of a layer: many chunks, which reducers divide evenly
COSTS = (PARAMETERS, PARAMETERS)


def work(stages: int = 2, hop: float = 0.0, sending: float = 0.0) -> GridWork:
    """A layer for each stage."""
    return GridWork(
        layers=(F + B,) * stages,
        stages=(StageSeconds(F, B),) * stages,
        pipelines=D,
        microbatches=M,
        hop=hop,
        parameters=(PARAMETERS,) * stages,
        bytes_per_second=GRADIENT_BYTES * PARAMETERS / sending if sending else float("inf"),
    )


def placed(nodes: int, stages: int = 2) -> Stages:
    return place(NODES[:nodes], (PARAMETERS,) * stages, stages, copies=2, pipelines=D)


def after(stages: Stages, *lost: str) -> Stages:
    left, _ = promote(stages, lost, COSTS)
    assert left is not None
    return left


def test_with_one_owner_a_stage_the_estimate_is_the_timetables() -> None:
    for stages in (1, 2, 4):
        schedule, durations = Schedule(D * M, 2), Durations((F,) * stages, (B,) * stages, hop=0.001)
        timetable = calm(tuple(range(stages)), schedule, durations)
        assert GridStep(placed(stages, stages), work(stages, hop=0.001)).seconds == pytest.approx(timetable.seconds)


def test_replicas_divide_the_work_and_not_the_way_through_the_stages() -> None:
    assert GridStep(placed(8), work()).seconds == pytest.approx((M + 1) * (F + B))
    assert GridStep(placed(4), work()).seconds == pytest.approx((2 * M + 1) * (F + B))
    assert GridStep(placed(6), work()).seconds == GridStep(placed(4), work()).seconds, "one of three owners has two"


def test_the_estimate_is_the_one_by_which_the_coordinator_chooses_shapes() -> None:
    stages = after(placed(8), "n0")
    situation = Situation(
        layer_costs=(F + B,) * 2,
        layer_parameters=(1.0,) * 2,
        microbatches=D * M,
        pipelines=D,
        most_stages=2,
        nodes=tuple(NODES),
        copies=2,
        seed_bytes_per_second=1e8,
        seconds_to_next_lost=3600.0,
        slowness={},
    )
    assert GridStep(stages, work()).seconds == pytest.approx(step_cost(stages, situation))


def played(stages: Stages, microbatches: int) -> float:
    """Seconds of a step whose nodes run whatever has its input, as real ones do. Tensors take no time."""
    duties = [Duty(p, s) for s, stage in enumerate(stages) for p in range(len(stage.owners))]
    forwards, backwards = dict.fromkeys(duties, 0), dict.fromkeys(duties, 0)
    done: set[Instruction] = set()
    running: list[tuple[float, str, Instruction]] = []

    def left_of(duty: Duty) -> Left:
        forward = Instruction(duty, "F", forwards[duty]) if forwards[duty] < microbatches else None
        backward = Instruction(duty, "B", backwards[duty]) if backwards[duty] < forwards[duty] else None
        return Left(duty=duty, forward=forward, backward=backward, graphs=forwards[duty] - backwards[duty])

    def missing(instruction: Instruction) -> Instruction | None:
        needed = awaited(instruction, len(stages))
        return needed if needed not in done else None

    now = 0.0
    while len(done) < 2 * microbatches * len(duties):
        for node in {owner for stage in stages for owner in stage.owners} - {node for _, node, _ in running}:
            mine = [left_of(duty) for duty in duties if stages[duty.stage].owners[duty.pipeline] == node]
            chosen = choose(mine, Schedule(microbatches, 2), len(stages), missing)
            if chosen is not None:
                (forwards if chosen.op == "F" else backwards)[chosen.duty] += 1
                running.append((now + (F if chosen.op == "F" else B), node, chosen))
        now = min(end for end, _, _ in running)
        done |= {instruction for end, _, instruction in running if end < now + 1e-9}
        running = [each for each in running if each[0] >= now + 1e-9]
    return now


@pytest.mark.parametrize(
    ("pipelines", "microbatches", "stages", "nodes"),
    [(4, 4, 2, 8), (4, 4, 4, 8), (8, 4, 2, 6), (8, 4, 3, 15), (4, 2, 2, 4), (8, 2, 4, 4), (3, 4, 2, 5)],
)
def test_the_estimate_is_what_nodes_take_that_run_whatever_has_its_input(
    pipelines: int, microbatches: int, stages: int, nodes: int
) -> None:
    """Of equal stages, in every shape and with an owner lost."""
    names = [f"n{i}" for i in range(nodes)]
    calm_stages = place(names, (1.0,) * stages, stages, copies=2, pipelines=pipelines)
    one_less, _ = promote(calm_stages, [calm_stages[-1].owners[0]], (1.0,) * stages)
    whole = replace(work(stages), pipelines=pipelines, microbatches=microbatches)
    for shape in filter(None, (calm_stages, one_less)):
        assert GridStep(shape, whole).seconds == pytest.approx(played(shape, microbatches))


def test_the_sum_over_owners_takes_the_bytes_of_a_ring() -> None:
    calm_step = GridStep(placed(8), work()).seconds
    assert GridStep(placed(8), work(sending=1.0)).seconds == pytest.approx(calm_step + 2 * 3 / 4)
    assert GridStep(placed(4), work(sending=1.0)).seconds - GridStep(placed(4), work()).seconds == pytest.approx(1.0)
    assert GridStep(placed(2), work(sending=1.0)).seconds == GridStep(placed(2), work()).seconds, "one owner sums alone"


def test_times_of_a_node_fill_the_step() -> None:
    step = GridStep(placed(8), work(hop=0.001, sending=0.1))
    times = step.times("n0")
    assert (times.forward, times.backward) == pytest.approx((M * F, M * B))
    assert times.forward + times.backward + times.bubble == pytest.approx(step.seconds)
    assert step.times("a spare").bubble == pytest.approx(step.seconds)


def test_peers_take_over_what_a_lost_owner_had_done_one_pipeline_each() -> None:
    stages, whole = placed(4), work()
    step = GridStep(stages, whole).of(stages)
    at = step.seconds / 3
    left = after(stages, stages[0].owners[0])
    assert step.lose(at, at + 0.01, left) == round(2 * 2 * M / 3)
    # The other owner has two thirds of its own pipelines to go, and the two of the lost one.
    assert step.seconds == pytest.approx(at + 0.01 + 2 / 3 * (2 * M + 1) * (F + B) + 2 * M * (F + B))
    assert GridStep(stages, whole).seconds == pytest.approx((2 * M + 1) * (F + B)), "the calm step stays as it was"


def test_more_peers_have_less_to_take_over_each() -> None:
    def longer(nodes: int) -> float:
        stages = placed(nodes)
        step = GridStep(stages, work()).of(stages)
        before = step.seconds
        step.lose(before / 2, before / 2, after(stages, stages[0].owners[0]))
        return step.seconds - before

    assert longer(8) < longer(4)


def test_a_standby_has_what_was_shipped_and_what_it_ran_ahead() -> None:
    stages = placed(2)

    def loses(**more: float) -> float:
        step = GridStep(stages, work()).of(stages)
        step.lose(0.25, 0.25, after(stages, "n0"), **more)  # type: ignore[arg-type]
        return step.seconds

    lazy, eager, shipped = loses(), loses(ahead=1.0), loses(ship_every=1)
    assert eager < lazy
    assert shipped < lazy
    peers = placed(4)
    one, other = GridStep(peers, work()).of(peers), GridStep(peers, work()).of(peers)
    one.lose(0.1, 0.1, after(peers, "n0"))
    other.lose(0.1, 0.1, after(peers, "n0"), ahead=1.0, ship_every=1)
    assert one.seconds == other.seconds, "peers have nothing of each other's pipelines"


@given(
    lost=st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True),
    shares=st.lists(st.floats(0.0, 1.2), min_size=3, max_size=3),
    sending=st.floats(0.0, 0.1),
)
def test_a_lost_node_never_makes_a_step_shorter(lost: list[int], shares: list[float], sending: float) -> None:
    stages = placed(8)
    step = GridStep(stages, work(hop=0.001, sending=sending)).of(stages)
    for number, share in zip(lost, sorted(shares), strict=False):
        before, at = step.seconds, share * step.seconds
        summed = work(hop=0.001, sending=sending).summing(stages)
        left, _ = promote(stages, [NODES[number]], COSTS)
        if left is None:
            return
        step.lose(at, at, left)
        stages = left
        saved = summed - work(hop=0.001, sending=sending).summing(stages)  # fewer owners have less to sum
        assert step.seconds >= before - saved - 1e-9


def test_a_loss_at_the_very_end_costs_the_lost_duties_whole() -> None:
    stages = placed(8)
    step = GridStep(stages, replace(work(), hop=0.0)).of(stages)
    end = step.seconds
    step.lose(end, end, after(stages, "n0"))
    assert step.seconds == pytest.approx(end + M * (F + B))
