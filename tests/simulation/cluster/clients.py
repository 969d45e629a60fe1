"""A bookie as one process sees it over the faulty links, and a process's ledger client."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.errors import BookieUnavailableError, LedgerError
from magnetar.bookkeeper.transport import (
    AddRequest,
    BookieStatus,
    LacReply,
    ReadReply,
    ReadRequest,
)
from tests.simulation.cluster.checker import Checker
from tests.simulation.cluster.machine import BookieMachine
from tests.simulation.cluster.nodes import ClusterLoop, Links, Process

T = TypeVar("T")
TIMEOUT_MS = 1000.0


class Net(Protocol):
    """What clients need of the world."""

    loop: ClusterLoop
    links: Links
    checker: Checker

    def late_copy_s(self) -> float:
        """How much later the same message of a side state comes once more; 0: it doesn't."""
        ...


class Exchange:
    """One request to a machine; ``on_reply`` hears the answer, perhaps twice, or None in time."""

    def __init__(
        self,
        net: Net,
        process: Process,
        machine: BookieMachine,
        serve: Callable[[Bookie, Callable[[Any], None]], None],
        on_reply: Callable[[Any], None],
    ) -> None:
        self._net, self._process, self._machine = net, process, machine
        self._serve, self._on_reply = serve, on_reply
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None

    def start(self, timeout_ms: float = TIMEOUT_MS) -> None:
        process, machine, links = self._process, self._machine, self._net.links
        if not process.step():
            return
        links.send(process.host, machine.host, self._arrive)
        self._timer = self._net.loop.call_later(timeout_ms / 1000, self._time_out)

    def _arrive(self) -> None:
        """At the machine; what runs on is the life that its process has now."""
        machine, server = self._machine, self._machine.process
        bookie = machine.bookie
        if bookie is None or not server.alive:
            return
        if server.paused_until > self._net.loop.now:
            self._net.loop.call_at(server.paused_until, self._arrive)
            return

        def reply(result: Any) -> None:
            if server.alive:
                self._net.links.send(
                    machine.host, self._process.host, lambda: self._deliver(result), self._process
                )

        server.context.run(self._serve, bookie, reply)

    def _deliver(self, result: Any) -> None:
        process, loop = self._process, self._net.loop
        if process.paused_until > loop.now:
            loop.call_at(process.paused_until, self._deliver, result)
        elif process.step():
            self._answered = True
            if self._timer is not None:
                self._timer.cancel()
            self._on_reply(result)

    def _time_out(self) -> None:
        if not self._answered:
            self._on_reply(None)


class LinkedBookie(BookieClient):
    """A ``BookieClient``; late and repeated answers come through, which is worse than gRPC."""

    def __init__(self, net: Net, process: Process, machine: BookieMachine) -> None:
        self._net, self._process, self._machine = net, process, machine
        self._checker = net.checker

    @property
    def bookie_id(self) -> str:
        return self._machine.host

    def add_entries(self, request: AddRequest) -> None:
        checker, machine = self._checker, self._machine
        checker.on_sent(self._process, request)

        def serve(bookie: Bookie, reply: Callable[[int], None]) -> None:
            # A copy: a real transport decodes one, and the client re-sends its own.
            copy = AddRequest(
                *(request.ledger_id, request.master_key, request.entry_ids, list(request.heads)),
                *(list(request.bodies), request.body_bytes, request.recovery),
                lambda _, code: reply(code),
            )
            copy = replace(copy, deferred_sync=request.deferred_sync, creator=request.creator)
            bookie.add_entries(copy)

        def on_reply(code: int | None) -> None:
            request.done(request, codes.UNAVAILABLE if code is None else code)

        Exchange(self._net, self._process, machine, serve, on_reply).start()

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        checker, machine, process = self._checker, self._machine, self._process
        ledger_id, first, fence = request.ledger_id, request.first, request.fence

        async def read(bookie: Bookie) -> ReadReply:
            held = machine.promises.holds(ledger_id, first)
            reply = await bookie.read_entries(request)
            if fence and (reply.code == codes.OK or codes.is_explicit_negative(reply.code)):
                checker.on_fenced(machine, ledger_id)
            checker.on_read(machine, ledger_id, reply, held)
            return reply

        reply = await self._call(read)
        if reply is None:
            return ReadReply(codes.UNAVAILABLE, first, [])
        if fence and codes.is_explicit_negative(reply.code):
            checker.on_denied(process, machine, ledger_id, first)
        return reply

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        checker, machine = self._checker, self._machine

        async def read(bookie: Bookie) -> LacReply:
            reply = await bookie.read_lac(
                ledger_id, fence=fence, master_key=master_key, creator=creator
            )
            if fence and (reply.code == codes.OK or codes.is_explicit_negative(reply.code)):
                checker.on_fenced(machine, ledger_id)
            return reply

        reply = await self._call(read)
        return LacReply(codes.UNAVAILABLE, None, -1) if reply is None else reply

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        reply = await self._call(
            lambda bookie: bookie.wait_lac(ledger_id, above, wait_s, creator=creator),
            wait_s * 1000 + TIMEOUT_MS,
        )
        return LacReply(codes.UNAVAILABLE, None, -1) if reply is None else reply

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        if (after_s := self._net.late_copy_s()) > 0:  # of this very message, behind later ones
            loop, again = self._net.loop, self._tell_again
            loop.call_later(after_s, again, ledger_id, lac, master_key, creator)
        reply = await self._call(
            lambda bookie: bookie.write_lac(ledger_id, lac, master_key=master_key, creator=creator)
        )
        return codes.UNAVAILABLE if reply is None else reply

    def _tell_again(self, ledger_id: int, lac: int, master_key: bytes, creator: int) -> None:
        def serve(bookie: Bookie, reply: Callable[[Any], None]) -> None:
            work = bookie.write_lac(ledger_id, lac, master_key=master_key, creator=creator)
            self._net.loop.create_task(_answer(work, reply))

        Exchange(self._net, self._process, self._machine, serve, lambda _: None).start()

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        reply = await self._call(
            lambda bookie: bookie.force(ledger_id, first, master_key=master_key)
        )
        return codes.UNAVAILABLE if reply is None else reply

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        return await self._require(lambda bookie: bookie.list_entries(ledger_id, creator=creator))

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        return await self._require(lambda bookie: bookie.list_ledgers(first, count_max))

    async def info(self) -> BookieStatus:
        return await self._require(lambda bookie: bookie.info())

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        reply = await self._call(lambda bookie: bookie.report_corrupt(ledger_id, entry_id))
        return codes.UNAVAILABLE if reply is None else reply

    async def check_data(self, *, scrub: bool = False, integrity: bool = False) -> str:
        return await self._require(
            lambda bookie: bookie.check_data(scrub=scrub, integrity=integrity)
        )

    async def _require(self, ask: Callable[[Bookie], Awaitable[T]]) -> T:
        reply = await self._call(ask)
        if reply is None:
            raise BookieUnavailableError(f"bookie {self._machine.host} doesn't answer")
        return reply

    async def _call(
        self, ask: Callable[[Bookie], Awaitable[T]], timeout_ms: float = TIMEOUT_MS
    ) -> T | None:
        """What the bookie answers; None: nothing in time. A refusal is raised here."""
        loop = self._net.loop
        future: asyncio.Future[Any] = loop.create_future()

        def serve(bookie: Bookie, reply: Callable[[Any], None]) -> None:
            loop.create_task(_answer(ask(bookie), reply))

        def on_reply(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, LedgerError):
                future.set_exception(result)
            else:
                future.set_result(result)

        Exchange(self._net, self._process, self._machine, serve, on_reply).start(timeout_ms)
        found: T | None = await future
        return found


async def _answer(work: Awaitable[T], reply: Callable[[Any], None]) -> None:
    try:
        reply(await work)
    except LedgerError as error:
        reply(error)
