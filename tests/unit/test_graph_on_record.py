"""What the event log says of a run on a graph: its chunks, and the tensor work of its servers."""

from dataclasses import replace

from culm.coordinator.decide import begin
from culm.coordinator.decisions import plan_record
from culm.coordinator.edges.billing import Billing
from culm.coordinator.state import Node, Settings
from culm.pipeline.money.codec import of_fields, to_fields
from culm.pipeline.money.kinds import Planned, Used
from culm.pipeline.neighbours import Staleness
from culm.pipeline.plan import Plan
from culm.pipeline.resources import Resources, TensorWorkers
from culm.pipeline.times import TimeSplit
from culm.ui.trends import resources_of

WORK = TensorWorkers(workers=2, waiting=3, done=40, repeated=1, seconds=12.5, gigabyte_seconds=2.25)


def usage(resources: Resources) -> Used:
    state = begin(Settings(stages=1, microbatches=1, steps=1))
    node = Node(node="n0", incarnation=1, address="n0:1", times=TimeSplit(forward=1.0), resources=resources)
    (record,) = Billing("").usage(replace(state, nodes={"n0": node}))
    read = of_fields("usage", to_fields(record.event))
    assert isinstance(read, Used)
    return read


def test_the_tensor_work_of_a_graph_server_is_read_back() -> None:
    assert resources_of(usage(Resources(seconds=1.0, tensor_workers=WORK))).tensor_workers == WORK


def test_a_node_that_is_no_graph_server_says_nothing_of_workers() -> None:
    read = usage(Resources(seconds=1.0))
    assert resources_of(read).tensor_workers is None
    assert not any("worker" in name or "task" in name for name in to_fields(read))


def planned(settings: Settings) -> Planned:
    record = plan_record(begin(settings), Plan(term=1, generation=1, era=0, step=0, stages=()))
    read = of_fields("plan", to_fields(record.event))
    assert isinstance(read, Planned)
    return read


def test_a_plan_says_what_a_graph_is_cut_into_and_how_old_values_are() -> None:
    graph = Settings(
        stages=2, microbatches=1, steps=60, pipelines=8, whole_pipelines=True, staleness=Staleness(1, 10, 58)
    )
    read = planned(graph)
    assert (read.chunks, read.staleness, read.refresh, read.fresh_from) == (8, 1, 10, 58)
    assert planned(Settings(stages=2, microbatches=1, steps=60)).chunks is None
