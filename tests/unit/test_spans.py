"""What a node keeps of its last steps."""

from culm.pipeline.instruction import Duty, Instruction
from culm.pipeline.keys import Key, Kind
from culm.pipeline.tensors.values import Value
from culm.pipeline.timetable import Doing
from culm.pipeline.tree import Block
from culm.stage_server.watching import spans
from culm.stage_server.watching.spans import Kept, Spans, lane_of, what_of
from culm.stage_server.worker.work import Apply, Arrange, Load, Reduce, Run, Save, Sum, Work
from tests.short import activation, gradient, unit

OFFSET = 1000.0  # from the node's clock to unix seconds


def kept(found: Spans, running: int) -> Kept:
    return found.copy(running, clock=lambda: 50.0, wall=lambda: 50.0 + OFFSET)


def a_node(steps: range, most: int = 100) -> Spans:
    """In each step it runs a forward, waits for a gradient, runs the backward and applies."""
    found = Spans(most)
    for step in steps:
        at = 10.0 * step
        found.did(step, unit(0, "F", 0), at, at + 1)
        found.waits(step, gradient(1, 0, step), at + 1)
        found.waits(step, gradient(1, 0, step), at + 2)  # it looked again: still the same wait
        found.arrived(gradient(1, 0, step), at + 3)
        found.goes_on(at + 3)
        found.did(step, unit(0, "B", 0), at + 3, at + 5)
        found.told_ready(step, 0, at + 5)
        found.heard_commit(step, at + 6)
        found.did(step, spans.APPLY, at + 6, at + 7)
    return found


def test_a_step_that_is_over_is_told_by_unix_time() -> None:
    lane = lane_of(kept(a_node(range(3)), 3), "n0", 1)
    assert [(s.name, s.begin - OFFSET, s.end - OFFSET) for s in lane.spans] == [
        ("0F0", 10.0, 11.0),
        ("waits for 1B0", 11.0, 13.0),
        ("0B0", 13.0, 15.0),
        ("apply", 16.0, 17.0),
    ]
    assert [(a.key, a.at - OFFSET) for a in lane.arrivals] == [(gradient(1, 0, 1), 13.0)]
    assert lane.ready == ((0, 15.0 + OFFSET),)
    assert lane.committed == 16.0 + OFFSET


def test_the_running_step_is_not_whole() -> None:
    assert kept(a_node(range(3)), 2).steps == range(2)
    assert kept(Spans(), 0).steps == range(0)
    assert kept(Spans(), 7).steps == range(7, 7)


def test_a_full_ring_may_lack_the_begin_of_its_oldest_step() -> None:
    assert kept(a_node(range(10), most=10), 10).steps == range(8, 10)
    assert kept(a_node(range(1), most=2), 1).steps == range(1, 1)


def test_after_a_rollback_a_step_is_what_ran_last() -> None:
    found = a_node(range(5))
    for step, era in ((2, 1), (3, 1)):
        at = 100.0 + 10 * step
        found.did(step, unit(0, "F", 0), at, at + 1)
        found.arrived(Key(era, step, 0, Kind.GRADIENT, 1, 0), at + 1)
        found.did(step, spans.APPLY, at + 6, at + 7)
    now = kept(found, 4)
    assert now.steps == range(2, 4)
    lane = lane_of(now, "n0", 3)
    assert [s.begin - OFFSET for s in lane.spans] == [130.0, 136.0]
    assert [a.key.era for a in lane.arrivals] == [1]
    assert (lane.ready, lane.committed) == ((), None), "those are of before"


def test_what_came_before_commits_were_missed_is_not_told() -> None:
    found = a_node(range(2))
    found.did(9, unit(0, "F", 0), 90.0, 91.0)
    assert kept(found, 10).steps == range(9, 10)


def test_a_wait_for_something_else_is_another_one() -> None:
    found = Spans()
    found.waits(0, activation(0, 0), 1.0)
    found.waits(0, spans.COMMIT, 2.0)
    found.goes_on(4.0)
    found.goes_on(5.0)
    lane = lane_of(kept(found, 1), "n0", 0)
    assert [(s.doing, s.seconds) for s in lane.spans] == [(Doing.BUBBLE, 1.0), (Doing.COMMIT, 2.0)]


def test_a_piece_of_work_is_kept_without_its_tensors() -> None:
    value = Value(())
    forward = unit(1, "F", 0)
    own: Run[Value] = Run(instruction=forward, step=0, tenure=1, operands=(value,))
    ahead: Run[Value] = Run(instruction=forward, step=0, tenure=-1, operands=(value,))
    reduce: Reduce[Value] = Reduce(stage=1, step=0, block=Block(0, 1), leaves=True, tenures=())
    total: Sum[Value] = Sum(stage=1, layer=2, bucket=3, step=0, uses=((0, ((Block(0, 1), value),)),))
    apply: Apply[Value] = Apply(step=0, scale=1.0, gradients=((0, (value,)),))
    found = Spans()
    arrange = Arrange(layers=(), duties=(), stages=1, step=0, anew=False)
    save = Save(era=0, step=1, layers=(), loss=0.0)
    loads = (Load(0, 1, 3), Load(0, 0, 2, evaluated=True))
    works: list[Work[Value] | Load] = [own, ahead, *loads, reduce, total, apply, arrange, save]
    for at, work in enumerate(works):
        found.did(0, what_of(work), at, at + 1)
    names = [(s.doing.value, s.name) for s in lane_of(kept(found, 1), "n0", 0).spans]
    assert names == [
        ("forward", "1F0"),
        ("redundant", "1F0"),
        ("load", "load p1/0F3"),
        ("load", "load 0E2"),
        ("reduce", "reduce 1"),
        ("sum", "sum 1, bucket 3"),
        ("apply", "apply"),
        ("arrange", "arrange"),
        ("save", "save"),
    ]
    assert isinstance(what_of(own), Instruction)
    assert what_of(own) == Instruction(Duty(0, 1), "F", 0)
