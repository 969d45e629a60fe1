"""Entries of a bookie of ours: adds and reads by version 2, behind our own login.

What else there is to ask of a bookie goes by gRPC (``transport_grpc/remote_bookie.py``). Whatever
goes wrong between here and there is UNAVAILABLE, never "no such entry".
"""

import logging
from dataclasses import replace

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol.add_channel import AddChannel, EncodedAdds
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connections import Resolve
from magnetar.bookkeeper.bookie_protocol.digests import CRC32C
from magnetar.bookkeeper.bookie_protocol.entry_client import EntryClient
from magnetar.bookkeeper.bookie_protocol.heads import decode_heads
from magnetar.bookkeeper.bookie_protocol.read_channel import ReadChannel
from magnetar.bookkeeper.entry_prefixes import are_of, to_heads
from magnetar.bookkeeper.errors import BookieUnavailableError, FrameError, LedgerError
from magnetar.bookkeeper.transport import EntryPrefixesReply, ReadReply, ReadRequest

_log = logging.getLogger(__name__)


class OwnBookieClient(EntryClient):
    """One bookie of ours.

    Args:
        resolve: asked before each connection: a bookie may have moved.
        config: with ``OwnLogin``.
        encoded: shared by the clients of one process.
    """

    def __init__(
        self, bookie_id: str, resolve: Resolve, config: ProtocolConfig, encoded: EncodedAdds
    ) -> None:
        self._resolve_place = resolve
        self._place: tuple[str, int] | None = None  # of the last connection
        adds = AddChannel(
            *(bookie_id, self._resolve_entries, config, lambda _: CRC32C, encoded),
            is_own=True,
            on_lost=self._on_adds_lost,
        )
        super().__init__(bookie_id, adds, ReadChannel(bookie_id, self._resolve_entries, config))

    def leave(self, place: tuple[str, int]) -> None:
        """The bookie is at ``place``: leave a process that has its name elsewhere.

        What that process hasn't answered yet is UNAVAILABLE.
        """
        if self._place is not None and self._place != place:
            moved = (
                f"it is at {place[0]}:{place[1]} now, no more at {self._place[0]}:{self._place[1]}"
            )
            _log.warning("bookie %s: %s", self._bookie_id, moved)
            for channel in (self._adds, self._reads):
                channel.drop(BookieUnavailableError(moved))

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        first = request.first
        if not request.is_legal or request.head_bytes is not None:
            return ReadReply(codes.BAD_REQUEST, first, [])
        try:
            code, packets = await self._reads.read_own(replace(request))
        except LedgerError as error:
            return ReadReply(error.code, first, [])
        if (code == codes.OK) != bool(packets):
            _log.error("bookie %s: a reply to another read", self._bookie_id)
            return ReadReply(codes.UNAVAILABLE, first, [])
        return ReadReply(code, first, list[bytes | memoryview](packets))

    async def read_heads(self, request: ReadRequest) -> EntryPrefixesReply:
        """See ``BookieClient.read_heads``.

        The bookie checks digests. Here ledger and entry id of each packet are checked, and the
        digest of the whole reply.
        """
        first, head_bytes = request.first, request.head_bytes
        if not request.is_legal or head_bytes is None:
            return EntryPrefixesReply(codes.BAD_REQUEST, first, [], [])
        try:
            code, packets = await self._reads.read_own(replace(request))
            if code != codes.OK:
                return EntryPrefixesReply(code, first, [], [])
            reply = decode_heads(packets[0] if packets else b"", first, head_bytes)
        except LedgerError as error:
            return EntryPrefixesReply(error.code, first, [], [])
        except FrameError as error:
            _log.error("bookie %s: %s", self._bookie_id, error)
            return EntryPrefixesReply(codes.UNAVAILABLE, first, [], [])
        is_whole = reply.packets and len(reply.packets) <= request.count_max
        if not is_whole or not are_of(reply, request.ledger_id, request.stripe):
            _log.error("bookie %s: a reply to another read", self._bookie_id)
            return EntryPrefixesReply(codes.UNAVAILABLE, first, [], [])
        return to_heads(reply)

    async def _resolve_entries(self, bookie_id: str) -> tuple[str, int]:
        self._place = await self._resolve_place(bookie_id)
        return self._place

    def _on_adds_lost(self) -> None:
        """The bookie may have moved."""
