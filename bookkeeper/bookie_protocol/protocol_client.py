"""``BookieClient`` of a bookie that speaks Apache BookKeeper's protocol.

Adds and reads go by version 2, as Pulsar's do: it costs a third of version 3's processor time.
Deferred adds, explicit LACs, long polls, forces and lists exist in version 3 only. Apache's bookies
know no creators of ledgers and no digests; packets are checked by who reads them, or here, if their
digest is another one than ours.
"""

import asyncio
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.add_channel import AddChannel, EncodedAdds
from magnetar.bookkeeper.bookie_protocol.availability import decode_availability
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.connection import ConnectionV3
from magnetar.bookkeeper.bookie_protocol.connections import LazyConnection, Resolve
from magnetar.bookkeeper.bookie_protocol.digests import (
    CRC32C,
    Digest,
    DigestOf,
    decode_lac,
    encode_lac,
    from_stored,
    to_stored,
)
from magnetar.bookkeeper.bookie_protocol.entry_client import EntryClient
from magnetar.bookkeeper.bookie_protocol.read_channel import ReadChannel
from magnetar.bookkeeper.bookie_protocol.result_codes import EOK, from_v2, from_v3
from magnetar.bookkeeper.errors import (
    BookieUnavailableError,
    FrameError,
    LedgerError,
    error_for_code,
)
from magnetar.bookkeeper.packet import Buffer
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.bookkeeper.transport import (
    AddRequest,
    BookieStatus,
    LacReply,
    ReadReply,
    ReadRequest,
)

_DEFERRED_SYNC: Final = 1
_TOTAL_AND_FREE: Final = 3
_HIGH_PRIORITY: Final = 100
_LIST_TIMEOUT_S: Final = 5.0


class ProtocolBookieClient(EntryClient):
    """One bookie.

    Args:
        resolve: asked before each connection: a bookie may have moved.
        digest_of: which digest a ledger's packets have.
        encoded: shared by the clients of one process.
    """

    def __init__(
        self,
        bookie_id: str,
        resolve: Resolve,
        config: ProtocolConfig,
        digest_of: DigestOf,
        encoded: EncodedAdds,
    ) -> None:
        adds = AddChannel(bookie_id, resolve, config, digest_of, encoded)
        super().__init__(bookie_id, adds, ReadChannel(bookie_id, resolve, config))
        self._config = config
        self._digest_of = digest_of
        self._calls = LazyConnection[ConnectionV3](
            bookie_id,
            resolve,
            lambda on_lost: ConnectionV3(on_lost, config.frame_bytes_max),
            lambda _: None,
            config,
        )
        self._pending_calls = 0
        self._lists_nothing: ConnectionV3 | None = None
        """Once there: a connection to a bookie that doesn't answer lists of entries."""
        self._deferred: set[asyncio.Task[None]] = set()

    @property
    def pending_requests(self) -> int:
        return super().pending_requests + self._pending_calls

    async def close(self) -> None:
        """Answer everything that waits with UNAVAILABLE and disconnect."""
        await super().close()
        await self._calls.close()
        await asyncio.gather(*self._deferred, return_exceptions=True)

    # ---- version 2

    def add_entries(self, request: AddRequest) -> None:
        if request.deferred_sync:
            task = asyncio.get_running_loop().create_task(self._add_deferred(request))
            self._deferred.add(task)
            task.add_done_callback(self._deferred.discard)
        else:
            super().add_entries(request)

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        if not request.is_legal:
            return ReadReply(codes.BAD_REQUEST, request.first, [])
        try:
            return await self._reads.read_entries(request, self._digest_of(request.ledger_id))
        except LedgerError as error:
            return ReadReply(error.code, request.first, [])

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        if not fence:
            return await self._read_explicit_lac(ledger_id)
        try:
            reply = await self._reads.read_entry(
                ledger_id, v2.LAST_ENTRY, flags=v2.DO_FENCING, master_key=master_key
            )
        except LedgerError as error:
            return LacReply(error.code, None, -1)
        return self._lac_reply(ledger_id, from_v2(reply.code), reply.packet, -1)

    # ---- version 3

    async def _read_explicit_lac(self, ledger_id: int) -> LacReply:
        request = pb.Request(readLacRequest=pb.ReadLacRequest(ledgerId=ledger_id))
        try:
            response = await self._call(request, pb.READ_LAC)
        except LedgerError as error:
            return LacReply(error.code, None, -1)
        found = response.readLacResponse
        lac = decode_lac(self._digest_of(ledger_id), ledger_id, found.lacBody)
        return self._lac_reply(ledger_id, codes.OK, found.lastEntryBody, lac)

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        read = pb.ReadRequest(
            ledgerId=ledger_id,
            entryId=v2.LAST_ENTRY,
            previousLAC=above,
            timeOut=int(wait_s * 1000),
            flag=pb.ReadRequest.ENTRY_PIGGYBACK,
        )
        try:
            response = await self._call(pb.Request(readRequest=read), pb.READ_ENTRY, wait_s)
        except LedgerError as error:
            return LacReply(error.code, None, -1)
        found = response.readResponse
        # What it piggybacks is entry ``above`` + 1, not the last one.
        reply = self._lac_reply(ledger_id, codes.OK, found.body, found.maxLAC)
        reply.last_packet, reply.next_packet = None, reply.last_packet
        return reply

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        body = encode_lac(self._digest_of(ledger_id), ledger_id, lac)
        write = pb.WriteLacRequest(ledgerId=ledger_id, lac=lac, masterKey=master_key, body=body)
        return await self._call_code(pb.Request(writeLacRequest=write), pb.WRITE_LAC)

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        """See ``BookieClient.force``. A bookie that was started again since forces what is left."""
        request = pb.Request(forceLedgerRequest=pb.ForceLedgerRequest(ledgerId=ledger_id))
        return await self._call_code(request, pb.FORCE_LEDGER)

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        """See ``BookieClient.list_entries``.

        Bookies with DbLedgerStorage never answer, as it throws an UnsupportedOperationException
        that nobody catches. One that answers something else meanwhile isn't asked again.

        Raises:
            LedgerError: UNKNOWN_LEDGER_STATE: only reading tells.
        """
        what = f"bookie {self._bookie_id}: list entries of ledger {ledger_id}"
        connection = await self._calls.get()
        if connection is self._lists_nothing:
            raise error_for_code(codes.UNKNOWN_LEDGER_STATE, what)
        ask = pb.GetListOfEntriesOfLedgerRequest(ledgerId=ledger_id)
        request = pb.Request(getListOfEntriesOfLedgerRequest=ask)
        operation = pb.GET_LIST_OF_ENTRIES_OF_LEDGER
        try:
            response = await self._call(request, operation, timeout_s=_LIST_TIMEOUT_S)
        except BookieUnavailableError as error:
            await self.info()
            self._lists_nothing = connection
            raise error_for_code(codes.UNKNOWN_LEDGER_STATE, what) from error
        found = response.getListOfEntriesOfLedgerResponse
        try:
            return decode_availability(found.availabilityOfEntriesOfLedger)
        except FrameError as error:
            raise BookieUnavailableError(f"bookie {self._bookie_id}: {error}") from error

    async def info(self) -> BookieStatus:
        ask = pb.GetBookieInfoRequest(requested=_TOTAL_AND_FREE)
        response = await self._call(pb.Request(getBookieInfoRequest=ask), pb.GET_BOOKIE_INFO)
        found = response.getBookieInfoResponse
        # It doesn't say whether it is read-only: its registration does.
        return BookieStatus(self._bookie_id, False, found.freeDiskSpace, found.totalDiskCapacity)

    async def _add_deferred(self, request: AddRequest) -> None:
        digest = self._digest_of(request.ledger_id)
        entries = zip(request.entry_ids, request.heads, request.bodies, strict=True)
        found = await asyncio.gather(*(self._add_v3(request, digest, *each) for each in entries))
        request.done(request, next((code for code in found if code != codes.OK), codes.OK))

    async def _add_v3(
        self, request: AddRequest, digest: Digest, entry_id: int, head: bytes, body: bytes
    ) -> int:
        add = pb.AddRequest(
            ledgerId=request.ledger_id,
            entryId=entry_id,
            masterKey=request.master_key,
            body=head + body if digest is CRC32C else to_stored(digest, head, body),
            writeFlags=_DEFERRED_SYNC,
        )
        message = pb.Request(addRequest=add)
        if request.recovery:
            message.header.priority = _HIGH_PRIORITY
            message.addRequest.flag = pb.AddRequest.RECOVERY_ADD
        return await self._call_code(message, pb.ADD_ENTRY)

    def _lac_reply(self, ledger_id: int, code: int, stored: Buffer, lac: int) -> LacReply:
        digest = self._digest_of(ledger_id)
        packet: Buffer | None = stored if code == codes.OK and len(stored) else None
        if packet is not None and digest is not CRC32C:
            packet = from_stored(digest, packet)
        return LacReply(code, None if packet is None else bytes(packet), lac)

    async def _call_code(self, request: pb.Request, operation: "pb.OperationType.ValueType") -> int:
        try:
            await self._call(request, operation)
        except LedgerError as error:
            return error.code
        return codes.OK

    async def _call(
        self,
        request: pb.Request,
        operation: "pb.OperationType.ValueType",
        wait_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> pb.Response:
        """``timeout_s``: another one than the configured.

        Raises:
            LedgerError: of the answer's code, or BookieUnavailableError: there was none.
        """
        self._pending_calls += not wait_s  # long polls wait on purpose: they are no load
        try:
            connection = await self._calls.get()
            timeout_s = timeout_s or self._config.read_timeout_s
            response = await connection.call(request, operation, timeout_s + wait_s)
        except TimeoutError as error:
            raise BookieUnavailableError(
                f"bookie {self._bookie_id}: no answer to operation {operation}"
            ) from error
        finally:
            self._pending_calls -= not wait_s
        if response.status != EOK.v3:
            name = pb.OperationType.Name(operation)
            raise error_for_code(from_v3(response.status), f"bookie {self._bookie_id}: {name}")
        return response
