"""``culm status``: where the run stands."""

import argparse
import json
import math

import grpc

from culm.commands.cost import forecast_lines
from culm.pipeline.counting import of_chunks
from culm.pipeline.epochs import epoch_of, in_words
from culm.pipeline.errors import JobError
from culm.pipeline.instruction import Duty
from culm.pipeline.money.example_prices import WORDS as EXAMPLE_PRICES
from culm.pipeline.money.example_prices import at_example_prices
from culm.pipeline.rpc.channel import details
from culm.pipeline.text import cleaned
from culm.protos import coordinator_pb2 as pb
from culm.terminal import flags
from culm.terminal.client import connect


def add_arguments(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "status",
        help="where the run stands",
        description="Asks the coordinator for the run's phase, step, loss, speed and cost, and for every node.",
        epilog="example: culm status --coordinator 127.0.0.1:7070 --json",
    )
    flags.add_coordinator(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(command=status)


def as_json(response: pb.GetStatusResponse, cost: pb.GetCostResponse) -> dict[str, object]:
    """The status by the names that scripts rely on."""
    return {
        "job": response.job,
        "phase": response.phase,
        "detail": response.detail,
        "checkpoint_fault": response.checkpoint_fault,
        "generation": response.generation,
        "term": response.term,
        "coordinator": response.coordinator,
        "era": response.era,
        "step": response.step,
        "steps": response.steps,
        "epoch": epoch_of(response, response.step),
        "samples": response.step * response.samples_per_step,
        "tokens": response.step * response.tokens_per_step or None,
        "loss": None if math.isnan(response.loss) else response.loss,
        "samples_per_second": response.samples_per_second,
        "cost": None if math.isnan(response.cost) else response.cost,
        "forecast": _fields(cost, "forecast"),
        "one_more": _fields(cost, "one_more"),
        "one_less": _fields(cost, "one_less"),
        "paused": {"who": response.pause.who, "since": response.pause.since, "why": response.pause.why}
        if response.HasField("pause")
        else None,
        "budget": response.budget or None,
        "stop_at": response.stop_at or None,
        "stalled_seconds": response.stalled_seconds,
        "awaited": response.awaited,
        "audits": {
            "share": response.audits.share,
            "forwards": response.audits.forwards,
            "compared": response.audits.compared,
            "differed": response.audits.differed,
            "found": dict(sorted(response.audits.found.items())),
        }
        if response.HasField("audits")
        else None,
        "workers_wanted": response.workers_wanted or None,
        "workers_reason": response.workers_reason,
        "nodes": [
            {
                "id": n.id,
                "address": n.address,
                "pid": n.pid,
                "zone": n.zone,
                "state": n.state,
                "stages": list(n.stages),
                "duties": [
                    str(Duty(p, s))
                    for s, stage in enumerate(response.plan.stages)
                    for p, owner in enumerate(stage.owners)
                    if owner == n.id
                ],
                "standby_of": list(n.standby_of),
                "tensor_work": _tensor_work(n.resources.tensor_workers)
                if n.resources.HasField("tensor_workers")
                else None,
            }
            for n in response.nodes
        ],
        "exposure": {str(stage): seconds for stage, seconds in sorted(response.exposure.items())},
        "exposure_windows": {
            str(stage): {"count": w.count, "longest_seconds": w.longest_seconds, "total_seconds": w.total_seconds}
            for stage, w in sorted(response.exposure_windows.items())
        },
    }


def _fields(cost: pb.GetCostResponse, name: str) -> dict[str, object] | None:
    """By the names of the message; None where it is not known."""
    from google.protobuf.json_format import MessageToDict

    if not cost.HasField(name):  # type: ignore[arg-type]
        return None
    return MessageToDict(getattr(cost, name), preserving_proto_field_name=True)


def _tensor_work(work: pb.TensorWorkers) -> dict[str, object]:
    return {
        "workers": work.workers,
        "waiting": work.waiting,
        "done": work.done,
        "repeated": work.repeated,
        "seconds": work.seconds,
    }


def status(arguments: argparse.Namespace) -> int:
    channel, stub = connect(arguments.coordinator)
    with channel:
        try:
            response = cleaned(stub.GetStatus(pb.GetStatusRequest(), timeout=5.0))
            cost = cleaned(stub.GetCost(pb.GetCostRequest(), timeout=5.0))
        except grpc.RpcError as error:
            mend = "see the coordinator's log"
            raise JobError(f"the coordinator does not answer: {details(error)}", arguments.coordinator, mend) from error
    if arguments.json:
        print(json.dumps(as_json(response, cost)))
        return 0
    from rich.console import Console

    from culm.terminal.progress import nodes_table, tensor_workers_in_words

    loss = "-" if math.isnan(response.loss) else f"{response.loss:.4f}"
    print(f"{response.job}: {_phase(response)}")
    of = of_chunks(response.graph.chunks)
    speed, money = of.speed(response.samples_per_second), f"${response.cost:.4f} so far"
    if math.isnan(response.cost):
        money = "cost not known yet"
    if at_example_prices(response.nodes):
        money += f", {EXAMPLE_PRICES}"
    done = f"{of.step} {response.step}/{response.steps}"
    told = [done, in_words(response, response.step), f"loss {loss}", speed, money]
    print("  ".join(filter(None, told)))
    for line in forecast_lines(cost) if response.phase in ("running", "paused") else ():
        print(line)
    if response.coordinator and response.term > 1:  # another one led before: whoever looks wants to know which
        print(f"coordinator {response.coordinator} leads, in term {response.term}")
    if response.checkpoint_fault:
        print(response.checkpoint_fault)
    if response.budget and response.unpriced:
        print(f"the budget of ${response.budget:.2f} does not count {', '.join(response.unpriced)}: no price is known")
    Console().print(nodes_table(response))
    if workers := tensor_workers_in_words(response):
        print(workers)
    if response.stalled_seconds:
        print(f"STALLED: no commit for {response.stalled_seconds:.0f} s, waiting for {response.awaited}")
    for line in exposure_lines(response):
        print(line)
    if response.HasField("audits"):
        print(audits_in_words(response.audits))
    return 0


def _phase(response: pb.GetStatusResponse) -> str:
    """The phase and its detail, where the one does not say the other."""
    if response.phase == "running" and response.detail == "training":
        return "running"
    return response.detail if response.detail.startswith(response.phase) else f"{response.phase}, {response.detail}"


def audits_in_words(audits: pb.AuditFigures) -> str:
    """How much was computed twice, and what came of it."""
    compared = f"{audits.forwards} forwards run again, {audits.compared} states of layers compared"
    if not audits.differed:
        return f"audits ({audits.share:.0%} of forwards): {compared}: nothing differed"
    times = {node: "once" if count == 1 else f"{count} times" for node, count in sorted(audits.found.items())}
    who = ", ".join(f"{node} was found {often} to compute wrongly" for node, often in times.items())
    steps = "1 step" if audits.differed == 1 else f"{audits.differed} steps"
    found = who or "nobody can say yet which node is right"
    return (
        f"audits ({audits.share:.0%} of forwards): {compared}; {steps} differed: {found} (culm events --kind differed)"
    )


def exposure_lines(response: pb.GetStatusResponse) -> list[str]:
    """In words: which stages are without a hot standby now, and how long others were."""
    part = of_chunks(response.graph.chunks).part
    lines = [
        f"{part} {stage} has been without a hot standby for {seconds:.1f} s"
        for stage, seconds in sorted(response.exposure.items())
        if seconds > 0
    ]
    for stage, past in sorted(response.exposure_windows.items()):
        often = "once" if past.count == 1 else f"{past.count} times"
        lines.append(
            f"{part} {stage} was without a hot standby {often}, for {past.total_seconds:.1f} s in all, "
            f"{past.longest_seconds:.1f} s at most"
        )
    return lines
