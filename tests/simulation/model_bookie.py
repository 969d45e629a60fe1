"""The smallest bookie that keeps a bookie's promises: what clients are tested against.

It is synchronous and has no disk; what it acknowledged it keeps, until a test takes its disk away.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.duplicate_adds import is_same_entry
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.errors import OtherCreatorError
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, decode_header, is_intact
from magnetar.bookkeeper.transport import (
    AddRequest,
    BookieStatus,
    LacReply,
    ReadReply,
    ReadRequest,
    Stripe,
)


@dataclass(slots=True)
class ModelLedger:
    """One ledger on one bookie."""

    master_key: bytes
    entries: dict[int, bytes] = field(default_factory=dict)  # entry id -> packet
    fenced: bool = False
    explicit_lac: int = -1
    unsynced: set[int] = field(default_factory=set)  # deferred adds that a power cut takes
    creator: int = 0

    def is_of(self, creator: int) -> bool:
        return not creator or not self.creator or creator == self.creator


class ModelBookie:
    """State and answers of one bookie.

    Attributes:
        up: False: nothing is answered (the network's business, not checked here).
        limbo: the disk was lost: whatever it is asked, it can't say "no".
        refuse_adds: result code of every add, to play full disks and throttling.
    """

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.ledgers: dict[int, ModelLedger] = {}
        self.up = True
        self.limbo = False
        self.refuse_adds = codes.OK
        self.deferred_from: dict[int, int] = {}  # ledger -> lowest deferred entry since the start

    def __str__(self) -> str:
        return self.bookie_id

    def lose_disk(self) -> None:
        """The disk is replaced by an empty one; the cookie check puts the bookie into limbo."""
        self.ledgers.clear()
        self.limbo = True

    def add(self, request: AddRequest) -> int:
        if self.refuse_adds != codes.OK:
            return self.refuse_adds
        ledger = self._ledger(request.ledger_id, request.master_key, request.creator)
        if ledger.master_key != request.master_key:
            return codes.UNAUTHORIZED
        if not ledger.is_of(request.creator):
            return self._no(codes.OTHER_CREATOR)
        if not request.recovery and self.limbo:
            return codes.UNKNOWN_LEDGER_STATE  # the fence may have been lost with the disk
        if not request.recovery and ledger.fenced:
            return codes.FENCED
        for entry_id, head, body in zip(
            request.entry_ids, request.heads, request.bodies, strict=True
        ):
            stored = ledger.entries.setdefault(entry_id, head + body)
            if is_intact(stored) and not is_same_entry(stored, head, body):
                return codes.ENTRY_DIFFERS
        if request.deferred_sync:
            ledger.unsynced.update(request.entry_ids)
            first = request.entry_ids[0]
            known = self.deferred_from.get(request.ledger_id, first)
            self.deferred_from[request.ledger_id] = min(first, known)
        else:
            ledger.unsynced.difference_update(request.entry_ids)
        return codes.OK

    def force(self, ledger_id: int, first: int) -> int:
        if self.deferred_from.get(ledger_id, first + 1) > first:
            return codes.UNKNOWN_LEDGER_STATE
        self.ledgers[ledger_id].unsynced.clear()
        return codes.OK

    def power_cut(self) -> None:
        """The bookie is started again, without what wasn't durable."""
        self.deferred_from.clear()
        for ledger in self.ledgers.values():
            for entry_id in ledger.unsynced:
                del ledger.entries[entry_id]
            ledger.unsynced.clear()

    def _ledger(self, ledger_id: int, master_key: bytes, creator: int) -> ModelLedger:
        new = ModelLedger(master_key, creator=creator)
        return self.ledgers.setdefault(ledger_id, new)

    def fence(self, ledger_id: int, master_key: bytes, creator: int = 0) -> int:
        ledger = self._ledger(ledger_id, master_key, creator)
        if ledger.master_key != master_key:
            return codes.UNAUTHORIZED
        if not ledger.is_of(creator):
            return self._no(codes.OTHER_CREATOR)
        ledger.fenced = True
        return codes.OK

    def read(self, request: ReadRequest) -> ReadReply:
        ledger_id, first, creator = request.ledger_id, request.first, request.creator
        if request.fence:
            code = self.fence(ledger_id, request.master_key, creator)
            if code != codes.OK:
                return ReadReply(code, first, [])
        ledger = self.ledgers.get(ledger_id)
        if ledger is not None and not ledger.is_of(creator):
            return ReadReply(self._no(codes.OTHER_CREATOR), first, [])
        packets: list[bytes | memoryview] = []
        size = 0
        entries = {} if ledger is None else ledger.entries
        for entry_id in islice(request.stripe.ids(first), request.count_max):
            packet = entries.get(entry_id)
            if packet is None or (packets and size + len(packet) > request.bytes_max):
                break
            packets.append(packet)
            size += len(packet)
        if packets:
            return ReadReply(codes.OK, first, packets)
        return ReadReply(self._no(codes.NO_LEDGER if ledger is None else codes.NO_ENTRY), first, [])

    def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        if fence and (code := self.fence(ledger_id, master_key, creator)) != codes.OK:
            return LacReply(code, None, -1)
        if self.limbo:
            return LacReply(codes.UNKNOWN_LEDGER_STATE, None, -1)
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return LacReply(codes.NO_LEDGER, None, -1)
        if not ledger.is_of(creator):
            return LacReply(codes.OTHER_CREATOR, None, -1)
        last = ledger.entries[max(ledger.entries)] if ledger.entries else None
        return LacReply(codes.OK, last, ledger.explicit_lac)

    def write_lac(self, ledger_id: int, lac: int, master_key: bytes, creator: int = 0) -> int:
        ledger = self._ledger(ledger_id, master_key, creator)
        if ledger.master_key != master_key:
            return codes.UNAUTHORIZED
        if not ledger.is_of(creator):
            return self._no(codes.OTHER_CREATOR)
        ledger.explicit_lac = max(ledger.explicit_lac, lac)
        return codes.OK

    def is_fenced(self, ledger_id: int) -> bool:
        ledger = self.ledgers.get(ledger_id)
        return ledger is not None and ledger.fenced

    def corrupt(self, ledger_id: int, entry_id: int) -> None:
        """Flip a bit of the stored payload, or of the digest if it has none."""
        packet = bytearray(self.ledgers[ledger_id].entries[entry_id])
        packet[-1] ^= 1
        self.ledgers[ledger_id].entries[entry_id] = bytes(packet)

    def lac_claims(self, ledger_id: int) -> dict[int, int]:
        """entry id -> LAC in its packet."""
        ledger = self.ledgers.get(ledger_id)
        entries = {} if ledger is None else ledger.entries
        return {entry_id: decode_header(packet).lac for entry_id, packet in entries.items()}

    def payload(self, ledger_id: int, entry_id: int) -> bytes | None:
        ledger = self.ledgers.get(ledger_id)
        packet = None if ledger is None else ledger.entries.get(entry_id)
        return None if packet is None else packet[PACKET_HEADER_BYTES:]

    def _no(self, code: int) -> int:
        return codes.UNKNOWN_LEDGER_STATE if self.limbo else code


class ModelBookieClient(BookieClient):
    """A ``BookieClient`` of a ModelBookie on a real event loop, for tests of the shells.

    ``hold_adds`` keeps adds unanswered until ``release``; a bookie that isn't ``up`` answers
    UNAVAILABLE.
    """

    is_backlogged = False
    pending_requests = 0

    def __init__(self, bookie: ModelBookie) -> None:
        self.bookie = bookie
        self.requests: list[AddRequest] = []
        self.reads: list[tuple[int, int]] = []  # (first, count_max) of each read
        self.stripes: list[Stripe] = []  # of each of these
        self.polls: list[int] = []  # ``above`` of each long poll
        self.explicit_lacs: list[int] = []
        self.reports: list[tuple[int, int]] = []  # (ledger, entry) of corrupt copies
        self.hold_adds = False
        self.on_read: Callable[[int], None] | None = None
        self._held: list[AddRequest] = []
        self._changed = asyncio.Event()  # of anything, for long polls

    @property
    def bookie_id(self) -> str:
        return self.bookie.bookie_id

    def add_entries(self, request: AddRequest) -> None:
        self.requests.append(request)
        if self.hold_adds:
            self._held.append(request)
        else:
            asyncio.get_running_loop().call_soon(self._answer, request)

    def release(self) -> None:
        """Answer what was held, in order."""
        self.hold_adds = False
        held, self._held = self._held, []
        for request in held:
            self._answer(request)

    def _answer(self, request: AddRequest) -> None:
        code = self.bookie.add(request) if self.bookie.up else codes.UNAVAILABLE
        self.wake_polls()
        request.done(request, code)

    def wake_polls(self) -> None:
        """Long polls look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        self.reads.append((request.first, request.count_max))
        self.stripes.append(request.stripe)
        if self.on_read is not None:
            self.on_read(request.first)
        if not self.bookie.up:
            return ReadReply(codes.UNAVAILABLE, request.first, [])
        return self.bookie.read(request)

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        if not self.bookie.up:
            return LacReply(codes.UNAVAILABLE, None, -1)
        return self.bookie.read_lac(ledger_id, fence=fence, master_key=master_key, creator=creator)

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        self.polls.append(above)
        deadline = asyncio.get_running_loop().time() + wait_s
        was_fenced = self.bookie.is_fenced(ledger_id)
        while True:
            changed = self._changed
            reply = await self.read_lac(ledger_id, fence=False, creator=creator)
            packet = reply.last_packet
            lac = max(reply.explicit_lac, -1 if packet is None else decode_header(packet).lac)
            refused = reply.code not in (codes.OK, codes.NO_LEDGER)
            if refused or lac > above or self.bookie.is_fenced(ledger_id) != was_fenced:
                found = self.bookie.read(ReadRequest(ledger_id, above + 1, 1, 1)).packets
                reply.next_packet = found[0] if found else None
                return reply
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                return reply

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        if not self.bookie.up:
            return codes.UNAVAILABLE
        self.explicit_lacs.append(lac)
        code = self.bookie.write_lac(ledger_id, lac, master_key, creator)
        self.wake_polls()
        return code

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        return self.bookie.force(ledger_id, first) if self.bookie.up else codes.UNAVAILABLE

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        ledger = self.bookie.ledgers.get(ledger_id)
        if ledger is not None and not ledger.is_of(creator):
            raise OtherCreatorError(f"ledger {ledger_id}")
        return [] if ledger is None else [(e, e + 1) for e in sorted(ledger.entries)]

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        return sorted(id_ for id_ in self.bookie.ledgers if id_ >= first)[:count_max]

    async def info(self) -> BookieStatus:
        return BookieStatus(self.bookie_id, False, 1 << 40, 1 << 40)

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        self.reports.append((ledger_id, entry_id))
        return codes.OK

    async def check_data(self, *, scrub: bool = False, integrity: bool = False) -> str:
        raise AssertionError("not part of the ledger protocol")
