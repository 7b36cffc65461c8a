"""The store in Redis: leader lease with a fencing term, state, heartbeats, event and metric streams.

Every write goes through a script that checks holder and term, in one queue, so that an outage delays writes, keeps
their order and loses none. What waits goes together; heartbeats, which nobody waits for, are gathered beside the queue.
"""

# What lies in Redis, all under ``culm:{run}:``, and who writes it:
#
#     leader              string   holder:term, for as long as the lease      ACQUIRE; each write renews it; RELEASE
#     term                string   the highest term issued (rule 15)          ACQUIRE; a leader puts a lost one back
#     written             hash     holder:term -> serial number of its last   WRITE, beside what it wrote
#                                  write that was done
#     state               string   the JSON of ``persistence``                Leader, after decisions that name Persist
#     summary             string   the figures so far, as JSON                EventLog, every thousand events
#     events, metrics     streams  the event log (``event_log``)              EventLog, an entry an event
#     heartbeat:{node}    string   "1", for as long as the patience           Leader, what it heard in a quarter second
#
# Only leaders write. A coordinator reads ``state``, ``term``, ``summary`` and the streams when it begins to lead. No
# coordinator reads the heartbeats: they show an operator, or another program, which nodes live.
#
# An outage, seen from the queue:
#
#     writes fail           they wait in the queue, oldest first; of a key that is SET several times the newest
#     the queue is full     the oldest entries of streams go: events may be missing, the state never is
#     Redis is back         all that waits is written, a part at a time, before anything newer
#     it has lost memory    it learns the term again with the first write, and takes the rest as if nothing had been
#     another leads         the first write is refused (FENCED): this leader steps down, and its queue with it
#
# A Redis that refuses is away as well: it is full, cannot write to its disk, or has become a replica. After a failover
# an open connection may still lead to the old server. So each refusal ends the connection, and the next attempt looks
# where the address leads now.
#
# Training goes on meanwhile: only ``acquire`` and ``load`` wait for Redis. They end with what no waiting mends, such as
# a key of another kind. The lease may run out in an outage. It goes
# on with the next write, if nobody took it. If another coordinator took it, that one has a higher term, and nodes obey
# the higher one (rule 12).
#
# A write whose answer was lost may have been done. Serial numbers tell: Redis keeps that of the last one done, and what
# is not above it is passed over. So a term writes an event once. A leader that takes a new term in between begins a new
# count, and may add the same entry again; ``event_log`` reads entries by their numbers, so such an event counts once.

import asyncio
import contextlib
import json
import logging
from collections import OrderedDict
from itertools import islice
from typing import Any

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from culm.coordinator.edges.obstacles import Obstacles
from culm.coordinator.edges.persistence import Document
from culm.coordinator.edges.store import LENGTHS, PAGE, LostLease, StoreAway
from culm.pipeline.terms import TERM_LIMIT

log = logging.getLogger("culm.store")

PATIENCE = 1.0  # seconds that an orderly end waits for what is to be written
TOGETHER = 256  # writes that go at once: one script, during which Redis serves nobody else
QUEUED = 20_000  # writes that an outage may delay; beyond that the oldest entries of streams are given up
BEATS_SECONDS = 0.25  # in which heartbeats are gathered: a thousand nodes cost four writes a second, not two thousand

# A holder that was killed and started again takes its own lease over at once. ARGV: holder, lease in ms, a term to go
# above, the limit of terms. A kept term that is none of these numbers counts for nothing.
ACQUIRE = """
local held = redis.call('GET', KEYS[1])
if held and string.sub(held, 1, #ARGV[1] + 1) ~= ARGV[1] .. ':' then return 0 end
local kept = tonumber(redis.call('GET', KEYS[2]) or '0') or -1
if kept < 0 or kept ~= math.floor(kept) or kept + 1 >= tonumber(ARGV[4]) then kept = 0 end
local term = string.format('%d', math.max(kept, tonumber(ARGV[3])) + 1)
redis.call('SET', KEYS[2], term)
redis.call('SET', KEYS[1], ARGV[1] .. ':' .. term, 'PX', ARGV[2])
return tonumber(term)
"""
# A lease that ran out while nobody took it goes on. A Redis that lost its memory, or came back with an older one,
# learns the term again: a lease of a lower term is of that older memory, or its holder will have to go (rule 15).
# KEYS: lease, term. ARGV: holder and term, term, lease in ms.
LEADING = """
local held = redis.call('GET', KEYS[1])
local newest = tonumber(redis.call('GET', KEYS[2]) or '0') or 0
local mine = tonumber(ARGV[2])
if newest > mine or (newest == mine and held and held ~= ARGV[1]) then return redis.error_reply('FENCED') end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
if newest < mine then redis.call('SET', KEYS[2], ARGV[2]) end
"""
# KEYS also: written. ARGV also, of each write: serial number, how many words, the words. Writes whose answer was lost
# are sent again: their serial numbers tell which have been done. The first that fails ends the turn.
WRITE = f"""{LEADING}
local done = redis.call('HGET', KEYS[3], ARGV[1])
if not done then redis.call('DEL', KEYS[3]) end
local at = 4
while at <= #ARGV do
  local words = tonumber(ARGV[at + 1])
  if words > 0 and tonumber(ARGV[at]) > tonumber(done or '0') then
    local answer = redis.pcall(unpack(ARGV, at + 2, at + 1 + words))
    if type(answer) == 'table' and answer.err then return answer end
    redis.call('HSET', KEYS[3], ARGV[1], ARGV[at])
  end
  at = at + 2 + words
end
return 1
"""
# ARGV also, of each heartbeat: its key, how many ms it lives.
BEAT = f"""{LEADING}
for at = 4, #ARGV, 2 do redis.call('SET', ARGV[at], '1', 'PX', ARGV[at + 1]) end
return 1
"""
RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def _document_in(text: str | bytes) -> Document:
    """Empty where the text is no document: then the leader goes by nodes and checkpoints, and says so."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


class RedisStore:
    """One run's keys, all under ``culm:{run}:``."""

    def __init__(self, url: str, run: str, holder: str, lease_seconds: float) -> None:
        # What is no text is read with marks in it, and so as what it is: no document, no term, no event.
        self._redis = redis.Redis.from_url(
            url,
            socket_timeout=1.0,
            socket_connect_timeout=1.0,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
            encoding_errors="replace",
        )
        self._prefix = f"culm:{run}:"
        self._keys = [f"{self._prefix}leader", f"{self._prefix}term", f"{self._prefix}written"]
        self._holder = holder
        self._lease_ms = int(lease_seconds * 1000)
        self._term = 0
        # By serial number. Invariant: ascending. Beyond QUEUED each write that comes drops an entry of a stream.
        self._queue: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._serial = 0  # Invariant: never falls, also from one term to the next
        # Serial number of the newest write that may be on its way; 0: none is. Invariant: what is not above it stays in
        # the queue until the answer has come or the attempt has failed.
        self._sending = 0
        # Key -> serial number of its newest SET. An older SET stays in the queue only if it was on its way by then.
        self._texts: dict[str, int] = {}
        self._given_up = 0  # entries that were dropped in this outage, to be told at its end
        # Held while a batch is sent, and by ``acquire``: no batch goes out under a term that changes meanwhile.
        self._turn = asyncio.Lock()
        self._beats: dict[str, float] = {}  # node -> seconds for which it counts as heard
        self._beats_due = False  # they have been gathered for long enough
        self._wake = asyncio.Event()  # the writer has something to do, or is to end
        self._drained = asyncio.Event()  # nothing waits any more
        self._lost: LostLease | None = None  # a write was refused: ``renew`` raises it
        self._away = False  # the last attempt failed: only the first write is tried, and heartbeats are dropped
        self._writer: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def _lease(self) -> str:
        return f"{self._holder}:{self._term}"

    async def acquire(self, above: int = 0) -> int:
        async with self._turn:
            # Texts that wait were decided under the term before: they go. Entries tell what happened: they stay.
            for serial in self._texts.values():
                self._queue.pop(serial, None)
            self._texts.clear()
            self._term = await self._acquired(max(above, _term_in(await self.load())))
            self._lost = None
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        return self._term

    async def _acquired(self, above: int) -> int:
        obstacles = Obstacles(log)
        while True:
            try:
                kept = await self._redis.get(self._keys[1])
                words = (self._holder, self._lease_ms, str(above), str(TERM_LIMIT))
                term = await self._redis.eval(ACQUIRE, 2, *self._keys[:2], *words)
                obstacle = "another coordinator leads this run: waiting for its lease to end"
            except RedisError as error:
                await self._refused(error)
                kept, term, obstacle = None, 0, _obstacle(error)
            # Whoever closes has cancelled this task. In Python 3.11 the client may have lost that, as ``close`` tells.
            if self._closing:
                raise asyncio.CancelledError
            if term:
                if kept is not None and not (kept.isascii() and kept.isdigit() and int(kept) + 1 < TERM_LIMIT):
                    key = self._keys[1]
                    log.warning("%s in Redis was %.40r, which is no term: it was set to %d", key, kept, term)
                return int(term)
            obstacles.say(obstacle)
            await asyncio.sleep(0.2)

    async def _refused(self, error: RedisError) -> None:
        """Raises what no waiting mends. After any other refusal the next attempt goes by a new connection."""
        if _is_mistake(error):
            raise error
        await self._reconnect(error)

    async def _reconnect(self, error: RedisError) -> None:
        if isinstance(error, ResponseError):  # a connection that broke is ended already
            with contextlib.suppress(RedisError):
                await self._redis.connection_pool.disconnect(inuse_connections=False)  # others may be reading

    async def renew(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._writer is not None and self._writer.done():
            self._writer.result()  # it raised what nobody expected
        if not self._queue:  # else the next write renews the lease
            self._put(())  # a write of no words: the script checks and renews, and does nothing more

    async def load(self) -> Document | None:
        obstacles = Obstacles(log)
        while True:
            try:
                text = await self._redis.get(f"{self._prefix}state")
                break
            except RedisError as error:
                await self._refused(error)
                obstacles.say(_obstacle(error))
                await asyncio.sleep(0.2)
        return _document_in(text) if text else None

    def save(self, document: Document) -> None:
        self.put("state", json.dumps(document))

    def put(self, name: str, text: str) -> None:
        key = f"{self._prefix}{name}"
        before = self._texts.get(key, 0)
        if before > self._sending:  # else it may be on its way already
            self._queue.pop(before, None)
        self._put(("SET", key, text))
        self._texts[key] = self._serial

    async def get(self, name: str) -> str | None:
        try:
            found: Any = await self._redis.get(f"{self._prefix}{name}")
        except RedisError as error:
            if _is_mistake(error):
                raise
            raise StoreAway(str(error)) from error
        return None if found is None else str(found)

    def heartbeat(self, node: str, ttl_seconds: float) -> None:
        if self._away:  # an old sign of life is of no use later
            return
        if not self._beats:
            asyncio.get_running_loop().call_later(BEATS_SECONDS, self._let_beat)
        self._beats[node] = ttl_seconds
        self._drained.clear()

    def _let_beat(self) -> None:
        self._beats_due = True
        self._wake.set()

    def append(self, stream: str, entry: dict[str, Any]) -> None:
        fields = [str(x) for pair in entry.items() for x in pair]
        limit = ("MAXLEN", "~", str(LENGTHS[stream]))
        self._put(("XADD", f"{self._prefix}{stream}", *limit, "*", *fields))

    async def read(self, stream: str, after: str = "") -> list[tuple[str, dict[str, str]]]:
        first = f"({after}" if after else "-"
        try:
            found: Any = await self._redis.xrange(f"{self._prefix}{stream}", min=first, count=PAGE)
        except RedisError as error:
            if _is_mistake(error):
                raise
            raise StoreAway(str(error)) from error
        return [(number, entry) for number, entry in found]

    def _put(self, command: tuple[str, ...]) -> None:
        self._serial += 1
        self._queue[self._serial] = command
        if len(self._queue) > QUEUED:
            self._give_up()
        self._drained.clear()
        self._wake.set()

    def _give_up(self) -> None:
        """Drops the oldest entry that is surely not on its way."""
        for serial, command in self._queue.items():
            if serial > self._sending and command[:1] == ("XADD",):
                del self._queue[serial]
                self._given_up += 1
                return

    async def _write(self) -> None:
        # The only task that sends. One batch is under way at a time: that keeps the order.
        while True:
            await self._wake.wait()
            while (self._queue or self._beats_due) and not (self._closing and self._away):
                async with self._turn:
                    await (self._send_beats() if self._beats_due else self._send_writes())
            if not self._beats:
                self._drained.set()
            if self._closing:
                return
            self._wake.clear()

    async def _send_writes(self) -> None:
        """Sends what waits, in its order; while Redis is away the first of it alone, to see whether it is back."""
        writes = list(islice(self._queue.items(), 1 if self._away else TOGETHER))
        if not writes:
            return
        self._sending = writes[-1][0]
        words = [word for serial, command in writes for word in (str(serial), str(len(command)), *command)]
        done = await self._evaluate(WRITE, self._keys, words)
        self._sending = 0
        if done:  # some of it may have gone from the queue meanwhile
            for serial, _ in writes:
                self._queue.pop(serial, None)

    async def _send_beats(self) -> None:
        beats, self._beats, self._beats_due = self._beats, {}, False
        words = [
            word
            for node, seconds in beats.items()
            for word in (f"{self._prefix}heartbeat:{node}", str(int(seconds * 1000)))
        ]
        if beats:
            await self._evaluate(BEAT, self._keys[:2], words)

    async def _evaluate(self, script: str, keys: list[str], words: list[str]) -> bool:
        """Whether it was done; if not, after a pause."""
        try:
            lease = (self._lease, str(self._term), str(self._lease_ms))
            await self._redis.eval(script, len(keys), *keys, *lease, *words)
        except RedisError as error:
            if isinstance(error, ResponseError) and "FENCED" in str(error):
                self._lost = LostLease("another coordinator leads with a higher term")
                # The other leader's state counts now.
                self._queue.clear()
                self._texts.clear()
                self._beats.clear()
                self._beats_due = False
                return False
            if not self._away:  # out of reach, or it refuses for now: full, read-only, being restarted
                log.warning("Redis takes no writes; they wait in a queue, and training goes on: %s", error)
            self._away = True
            await self._reconnect(error)
            await asyncio.sleep(0.1)
            return False
        if self._away:
            log.info("Redis is back: writing the %d entries that waited", len(self._queue))
            if self._given_up:
                log.warning("dropped %d entries of the event log: Redis was away for too long", self._given_up)
            self._given_up = 0
        self._away = False
        return True

    async def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._wake.set()
        if self._writer is not None:
            # It is asked to end, not cancelled: in Python 3.11 a cancellation while the client sends can be lost.
            await asyncio.wait({self._writer}, timeout=PATIENCE)
            self._writer.cancel()
        try:
            await self._redis.eval(RELEASE, 1, self._keys[0], self._lease)
        except RedisError:
            log.info("could not give the lease back, since Redis is away: it runs out by itself")
        await self._redis.aclose()


def _is_mistake(error: RedisError) -> bool:
    """Whether Redis answers as it will whenever it is asked. A script's own words may stand around the error."""
    return isinstance(error, NoPermissionError) or any(w in str(error) for w in ("WRONGTYPE", "unknown command"))


def _obstacle(error: RedisError) -> str:
    if not isinstance(error, ResponseError):
        return f"waiting for Redis: {error}; start it, or correct --redis"
    mend = "see whether it has memory and disk left, and is no replica"
    return f"waiting for Redis, which refuses for now: {error}; {mend}"


def _term_in(document: Document | None) -> int:
    """The highest term that the state tells of."""
    term = document.get("term", 0) if document is not None else 0
    return term if type(term) is int and 0 <= term < TERM_LIMIT else 0
