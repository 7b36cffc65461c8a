"""Which instruction goes first, of those whose input is here."""

from culm.pipeline.choice import Left, awaited, choose
from culm.pipeline.instruction import Duty, Instruction, Pass
from culm.pipeline.schedule import Schedule

PLAIN, SPLIT = Schedule(4), Schedule(4, 1, True)


def left(stage: int, forward: int | None, backward: int | None, pipeline: int = 0, **more: object) -> Left:
    """With these heads."""
    duty = Duty(pipeline, stage)

    def head(op: Pass, m: int | None) -> Instruction | None:
        return Instruction(duty, op, m) if m is not None else None

    return Left(duty=duty, forward=head("F", forward), backward=head("B", backward), **more)  # type: ignore[arg-type]


def all_here(_: Instruction) -> None:
    return None


def none_here(instruction: Instruction) -> Instruction:
    return instruction


def test_forwards_fill_the_pipe_and_then_backwards_go_in_turn() -> None:
    assert str(choose([left(0, 1, 0, graphs=1)], PLAIN, 2, all_here)) == "0F1"
    assert str(choose([left(0, 2, 0, graphs=2)], PLAIN, 2, all_here)) == "0B0"
    assert str(choose([left(1, 1, 0, graphs=1)], PLAIN, 2, all_here)) == "1B0", "the last stage keeps one graph"


def test_the_room_is_that_of_all_pipelines_together() -> None:
    full = [left(0, None, None, graphs=2), left(0, 0, None, pipeline=1)]
    assert choose(full, PLAIN, 2, all_here) is None
    assert str(choose([*full, left(0, None, 0, pipeline=2)], PLAIN, 2, all_here)) == "p2/0B0"


def test_a_forward_that_keeps_no_graph_needs_no_room() -> None:
    assert str(choose([left(0, 3, None, graphs=2, keeps_graph=False)], PLAIN, 2, all_here)) == "0F3"


def test_the_lowest_pipeline_and_microbatch_goes_first_and_the_later_stage() -> None:
    heads = [left(0, 1, None), left(1, 0, None), left(0, 0, None, pipeline=1)]
    assert str(choose(heads, Schedule(4, 2), 3, all_here)) == "1F0"


def test_second_halves_wait_for_all_else() -> None:
    weights = Instruction(Duty(0, 1), "W", 0)
    assert str(choose([left(1, 1, 1, weights=weights)], SPLIT, 3, all_here)) == "1B1"
    assert choose([left(1, None, None, weights=weights)], SPLIT, 3, all_here) == weights
    assert choose([left(1, 3, None, weights=weights, halves=3)], SPLIT, 3, all_here) == weights, (
        "as many as the first stage"
    )
    assert str(choose([left(0, 1, 0)], SPLIT, 3, all_here)) == "0F1", "nobody waits for the first stage's backwards"


def test_what_is_awaited_is_a_forward_while_there_is_room() -> None:
    assert str(awaited([left(1, 1, 0, graphs=1)], PLAIN, 3, none_here)) == "1F1"
    assert str(awaited([left(1, 2, 0, graphs=2)], PLAIN, 3, none_here)) == "1B0"
