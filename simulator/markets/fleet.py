"""Machines as a run has them: offered by the trace, rented up to a number, given back or taken away."""

from collections.abc import Callable

from culm.simulator.markets.account import Account
from culm.simulator.markets.job_profile import Cluster
from culm.simulator.markets.trace import Change
from culm.simulator.network import Clock

# A machine is paid from the moment that it is rented, while it starts up too. One that is declined stays on offer, and
# the one that has been on offer longest is rented first. Whatever ends a rent counts as a preemption: a node gives its
# machine back only because that is about to be taken.


class Fleet:
    """``started(node, zone)`` is called when a rented machine is up, ``gone(node)`` when one that was up is taken."""

    def __init__(
        self,
        clock: Clock,
        account: Account,
        cluster: Cluster,
        machines: int,
        started: Callable[[str, str], None],
        gone: Callable[[str], None],
    ) -> None:
        self._clock, self._account, self._cluster, self._machines = clock, account, cluster, machines
        self._started, self._gone = started, gone
        self._offered: dict[str, Change] = {}  # machines that could be rented and are not
        self._up: set[str] = set()  # Invariant: the rented machines that have started up

    def offer(self, change: Change) -> None:
        self._offered[change.node] = change
        self._rent()

    def take(self, name: str) -> None:
        """The market wants it back."""
        if self._offered.pop(name, None) is None and self.has(name):
            was_up = name in self._up
            self._release(name)
            if was_up:
                self._gone(name)
            self._rent()

    def give_back(self, name: str) -> None:
        """A machine that has handed its work over, because it was to be taken."""
        if self.has(name):
            self._release(name)
            self._rent()

    def has(self, name: str) -> bool:
        return name in self._account.rented

    def _rent(self) -> None:
        while self._offered and len(self._account.rented) < self._machines:
            change = self._offered.pop(next(iter(self._offered)))
            self._account.rent(change.node, change.price if change.price is not None else self._cluster.per_hour)
            name, zone = change.node, change.zone
            up = max(self._clock.now + self._cluster.starts_up, self._cluster.launches)
            self._clock.at(up, lambda name=name, zone=zone: self._is_up(name, zone))  # type: ignore[misc]

    def _is_up(self, name: str, zone: str) -> None:
        if self.has(name):
            self._up.add(name)
            self._started(name, zone)

    def _release(self, name: str) -> None:
        self._account.release(name, preempted=True)
        self._up.discard(name)
