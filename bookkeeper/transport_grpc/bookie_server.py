"""The bookie's gRPC server: gRPC calls in, calls of the bookie out. Decides nothing.

Its messages are in ``bookkeeper/proto/bookie.proto``. Entries go by BookKeeper's protocol
(``bookie_protocol/server.py``).
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.errors import LedgerError
from magnetar.bookkeeper.proto import bookie_pb2 as pb
from magnetar.bookkeeper.transport import LacReply
from magnetar.bookkeeper.transport_grpc.auth_interceptor import AuthInterceptor
from magnetar.bookkeeper.transport_grpc.config import (
    BOOKIE_ID_HEADER,
    INSTANCE_HEADER,
    SERVICE,
    TransportConfig,
)

_log = logging.getLogger(__name__)
_grpc_log: Final = logging.getLogger("grpc._cython.cygrpc")

_WAIT_S_MAX: Final = 300.0
_LIST_MAX: Final = 100_000
_CLOSE_GRACE_S: Final = 0.2

M = TypeVar("M", bound=Message)
R = TypeVar("R", bound=Message)


def _is_fit_to_log(record: logging.LogRecord) -> bool:
    """gRPC has a traceback for each header that isn't UTF-8, with its value: as many as
    unauthenticated clients like, and what they show as credentials is in them."""
    return not str(record.msg).startswith("Invalid encoding on")


class BookieServer:
    """Serves one bookie: ``await listen(...)``, ``serve(bookie)``, ``await close()``.

    It may listen before there is a bookie, so that the port is known when the bookie registers;
    calls are UNAVAILABLE until ``serve``.
    """

    def __init__(
        self,
        bookie_id: str,
        config: TransportConfig,
        credentials: grpc.ServerCredentials | None = None,
        authenticator: BookieAuthenticator | None = None,
    ) -> None:
        """``authenticator``: judges callers; None: every caller is let in."""
        self.bookie_id = bookie_id
        self._config = config
        self._credentials = credentials
        self._bookie: BookieClient | None = None
        self._instance_id = ""
        self._admissions = None if authenticator is None else AuthInterceptor(authenticator)
        _grpc_log.addFilter(_is_fit_to_log)  # once, however many servers there are
        self._server = grpc.aio.server(
            interceptors=None if self._admissions is None else (self._admissions,),
            options=config.server_options(),
        )
        self._server.add_generic_rpc_handlers((self._handlers(),))

    async def listen(self, host: str, port: int) -> int:
        """Bind and start; the port, which 0 leaves to the system.

        Raises:
            OSError: the address can't be used.
        """
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._credentials is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, self._credentials)
        except RuntimeError as error:
            raise OSError(errno.EADDRNOTAVAIL, str(error), address) from error
        await self._server.start()
        return int(bound)

    def serve(self, bookie: BookieClient, instance_id: str) -> None:
        """Answer for ``bookie`` from now on.

        Args:
            instance_id: of the cluster: clients of another one are refused.
        """
        self._bookie, self._instance_id = bookie, instance_id

    async def close(self) -> None:
        """Refuse new calls, let those under way end for a moment, cut the rest."""
        await self._server.stop(_CLOSE_GRACE_S)

    def _handlers(self) -> grpc.GenericRpcHandler:
        unary = self._unary
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "ReadLac": unary(pb.ReadLacRequest, pb.LacReply, _read_lac),
                "WaitLac": grpc.unary_unary_rpc_method_handler(self._wait_lac),
                "WriteLac": unary(pb.WriteLacRequest, pb.CodeReply, _write_lac),
                "Force": unary(pb.ForceRequest, pb.CodeReply, _force),
                "ListEntries": unary(pb.ListEntriesRequest, pb.ListEntriesReply, _list_entries),
                "ListLedgers": unary(pb.ListLedgersRequest, pb.ListLedgersReply, _list_ledgers),
                "Info": unary(pb.InfoRequest, pb.InfoReply, _info),
                "ReportCorrupt": unary(pb.ReportCorruptRequest, pb.CodeReply, _report_corrupt),
                "CheckData": unary(pb.CheckDataRequest, pb.CheckDataReply, _check_data),
            },
        )

    def _unary(
        self, kind: type[M], reply: type[R], answer: Callable[[BookieClient, M], Awaitable[R]]
    ) -> grpc.RpcMethodHandler:
        """Handler of a call with one request and one reply."""

        async def handle(data: bytes, context: Any) -> bytes:
            bookie = await self._called(context)
            request = await self._parse(kind, data, context)
            try:
                found = await answer(bookie, request)
            except LedgerError as error:
                found = reply(code=error.code)
            return found.SerializeToString()

        return grpc.unary_unary_rpc_method_handler(handle)

    async def _called(self, context: Any) -> BookieClient:
        """The bookie, if it is the one that the caller means.

        An address may have been another bookie's. To answer for that one would deny what it holds:
        an explicit negative that could end a ledger too early.
        """
        wanted = instance = None
        for key, value in context.invocation_metadata():
            if key == BOOKIE_ID_HEADER:
                wanted = value.decode(errors="replace") if isinstance(value, bytes) else value
            elif key == INSTANCE_HEADER:
                instance = value
        if wanted is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{BOOKIE_ID_HEADER} is missing")
        if wanted != self.bookie_id:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"bookie {wanted} is meant, this is {self.bookie_id}",
            )
        bookie = self._bookie
        if bookie is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the bookie is starting")
        if instance and instance != self._instance_id:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"cluster {instance} is meant, this bookie is of {self._instance_id}",
            )
        assert bookie is not None
        return bookie

    async def _wait_lac(self, data: bytes, context: Any) -> bytes:
        bookie = await self._called(context)
        request = await self._parse(pb.WaitLacRequest, data, context)
        wait_s = min(request.wait_ms / 1000, _WAIT_S_MAX)
        if self._admissions is not None:  # a wait ends with the right to read
            wait_s = min(wait_s, await self._admissions.left_s(context))
        ledger_id, creator = request.ledger_id, request.creator
        reply = await bookie.wait_lac(ledger_id, request.above, wait_s, creator=creator)
        return _lac_reply(reply).SerializeToString()

    async def _parse(self, kind: type[M], data: bytes, context: Any) -> M:
        try:
            return kind.FromString(data)
        except DecodeError as error:
            reason = f"no {kind.__name__}: {error}"
            _log.warning("%s sent garbage: %s", context.peer(), reason)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
            raise  # abort never returns


def _lac_reply(reply: LacReply) -> pb.LacReply:
    packet, following = reply.last_packet, reply.next_packet
    return pb.LacReply(
        code=reply.code,
        last_packet=None if packet is None else bytes(packet),
        explicit_lac=reply.explicit_lac,
        next_packet=None if following is None else bytes(following),
    )


async def _read_lac(bookie: BookieClient, request: pb.ReadLacRequest) -> pb.LacReply:
    fence, key, creator = request.fence, request.master_key, request.creator
    return _lac_reply(
        await bookie.read_lac(request.ledger_id, fence=fence, master_key=key, creator=creator)
    )


async def _write_lac(bookie: BookieClient, request: pb.WriteLacRequest) -> pb.CodeReply:
    key, creator = request.master_key, request.creator
    code = await bookie.write_lac(request.ledger_id, request.lac, master_key=key, creator=creator)
    return pb.CodeReply(code=code)


async def _force(bookie: BookieClient, request: pb.ForceRequest) -> pb.CodeReply:
    code = await bookie.force(request.ledger_id, request.first, master_key=request.master_key)
    return pb.CodeReply(code=code)


async def _list_entries(
    bookie: BookieClient, request: pb.ListEntriesRequest
) -> pb.ListEntriesReply:
    runs = await bookie.list_entries(request.ledger_id, creator=request.creator)
    return pb.ListEntriesReply(code=codes.OK, bounds=[bound for run in runs for bound in run])


async def _list_ledgers(
    bookie: BookieClient, request: pb.ListLedgersRequest
) -> pb.ListLedgersReply:
    ids = await bookie.list_ledgers(request.first, min(request.count_max, _LIST_MAX))
    return pb.ListLedgersReply(code=codes.OK, ledger_ids=ids)


async def _info(bookie: BookieClient, _request: pb.InfoRequest) -> pb.InfoReply:
    status = dataclasses.replace(
        await bookie.info(), clock_ms=time.time_ns() // 1_000_000, version=_version()
    )
    return pb.InfoReply(code=codes.OK, **dataclasses.asdict(status))


@cache
def _version() -> str:
    """The installed release; "": run from a checkout that isn't installed."""
    try:
        return version("magnetar")
    except PackageNotFoundError:
        return ""


async def _report_corrupt(bookie: BookieClient, request: pb.ReportCorruptRequest) -> pb.CodeReply:
    return pb.CodeReply(code=await bookie.report_corrupt(request.ledger_id, request.entry_id))


async def _check_data(bookie: BookieClient, request: pb.CheckDataRequest) -> pb.CheckDataReply:
    status = await bookie.check_data(scrub=request.scrub, integrity=request.integrity)
    return pb.CheckDataReply(code=codes.OK, status_json=status)
