"""``BookieClient`` of a bookie of ours that is somewhere else.

Entries go by BookKeeper's protocol (``OwnBookieClient``), everything else by gRPC: so a fence never
queues behind megabytes of entries. Whatever goes wrong between here and there is UNAVAILABLE, never
"no such entry".
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.auth.token_source import TokenSource
from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.bookie_protocol.own_client import OwnBookieClient
from magnetar.bookkeeper.bookie_protocol.own_login import OwnLogin
from magnetar.bookkeeper.errors import (
    BadRequestError,
    BookieUnavailableError,
    LedgerError,
    error_for_code,
)
from magnetar.bookkeeper.proto import bookie_pb2 as pb
from magnetar.bookkeeper.tls import TlsFiles, client_context
from magnetar.bookkeeper.transport import BookieStatus, LacReply
from magnetar.bookkeeper.transport_grpc.config import (
    AUTHORIZATION_HEADER,
    BEARER,
    BOOKIE_ID_HEADER,
    INSTANCE_HEADER,
    SERVICE,
    TransportConfig,
)
from magnetar.bookkeeper.transport_grpc.tls import channel_credentials

_REFUSALS: Final = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)

M = TypeVar("M", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BookieAddress:
    """Where a bookie is now, and the cluster it must be of ("": any).

    Attributes:
        entries: host and port where it answers BookKeeper's protocol; the others are gRPC's.
    """

    host: str
    port: int
    entries: tuple[str, int]
    instance_id: str = ""

    @property
    def target(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Resolve = Callable[[str], Awaitable[BookieAddress]]
"""Bookie id -> address; BookieUnavailableError: it isn't registered."""


class _Link:
    """A connection to one address."""

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
        self._channel = _open_channel(address.target, options, credentials)
        prefix = f"/{SERVICE}/"
        metadata: list[tuple[str, str | bytes]] = [(BOOKIE_ID_HEADER, bookie_id.encode())]
        if address.instance_id:
            metadata.append((INSTANCE_HEADER, address.instance_id))
        self._base = self._metadata = tuple(metadata)
        self.unary = {
            name: self._channel.unary_unary(f"{prefix}{name}")
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
        await self._channel.close()


def _open_channel(
    target: str, options: list[tuple[str, int]], credentials: grpc.ChannelCredentials | None
) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


class RemoteBookieClient(OwnBookieClient):
    """One bookie; connects when it is first needed and again after failures.

    Args:
        resolve: asked before each connection attempt: a bookie may have moved.
        tls: files, read for each connection; None: plain connections.
        encoded: shared by the clients of one process.
        token: what we are known by; None: by our certificate, or not at all.
    """

    def __init__(
        self,
        bookie_id: str,
        resolve: Resolve,
        config: TransportConfig,
        tls: TlsFiles | None = None,
        encoded: EncodedAdds | None = None,
        *,
        token: TokenSource | None = None,
    ) -> None:
        self._token = token
        self._resolve = resolve
        self._config = config
        self._tls = tls
        self._instance_id = ""  # of the last address
        self._link: _Link | None = None
        self._linking: asyncio.Task[_Link] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._pending_calls = 0
        protocol = config.protocol(
            OwnLogin(lambda: self._instance_id, token),
            None if tls is None else partial(client_context, tls),
        )
        super().__init__(bookie_id, self._find_entries, protocol, encoded or EncodedAdds())

    @property
    def pending_requests(self) -> int:
        return super().pending_requests + self._pending_calls

    async def close(self) -> None:
        """Answer everything that waits with UNAVAILABLE and disconnect."""
        self._closed = True
        await super().close()
        if self._linking is not None:
            self._linking.cancel()
            await asyncio.gather(self._linking, return_exceptions=True)
        self._drop_link()
        await asyncio.gather(*self._closing, return_exceptions=True)

    # ---- what is asked of the bookie

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
        timeout = self._config.read_timeout_s + wait_s

        async def call(link: _Link) -> M:
            method = link.unary[name]
            reply = await method(
                request.SerializeToString(), timeout=timeout, metadata=link.metadata
            )
            return reply_type.FromString(reply)

        # Long polls wait on purpose: they are no load.
        return await self._attempt(call, counts=not wait_s)

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
            if error.code() in _REFUSALS:
                # Nothing about what the bookie holds, and the connection is good.
                raise BookieUnavailableError(
                    f"bookie {self._bookie_id} refuses us: {_describe(error)}"
                ) from error
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise BadRequestError(f"bookie {self._bookie_id}: {error.details()}") from error
            self._on_call_failed(link, error)
            raise BookieUnavailableError(
                f"bookie {self._bookie_id} at {link.address.target}: {_describe(error)}"
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
        self.leave(address.entries)
        if self._link is not None and self._link.address.target != address.target:
            self._drop_link()

    async def _find_entries(self, bookie_id: str) -> tuple[str, int]:
        address = await self._resolve(bookie_id)
        self._instance_id = address.instance_id
        return address.entries

    def _on_adds_lost(self) -> None:
        self._drop_link()  # the bookie may have moved

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
            credentials = None if self._tls is None else channel_credentials(self._tls)
            link = _Link(self._bookie_id, address, self._config, credentials, self._token)
            self._link = link
            return link
        except LedgerError:
            raise
        except Exception as error:  # a resolver or TLS files: the bookie can't be reached
            raise BookieUnavailableError(f"bookie {self._bookie_id}: {error}") from error
        finally:
            self._linking = None

    def _on_call_failed(self, link: _Link, error: grpc.aio.AioRpcError) -> None:
        # A slow answer says nothing about the connection, and while adds flow it is good: their
        # stream knows better. All else may mean that the bookie moved.
        is_slow = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if self._link is link and not is_slow and not self._adds.is_connected:
            self._drop_link()

    def _drop_link(self) -> None:
        """Forget the connections: the next request asks again where the bookie is."""
        link, self._link = self._link, None
        if link is not None:
            task = asyncio.get_running_loop().create_task(link.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


def _retrieve(task: asyncio.Task[_Link]) -> None:
    if not task.cancelled():
        task.exception()
