"""``BookieClient`` of a bookie that is somewhere else.

Two connections: one for adds, one for everything else, so that a fence never queues behind
megabytes of entries. Whatever goes wrong between here and there is UNAVAILABLE, never "no such
entry".
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.auth.token_source import TokenSource
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.entry_prefixes import are_of, to_heads
from magnetar.bookkeeper.errors import (
    BadRequestError,
    BookieUnavailableError,
    FrameError,
    LedgerError,
    error_for_code,
)
from magnetar.bookkeeper.proto import bookie_pb2 as pb
from magnetar.bookkeeper.transport import (
    ALL_ENTRIES,
    AddRequest,
    BookieStatus,
    EntryPrefixesReply,
    LacReply,
    ReadReply,
    ReadRequest,
)
from magnetar.bookkeeper.transport_grpc.add_connection import (
    ADD_CONNECTION_HEADER,
    AddConnectionListener,
    AddConnectionOffer,
    ClientAddConnection,
)
from magnetar.bookkeeper.transport_grpc.add_sender import (
    REFUSALS,
    AddCall,
    AddSender,
    MessageCache,
    describe,
)
from magnetar.bookkeeper.transport_grpc.config import (
    AUTHORIZATION_HEADER,
    BEARER,
    BOOKIE_ID_HEADER,
    INSTANCE_HEADER,
    SERVICE,
    TransportConfig,
)
from magnetar.bookkeeper.transport_grpc.read_frames import (
    decode_heads_reply,
    decode_read_reply,
    encode_read_request,
)

_log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """Where a bookie is now, and the cluster it must be of ("": any).

    Attributes:
        creators: it knows whose ledger a request means (``ServiceInfo.creators``).
    """

    host: str
    port: int
    instance_id: str = ""
    creators: bool = True

    @property
    def target(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Resolve = Callable[[str], Awaitable[BookieAddress]]
"""Bookie id -> address; BookieUnavailableError: it isn't registered."""


class _Link:
    """Two connections to one address."""

    def __init__(
        self,
        bookie_id: str,
        address: BookieAddress,
        config: TransportConfig,
        credentials: grpc.ChannelCredentials | None,
        token: TokenSource | None,
    ) -> None:
        self.address = address
        self._token = token
        self._shown = ""  # the token in ``_metadata``
        options = config.channel_options()
        self._channels = [_open_channel(address.target, options, credentials) for _ in range(2)]
        adds, calls = self._channels
        prefix = f"/{SERVICE}/"
        metadata: list[tuple[str, str | bytes]] = [(BOOKIE_ID_HEADER, bookie_id.encode())]
        if address.instance_id:
            metadata.append((INSTANCE_HEADER, address.instance_id))
        self._base = self._metadata = tuple(metadata)
        self.add = adds.stream_stream(f"{prefix}Add")
        self.read = calls.unary_stream(f"{prefix}Read")
        self.unary = {
            name: calls.unary_unary(f"{prefix}{name}")
            for name in (
                *("ReadLac", "WaitLac", "WriteLac", "Force", "ListEntries", "ListLedgers"),
                *("Info", "ReportCorrupt", "CheckData"),
            )
        }

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """What every call says: the bookie that is meant, and our token."""
        if self._token is not None and (token := self._token.token()) is not self._shown:
            self._shown = token
            self._metadata = (*self._base, (AUTHORIZATION_HEADER, f"{BEARER}{token}"))
        return self._metadata

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def _open_channel(
    target: str, options: list[tuple[str, int]], credentials: grpc.ChannelCredentials | None
) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


class RemoteBookieClient(BookieClient):
    """One bookie over gRPC; connects when it is first needed and again after failures.

    One object, since adds, reads and small calls share two connections and drop them together.

    Args:
        resolve: asked before each connection attempt: a bookie may have moved.
        new_credentials: TLS, asked for each connection; None as result: plain.
        cache: shared by the clients of one process (see ``MessageCache``).
        token: what we are known by; None: by our certificate, or not at all.
    """

    def __init__(
        self,
        bookie_id: str,
        resolve: Resolve,
        config: TransportConfig,
        new_credentials: Callable[[], grpc.ChannelCredentials | None] = lambda: None,
        cache: MessageCache | None = None,
        *,
        token: TokenSource | None = None,
    ) -> None:
        self._bookie_id = bookie_id
        self._token = token
        self._add_generation = 0  # of the token that the add stream began with
        self._resolve = resolve
        self._config = config
        self._new_credentials = new_credentials
        self._link: _Link | None = None
        self._linking: asyncio.Task[_Link] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._pending_calls = 0
        self._adds = AddSender(
            f"bookie {bookie_id}",
            config,
            self._open_add,
            self._on_stream_end,
            cache or MessageCache(),
            self._has_other_token,
            self._take_offer if config.add_connections else None,
        )

    @property
    def bookie_id(self) -> str:
        return self._bookie_id

    @property
    def is_backlogged(self) -> bool:
        return self._adds.is_slow

    @property
    def pending_bytes(self) -> int:
        """Adds queued or unanswered."""
        return self._adds.pending_bytes

    @property
    def pending_requests(self) -> int:
        return self._adds.pending_requests + self._pending_calls

    async def close(self) -> None:
        """Answer everything that waits with UNAVAILABLE and disconnect."""
        self._closed = True
        await self._adds.close()
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.gather(self._linking, return_exceptions=True)
        self._drop_link()
        await asyncio.gather(*self._closing, return_exceptions=True)

    # ---- what is asked of the bookie

    def add_entries(self, request: AddRequest) -> None:
        self._adds.add(request)

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        if not request.is_legal:
            return ReadReply(codes.BAD_REQUEST, request.first, [])
        request = replace(request)
        reply = await self._read_entries(request)
        stripe, first = request.stripe, request.first
        if reply.code == codes.BAD_REQUEST and stripe.width < stripe.cycle:
            # A bookie from before there were stripes: what is in a row it does give.
            request.stripe = ALL_ENTRIES
            request.count_max = stripe.run_end(first, first + request.count_max) - first
            return await self._read_entries(request)
        return reply

    async def _read_entries(self, request: ReadRequest) -> ReadReply:
        first = request.first
        try:
            reply = decode_read_reply(await self._read(request))
        except LedgerError as error:
            return ReadReply(error.code, first, [])
        except FrameError as error:
            _log.error("bookie %s: %s", self._bookie_id, error)
            return ReadReply(codes.UNAVAILABLE, first, [])
        if reply.first != first or (reply.code == codes.OK) != bool(reply.packets):
            _log.error("bookie %s: a reply to another read", self._bookie_id)
            return ReadReply(codes.UNAVAILABLE, first, [])
        return reply

    async def read_heads(self, request: ReadRequest) -> EntryPrefixesReply:
        """See ``BookieClient.read_heads``.

        The bookie checks digests. Here ledger and entry id of each packet are checked, and the
        digest of the whole reply. A bookie from before there were heads answers BAD_REQUEST.
        """
        first, head_bytes = request.first, request.head_bytes
        if not request.is_legal or head_bytes is None:
            return EntryPrefixesReply(codes.BAD_REQUEST, first, [], [])
        request = replace(request)
        try:
            frame = await self._read(request)
            reply = decode_heads_reply(frame, head_bytes)
        except LedgerError as error:
            return EntryPrefixesReply(error.code, first, [], [])
        except FrameError as error:
            _log.error("bookie %s: %s", self._bookie_id, error)
            return EntryPrefixesReply(codes.UNAVAILABLE, first, [], [])
        if (
            reply.first != first
            or (reply.code == codes.OK) != bool(reply.packets)
            or len(reply.packets) > request.count_max
            or not are_of(reply, request.ledger_id, request.stripe)
        ):
            _log.error("bookie %s: a reply to another read", self._bookie_id)
            return EntryPrefixesReply(codes.UNAVAILABLE, first, [], [])
        return to_heads(reply)

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        request = pb.ReadLacRequest(
            ledger_id=ledger_id, fence=fence, master_key=master_key, creator=creator
        )
        return await self._call_lac("ReadLac", request, 0.0)

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        request = pb.WaitLacRequest(
            ledger_id=ledger_id, above=above, wait_ms=int(wait_s * 1000), creator=creator
        )
        return await self._call_lac("WaitLac", request, wait_s)

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        request = pb.WriteLacRequest(
            ledger_id=ledger_id, lac=lac, master_key=master_key, creator=creator
        )
        return await self._call_code("WriteLac", request)

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        request = pb.ForceRequest(ledger_id=ledger_id, first=first, master_key=master_key)
        return await self._call_code("Force", request)

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        request = pb.ListEntriesRequest(ledger_id=ledger_id, creator=creator)
        reply = await self._call("ListEntries", request, pb.ListEntriesReply)
        self._check(reply.code, f"list entries of ledger {ledger_id}")
        bounds = list(reply.bounds)
        return list(zip(bounds[::2], bounds[1::2], strict=False))

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        request = pb.ListLedgersRequest(first=first, count_max=count_max)
        reply = await self._call("ListLedgers", request, pb.ListLedgersReply)
        self._check(reply.code, "list ledgers")
        return list(reply.ledger_ids)

    async def info(self) -> BookieStatus:
        reply = await self._call("Info", pb.InfoRequest(), pb.InfoReply)
        self._check(reply.code, "info")
        return BookieStatus(
            reply.bookie_id,
            reply.read_only,
            reply.free_bytes,
            reply.total_bytes,
            reply.clock_ms,
            reply.version,
            reply.add_p50_us,
            reply.add_p99_us,
        )

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        request = pb.ReportCorruptRequest(ledger_id=ledger_id, entry_id=entry_id)
        return await self._call_code("ReportCorrupt", request)

    async def check_data(self, *, scrub: bool = False, integrity: bool = False) -> str:
        request = pb.CheckDataRequest(scrub=scrub, integrity=integrity)
        reply = await self._call("CheckData", request, pb.CheckDataReply)
        self._check(reply.code, "check data")
        return reply.status_json

    def _check(self, code: int, what: str) -> None:
        if code != codes.OK:
            raise error_for_code(code, f"bookie {self._bookie_id}: {what}")

    # ---- calls

    async def _call_lac(self, name: str, request: Message, wait_s: float) -> LacReply:
        try:
            reply = await self._call(name, request, pb.LacReply, wait_s)
        except LedgerError as error:
            return LacReply(error.code, None, -1)
        packet = reply.last_packet if reply.HasField("last_packet") else None
        following = reply.next_packet if reply.HasField("next_packet") else None
        return LacReply(reply.code, packet, reply.explicit_lac, following)

    async def _call_code(self, name: str, request: Message) -> int:
        try:
            return (await self._call(name, request, pb.CodeReply)).code
        except LedgerError as error:
            return error.code

    async def _call(
        self, name: str, request: Message, reply_type: type[M], wait_s: float = 0.0
    ) -> M:
        """Raises: LedgerError: the call failed; nothing is known about what was asked."""
        timeout = self._config.call_timeout_s + wait_s

        async def call(link: _Link) -> M:
            method = link.unary[name]
            reply = await method(
                request.SerializeToString(), timeout=timeout, metadata=link.metadata
            )
            return reply_type.FromString(reply)

        # Long polls wait on purpose: they are no load.
        return await self._attempt(call, counts=not wait_s)

    async def _read(self, request: ReadRequest) -> bytes:
        async def call(link: _Link) -> bytes:
            if not link.address.creators:
                request.creator = 0
            frame = encode_read_request(request)
            stream = link.read(frame, timeout=self._config.call_timeout_s, metadata=link.metadata)
            reply = await stream.read()
            if reply is grpc.aio.EOF or await stream.read() is not grpc.aio.EOF:
                raise FrameError("a read needs exactly one reply")
            assert isinstance(reply, bytes)
            return reply

        try:
            return await self._attempt(call)
        except BadRequestError:
            if not request.creator:
                raise
            request.creator = 0  # its address came without ``creators``
            return await self._attempt(call)

    async def _attempt(self, call: Callable[[_Link], Awaitable[T]], *, counts: bool = True) -> T:
        self._pending_calls += counts
        try:
            link = await self._get_link()
            return await self._attempt_on(link, call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The channel was closed under the call.
            raise BookieUnavailableError(f"bookie {self._bookie_id}: disconnected") from None
        finally:
            self._pending_calls -= counts

    async def _attempt_on(self, link: _Link, call: Callable[[_Link], Awaitable[T]]) -> T:
        try:
            return await self._renewing(link, call)
        except grpc.aio.AioRpcError as error:
            if error.code() in REFUSALS:
                # Nothing about what the bookie holds, and the connection is good.
                raise BookieUnavailableError(
                    f"bookie {self._bookie_id} refuses us: {describe(error)}"
                ) from error
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise BadRequestError(f"bookie {self._bookie_id}: {error.details()}") from error
            self._on_call_failed(link, error)
            raise BookieUnavailableError(
                f"bookie {self._bookie_id} at {link.address.target}: {describe(error)}"
            ) from error
        except DecodeError as error:
            raise BookieUnavailableError(f"bookie {self._bookie_id}: {error}") from error

    async def _renewing(self, link: _Link, call: Callable[[_Link], Awaitable[T]]) -> T:
        """Once more with the token of now, if that is another one than was refused."""
        token = self._token
        if token is None:
            return await call(link)
        generation = token.generation
        try:
            return await call(link)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise
            token.token(at_once=True)
            if token.generation == generation:
                raise
        return await call(link)

    # ---- connections

    def leave_others(self, address: BookieAddress) -> None:
        """The bookie is registered at ``address``: leave a process that has its name elsewhere.

        What that process hasn't answered yet is UNAVAILABLE.
        """
        link = self._link
        if link is not None and link.address.target != address.target:
            _log.warning(
                "bookie %s is at %s now, no more at %s",
                *(self._bookie_id, address.target, link.address.target),
            )
            self._drop_link()

    async def _get_link(self) -> _Link:
        """Raises: BookieUnavailableError: its address is not known."""
        if self._link is not None:
            return self._link
        if self._closed:
            raise BookieUnavailableError(f"bookie {self._bookie_id}: the client is closed")
        if self._linking is None:
            self._linking = asyncio.get_running_loop().create_task(self._open_link())
            self._linking.add_done_callback(_retrieve)  # the callers may have been cancelled
        return await asyncio.shield(self._linking)

    async def _open_link(self) -> _Link:
        try:
            address = await self._resolve(self._bookie_id)
            credentials = self._new_credentials()
            link = _Link(self._bookie_id, address, self._config, credentials, self._token)
            self._link = link
            return link
        except LedgerError:
            raise
        except Exception as error:  # a resolver or TLS files: the bookie can't be reached
            raise BookieUnavailableError(f"bookie {self._bookie_id}: {error}") from error
        finally:
            self._linking = None

    async def _open_add(self) -> AddCall:
        link = await self._get_link()
        metadata = link.metadata
        if self._config.add_connections:
            metadata = (*metadata, (ADD_CONNECTION_HEADER, "1"))
        call: AddCall = link.add(metadata=metadata)
        self._adds.creators = link.address.creators
        if self._token is not None:
            self._add_generation = self._token.generation
        return call

    async def _take_offer(
        self, offer: AddConnectionOffer, owner: AddConnectionListener
    ) -> ClientAddConnection:
        if self._link is None:
            raise ConnectionError("the connection is gone")
        async with asyncio.timeout(self._config.connect_timeout_s):
            return await ClientAddConnection.connect(self._link.address.host, offer, owner)

    def _has_other_token(self, *, at_once: bool = False) -> bool:
        """Whether there is another token than the one that the add stream began with."""
        if self._token is None:
            return False
        self._token.token(at_once=at_once)
        return self._token.generation != self._add_generation

    def _on_stream_end(self, error: BaseException | None) -> None:
        if error is not None:
            self._drop_link()

    def _on_call_failed(self, link: _Link, error: grpc.aio.AioRpcError) -> None:
        # A slow answer says nothing about the connection, and while adds flow it is good: their
        # stream knows better. All else may mean that the bookie moved.
        is_slow = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if self._link is link and not is_slow and not self._adds.is_open:
            self._drop_link()

    def _drop_link(self) -> None:
        """Forget the connections: the next request asks again where the bookie is."""
        link, self._link = self._link, None
        if link is not None:
            task = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _retrieve(task: asyncio.Task[_Link]) -> None:
    if not task.cancelled():
        task.exception()
