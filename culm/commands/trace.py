"""``culm trace``: a step as a timetable, as text or as a file for Perfetto."""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import grpc

from culm.pipeline.critical_path import by_kind, critical_path
from culm.pipeline.errors import JobError
from culm.pipeline.ideal_step import ideal_of
from culm.pipeline.rpc.channel import details
from culm.pipeline.rpc.timetables import Gathered, gather
from culm.pipeline.text import cleaned
from culm.pipeline.timetable import Timetable
from culm.protos import coordinator_pb2 as pb
from culm.terminal import flags
from culm.terminal.client import connect

MOST_STEPS = 1000
NOTICEABLE = 0.001  # seconds by which clocks differ before somebody is told


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "trace",
        help="a step as a timetable: who did what when, beside the ideal",
        description="Asks the nodes what they did in a step: forwards, backwards, waiting, reducing, applying. Shows "
        "it beside the ideal, and what the step waited for. --out writes a trace that https://ui.perfetto.dev opens.",
        epilog="examples:\n  culm trace\n  culm trace --steps 20\n  culm trace --step 100 --out step.json",
    )
    parser.add_argument("--step", type=flags.whole(), metavar="N", help="the last step; default: the newest whole one")
    several = flags.whole(1, MOST_STEPS)
    what = "how many steps, up to that one; default: 1. Figures are medians over them"
    parser.add_argument("--steps", type=several, default=1, metavar="K", help=what)
    what = "write a trace for https://ui.perfetto.dev, in Chrome's trace event format"
    parser.add_argument("--out", type=flags.new_file, metavar="FILE", help=what)
    flags.add_coordinator(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=trace)


def trace(arguments: argparse.Namespace) -> int:
    gathered = _gathered(arguments.coordinator, arguments.step, arguments.steps)
    timetables = gathered.timetables
    for why in gathered.silent.values():
        print(f"culm trace: a row is missing: {why}", file=sys.stderr)
    skew = max(each.least_skew() for each in timetables)
    if skew > NOTICEABLE:
        print(
            f"culm trace: the clocks of two nodes differ by {skew * 1e3:.1f} ms at least, and ways between nodes are "
            "off by that; keep the machines' clocks in step with NTP",
            file=sys.stderr,
        )
    if arguments.out:
        _write(arguments.out, timetables)
    if arguments.json:
        kept = [gathered.kept.start, gathered.kept.stop - 1]
        print(json.dumps({"kept": kept, "silent": dict(gathered.silent), "steps": [as_json(t) for t in timetables]}))
    elif arguments.out:
        first, last = timetables[0].step, timetables[-1].step
        which = f"steps {first} to {last}" if first < last else f"step {last}"
        print(f"{arguments.out} has {which}; open it at https://ui.perfetto.dev")
    else:
        _show(timetables)
    return 0


def _gathered(coordinator: str, step: int | None, steps: int) -> Gathered:
    channel, stub = connect(coordinator)
    with channel:
        try:
            status = cleaned(stub.GetStatus(pb.GetStatusRequest(), timeout=5.0))
        except grpc.RpcError as error:
            mend = "see the coordinator's log"
            raise JobError(f"the coordinator does not answer: {details(error)}", coordinator, mend) from error
    return gather(status, step, steps)


def _write(path: str, timetables: Sequence[Timetable]) -> None:
    from culm.pipeline.trace_file import trace as traced

    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(traced(timetables), file)
    except OSError as error:
        raise JobError(f"the trace cannot be written ({error})", f"--out {path}", "choose another file") from error


def as_json(timetable: Timetable) -> dict[str, Any]:
    """The step by the names that scripts rely on. Times are seconds from the step's begin."""
    ideal, path = ideal_of(timetable), critical_path(timetable)
    zero = timetable.begin
    return {
        "step": timetable.step,
        "begin_unix_seconds": zero,
        "seconds": timetable.seconds,
        "committed_seconds": timetable.committed - zero if timetable.committed is not None else None,
        "ideal_seconds": ideal.seconds if ideal is not None else None,
        "busiest_seconds": ideal.busiest_seconds if ideal is not None else None,
        "nodes": [
            {
                "node": lane.node,
                "stages": list(lane.stages),
                "seconds": {use: spent for use, spent in timetable.shares(lane).items() if spent},
                "ideal_bubble_seconds": ideal.bubble(lane.node) if ideal is not None else None,
                "spans": [
                    {"name": s.name, "use": s.use, "begin": s.begin - zero, "end": s.end - zero} for s in lane.spans
                ],
            }
            for lane in timetable.lanes
        ],
        "path": [
            {"what": leg.what, "node": leg.node, "name": leg.name, "begin": leg.begin - zero, "end": leg.end - zero}
            for leg in path
        ],
    }


def medians_of(timetables: Sequence[Timetable]) -> dict[str, tuple[float, float]]:
    """Of the steps' critical paths, by kind: median seconds, and how many legs."""
    paths = [by_kind(critical_path(each)) for each in timetables]
    kinds = dict.fromkeys(what for path in paths for what in path)
    found = {}
    for what in kinds:
        each = [path.get(what, (0.0, 0)) for path in paths]
        found[what] = statistics.median(s for s, _ in each), statistics.median(count for _, count in each)
    return found


def _show(timetables: Sequence[Timetable]) -> None:
    from rich.console import Console

    from culm.terminal import gantt

    console = Console()
    last = timetables[-1]
    ideals = [ideal for each in timetables if (ideal := ideal_of(each)) is not None]
    ideal = ideal_of(last)
    seconds = statistics.median(each.seconds for each in timetables)
    told = [f"step {last.step}: {gantt.ms(last.seconds)}"]
    if len(timetables) > 1:
        told = [f"steps {timetables[0].step} to {last.step}: median {gantt.ms(seconds)}"]
    if ideals:
        best = statistics.median(each.seconds for each in ideals)
        busiest = statistics.median(each.busiest_seconds for each in ideals)
        told.append(f"{seconds / best:.3f} times the ideal of {gantt.ms(best)}" if best else "no ideal")
        told.append(f"the busiest node works {gantt.ms(busiest)}")
    console.print("; ".join(told), highlight=False)
    if len(timetables) > 1:
        console.print(f"step {last.step}: {gantt.ms(last.seconds)}", highlight=False)
    console.print(gantt.chart(last, ideal, console.width))
    console.print(gantt.legend(gantt.used(last)))
    console.print()
    console.print(gantt.shares(last, ideal))
    console.print()
    whole = statistics.median(sum(leg.seconds for leg in critical_path(each)) for each in timetables)
    console.print(gantt.path_table(medians_of(timetables), whole, len(timetables)))
