"""How many tensor workers a run wants, from what its graph servers tell."""

from dataclasses import replace

from culm.coordinator.node_prices import NodePrice
from culm.coordinator.tensor_work import PATIENCE_SECONDS, WINDOW_SECONDS, Bounds, Seen, TensorWork, looked
from culm.pipeline.resources import Resources, TensorWorkers

BOUNDS = Bounds(first=1, most=8, threads=1)


class Servers:
    """Two, whose cores are busy for 0.2 of the time. Tasks of 0.1 s come as fast as ``able`` workers do them."""

    def __init__(self, able: float = 4.0, gain: float = 1.0) -> None:
        """``gain``: what each further worker does, beside what the first one does."""
        self.gain = gain
        self.able, self.now, self.work = able, 0.0, TensorWork()
        self.seen: Seen = {(name, 1): Resources(tensor_workers=TensorWorkers()) for name in ("n0", "n1")}
        self.said: list[tuple[int, str]] = []

    def passes(self, there: int, prices: tuple[NodePrice, ...] = (), seconds: float = WINDOW_SECONDS) -> int:
        """A window with so many workers; how many are wanted then."""
        busy = min(self.able, there) * seconds / 2
        waiting = max(0.0, self.able - there) * seconds / 2
        self.now += seconds
        for who, of in self.seen.items():
            work = of.tensor_workers
            assert work is not None
            work = replace(
                work,
                workers=there,
                share=there / 2,
                done=work.done + round(busy / 0.1 * (1.0 + self.gain * (there - 1)) / there),
                seconds=work.seconds + busy,
                waited_seconds=work.waited_seconds + waiting,
                gigabyte_seconds=work.gigabyte_seconds + there / 2 * seconds,
            )
            now = replace(
                of, seconds=of.seconds + seconds, cpu_seconds=of.cpu_seconds + 0.2 * seconds, tensor_workers=work
            )
            self.seen = {**self.seen, who: now}
        self.work = looked(self.work, BOUNDS, self.seen, prices, self.now)
        self.said.append((self.work.wanted(BOUNDS), self.work.reason))
        return self.said[-1][0]


def test_there_are_as_many_as_there_is_work_for() -> None:
    servers, there = Servers(able=4.0), 1
    for _ in range(40):
        there = servers.passes(there)
    assert there == 4, servers.said
    changes = [b for a, b in zip(servers.said, servers.said[1:], strict=False) if a[0] != b[0]]
    assert "tensor tasks wait" in changes[0][1]


def test_no_more_than_the_job_allows() -> None:
    servers, there = Servers(able=100.0), 1
    for _ in range(60):
        there = servers.passes(there)
    assert there == BOUNDS.most
    assert "no more are allowed" in servers.said[-1][1]


def test_workers_that_cost_more_than_they_save_are_let_go() -> None:
    dear = (NodePrice(per_hour=0.01, per_gb_second=1.0), NodePrice(per_hour=0.01, per_gb_second=1.0))
    servers, there, most = Servers(able=4.0, gain=0.3), 1, 1
    for _ in range(60):
        there = servers.passes(there, dear)
        most = max(most, there)
    assert most > there == 1, servers.said
    assert any("buy less for a dollar" in why for _, why in servers.said)


def test_a_window_counts_only_where_those_that_are_wanted_are_there() -> None:
    servers = Servers(able=4.0)
    while servers.passes(1) == 1:
        pass
    wanted = servers.said[-1][0]
    before = servers.work.tuning
    for _ in range(5):  # they have not started yet
        assert servers.passes(1) == wanted
    assert servers.work.tuning == before


def test_those_that_do_not_come_are_given_up() -> None:
    servers = Servers(able=4.0)
    while servers.passes(1) == 1:
        pass
    servers.passes(1, seconds=PATIENCE_SECONDS + 1.0)
    assert servers.said[-1] == (1, "1 workers are there")


def test_another_server_begins_a_new_window() -> None:
    servers = Servers(able=4.0)
    servers.passes(1)
    servers.seen = {("n0", 2): Resources(tensor_workers=TensorWorkers())}
    assert servers.passes(1) == 1
