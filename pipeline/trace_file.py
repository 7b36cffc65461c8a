"""Timetables as a trace that https://ui.perfetto.dev and chrome://tracing open: Chrome's trace event format."""

# A process is a node, with two threads: what its compute thread did, and the tensors that came to it. Each tensor is
# an event of its own from the end of the work that made it until it was there, since several travel at once. The ideal
# of the first step is a process after the nodes, with a thread a node.
#
# https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes the format.

from collections.abc import Iterator, Sequence
from typing import Any

from culm.pipeline.flow import CROSSES, maker_of
from culm.pipeline.ideal_step import ideal_of
from culm.pipeline.text import natural_order
from culm.pipeline.timetable import STEP_WORK, Lane, Timetable, tensor_name

COMPUTE, NETWORK = 1, 2  # threads
RUN = 0  # the process that has a row for the steps
Event = dict[str, Any]


def trace(timetables: Sequence[Timetable]) -> dict[str, Any]:
    """An object to be written as JSON. Times count from the first step's begin, in microseconds."""
    zero = timetables[0].begin if timetables else 0.0
    nodes = natural_order({lane.node for timetable in timetables for lane in timetable.lanes})
    process = {node: i + 1 for i, node in enumerate(nodes)}
    events = list(_names(process))
    for timetable in timetables:
        args = {"seconds": timetable.seconds}
        events.append(_whole(f"step {timetable.step}", "step", timetable.begin, timetable.end, zero, RUN, 1, args))
        made = _made(timetable)
        for lane in timetable.lanes:
            events += _lane(timetable, lane, process[lane.node], zero)
            events += _travels(timetable, lane, made, process[lane.node], zero)
    if timetables:
        events += _ideal(timetables[0], nodes, len(nodes) + 1)
    first = timetables[0].step if timetables else None
    other = {"first_step": first, "steps": len(timetables), "begin_unix_seconds": zero}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _names(process: dict[str, int]) -> Iterator[Event]:
    yield _name("process_name", RUN, 0, "run")
    yield _name("thread_name", RUN, 1, "steps")
    for node, pid in process.items():
        yield _name("process_name", pid, 0, node)
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
        yield _name("thread_name", pid, COMPUTE, "compute thread")
        yield _name("thread_name", pid, NETWORK, "network")


def _name(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _whole(name: str, use: str, begin: float, end: float, zero: float, pid: int, tid: int, args: Event) -> Event:
    """An event with a begin and an end; a thread's do not overlap."""
    dur = max(0.0, (end - begin) * 1e6)
    where: Event = {"pid": pid, "tid": tid}
    return {"ph": "X", "name": name, "cat": use, "ts": _us(begin - zero), "dur": dur, **where, "args": args}


def _us(seconds: float) -> float:
    return seconds * 1e6


def _lane(timetable: Timetable, lane: Lane, pid: int, zero: float) -> Iterator[Event]:
    for span in lane.spans:
        args: Event = {"step": timetable.step}
        if span.instruction is not None:
            duty, op, microbatch = span.instruction
            args |= {"pipeline": duty.pipeline, "stage": duty.stage, "operation": op, "microbatch": microbatch}
        yield _whole(span.name, span.use, span.begin, span.end, zero, pid, COMPUTE, args)
    moments = [(f"ready: stage {stage}", at) for stage, at in lane.ready]
    moments += [("commit", lane.committed)] if lane.committed is not None else []
    for name, at in moments:
        where: Event = {"pid": pid, "tid": COMPUTE, "s": "t", "args": {"step": timetable.step}}
        yield {"ph": "i", "name": name, "cat": "commit", "ts": _us(at - zero), **where}


def _made(timetable: Timetable) -> dict[str, float]:
    """When each piece of work was done that gives a tensor; of several, the first."""
    made: dict[str, float] = {}
    for span in timetable.spans():
        if span.doing in STEP_WORK:
            made[span.name] = min(span.end, made.get(span.name, span.end))
    return made


def _travels(timetable: Timetable, lane: Lane, made: dict[str, float], pid: int, zero: float) -> Iterator[Event]:
    for number, arrival in enumerate(lane.arrivals):
        name = tensor_name(arrival.key)
        begin = made.get(str(maker_of(arrival.key)), arrival.at) if arrival.key.kind in CROSSES else arrival.at
        same: Event = {"name": name, "cat": "tensor", "id": f"{lane.node}.{timetable.step}.{number}"}
        same |= {"pid": pid, "tid": NETWORK}
        yield {"ph": "b", "ts": _us(min(begin, arrival.at) - zero), **same, "args": {"key": str(arrival.key)}}
        yield {"ph": "e", "ts": _us(arrival.at - zero), **same, "args": {}}


def _ideal(timetable: Timetable, nodes: Sequence[str], pid: int) -> Iterator[Event]:
    ideal = ideal_of(timetable)
    if ideal is None:
        return
    yield _name("process_name", pid, 0, f"ideal of step {timetable.step}")
    yield {"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}}
    for tid, node in enumerate(nodes, 1):
        yield _name("thread_name", pid, tid, node)
        for span in ideal.spans.get(node, ()):
            use = {"F": "forward", "E": "forward", "B": "backward", "W": "weights"}[span.instruction.op]
            yield _whole(str(span.instruction), use, span.begin, span.end, 0.0, pid, tid, {"step": timetable.step})
