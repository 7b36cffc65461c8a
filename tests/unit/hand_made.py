"""A step of two stages and two microbatches on two nodes, by hand; forwards take 1 s, backwards 2 s."""

from culm.pipeline.instruction import Pass
from culm.pipeline.keys import Key
from culm.pipeline.schedule import Schedule
from culm.pipeline.timetable import Arrival, Doing, Lane, TimedSpan, Timetable
from tests.short import activation, gradient, unit

ZERO = 1000.0  # unix seconds at which the step begins
DOING: dict[Pass, Doing] = {"F": Doing.FORWARD, "B": Doing.BACKWARD, "W": Doing.WEIGHTS, "E": Doing.FORWARD}


def ran(stage: int, op: Pass, microbatch: int, begin: float, end: float) -> TimedSpan:
    instruction = unit(stage, op, microbatch)
    return TimedSpan(doing=DOING[op], begin=ZERO + begin, end=ZERO + end, instruction=instruction)


def did(doing: Doing, begin: float, end: float, awaited: Key | None = None, stage: int = 0) -> TimedSpan:
    return TimedSpan(doing=doing, begin=ZERO + begin, end=ZERO + end, awaited=awaited, stage=stage)


#     n0   F0 F1 .  .  B0 B0 .  .  B1 B1 reduce, commit, apply
#     n1   .  F0 B0 B0 F1 B1 B1 reduce, commit .., apply
#
# Every result takes 0.1 s to the other node, and 0.1 s until it is used. A node takes 0.1 s from one piece to the next.
N0 = (
    ran(0, "F", 0, 0.0, 1.0),
    ran(0, "F", 1, 1.1, 2.1),
    did(Doing.BUBBLE, 2.2, 4.5, gradient(1, 0)),
    ran(0, "B", 0, 4.5, 6.5),
    did(Doing.BUBBLE, 6.6, 7.6, gradient(1, 1)),
    ran(0, "B", 1, 7.6, 9.6),
    did(Doing.REDUCE, 9.7, 9.8, stage=0),
    did(Doing.COMMIT, 9.9, 10.3),
    did(Doing.APPLY, 10.3, 10.4),
)
N1 = (
    did(Doing.BUBBLE, -0.5, 1.2, activation(0, 0)),
    ran(1, "F", 0, 1.2, 2.2),
    ran(1, "B", 0, 2.3, 4.3),
    ran(1, "F", 1, 4.4, 5.3),
    ran(1, "B", 1, 5.4, 7.4),
    did(Doing.REDUCE, 7.5, 7.6, stage=1),
    did(Doing.COMMIT, 7.7, 10.2),
    did(Doing.APPLY, 10.2, 10.5),
)


def lanes() -> tuple[Lane, Lane]:
    came0 = [(gradient(1, 0), 4.4), (gradient(1, 1), 7.5)]
    came1 = [(activation(0, 0), 1.1), (activation(0, 1), 2.2)]
    return (
        Lane(
            node="n0",
            spans=N0,
            arrivals=tuple(Arrival(key, ZERO + at) for key, at in came0),
            ready=((0, ZERO + 9.85),),
            committed=ZERO + 10.25,
        ),
        Lane(
            node="n1",
            spans=N1,
            arrivals=tuple(Arrival(key, ZERO + at) for key, at in came1),
            ready=((1, ZERO + 7.65),),
            committed=ZERO + 10.15,
        ),
    )


def a_step() -> Timetable:
    return Timetable(step=7, schedule=Schedule(2), lanes=lanes())
