"""Where an open ledger ends, as far as a client that isn't its writer can know.

Rules: docs/spec/storage.md, "Where an open ledger ends".

Everything learnt is a lower bound: a last-add-confirmed in an intact packet, an explicit one, the
key of the last segment, and in the end the metadata of the closed ledger. "Nothing new" is a
stronger claim: it takes answers of so many bookies that every write set has been heard.
"""

import asyncio
import logging
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.client import quorum
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.ledger_store import LedgerMetadataSource
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.client.replica_choice import Replicas
from magnetar.bookkeeper.errors import BookieUnavailableError, BookkeeperError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.bookkeeper.packet import Buffer, decode_header, is_intact
from magnetar.bookkeeper.transport import LacReply
from magnetar.metadata.errors import MetadataError

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 0.2  # after a round in which every bookie failed, or said less than it should
_GRACE_S: Final = 0.5  # polls that should have been answered by now


class _Round(Enum):
    """How one round of long polls ended."""

    NEWS = "news"  # a higher bound
    QUIET = "quiet"  # enough bookies say that nothing came
    CHANGED = "changed"  # the metadata changed, or may have
    FAILED = "failed"  # no bookie is left that could tell


@dataclass(eq=False, repr=False)
class LedgerTail:
    """The end of one ledger: how far it may be read, and waiting for it to grow."""

    _metadata: LedgerMetadata
    _last_confirmed: int
    _ledgers: LedgerMetadataSource
    _bookies: BookiePool
    _config: ClientConfig
    _replicas: Replicas

    def __post_init__(self) -> None:
        self.ledger_id, self.creator = self._metadata.ledger_id, self._metadata.creator_token
        self._ahead: tuple[int, Buffer] | None = None  # entry id and packet that came with a LAC
        self._changed: asyncio.Event | None = None  # set by the watch; None: no wait yet
        self._watch: weakref.finalize[..., LedgerTail] | None = None  # closes it

    @property
    def last_confirmed(self) -> int:
        """Highest entry that may be read; -1: none. Never decreases."""
        return self._last_confirmed

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def is_closed(self) -> bool:
        """``last_confirmed`` is the end for ever."""
        return self.metadata.state is LedgerState.CLOSED

    async def refresh(self) -> None:
        """Learn how far an open ledger has grown, and whether it was closed.

        What is learnt is true, but a bookie that can't be reached may know of more.

        Raises:
            BookieUnavailableError: no bookie of the last segment answered.
            NoSuchLedgerError: the ledger was deleted.
        """
        await self._read_metadata()
        if not self.is_closed and not await self._ask_all():
            raise self._no_answer("no bookie answered")

    async def wait(self, above: int, timeout_s: float) -> int:
        """Wait until entries above ``above`` are confirmed, or the ledger is closed.

        Returns:
            ``last_confirmed``: above ``above``; or as it is because nothing came in time, or
            because the ledger was closed there (``is_closed``).

        Raises:
            BookieUnavailableError: nothing came, but too few bookies answered to be sure.
            NoSuchLedgerError: the ledger was deleted.
        """
        deadline = _now() + timeout_s
        changed = self._changed
        if changed is None and self.last_confirmed <= above and not self.is_closed:
            changed = await self._watch_metadata()
        while self.last_confirmed <= above and not self.is_closed:
            assert changed is not None
            result = _Round.CHANGED
            if not changed.is_set():
                result = await self._poll_round(above, deadline, changed)
            if result is _Round.NEWS:
                break
            if result is _Round.QUIET:
                await self._try_read_metadata()  # an event may have been lost
                break
            if _now() >= deadline:
                await self._conclude(above)
                break
            if not changed.is_set():
                # Nobody can tell, or a bookie ended its poll early, which hints at a change.
                await _wait_for(changed, min(_PAUSE_S, deadline - _now()))
            changed.clear()
            await self._try_read_metadata()
        if self.is_closed:
            self.close()
        return self.last_confirmed

    def close(self) -> None:
        """Stop following the ledger's metadata; a later ``wait`` begins again. May be left out."""
        if self._watch is not None:
            self._watch()
            self._changed = self._watch = None

    async def _watch_metadata(self) -> asyncio.Event:
        """Follow the metadata from now on: also what changes between two waits counts."""
        changed = self._changed = asyncio.Event()
        watch = self._ledgers.watch(self.ledger_id, changed.set)
        # A reader that is forgotten takes its watch with it.
        self._watch = weakref.finalize(self, watch.close)
        self._watch.atexit = False
        await self._try_read_metadata()
        return changed

    async def _conclude(self, above: int) -> None:
        """The time is over: ask those that could not be asked, or weren't, for a last time."""
        await self._try_read_metadata()
        if self.last_confirmed <= above and not self.is_closed:
            known = await self._ask_all()
            if self.last_confirmed <= above and not self._is_covered(known):
                raise self._no_answer("too few bookies answered")

    # ---- long polls

    async def _poll_round(self, above: int, deadline: float, changed: asyncio.Event) -> _Round:
        """Long polls to the members of the last segment, one after the other, until the deadline.

        Any live member hears of the next entry; one that is cut off from the writer never does. So
        the polls spread over the members while nothing comes.
        """
        loop = asyncio.get_running_loop()
        wait_s = deadline - loop.time()
        members = self.metadata.last_segment.bookies
        to_ask = list(self._tail_slots(above + 1))
        speculation = self._replicas.config.lac_speculation
        pauses = speculation.pauses_s() if speculation.first_ms else repeat(wait_s)
        polls: dict[asyncio.Task[LacReply], int] = {}
        quiet: set[int] = set()
        event = loop.create_task(changed.wait())
        try:
            while True:
                now = loop.time()
                if to_ask and now < deadline:
                    slot = to_ask.pop(0)
                    poll = self._poll(members[slot], above, deadline - now)
                    polls[loop.create_task(poll)] = slot
                if not polls:
                    return _Round.FAILED
                if now >= deadline + _GRACE_S:
                    return _Round.FAILED  # their answers are overdue
                pause_s = deadline + _GRACE_S - now
                if to_ask and now < deadline:
                    pause_s = min(pause_s, next(pauses))
                done, _ = await asyncio.wait(
                    {event, *polls}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in [task for task in polls if task.done()]:
                    slot = polls.pop(task)
                    if not self._learn(task.result(), above):
                        continue
                    if self.last_confirmed > above:
                        return _Round.NEWS
                    if loop.time() < deadline:
                        return _Round.CHANGED
                    quiet.add(slot)
                if event in done:
                    return _Round.CHANGED
                if self._is_covered(quiet):
                    return _Round.QUIET
        finally:
            event.cancel()
            for task in polls:
                task.cancel()

    async def _poll(self, bookie: str, above: int, wait_s: float) -> LacReply:
        try:
            client = self._bookies.client(bookie)
            return await client.wait_lac(self.ledger_id, above, wait_s, creator=self.creator)
        except BookkeeperError:
            return LacReply(codes.UNAVAILABLE, None, -1)

    def _tail_slots(self, entry_id: int) -> Sequence[int]:
        """All slots of the last segment, beginning with the write set of an entry."""
        metadata = self.metadata
        size = metadata.ensemble_size
        slots = [(entry_id + place) % size for place in range(size)]
        return self._replicas.order(metadata.last_segment.bookies, slots)

    # ---- questions without waiting

    async def _ask(self, bookie: str) -> LacReply:
        try:
            client = self._bookies.client(bookie)
            return await client.read_lac(self.ledger_id, fence=False, creator=self.creator)
        except BookkeeperError:
            return LacReply(codes.UNAVAILABLE, None, -1)

    async def _ask_all(self) -> set[int]:
        """Ask the last segment until every write set was heard; slots whose answer counts."""
        members = self.metadata.last_segment.bookies
        if len(members) == 1:
            return {0} if self._learn(await self._ask(members[0])) else set()
        loop = asyncio.get_running_loop()
        running = {loop.create_task(self._ask(b)): slot for slot, b in enumerate(members)}
        known: set[int] = set()
        try:
            while running and not self._is_covered(known):
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task.done()]:
                    slot = running.pop(task)
                    if self._learn(task.result()):
                        known.add(slot)
        finally:
            for task in running:
                task.cancel()
        return known

    def _is_covered(self, known: set[int]) -> bool:
        metadata = self.metadata
        return quorum.is_covered(
            known, metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
        )

    # ---- what was learnt

    def _learn(self, reply: LacReply, above: int = -2) -> bool:
        """Raise the bound by what an answer proves; False: it proves nothing, not even absence.

        Args:
            above: of the long poll that this answers; its entry may have come with it.
        """
        if reply.code != codes.OK:
            return codes.is_explicit_negative(reply.code)
        self._raise_bound(reply.explicit_lac)
        packet, following = reply.last_packet, reply.next_packet
        if packet is not None:
            if not is_intact(packet) or decode_header(packet).ledger_id != self.ledger_id:
                return False
            self._raise_bound(decode_header(packet).lac)
        if following is not None and self.last_confirmed > above >= -1:
            self._ahead = (above + 1, following)  # checked when it is read
        return True

    def _raise_bound(self, lac: int) -> None:
        # A LAC is a lower bound whatever its source, so the highest one seen is true.
        if lac > self._last_confirmed and self._metadata.state is not LedgerState.CLOSED:
            self._last_confirmed = lac

    async def _read_metadata(self) -> None:
        metadata = self._metadata = await self._require_metadata()
        if metadata.state is LedgerState.CLOSED:
            self._last_confirmed = metadata.last_entry
        else:
            self._raise_bound(metadata.last_segment.first_entry - 1)

    async def _require_metadata(self) -> LedgerMetadata:
        """Raises: NoSuchLedgerError: it was deleted; its id may be another ledger's by now."""
        metadata = (await self._ledgers.require(self.ledger_id)).metadata
        metadata.require_creator(self.creator)
        return metadata

    async def _try_read_metadata(self) -> None:
        # While the store is away, bookies still tell what is new.
        with suppress(MetadataError):
            await self._read_metadata()

    def _no_answer(self, what: str) -> BookieUnavailableError:
        members = self.metadata.last_segment.bookies
        return BookieUnavailableError(f"ledger {self.ledger_id}: {what}: {members}")


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _wait_for(changed: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await changed.wait()
