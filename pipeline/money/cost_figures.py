"""The figures of ``culm cost``, from what the ledger has counted. docs/cost.md has the formulas and an example."""

from culm.pipeline.messages import machine_to_proto
from culm.pipeline.money.counterfactual import History, with_checkpoints
from culm.pipeline.money.interruptions import Interruptions
from culm.pipeline.money.lives import HOUR, Life, Lives
from culm.pipeline.money.trained_steps import TrainedSteps
from culm.pipeline.money.usage import USES, Usage
from culm.protos import coordinator_pb2 as pb


def cost_figures(
    *,
    at: float,
    done: bool,
    dollars: float,
    dollars_per_hour: float,
    fixed_dollars: float,
    lives: Lives,
    steps: TrainedSteps,
    interruptions: Interruptions,
    lost_seconds: float,
    usage: Usage,
    history: History,
) -> pb.GetCostResponse:
    """At ``at`` in unix seconds; the money is what was spent by then. ``done``: that was the run's end.

    ``lost_seconds``: to interruptions, with those that are not over.
    """
    cost = pb.GetCostResponse(
        as_of=at,
        done=done,
        dollars=dollars,
        dollars_per_hour=dollars_per_hour,
        transfer_dollars=usage.transfer_dollars,
        crossing_bytes=usage.crossing_bytes,
        worker_dollars=usage.worker_dollars,
        worker_gigabyte_seconds=usage.gigabyte_seconds,
        fixed_dollars=fixed_dollars,
        unpriced=[life.node for life in lives.open.values() if not life.priced],
    )
    for life in lives.known:
        _add_node(cost, life, at)
    machines = lives.left_out_dollars + sum(node.dollars for node in cost.nodes)
    for use in USES:
        cost.dollars_by_use[use] = usage.dollars[use]
    # What no report has named yet: a process that starts, or that died before its last report. Reports count at the
    # price of their moment, so where a price fell they may add up to more than the machines cost.
    cost.dollars_by_use["other"] = max(0.0, machines - sum(usage.dollars.values()))
    for x in interruptions.charged:
        cost.interruptions.add(kind=x.kind, time=x.time, step=x.step, node=x.node, seconds=x.seconds, dollars=x.dollars)
    if steps.begun is not None:
        _add_training(cost, at - steps.begun, lives, steps, lost_seconds, history)
    return cost


def _add_training(
    cost: pb.GetCostResponse,
    seconds: float,
    lives: Lives,
    steps: TrainedSteps,
    lost_seconds: float,
    history: History,
) -> None:
    """``seconds``: since the first plan."""
    cost.seconds, cost.chunks = seconds, steps.chunks
    cost.useful_seconds = max(0.0, seconds - lost_seconds)
    cost.samples, cost.tokens = steps.counted() * steps.samples, steps.counted() * steps.tokens
    if cost.samples:
        cost.dollars_per_thousand_samples = 1e3 * cost.dollars / cost.samples
    if cost.tokens:
        cost.dollars_per_million_tokens = 1e6 * cost.dollars / cost.tokens
    if cost.dollars > 0:
        cost.value = cost.samples / (HOUR * cost.dollars)
    on_demand = lives.on_demand()
    if on_demand is not None and seconds > 0:
        # What the run pays beside its machines it would pay for those as well: for as long as they would train.
        beside = (cost.fixed_dollars + cost.transfer_dollars + cost.worker_dollars) / seconds * cost.useful_seconds
        cost.on_demand_dollars = steps.mean_owners() * on_demand * cost.useful_seconds / HOUR + beside
    if seconds > 0:
        cost.checkpoint_seconds = with_checkpoints(history, cost.useful_seconds, steps.stages)
        cost.checkpoint_dollars = cost.checkpoint_seconds * cost.dollars / seconds


def _add_node(cost: pb.GetCostResponse, life: Life, at: float) -> None:
    cost.nodes.add(
        node=life.node,
        incarnation=life.incarnation,
        machine=machine_to_proto(life.machine),
        joined=life.joined,
        ended=life.ended or 0.0,
        price_per_hour=life.per_hour,
        on_demand_per_hour=life.on_demand,
        dollars=life.dollars(at),
        source=life.source,
    )
