"""The event log: what a leader puts on record, what it keeps of that, and what its successor reads of it.

Everything is bounded: of what happened the newest is kept as it is, commits, which are many, are kept as numbers. What
is derived from the log (the ledger's figures, exposure windows, the loss curve) decides nothing: an event that cannot
be read is set aside and told once. A summary of it goes to the store now and then. A successor leads first; meanwhile
it reads the summary and the events after it, page by page, and events of its own wait to be counted.
"""

import asyncio
import json
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import takewhile
from typing import Any

from culm.coordinator.edges.kept_commits import OLDEST_COLUMNS, Commits
from culm.coordinator.edges.obstacles import Obstacles
from culm.coordinator.edges.run_metrics import Tally
from culm.coordinator.edges.store import Store, StoreAway
from culm.pipeline.money.codec import (
    Entry,
    Reader,
    Unknown,
    Unreadable,
    of_message,
    of_stored,
    to_fields,
    to_message,
    to_stored,
)
from culm.pipeline.money.kinds import FREQUENT, Committed, Evaluated, Hot, Measured, RolledBack, Used, words_of
from culm.pipeline.money.kinds import Event as Said
from culm.pipeline.money.ledger import Ledger
from culm.protos import coordinator_pb2 as pb

log = logging.getLogger("culm.coordinator")

# An event's way, and where each number of it stays single:
#
#     record    the next number under this leader's term; into the store's queue, and to whoever follows the log
#     waiting   an own event that came before the history was read: it is kept and counted after the history
#     take      into memory and into the figures, in the order of numbers
#     sum up    every thousand events: the figures, and the number of the last event that is in them
#
# A term is issued once (rule 15), and two leaders of different terms draw from different ranges. So no number is used
# twice, though a leader's last events may never have reached the store. The store may hold one entry twice; a reader
# takes each number once.
#
# A commit may be told twice. A leader dies after it has recorded a commit and before its state is persisted: the nodes
# tell its successor, who records the commit. Or the store has the state and not the event: then the successor records
# the commit from the state. Two commits in a row that say the same are one. Only after a rollback the same commit may
# come again.
#
# Figures are differences between the times of events, so these never go back. Where the clock is set back, or that of
# the leader before was ahead, events go on from the last one that is counted, by a clock that nobody sets.
#
# An outage of the store while the history is read delays it. Until then nobody knows what the run has cost, and
# followers wait. A log that has to go on without the history writes no summary: the one that is there counts more.

# Two streams in the store: "events", and "metrics" for kinds of which there is one a step or more. So a long run's
# commits do not push out what happened to its nodes.
OFTEN = frozenset(each.kind for each in FREQUENT)
# An event's number is the leader's term and its place among those of this leader. So numbers rise over all leaders,
# though the last ones of a leader that died may never have reached the store (rule 15).
TERM_BITS = 32
# What is kept in memory, of a run of any length: events that are no commits and no usage, usage, commits as numbers.
KEPT = 10_000
USAGE_KEPT = 1_000  # the ledger has added up what is older
# Events between two summaries: so many, at most, a successor reads one by one.
SUMMARY_EVERY = 1_000
READ_PAUSE = 0.5  # seconds between attempts to read the history from a store that does not answer
WAITING_MOST = 20_000  # own events that wait for the history; a store drops writes beyond as many (``redis_store``)

Event = pb.ListEventsResponse  # as it is kept and sent
CommitSaid = Committed | Measured | Evaluated


@dataclass(slots=True)
class Windows:
    """The times that a stage was without a hot standby. Seconds."""

    count: int = 0
    longest: float = 0.0
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.count, self.total = self.count + 1, self.total + seconds
        self.longest = max(self.longest, seconds)


class EventLog:
    """Of one leader: its own events, and those before as far as they could be read."""

    def __init__(
        self,
        store: Store,
        term: int,
        clock: Callable[[], float],
        passing: Callable[[], float] = time.monotonic,
    ) -> None:
        self.grown = asyncio.Event()  # set at the next event, and then replaced by another one
        # Set when the events before are here, or cannot be had. Invariant: until then no own event is in the figures,
        # and no summary is written.
        self.whole = asyncio.Event()
        self.ledger = Ledger()
        self.windows: dict[int, Windows] = {}
        self.tally = Tally()
        # What the last commit on record told, by this leader or one before, and that of the last one that is in the
        # figures; by kind. They differ while own events wait. Both are empty after a rollback.
        self._last: Mapping[str, CommitSaid] = {}
        self._taken: Mapping[str, CommitSaid] = {}
        self._store = store
        self._clock = clock  # unix seconds
        self._passing = passing  # seconds of a clock that nobody sets
        self._counted_at = passing()  # when the newest event was counted
        # The number of the newest event. Invariant: within this term's range, and grows with each event.
        self._newest = max(0, term - 1) << TERM_BITS
        # By number, as bytes: a tenth of what the messages take. Invariant: ascending: ``_since`` reads from the end.
        self._notable: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._usage: deque[tuple[int, bytes]] = deque(maxlen=USAGE_KEPT)
        self._measured: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._commits = Commits()
        self._reader = Reader("the run's figures")
        self._waiting: list[Event] = []  # own events, until ``whole``
        self._unsummed = 0  # events since the last summary
        self._lacks_history = False  # the figures do not count what came before
        self._lacks_tally = False  # the summary is of a version that had none in it

    def record(self, said: Said, text: str, step: int, generation: int) -> None:
        """Puts an event on record; a commit that is there already is told by the nodes of a leader that died.

        ``step`` and ``generation``: where the run stands.
        """
        if _is_same(said, self._last):
            return
        self._newest += 1  # higher than any of a leader before, also where its last ones were never written
        entry = Entry(
            sequence=self._newest,
            time=self.now(),
            kind=said.kind,
            text=text,
            step=step,
            generation=generation,
            event=said,
        )
        event = to_message(entry)
        log.log(logging.DEBUG if said.kind in OFTEN else logging.INFO, "%s: %s", said.kind, text)
        self._store.append("metrics" if said.kind in OFTEN else "events", to_stored(event))
        self._last = _last_told(said, self._last)
        if self.whole.is_set():
            self._take(event)
        else:
            self._waiting.append(event)
        self.grown.set()
        self.grown = asyncio.Event()
        self._unsummed += 1
        if self._unsummed >= SUMMARY_EVERY and self.whole.is_set():
            self.sum_up()

    def now(self) -> float:
        """Unix seconds, for events and for figures as of now."""
        return max(self._clock(), self.ledger.at + self._passing() - self._counted_at)

    def _take(self, event: Event) -> None:
        said = _said(event)
        if _is_same(said, self._taken):
            return  # told again before it was known that it is on record
        self._taken = _last_told(said, self._taken)
        self._keep(event)
        self._count(event)

    def _keep(self, event: Event) -> None:
        if event.kind == Used.kind:
            self._usage.append((event.sequence, event.SerializeToString()))
        elif event.kind == Measured.kind:
            self._measured.append((event.sequence, event.SerializeToString()))
        elif event.kind != Committed.kind or not self._commits.add(event):
            self._notable.append((event.sequence, event.SerializeToString()))

    def _count(self, event: Event) -> None:
        self._reader.read(event, self._count_entry)

    def _count_entry(self, entry: Entry) -> None:
        self.tally.take(entry)
        if isinstance(entry.event, Hot):
            self.windows.setdefault(entry.event.stage, Windows()).add(entry.event.exposure_ms / 1e3)
        self.ledger.take(entry)
        self._counted_at = self._passing()

    def dollars(self, now: float) -> float:
        """What the run has cost by ``now``, in unix seconds; NaN until the events before are here."""
        return self.ledger.dollars(now) if self.whole.is_set() else math.nan

    def figures(self, now: float) -> pb.GetCostResponse:
        """Of what the run has cost by ``now``; none but a NaN until the events before are here."""
        return self.ledger.figures(now) if self.whole.is_set() else pb.GetCostResponse(as_of=now, dollars=math.nan)

    def since(self, sequence: int) -> Iterator[Event]:
        """What is kept, from this number on, in order."""
        others = (_since(kept, sequence) for kept in (self._notable, self._usage, self._measured))
        return merge(*others, self._commits.since(sequence), key=lambda event: event.sequence)

    # ---- what a successor needs --------------------------------------------------------------------------------------

    def sum_up(self) -> None:
        """Has the figures written as they are now: a successor need not read the events that they come from."""
        if not self.whole.is_set() or self._lacks_history:
            return
        self._unsummed = 0
        try:
            summary = {
                "sequence": self._newest,
                "ledger": self.ledger.to_document(),
                "windows": {s: [w.count, w.longest, w.total] for s, w in self.windows.items()},
                "tally": self.tally.to_document(),
                "commits": self._commits.to_text(),
                "columns": self._commits.COLUMNS,
            }
        except Exception:
            log.exception("could not sum up the run's figures: the next coordinator will read all events instead")
            return
        self._store.put("summary", json.dumps(summary))

    def begin_after(self, last: Sequence[CommitSaid]) -> None:
        """``last``: what the last commit told, if there is one: its leader may have died before it was on record."""
        self._last = {said.kind: said for said in last}

    async def read_before(self) -> None:
        """Reads what leaders before put on record; decisions need none of it, so they go on meanwhile."""
        last, summed = [*self._last.values()], 0
        try:
            summed = self._read_summary(await self._patiently(partial(self._store.get, "summary")))
            entries = []
            for stream in ("events", "metrics"):
                async for page in self._pages(stream):
                    entries.extend(page)
            before = {event.sequence: event for event in map(self._event_of, entries) if event is not None}
            for sequence in sorted(number for number in before if number < self._first_own):
                event = before[sequence]
                if sequence > summed:
                    self._take(event)
                elif event.kind != Committed.kind:  # its figures are in the summary, as all commits are
                    self._keep(event)
                # A thousand nodes attach meanwhile: the event loop takes turns.
                if len(self._notable) % 500 == 0:
                    await asyncio.sleep(0)
            if self._lacks_tally:
                await self._tally_anew()
        except Exception:
            self._lacks_history = True
            log.exception(
                "could not read earlier events: until another coordinator leads, they are missing, "
                "and what the run has cost does not count them"
            )
        self.whole.set()
        own, self._waiting = self._waiting, []
        # The store may have the last commit in the state and not in the log: it is put on record now.
        lacking = [said for said in last if not self._is_on_record(said, own)]
        for event in own:
            self._take(event)
        for said in lacking:
            self._last = {kind: other for kind, other in self._last.items() if kind != said.kind}
            self.record(said, words_of(said), said.step if isinstance(said, Evaluated) else said.step + 1, 0)

    async def _tally_anew(self) -> None:
        """Of the events that are kept."""
        self.tally = Tally()
        for i, event in enumerate(self.since(0)):
            self._reader.read(event, self.tally.take)
            if i % 500 == 0:
                await asyncio.sleep(0)

    def _is_on_record(self, said: CommitSaid, own: Sequence[Event]) -> bool:
        """``own``: events that wait."""
        if isinstance(said, Committed) and said.step in self._commits.steps:
            return True
        kept = {Evaluated: self._notable, Measured: self._measured}.get(type(said), ())
        read = (Event.FromString(data) for _, data in kept)
        return any(_is_same(_said(event), {said.kind: said}) for event in (*own, *read) if event.kind == said.kind)

    @property
    def _first_own(self) -> int:
        return self._waiting[0].sequence if self._waiting else self._newest + 1

    def _read_summary(self, text: str | None) -> int:
        """The number of the last event that it counts; 0 if there is none, or none that can be read."""
        if not text:
            return 0
        try:
            summary = json.loads(text)
            ledger = Ledger.from_document(summary["ledger"])
            windows = {
                int(s): Windows(count=count, longest=longest, total=total)
                for s, (count, longest, total) in summary["windows"].items()
            }
            self._commits.read(summary["commits"], summary.get("columns", OLDEST_COLUMNS))
            tally = Tally.from_document(summary["tally"]) if summary.get("tally") else None
            sequence = int(summary["sequence"])
        except Exception as error:
            log.warning("could not read the summary of the run's figures (%s): they begin with the events kept", error)
            self._commits = Commits()
            return 0
        self.ledger, self.windows, self.tally = ledger, windows, tally or Tally()
        self._lacks_tally = tally is None
        return sequence

    def _event_of(self, entry: Mapping[str, str]) -> Event | None:
        try:
            return of_stored(entry)
        except (KeyError, ValueError, OverflowError, TypeError) as error:
            self._reader.set_aside(f"an entry of the kind {entry.get('kind', '?')!r}", error)
            return None

    async def _pages(self, stream: str) -> Any:
        after = ""
        while True:
            page = await self._patiently(partial(self._store.read, stream, after))
            if not page:
                return
            yield [entry for _, entry in page]
            after = page[-1][0]

    async def _patiently(self, read: Callable[[], Any]) -> Any:
        """Raises StoreAway only once too many own events wait meanwhile."""
        obstacles = Obstacles(log)
        while True:
            try:
                return await read()
            except StoreAway as error:
                if len(self._waiting) >= WAITING_MOST:
                    raise
                obstacles.say(
                    f"waiting for Redis to read earlier events ({error}): until then nobody is told of events, "
                    "and it is not known what the run has cost"
                )
                await asyncio.sleep(READ_PAUSE)


def _since(kept: "deque[tuple[int, bytes]]", sequence: int) -> list[Event]:
    """Those from this number on; read from the end, since a follower has most of them."""
    newer = [data for _, data in takewhile(lambda entry: entry[0] >= sequence, reversed(kept))]
    return [Event.FromString(data) for data in reversed(newer)]


def _last_told(said: Said, before: Mapping[str, CommitSaid]) -> Mapping[str, CommitSaid]:
    """What the last commit told; after a rollback the same one may come again."""
    if isinstance(said, CommitSaid):
        return {**before, said.kind: said}
    return {} if isinstance(said, RolledBack) else before


def _is_same(said: Said, last: Mapping[str, CommitSaid]) -> bool:
    """Whether it is this very event of a commit; a loss may be no number, which equals nothing."""
    known = last.get(said.kind)
    return known is not None and to_fields(said) == to_fields(known)


def _said(event: Event) -> Said:
    """What the message says; of one that cannot be read, nothing."""
    try:
        return of_message(event).event
    except Unreadable:
        return Unknown()
