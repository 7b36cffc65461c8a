"""Epochs of graphs in virtual time: small ones by hand, the published arithmetic, and the page that is made of them."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks import graph_value, graph_value_page
from benchmarks.graph_figures import times
from culm.pipeline.neighbours import Neighbours
from culm.simulator.graphs.epoch_work import ChunkSize, Task, copies, tasks
from culm.simulator.graphs.epochs import Cluster, Epochs, Run
from culm.simulator.graphs.hardware import Server, TensorWorker, cpu_server, function, gpu_server, on_demand
from culm.simulator.graphs.published import JOBS, RESULTS, SAMPLED, SPARSE, value
from culm.simulator.graphs.sampling import sampled
from culm.simulator.graphs.settings import Assumptions, cpu, workers

# One add, operation or byte takes a second; it costs a dollar an hour.
SERVER = Server(name="slow", cores=1, adds=1.0, operations=1.0, network=1.0, copying=0.0, dollars=1.0)
WORKER = TensorWorker(
    gigabytes=0.5, operations=2.0, network=0.5, latency=0.5, per_gb_second=0.1, per_call=0.01
)  # a byte takes it two seconds, half as long as its server


def gather(seconds: float, awaits: int | None = None) -> Task:
    return Task(kind="gather", layer=0, place="graph", work=seconds, awaits=awaits)


def vertex(work: float, there: float = 0.0, back: float = 0.0) -> Task:
    return Task(kind="apply vertex", layer=0, place="tensor", work=work, to_worker=there, from_worker=back)


def scatter(size: float) -> Task:
    return Task(kind="scatter", layer=0, place="network", work=size, publishes=0)


def played(*servers: list[list[Task]], server: Server = SERVER, staleness: int = 0, measured: int = 2) -> Epochs:
    cluster = Cluster(server=server, servers=len(servers))
    return Run(cluster=cluster, chunks=servers, staleness=staleness, measured=measured).run()


def test_one_chunk_does_one_task_after_the_other() -> None:
    found = played([[gather(2), vertex(3), scatter(1), gather(1, awaits=0)]])
    assert found.commits == (7.0, 14.0)
    assert found.seconds == 7.0
    assert found.dollars == pytest.approx(7 / 3600)
    assert found.busy_cores == pytest.approx(6 / 7)  # while it scatters no core has work


def test_chunks_overlap_on_the_cores_and_the_network_of_their_server() -> None:
    """Two chunks, one core, one network: 2G 2N each. Core: 0-2, 2-4. Network: 2-4, 4-6."""
    assert played([[gather(2), scatter(2)], [gather(2), scatter(2)]], measured=1).seconds == 6.0
    two_cores = replace(SERVER, cores=2)
    assert played([[gather(2), vertex(2)], [gather(2), vertex(2)]], server=two_cores, measured=1).seconds == 4.0


def test_a_gather_waits_for_its_neighbours_or_takes_older_values() -> None:
    """One server is slow before the exchange, the other behind it. S = 0: 3 + 3. S = 1: each has 4 of its own."""
    slow_first = [gather(3), scatter(0), gather(1, awaits=0)]
    slow_last = [gather(1), scatter(0), gather(3, awaits=0)]
    assert played([slow_first], [slow_last]).commits == (6.0, 12.0)
    ahead = played([slow_first], [slow_last], staleness=1, measured=4)
    assert ahead.commits[0] == 6.0, "there is nothing older to take in the first epoch"
    assert [b - a for a, b in pairwise(ahead.commits)][1:4] == [4.0, 4.0, 4.0]


def test_no_chunk_is_further_ahead_than_the_staleness() -> None:
    """A fast server beside a slow one: with any staleness the slow one's ten seconds are the epoch's."""
    for staleness in (0, 1, 3):
        assert played([[gather(1)]], [[gather(10)]], staleness=staleness).seconds == 10.0


def test_only_neighbours_are_waited_for() -> None:
    fast, slow = [gather(1), scatter(0), gather(1, awaits=0)], [gather(5), scatter(0), gather(1, awaits=0)]
    alone = Neighbours(((0,), (1,)))
    run = Run(cluster=Cluster(server=SERVER, servers=2), chunks=[[fast], [slow]], neighbours=alone)
    assert run.run().busy_cores == pytest.approx((2 + 6) / 12)
    both = played([fast], [slow], measured=1)
    assert both.seconds == 6.0
    one_way = Neighbours(((0,), (0, 1)))  # chunk 0 takes of nobody, and so ends early
    run = Run(cluster=Cluster(server=SERVER, servers=2), chunks=[[slow], [fast]], neighbours=one_way)
    assert run.run().seconds == 6.0


def test_a_worker_is_called_fetches_computes_and_gives_back() -> None:
    """0.5 s latency; 2 bytes there: 2 s of the server's network, 2 s more of its own; 6 operations: 3 s; 1 byte back:
    1 s of its own on top, then 1 s of the server's. All but the latency is billed."""
    chunks = [[[vertex(6, there=2, back=1)]]]
    cluster = Cluster(server=SERVER, servers=1, worker=WORKER, workers=1)
    found = Run(cluster=cluster, chunks=chunks).run()
    assert found.seconds == 0.5 + 2 + 2 + 3 + 1 + 1
    assert found.dollars == pytest.approx(9.5 / 3600 + 9.0 * 0.5 * 0.1 + 0.01)
    assert (found.calls, found.workers) == (1, 1)
    assert found.busy_workers == pytest.approx(1.0)


def test_tasks_queue_for_workers_and_workers_for_the_network() -> None:
    quick = replace(WORKER, latency=0.0, operations=1.0, network=1.0)
    chunks = [[[vertex(4)] for _ in range(4)]]

    def with_workers(count: int, chunks: list[list[list[Task]]]) -> float:
        cluster = Cluster(server=SERVER, servers=1, worker=quick, workers=count)
        return Run(cluster=cluster, chunks=chunks).run().seconds

    assert [with_workers(count, chunks) for count in (1, 2, 4, 8)] == [16.0, 8.0, 4.0, 4.0]
    by_network = [[[vertex(1, there=3)] for _ in range(4)]]  # 3 s each of one network, then 1 s at once
    assert with_workers(4, by_network) == 13.0


def test_a_gpus_values_pass_the_network_and_twice_its_bus() -> None:
    assert replace(SERVER, copying=4.0).sending(8.0) == 8.0 + 2 * 2.0
    assert gpu_server().sending(1e9) == pytest.approx(0.8 + 0.2)


def test_a_few_servers_stand_for_all() -> None:
    chunks = [[[gather(2), scatter(1)]]]
    found = Run(cluster=Cluster(server=SERVER, servers=8), chunks=chunks).run()
    assert found.seconds == 3.0
    assert found.server_dollars == pytest.approx(8 * 3 / 3600)


def test_a_commit_takes_its_time() -> None:
    chunks = [[[gather(2)]]]
    run = Run(cluster=Cluster(server=SERVER, servers=1), chunks=chunks, commit_seconds=0.5, measured=2)
    assert run.run().commits == (2.5, 5.0)


def test_the_work_of_a_chunk() -> None:
    """Ten vertices, forty edges, six ghosts; layers 5-3-2."""
    found = tasks(ChunkSize(vertices=10, edges=40, ghosts=6), (5, 3, 2), attention=False)
    assert [(task.kind, task.layer, task.work) for task in found] == [
        ("gather", 0, 200),
        ("apply vertex", 0, 300),
        ("scatter", 0, 72),
        ("gather", 1, 120),
        ("apply vertex", 1, 120 + 20 * 20),  # and the loss, of two classes
        ("apply vertex'", 1, 240),
        ("scatter'", 1, 72),
        ("gather'", 1, 120),
        ("apply vertex'", 0, 300),
    ]
    assert [
        (task.awaits, task.publishes) for task in found if task.awaits is not None or task.publishes is not None
    ] == [
        (None, 0),
        (0, None),
        (None, 1),
        (1, None),
    ]
    first, last = found[1], found[-1]
    assert (first.to_worker, first.from_worker) == (200, 120)
    assert (last.to_worker, last.from_worker) == (320, 0), "nobody needs the gradient of the features"
    kept = tasks(ChunkSize(vertices=10, edges=40, ghosts=6), (5, 3, 2), attention=False, features_gathered=False)
    assert kept == found[1:]


def test_the_work_of_attention() -> None:
    found = tasks(ChunkSize(vertices=10, edges=40, ghosts=6), (5, 3, 2), attention=True)
    forward = ["apply vertex", "scatter", "apply edge", "gather"] * 2
    assert [task.kind for task in found] == forward + ["scatter'", "gather'", "apply edge'", "apply vertex'"] * 2
    published = [task.publishes for task in found if task.publishes is not None]
    assert published == [task.awaits for task in found if task.awaits is not None] == [0, 1, 2, 3]


def test_how_often_a_vertex_is_a_ghost() -> None:
    assert copies(7, degree=100.0, apart=0.0) == 0.0
    assert copies(1, degree=9.0, apart=1.0) == pytest.approx(0.9)
    assert copies(7, degree=35.0, apart=0.2) == pytest.approx(3.5)  # seven edges leave, to seven servers, some to one
    assert copies(7, degree=1e9, apart=0.2) == pytest.approx(7.0)


@pytest.mark.parametrize("name", list(JOBS))
def test_published_costs_are_time_machines_and_price(name: str) -> None:
    job, ways = JOBS[name], RESULTS[name]
    for way, kind in (("cpu", job.instance_type), ("gpu", "p3.2xlarge")):
        seconds, dollars = ways["cpu"] if way == "cpu" else ways["gpu"]
        paid = seconds / 3600 * job.servers * on_demand(kind)
        assert paid == pytest.approx(dollars, rel=0.003, abs=0.01), way


def test_the_published_claims_follow_from_the_published_results() -> None:
    gat = RESULTS["GAT Amazon"]
    assert value(gat["workers"]) / value(gat["cpu"]) == pytest.approx(2.75, abs=0.02)
    assert gat["gpu"][0] / gat["workers"][0] == pytest.approx(1.22, abs=0.005)
    assert value(gat["workers"]) / value(gat["gpu"]) == pytest.approx(4.83, abs=0.02)
    amazon, small = SAMPLED["GCN Amazon"], SAMPLED["GCN Reddit-small"]
    assert amazon["AliGraph, on c5n"][0] / amazon["workers"][0] == pytest.approx(3.8, abs=0.05)
    assert small["DGL, on p3"][1] / small["workers"][1] == pytest.approx(10.7, abs=0.05)
    assert function().dollars == pytest.approx(0.01125, rel=1e-4)


def test_sampling_by_hand() -> None:
    """30,000 vertices, 20,000 of them trained on, in 20 batches; a batch draws 275,000, nearly every vertex."""
    tiny = replace(JOBS["GCN Amazon"], vertices=30e3, sizes=(10, 4, 2))
    found = sampled(tiny, replace(cpu_server("c5n.2xlarge"), operations=1e6), 1)
    assert found.drawing == pytest.approx(20e3 * 275 / 2e6 / 8)
    assert found.collecting == pytest.approx(20 * 30e3 * 10 / 0.4e9 / 8, rel=1e-3)
    sums, products = (5.0e6 + 0.5e6) * 10 + 0.5e6 * 4, 6 * 20e3 * 26 * 10 * 4
    assert found.training == pytest.approx(sums / 0.4e9 / 8 + products / 1e6 / 8, rel=1e-3)
    assert found.dollars == pytest.approx(found.seconds / 3600 * 0.432)


QUICK = Assumptions(simulated=1, chunks=16)


def test_the_same_seed_gives_the_same_figures() -> None:
    job = JOBS["GCN Amazon"]
    assert cpu(job, 1, QUICK) == cpu(job, 1, QUICK)
    assert workers(job, 1, QUICK) == workers(job, 1, QUICK)


def test_a_tuned_number_of_workers_settles_and_is_no_slower_than_the_best_fixed_one() -> None:
    job = JOBS["GCN Amazon"]
    tuned = workers(job, 1, QUICK)
    assert len({wanted.workers for wanted in tuned.decisions[-8:]}) == 1
    fixed = [workers(job, 1, QUICK, each=each) for each in (4, 8, 16, 32)]
    assert tuned.seconds <= 1.05 * min(found.seconds for found in fixed)


def test_the_page_is_made_from_the_results() -> None:
    assert graph_value_page.page() == graph_value_page.PAGE.read_text(), "run python -m benchmarks.graph_value"


def test_the_results_are_what_the_simulation_gives() -> None:
    kept = json.loads(graph_value.RESULTS.read_text())
    for name, way in (("GAT Amazon", graph_value.CPU), ("GCN Reddit-small", graph_value.WORKERS)):
        again = json.loads(json.dumps(graph_value.play(("ways", name, way))))
        assert again == kept["ways"][name][way], "run python -m benchmarks.graph_value"
    assert kept["samples"] == graph_value.samples()


def test_what_the_page_says_in_words_is_what_its_figures_say() -> None:
    kept = json.loads(graph_value.RESULTS.read_text())
    ways = kept["ways"]
    for name, of in ways.items():
        faster, cheaper, _ = times(of[graph_value.CPU], of[graph_value.WORKERS])
        assert faster > 1.0, f"{name}: workers buy time"
        assert cheaper < 1.0, f"{name}: they do not buy value"
    for name in SPARSE:
        of = ways[name]
        assert times(of[graph_value.GPU], of[graph_value.WORKERS])[1] > 1.0, "GPU servers cost more on sparse graphs"
        assert times(of[graph_value.WORKERS], of[graph_value.CPU_AHEAD])[1] > 1.0, "CPU servers alone are cheaper still"
    for name in ("GCN Reddit-small", "GCN Reddit-large", "GAT Reddit-small"):
        assert all(x > 1.0 for x in times(ways[name][graph_value.WORKERS], ways[name][graph_value.GPU])), name
    friendster = ways["GCN Friendster"]
    assert times(friendster[graph_value.CPU_AHEAD], friendster[graph_value.WORKERS])[0] < 1.0
    of = kept["variants"]["GAT Amazon"]
    both = "the last two at once"
    value_gained = times(of[f"{graph_value.CPU}: {both}"], of[f"{graph_value.WORKERS}: {both}"])[2]
    assert 2.5 < value_gained < 3.5, "two assumptions give about the published 2.75"
