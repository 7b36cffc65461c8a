"""A zone that vanishes at once, and when all is well again the other one."""

from collections.abc import Callable

from culm.coordinator import state as co
from culm.simulator.histories.simulated_cluster import Cluster


def rolled_back(cluster: Cluster) -> list[str]:
    return [record.text for _, record in cluster.records if record.kind == "rollback"]


def everybody_is_there(cluster: Cluster) -> bool:
    """Whether every process that lives has joined, and nobody else is taken for a node."""
    there = {n.name: n.incarnation for n in cluster.nodes.values() if n.alive}
    return there == {n.node: n.incarnation for n in cluster.state.nodes.values()}


def lose_one_zone_and_then_the_other(cluster: Cluster, safe: Callable[[Cluster], bool]) -> list[str]:
    """Runs it. Zones a and b go, each once everybody is there and it is safe; returns those that went."""
    killed: list[str] = []

    def watch() -> None:
        if cluster.state.phase is co.Phase.DONE:
            return
        if len(killed) < 2 and everybody_is_there(cluster) and safe(cluster):
            killed.append("ab"[len(killed)])
            cluster.faults.kill_zone(killed[-1])
        cluster.clock.after(0.05, watch)

    cluster.clock.at(0.1, watch)
    cluster.run()
    return killed
