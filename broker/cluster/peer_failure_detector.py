"""Brokers watch each other: a dead broker loses its bundles at once, not with its session's
timeout.

Each broker keeps a connection to the two whose ids follow its own, in a ring. The system of a dead
process closes its connections and refuses new ones; a paused, hung or cut-off one's does neither,
and then the session's timeout decides as ever. The session of the dead is ended, so whatever
follows is what follows an expired session. Why that is safe: docs/decisions/0029.
"""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from magnetar.broker.errors import BrokerError
from magnetar.bundles.errors import InvalidBundleError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.metadata.coordination import claim, unclaim
from magnetar.metadata.errors import MetadataError, StoreClosedError
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore

logger = logging.getLogger(__name__)

SESSION_RECORDS_ROOT: Final = "/loadbalance/sessions"
_WATCHED: Final = 2
"""So that one is seen dying although one of its watchers dies with it."""
_REFUSALS: Final = 3
_REFUSAL_GAP_S: Final = 0.015
_AGAIN_MIN_S, _AGAIN_MAX_S = 0.05, 10.0
# The next broker deletes our session record and then writes its own: we mustn't be faster.
_YIELD_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What a broker leaves for its watchers; it ends with the session that it names.

    Attributes:
        key: ends that session.
        process: drawn by each process for itself.
    """

    broker: BrokerLookup
    process: str
    key: str

    def encode(self) -> bytes:
        broker = orjson.loads(self.broker.encode())
        return orjson.dumps({"broker": broker, "process": self.process, "sessionKey": self.key})

    @classmethod
    def decode(cls, value: bytes) -> "SessionRecord | None":
        """None: not a session record."""
        try:
            document = orjson.loads(value)
            broker = BrokerLookup.decode(orjson.dumps(document["broker"]))
            return cls(broker, str(document["process"]), str(document["sessionKey"]))
        except (orjson.JSONDecodeError, TypeError, KeyError, InvalidBundleError):
            return None


class PeerConnection(Protocol):
    """An open connection to another broker."""

    async def ended(self) -> None:
        """Returns when it has ended, by whomever."""

    def close(self) -> None: ...


class PeerNetwork(Protocol):
    """How other brokers are reached: broker_connection.py."""

    async def connect(self, broker: BrokerLookup) -> PeerConnection:
        """Raises BrokerError: it can't be reached, or doesn't let us in."""

    async def refuses(self, broker: BrokerLookup) -> bool:
        """Whether its machine says that no process listens; False: it doesn't, or is silent."""


def next_in_ring(names: Sequence[str], own: str) -> list[str]:
    """The names that follow, the first one after the last."""
    others = sorted(set(names) - {own})
    after = [name for name in others if name > own]
    return (after + [name for name in others if name < own])[:_WATCHED]


class PeerFailureDetector:
    """Life: construct, ``start``, ``leave`` before the ports are closed, which is when the others
    would take this broker for dead. Stays without effect where brokers can't reach each other.

    Invariant: a session is ended only of a process that this one was connected to, whose machine
    then refused connections again and again, and whose session record is still there afterwards; of
    a process that turns out to live, never again.
    """

    def __init__(
        self, store: MetadataStore, broker_id: str, broker: BrokerLookup, network: PeerNetwork
    ) -> None:
        self._store, self._broker_id, self._broker = store, broker_id, broker
        self._network = network
        self._process = secrets.token_hex(8)
        self._expired: dict[str, str] = {}  # broker id -> the process whose session was ended last
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._expirations: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._unwritten, self._changed = asyncio.Event(), asyncio.Event()
        self._watches = (
            store.watch(SESSION_RECORDS_ROOT, self._on_event),
            store.on_session_event(lambda _: self._look_again()),
        )

    def start(self) -> None:
        self._look_again()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._publish_record()), loop.create_task(self._follow())]

    async def leave(self) -> None:
        """Stop watching and being watched. Calling it twice is harmless."""
        for watch in self._watches:
            watch.close()
        ending = [*self._tasks, *self._watched.values(), *self._expirations]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._tasks.clear()
        self._watched.clear()
        try:
            await unclaim(self._store, self._path(self._broker_id), b"", self._is_own)
        except MetadataError as error:  # it ends with the session
            logger.info("%s", error)

    # --- being watched

    async def _publish_record(self) -> None:
        """Our session record is there, and names the session of now."""
        path = self._path(self._broker_id)
        while True:
            await self._unwritten.wait()
            self._unwritten.clear()
            record = SessionRecord(self._broker, self._process, self._store.session_key)
            try:
                await claim(self._store, path, record.encode(), self._is_own)
            except StoreClosedError:
                return
            except MetadataError as error:  # also of another broker that was given our address
                logger.debug("%s", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_AGAIN_MAX_S):
                        await self._unwritten.wait()  # a session event
                self._unwritten.set()

    def _is_own(self, value: bytes) -> bool:
        record = SessionRecord.decode(value)
        return record is not None and self._broker.is_successor_of(record.broker.encode())

    # --- watching

    async def _follow(self) -> None:
        """Watch the brokers that follow in the ring."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                names = await self._store.children(SESSION_RECORDS_ROOT)
            except StoreClosedError:
                return
            except MetadataError as error:
                logger.debug("%s", error)
                await asyncio.sleep(_AGAIN_MIN_S)
                self._changed.set()
                continue
            wanted = next_in_ring(names, self._broker_id)
            for name in self._watched.keys() - set(wanted):
                self._watched.pop(name).cancel()
            for name in wanted:
                if (task := self._watched.get(name)) is None or task.done():
                    task = asyncio.get_running_loop().create_task(self._watch(name))
                    self._watched[name] = task

    async def _watch(self, broker_id: str) -> None:
        """One broker, for as long as it has a session record."""
        again_s, known = _AGAIN_MIN_S, ""  # the process that we were connected to
        while True:
            try:
                if (record := await self._record_of(broker_id)) is None:
                    return
                try:
                    connection = await self._network.connect(record.broker)
                except BrokerError:
                    # A dying process may close its port after its connections: ask again.
                    await self._check_peer(broker_id, record, known)
                    raise
                logger.debug("broker %s is watched", broker_id)
                again_s, known = _AGAIN_MIN_S, record.process
                try:
                    await connection.ended()
                finally:
                    connection.close()
                await self._check_peer(broker_id, record, known)
            except StoreClosedError:
                return
            except (BrokerError, MetadataError) as error:
                # Once, not at each attempt: without credentials for brokers it never succeeds.
                level = logging.INFO if again_s == _AGAIN_MIN_S else logging.DEBUG
                logger.log(level, "broker %s is not watched: %s", broker_id, error)
            except Exception:  # the watch goes on, whatever one attempt met
                logger.exception("broker %s is not watched", broker_id)
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _AGAIN_MAX_S)

    async def _record_of(self, broker_id: str) -> SessionRecord | None:
        found = await self._store.get(self._path(broker_id))
        return None if found is None else SessionRecord.decode(found.value)

    async def _check_peer(self, broker_id: str, record: SessionRecord, known: str) -> None:
        if record.process != known:
            return  # never reached, so that its port is closed to us means nothing
        if (last := await self._record_if_failed(broker_id, record)) is not None:
            await self._expire_session_soon(broker_id, last)

    async def _record_if_failed(
        self, broker_id: str, record: SessionRecord
    ) -> SessionRecord | None:
        """The last session record of a process that we were connected to; None: perhaps it lives.

        Args:
            record: as it was when we connected; the process may have begun another session since.
        """
        if self._expired.get(broker_id) == record.process:
            return None  # it was judged before, and lives: its machine's refusal means nothing
        for number in range(_REFUSALS):
            if number:
                await asyncio.sleep(_REFUSAL_GAP_S)
            if not await self._network.refuses(record.broker):
                return None
        # A broker that leaves in order deletes its session record before it stops listening; and
        # this read proves that our own session is alive.
        last = await self._record_of(broker_id)
        return last if last is not None and last.process == record.process else None

    async def _expire_session_soon(self, broker_id: str, record: SessionRecord) -> None:
        """The vanishing session record ends the watch, which mustn't break off what makes it
        vanish."""
        task = asyncio.get_running_loop().create_task(self._expire_session(broker_id, record))
        self._expirations.add(task)
        task.add_done_callback(self._expirations.discard)
        await asyncio.shield(task)

    async def _expire_session(self, broker_id: str, record: SessionRecord) -> None:
        logger.warning(
            "broker %s is dead: its connection ended and its port is closed; ending its session",
            broker_id,
        )
        self._expired[broker_id] = record.process
        try:
            await self._store.end_session(record.key)
        except (MetadataError, ValueError) as error:
            logger.warning("the session of broker %s lasts until its timeout: %s", broker_id, error)

    # --- events

    @staticmethod
    def _path(broker_id: str) -> str:
        return f"{SESSION_RECORDS_ROOT}/{broker_id}"

    def _look_again(self) -> None:
        self._unwritten.set()
        self._changed.set()

    def _on_event(self, event: MetadataEvent) -> None:
        self._changed.set()
        if event.type is EventType.DELETED and event.path == self._path(self._broker_id):
            asyncio.get_running_loop().call_later(_YIELD_S, self._unwritten.set)
