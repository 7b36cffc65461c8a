"""Real processes 20 ms apart, cut off from each other in every way: the weights never change.

``CULM_WAN=/path/to/relay make wan``, as root; see tests/wan/network.py for what the relay is.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from culm.oracle.plain_loop import PlainResult, run_plain
from culm.pipeline.job import Job, load_job
from tests.wan.cluster import COORDINATOR, ROOT, SILENCE, WideCluster
from tests.wan.network import Network

RELAY = os.environ.get("CULM_WAN", "")
DELAY_MS = 10.0  # one way
STAGES = 3
NODES = [f"n{i}" for i in range(STAGES + 1)]  # the last one is a spare

pytestmark = [
    pytest.mark.skipif(not RELAY, reason="CULM_WAN names no relay program"),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces are root's to make"),
]


def digits(steps: int) -> Job:
    return load_job(ROOT / "examples" / "digits_mlp.toml", [f"job.steps={steps}", f"pipeline.stages={STAGES}"])


@pytest.fixture(scope="module")
def job() -> Job:
    """Long enough that every cut is healed before its end."""
    return digits(160)


@pytest.fixture(scope="module")
def plain(job: Job) -> PlainResult:
    return run_plain(job)


@pytest.fixture
def cluster(job: Job, tmp_path: Path) -> Iterator[WideCluster]:
    network = Network(Path(RELAY), [COORDINATOR, *NODES], DELAY_MS)
    with network, WideCluster(network, job, NODES, tmp_path) as cluster:
        yield cluster


def check(cluster: WideCluster, plain: PlainResult) -> None:
    """The run ends with the plain loop's bits, and nobody stays away."""
    cluster.until_done()
    assert {node["id"] for node in cluster.status()["nodes"]} == set(NODES)
    assert cluster.loss_hex() == [loss.hex() for loss in plain.losses]
    assert cluster.weights_sha256() == plain.sha256


def test_calm(cluster: WideCluster, plain: PlainResult) -> None:
    check(cluster, plain)
    assert cluster.lost() == []


def test_one_direction_between_two_neighbours_is_cut_for_a_while(cluster: WideCluster, plain: PlainResult) -> None:
    """Longer than it takes to notice, shorter than the coordinator waits for a link: nobody is lost."""
    cluster.until_step(20)
    cluster.network.cut_one_way("n0", "n1")
    cluster.stays(4.0)
    cluster.network.heal("n0", "n1")
    check(cluster, plain)
    assert cluster.lost() == []


def test_a_node_is_cut_off_from_everybody_and_comes_back(cluster: WideCluster, plain: PlainResult) -> None:
    cluster.until_step(20)
    cluster.network.cut("n1")
    cluster.stays(6.0)
    assert cluster.lost() == ["n1"]
    assert cluster.step() > 21, "the others go on meanwhile"
    before = cluster.times_joined("n1")
    cluster.network.heal("n1")
    cluster.until("n1 to join anew", lambda: cluster.times_joined("n1") > before)
    assert "n1 was declared lost" in cluster.log("n1"), "what it still says as the one that it was is refused"
    check(cluster, plain)
    assert cluster.lost() == ["n1"]


def test_the_coordinator_is_cut_off_from_everybody_for_a_while(cluster: WideCluster, plain: PlainResult) -> None:
    """Longer than a node may be silent; but it is the one that is cut off, not they: nobody is lost."""
    cluster.until_step(20)
    cluster.network.cut(COORDINATOR)
    cluster.stays(SILENCE + 2.0)
    cluster.network.heal(COORDINATOR)
    check(cluster, plain)
    assert cluster.lost() == []


def test_two_neighbours_are_cut_off_from_each_other_for_good(cluster: WideCluster, plain: PlainResult) -> None:
    """Both reach everybody else: one of the two has to go."""
    cluster.until_step(20)
    cluster.network.cut("n0", "n1")
    check(cluster, plain)
    assert cluster.lost() == ["n1"]
    assert "n0 and n1 have not reached each other for" in cluster.of_kind("lost")[-1]["text"]


def test_nodes_far_apart(tmp_path: Path) -> None:
    """150 ms round trip: to open a connection alone takes several."""
    job = digits(12)
    network = Network(Path(RELAY), [COORDINATOR, *NODES], 75.0)
    with network, WideCluster(network, job, NODES, tmp_path) as cluster:
        check(cluster, run_plain(job))
        assert cluster.lost() == []
