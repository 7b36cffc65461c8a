"""Puts on record what the ledger needs: what each node costs an hour, and where its time and its bytes went."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path

from culm.coordinator.commands import Record
from culm.coordinator.node_prices import NodePrice
from culm.coordinator.state import Node, Phase, State
from culm.pipeline.errors import JobError
from culm.pipeline.money import kinds
from culm.pipeline.money.ledger import USES, Ledger
from culm.pipeline.money.lives import Life
from culm.pipeline.money.prices import PriceTable, load_prices
from culm.pipeline.resources import Resources

log = logging.getLogger("culm.coordinator")

# Usage is on record for each node so often: every twentieth of the run's age, within these bounds. A short run has its
# figures soon, and a long run with a thousand nodes adds no more than a thousand entries a minute.
FIRST_SECONDS, LAST_SECONDS = 5.0, 60.0
SHARE = 20
LOOK_SECONDS = 1.0  # between looks at all nodes, as long as the same ones are there


class Billing:
    """Looks at the state again and again and says what to record. Re-reads the price table when its file changes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._prices = load_prices(path)
        self._changed_at = self._file_time()  # 0: there is no file
        self._tariff: kinds.Tariff | None = None  # the one on record
        # Incarnations whose price on record was compared with the present table. A leader begins with none: the price
        # may be that of a leader with another table.
        self._compared: set[tuple[str, int]] = set()
        # The nodes when ``due`` was asked last. One that has gone since is billed from here: the state forgot it.
        self._seen: Mapping[str, Node] = {}
        self._members: object = None  # what changes with them
        self._next_look = 0.0
        # Finished seconds of the last record, per incarnation. Invariant: each record of one says more than the last.
        self._reported: dict[tuple[str, int], float] = {}
        self._begun: float | None = None  # when this leader looked first
        self._next = 0.0  # when usage is due

    def due(self, state: State, now: float) -> bool:
        """Whether to ask for what is new: at once when the nodes are others than before, else once a second.

        ``now``: seconds of any clock that never goes back.
        """
        members = (len(state.nodes), len(state.fenced), state.changed_at)
        if members == self._members and now < self._next_look:
            self._seen = state.nodes
            return False
        self._members, self._next_look = members, now + LOOK_SECONDS
        return True

    def records(self, state: State, ledger: Ledger, now: float) -> Iterator[Record]:
        """What is new, at ``now`` as for ``due``; after the run's end nothing is."""
        if state.phase is Phase.DONE:
            return
        before, self._seen = self._seen, state.nodes
        yield from self._priced(state, ledger)
        for name, node in before.items():
            here = state.nodes.get(name)
            if here is None or here.incarnation != node.incarnation:
                yield from self._usage(node)
                self._reported.pop((node.node, node.incarnation), None)
                self._compared.discard((node.node, node.incarnation))
        self._begun = now if self._begun is None else self._begun
        if now >= self._next:
            self._next = now + min(max((now - self._begun) / SHARE, FIRST_SECONDS), LAST_SECONDS)
            yield from self.usage(state)

    def usage(self, state: State) -> Iterator[Record]:
        """What is known and not yet on record of how the nodes' time went."""
        for node in state.nodes.values():
            yield from self._usage(node)

    def news(self, state: State, ledger: Ledger) -> Mapping[tuple[str, int], NodePrice]:
        """The prices on record that the state does not know, by node and incarnation."""
        found = {}
        for node in state.nodes.values():
            life = ledger.life_of(node.node)
            if life is None or life.incarnation != node.incarnation or not life.priced:
                continue
            zones, regions = life.per_gb.get("zones", 0.0), life.per_gb.get("regions", 0.0)
            price = NodePrice(
                life.per_hour, zones, regions, node.machine.region, self._per_gigabyte_second(node) or 0.0
            )
            if price != node.price:
                found[node.node, node.incarnation] = price
        return found

    def _usage(self, node: Node) -> Iterator[Record]:
        times = {use: getattr(node.times, use) for use in USES}
        total, key = sum(times.values()), (node.node, node.incarnation)
        if total <= self._reported.get(key, 0.0):
            return
        self._reported[key] = total
        rounded = {use: round(seconds, 3) for use, seconds in times.items()}
        seen = node.resources or Resources()
        used = kinds.Used(
            node=node.node,
            incarnation=node.incarnation,
            sent=node.sent_bytes,
            seconds=round(seen.seconds, 3),
            cpu_seconds=round(seen.cpu_seconds, 3),
            processors=round(seen.processors, 3),
            resident_bytes=seen.resident_bytes,
            memory_bytes=seen.memory_bytes,
            accelerator_busy=seen.accelerator_busy,
            accelerator_used_bytes=seen.accelerator_used_bytes,
            accelerator_bytes=seen.accelerator_bytes,
            **rounded,
        )
        if (work := seen.tensor_workers) is not None:
            used = replace(
                used,
                workers=work.workers,
                tasks_waiting=work.waiting,
                tasks_done=work.done,
                tasks_repeated=work.repeated,
                worker_seconds=round(work.seconds, 3),
                gigabyte_seconds=round(work.gigabyte_seconds, 3),
                per_gigabyte_second=self._per_gigabyte_second(node),
            )
        busy = sum(times[use] for use in ("forward", "backward", "redundant", "apply"))
        text = f"{node.node} has worked for {busy:.1f} of {total:.1f} s"
        yield Record(used, text)

    def _per_gigabyte_second(self, node: Node) -> float | None:
        price = self._prices.function(node.machine.provider)
        return price.per_gb_second if price is not None else None

    def _priced(self, state: State, ledger: Ledger) -> Iterator[Record]:
        if self._reread():
            self._compared.clear()
        tariff = kinds.Tariff(
            fixed_per_hour=self._prices.fixed_per_hour,
            restart_seconds=self._prices.restart.seconds,
            checkpoint_seconds=self._prices.restart.checkpoint_every,
        )
        if tariff != self._tariff:
            self._tariff = tariff
            yield Record(tariff, f"the run costs {self._prices.fixed_per_hour:.4f} $/h beside its nodes")
        for node in state.nodes.values():
            life = ledger.life_of(node.node)
            key = node.node, node.incarnation
            if life is None or life.incarnation != node.incarnation or (life.priced and key in self._compared):
                continue
            priced = _price(self._prices, node)
            self._compared.add(key)
            if priced is not None and not _is_on_record(priced, life):
                machine = node.machine
                what = " ".join(getattr(machine, f.name) for f in fields(machine) if getattr(machine, f.name))
                yield Record(priced, f"{node.node} ({what}) costs {priced.per_hour:g} $/h")

    def _reread(self) -> bool:
        """Whether the price table is another one now. One that cannot be read is reported and the old one stays."""
        at = self._file_time()
        if at == self._changed_at:
            return False
        self._changed_at = at
        try:
            self._prices = load_prices(self._path)
        except JobError as error:
            log.warning("could not read the changed price table; the old prices stay in use: %s", error)
            return False
        return True

    def _file_time(self) -> int:
        try:
            return Path(self._path).stat().st_mtime_ns if self._path else 0
        except OSError:
            return 0


def _is_on_record(priced: kinds.Priced, life: Life) -> bool:
    """All of it: what a gigabyte costs, or the machine on demand, may change and the machine's price stay."""
    per_gb = {"zones": priced.per_gb_zones, "regions": priced.per_gb_regions}
    told = (priced.per_hour, priced.on_demand_per_hour, per_gb)
    return life.priced and told == (life.per_hour, life.on_demand, life.per_gb)


def _price(prices: PriceTable, node: Node) -> kinds.Priced | None:
    row = prices.machine(node.machine)
    if row is None:
        return None
    machine = node.machine
    per_hour = row.of(machine.market)
    assert per_hour is not None
    return kinds.Priced(
        node=node.node,
        incarnation=node.incarnation,
        per_hour=per_hour,
        on_demand_per_hour=prices.on_demand(machine) or 0.0,
        per_gb_zones=prices.per_gb(machine.provider, "zones"),
        per_gb_regions=prices.per_gb(machine.provider, "regions"),
        source=f"{row.source}, {row.date.isoformat()}",
    )
