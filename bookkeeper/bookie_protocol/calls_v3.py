"""Requests of version 3 of BookKeeper's protocol, answered by a bookie of ours.

Apache's clients send everything so by default; those of Pulsar only what version 2 doesn't have.
"""

from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias, cast

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.lac_watch import told_lac
from magnetar.bookkeeper.bookie_protocol.availability import encode_availability
from magnetar.bookkeeper.bookie_protocol.digests import encode_kept_lac, foreign_lac_digest
from magnetar.bookkeeper.bookie_protocol.frames_v2 import LAST_ENTRY
from magnetar.bookkeeper.bookie_protocol.result_codes import (
    EBADREQ,
    EBADVERSION,
    ENOLEDGER,
    EOK,
    EREADONLY,
    EUA,
    ProtocolCode,
    to_v3,
)
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.packet import Buffer, is_intact
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.bookkeeper.wrapped_packet import DIGESTED_BYTES, as_sent, is_wrapped, wrap_packet

_VERSION: Final = 3
_DEFERRED_SYNC: Final = 1
_TOTAL, _FREE = 1, 2
_WAIT_S_MAX: Final = 300.0
_AUTH_DISABLED: Final = "AuthDisabledPlugin"
_IDS: Final = Struct(">qq")

SendResponse: TypeAlias = Callable[[pb.Response], None]


@dataclass(slots=True, eq=False)
class _Add(AddRequest):
    request: pb.Request
    send: SendResponse
    answered: Callable[[AddRequest], None]

    @property
    def has_priority(self) -> bool:
        return self.request.header.priority > 0


class CallsV3:
    """What version 3 asks, of one bookie."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    def is_long_poll(self, request: pb.Request) -> bool:
        """Its answer comes after ``wait``."""
        return request.HasField("readRequest") and request.readRequest.HasField("previousLAC")

    def add(
        self,
        request: pb.Request,
        submit: Callable[[AddRequest], None],
        answered: Callable[[AddRequest], None],
        send: SendResponse,
    ) -> None:
        """ADD_ENTRY. The packet's own ids decide; those beside it are only given back.

        Args:
            submit: gives the bookie an add; ``answered`` is called once it is done.
        """
        asked = request.addRequest
        packet, code = asked.body, EOK
        if request.header.version != _VERSION:
            code = EBADVERSION
        elif len(packet) < DIGESTED_BYTES or is_wrapped(packet):
            code = EBADREQ
        elif self._bookie.read_only and not request.header.priority:
            code = EREADONLY
        if code is not EOK:
            send(self._added(request, code.v3))
            return
        ledger_id, entry_id = _IDS.unpack_from(packet)
        kept = packet if is_intact(packet) else wrap_packet(packet)
        add = _Add(
            *(ledger_id, asked.masterKey, range(entry_id, entry_id + 1), [kept], [b""], len(kept)),
            *(asked.HasField("flag"), self._on_added, request, send, answered),
            deferred_sync=bool(asked.writeFlags & _DEFERRED_SYNC),
        )
        submit(add)

    def _on_added(self, request: AddRequest, code: int) -> None:
        add = cast("_Add", request)
        add.answered(add)
        add.send(self._added(add.request, to_v3(code)))

    def _added(self, request: pb.Request, status: int) -> pb.Response:
        response = refused(request, EOK)
        asked = request.addRequest
        response.status = status
        response.addResponse.status = status
        response.addResponse.ledgerId, response.addResponse.entryId = asked.ledgerId, asked.entryId
        return response

    async def wait(self, asked: pb.ReadRequest) -> None:
        """Until the ledger's LAC is above ``previousLAC``, or for the time that is given."""
        wait_s = min(max(0, asked.timeOut) / 1000, _WAIT_S_MAX)
        await self._bookie.wait_lac(asked.ledgerId, asked.previousLAC, wait_s)

    async def answer(self, request: pb.Request) -> pb.Response:
        """The response to anything but ADD_ENTRY and START_TLS."""
        if request.header.version != _VERSION:
            return refused(request, EBADVERSION)
        response = refused(request, EOK)
        match request.header.operation:
            case pb.READ_ENTRY if request.HasField("readRequest"):
                await self._read(request.readRequest, response)
            case pb.WRITE_LAC if request.HasField("writeLacRequest"):
                await self._write_lac(request.writeLacRequest, response)
            case pb.READ_LAC if request.HasField("readLacRequest"):
                await self._read_lac(request.readLacRequest, response)
            case pb.GET_BOOKIE_INFO if request.HasField("getBookieInfoRequest"):
                await self._info(request.getBookieInfoRequest, response)
            case pb.FORCE_LEDGER if request.HasField("forceLedgerRequest"):
                ledger_id = request.forceLedgerRequest.ledgerId
                status = to_v3(await self._bookie.sync(ledger_id))
                response.status = status
                response.forceLedgerResponse.status = status
                response.forceLedgerResponse.ledgerId = ledger_id
            case pb.GET_LIST_OF_ENTRIES_OF_LEDGER if request.HasField(
                "getListOfEntriesOfLedgerRequest"
            ):
                await self._list(request.getListOfEntriesOfLedgerRequest, response)
            case _:
                response.status = EBADREQ.v3
        return response

    async def _read(self, asked: pb.ReadRequest, response: pb.Response) -> None:
        found = response.readResponse
        found.ledgerId, found.entryId = asked.ledgerId, asked.entryId
        fences = asked.flag == pb.ReadRequest.FENCE_LEDGER and asked.HasField("flag")
        piggybacks = asked.flag == pb.ReadRequest.ENTRY_PIGGYBACK
        packet: Buffer = b""
        if fences:
            code, packet = EUA.v3, b""
            if asked.masterKey:
                code, packet = await self._read_entry(asked, fences=True)
        elif piggybacks and asked.entryId != LAST_ENTRY:
            code = EBADREQ.v3
        elif asked.HasField("previousLAC"):
            code, packet = await self._long_poll(asked, found, piggybacks=piggybacks)
        else:
            code, packet = await self._read_entry(asked, fences=False)
            found.maxLAC = self._bookie.known_lac(asked.ledgerId)
        if len(packet):
            found.body = bytes(packet)
        response.status = found.status = code

    async def _read_entry(self, asked: pb.ReadRequest, *, fences: bool) -> tuple[int, Buffer]:
        """Status and packet of one entry, or of the last one."""
        ledger_id, entry_id, key = asked.ledgerId, asked.entryId, asked.masterKey
        packet: Buffer | None = None
        if entry_id == LAST_ENTRY:
            reply = await self._bookie.read_lac(ledger_id, fence=fences, master_key=key)
            code, packet = reply.code, reply.last_packet
        else:
            request = ReadRequest(ledger_id, entry_id, 1, 1, fence=fences, master_key=key)
            read = await self._bookie.read_entries(request)
            code = read.code
            if read.packets:
                packet = read.packets[0]
        if code == codes.OK and packet is None:
            code = codes.NO_ENTRY
        if code != codes.OK or packet is None:
            return to_v3(code), b""
        return EOK.v3, as_sent(packet)

    async def _long_poll(
        self, asked: pb.ReadRequest, found: pb.ReadResponse, *, piggybacks: bool
    ) -> tuple[int, Buffer]:
        """What there is after ``wait``."""
        reply = await self._bookie.wait_lac(asked.ledgerId, asked.previousLAC, 0)
        if reply.code != codes.OK:
            return to_v3(reply.code), b""
        found.maxLAC = lac = told_lac(reply)
        if not piggybacks:
            return await self._read_entry(asked, fences=False)
        if lac <= asked.previousLAC or reply.next_packet is None:
            return EOK.v3, b""
        found.entryId = asked.previousLAC + 1
        return EOK.v3, as_sent(reply.next_packet)

    async def _write_lac(self, asked: pb.WriteLacRequest, response: pb.Response) -> None:
        status = EREADONLY.v3
        if not self._bookie.read_only:
            ledger_id, lac = asked.ledgerId, asked.lac
            digest = foreign_lac_digest(ledger_id, lac, asked.body)
            code = await self._bookie.write_lac(
                ledger_id, lac, master_key=asked.masterKey, digest=digest
            )
            status = to_v3(code)
        response.status = response.writeLacResponse.status = status
        response.writeLacResponse.ledgerId = asked.ledgerId

    async def _read_lac(self, asked: pb.ReadLacRequest, response: pb.Response) -> None:
        ledger_id, found = asked.ledgerId, response.readLacResponse
        reply = await self._bookie.read_lac(ledger_id, fence=False)
        code = codes.NO_ENTRY if reply.code == codes.NO_LEDGER else reply.code
        if code == codes.OK:
            lac, digest = reply.explicit_lac, reply.lac_digest
            # Clients of ours give it without the digest: CRC32C would be wrong for this ledger.
            is_foreign = reply.last_packet is not None and is_wrapped(reply.last_packet)
            if lac >= 0 and (digest is not None or not is_foreign):
                found.lacBody = encode_kept_lac(ledger_id, lac, digest)
            if reply.last_packet is not None:
                found.lastEntryBody = bytes(as_sent(reply.last_packet))
            if not found.lacBody and reply.last_packet is None:
                code = codes.NO_ENTRY
        response.status = found.status = to_v3(code)
        found.ledgerId = ledger_id

    async def _info(self, asked: pb.GetBookieInfoRequest, response: pb.Response) -> None:
        status = await self._bookie.info()
        found = response.getBookieInfoResponse
        found.status = EOK.v3
        if asked.requested & _TOTAL:
            found.totalDiskCapacity = status.total_bytes
        if asked.requested & _FREE:
            found.freeDiskSpace = status.free_bytes

    async def _list(self, asked: pb.GetListOfEntriesOfLedgerRequest, response: pb.Response) -> None:
        found = response.getListOfEntriesOfLedgerResponse
        found.ledgerId = asked.ledgerId
        try:
            runs = await self._bookie.list_entries(asked.ledgerId)
        except LedgerError as error:
            response.status = found.status = to_v3(error.code)
            return
        if runs:
            found.availabilityOfEntriesOfLedger = encode_availability(runs)
        code = EOK if runs else ENOLEDGER
        response.status = found.status = code.v3


def refused(request: pb.Request, code: ProtocolCode) -> pb.Response:
    """A response with no more than a status."""
    header = request.header
    response = pb.Response(status=code.v3)
    response.header.version, response.header.operation = _VERSION, header.operation
    response.header.txnId = header.txnId
    return response


def auth_disabled() -> pb.AuthMessage:
    """The answer of a bookie that asks nobody who he is."""
    return pb.AuthMessage(authPluginName=_AUTH_DISABLED, payload=b"")
