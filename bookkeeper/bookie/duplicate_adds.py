"""Adds of entries that may be here already. What is stored stays.

Recoveries, repairs and writers that weren't answered send entries again. The same entry is welcome:
only its last-add-confirmed (and so its digest) may differ, as a recovery may rewrite that. Another
payload or length under the same id is another ledger's, and is refused.

Only an add of ids up to the ledger's last entry is looked after. Where memory can't tell, a thread
reads what is stored; meanwhile all further adds of the ledger wait in line, so that what was
compared is what the add meets.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.storage.ledger_storage import LedgerStorage
from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.packet import PACKET_HEADER_BYTES, Buffer
from magnetar.bookkeeper.transport import AddRequest
from magnetar.bookkeeper.wrapped_packet import FOREIGN_DIGEST_BYTES_MAX, is_wrapped

_log = logging.getLogger(__name__)

_LOOP_BYTES_MAX: Final = 256 * 1024  # compared on the loop; more is a thread's work
_READ_BYTES: Final = 1024 * 1024
_LAC_AT: Final = 16
_LENGTH_AT: Final = 24
_DIGEST_AT: Final = 32


def is_same_entry(stored: Buffer, head: Buffer, body: Buffer) -> bool:
    """True if two intact packets differ in nothing but their last-add-confirmed."""
    if len(stored) != len(head) + len(body):
        return False
    old, new = bytes(stored), b"".join((head, body))
    # A foreign digest covers the LAC, too. How long it is, the ledger's metadata would tell.
    skipped = FOREIGN_DIGEST_BYTES_MAX if is_wrapped(old) else 0
    return old == new or (
        old[:_LAC_AT] == new[:_LAC_AT]
        and old[_LENGTH_AT:_DIGEST_AT] == new[_LENGTH_AT:_DIGEST_AT]
        and old[PACKET_HEADER_BYTES + skipped :] == new[PACKET_HEADER_BYTES + skipped :]
    )


class DuplicateCheck:
    """Compares a request with what is stored under its ids. Made on the loop."""

    def __init__(self, storage: LedgerStorage, request: AddRequest) -> None:
        self._storage, self._request = storage, request
        self._found: list[tuple[int, Buffer]] = []  # index in the request, packet in memory
        self._missing: list[int] = []  # indices of what only the index can tell
        state = storage.ledgers[request.ledger_id]
        for at, entry_id in enumerate(request.entry_ids):
            if entry_id > state.last_entry:
                break
            packets = storage.read_cached(request.ledger_id, entry_id, 1, 1)
            if packets:
                self._found.append((at, packets[0]))
            elif entry_id <= state.flushed_last:
                self._missing.append(at)

    @property
    def is_short(self) -> bool:
        """``run`` needs no disk and little time."""
        return not self._missing and self._request.body_bytes <= _LOOP_BYTES_MAX

    def run(self) -> int:
        """OK; ENTRY_DIFFERS; IO_ERROR: a disk failed, not known (any thread)."""
        if not all(self._is_same(at, packet) for at, packet in self._found):
            return codes.ENTRY_DIFFERS
        ids, missing, ledger_id = self._request.entry_ids, self._missing, self._request.ledger_id
        place = 0
        while place < len(missing):
            at = missing[place]
            count = 1
            while (
                place + count < len(missing)
                and missing[place + count] == at + count
                and ids[at + count] == ids[at] + count
            ):
                count += 1
            try:
                packets = self._storage.read_stored(ledger_id, ids[at], count, _READ_BYTES)
            except CorruptFileError:
                packets = []  # a damaged copy hinders no add
            except OSError as error:
                _log.error("ledger %d, entry %d can't be compared: %s", ledger_id, ids[at], error)
                return codes.IO_ERROR
            if not all(self._is_same(at + n, packet) for n, packet in enumerate(packets)):
                return codes.ENTRY_DIFFERS
            place += max(1, len(packets))
        return codes.OK

    def _is_same(self, at: int, packet: Buffer) -> bool:
        request = self._request
        return is_same_entry(packet, request.heads[at], request.bodies[at])


def add_unless_stored(storage: LedgerStorage, request: AddRequest) -> int:
    """``storage.add`` for callers that may block; its code."""
    code = storage.add(request)
    if code != LedgerStorage.LOOK_FIRST:
        return code
    code = DuplicateCheck(storage, request).run()
    return storage.add(request, looked=True) if code == codes.OK else code


class DuplicateAdds:
    """The line of each ledger that is looked after. Loop only.

    Args:
        add: hand a request to the storage; ``looked``: its entries were compared.
        refuse: answer it with a code.
    """

    def __init__(
        self,
        readers: Executor,
        loop: asyncio.AbstractEventLoop,
        storage: LedgerStorage,
        add: Callable[[AddRequest, bool], None],
        refuse: Callable[[AddRequest, int], None],
    ) -> None:
        self.lines: dict[int, deque[AddRequest]] = {}  # ledger -> what waits for its look
        self._storage, self._readers, self._loop = storage, readers, loop
        self._add, self._refuse = add, refuse

    def takes(self, request: AddRequest) -> bool:
        """True: the request waits behind others of its ledger."""
        line = self.lines.get(request.ledger_id)
        if line is None:
            return False
        line.append(request)
        return True

    def begin(self, request: AddRequest) -> None:
        """REQUIRES: no line of its ledger."""
        look = DuplicateCheck(self._storage, request)
        if look.is_short:
            self._end(request, look.run())
            return
        self.lines[request.ledger_id] = deque()
        future = self._loop.run_in_executor(self._readers, look.run)
        future.add_done_callback(lambda done: self._on_looked(request, done))

    def _on_looked(self, request: AddRequest, done: asyncio.Future[int]) -> None:
        ledger_id = request.ledger_id
        line = self.lines.pop(ledger_id)
        failed = done.cancelled() or done.exception() is not None
        if failed and not done.cancelled():
            _log.error("ledger %d can't be compared", ledger_id, exc_info=done.exception())
        self._end(request, codes.IO_ERROR if failed else done.result())
        while line:
            self._add(line.popleft(), False)
            if (behind := self.lines.get(ledger_id)) is not None:
                behind.extend(line)
                return

    def _end(self, request: AddRequest, code: int) -> None:
        if code == codes.OK:
            self._add(request, True)
            return
        self._refuse(request, code)
