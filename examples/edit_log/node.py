"""A node: serves the name space over TCP, as the active one or as a standby that takes over.

    python -m examples.edit_log.node --metadata zk:127.0.0.1:2181/demo --name one

Lines in, lines out: ``mkdir /a``, ``create /a/b``, ``rename /a/b /a/c``, ``delete /a/c``,
``list /a``, ``role``. Answers begin with ``ok``, ``error`` (it can't be done), ``standby`` (ask the
node named behind it) or ``unknown`` (it may have been done; look).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
from collections.abc import Sequence

from examples.edit_log.log import EditLog, TakenOverError
from examples.edit_log.namespace import Edit, NamespaceError
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.ledgers import connect_ledgers
from magnetar.metadata.coordination import LeaderElection, LeaderState
from magnetar.metadata.errors import MetadataError

FOLLOW_S = 0.2  # how often a node looks who leads
PAUSE_S = 0.02
RETRY_S = 0.1
REQUESTS_MAX = 1000  # of all clients, waiting for the log

_log = logging.getLogger("edit_log")


class Request:
    """A client's line, and its answer."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def reply(self, text: str) -> None:
        if not self.answer.done():  # its client may have left
            self.answer.set_result(text)


class Node:
    """Follows the log as a standby; takes over and writes while it leads."""

    def __init__(self, log: EditLog, election: LeaderElection) -> None:
        self._log = log
        self._election = election
        self._is_active = False
        self._requests: asyncio.Queue[Request] = asyncio.Queue(REQUESTS_MAX)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                if self._election.state is LeaderState.LEADING:
                    await self._log.take_over()
                    _log.info("active from edit %d on", self._log.namespace.last_edit)
                    self._is_active = True
                    await self._serve()
                else:
                    if not await self._log.follow(FOLLOW_S):
                        await asyncio.sleep(
                            PAUSE_S
                        )  # between two ledgers there is nothing to wait at
            except (BookkeeperError, MetadataError, TakenOverError) as error:
                _log.info("will try again: %s", error)
                await asyncio.sleep(RETRY_S)
            finally:
                if self._is_active:
                    self._log.reset()
                self._is_active = False
                while not self._requests.empty():
                    self._requests.get_nowait().reply("standby")

    async def _serve(self) -> None:
        """Whatever waits goes into the log together, and is answered when it is durable."""
        while self._election.state is LeaderState.LEADING:
            batch: list[Request] = []
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FOLLOW_S):  # to look if we still lead
                    batch.append(await self._requests.get())
            while not self._requests.empty():
                batch.append(self._requests.get_nowait())
            # Not those that were answered while we were no active node, or whose client has left.
            batch = [request for request in batch if not request.answer.done()]
            if batch:
                await self._answer(batch)

    async def _answer(self, batch: list[Request]) -> None:
        answers = ["unknown"] * len(batch)
        try:
            edits: list[Edit] = []
            results = [self._do(request.words, edits) for request in batch]
            if not edits:
                # Reads, too, are answered only after the log took something of ours: a node that
                # was replaced while it slept must not tell what was true before.
                edits.append({"number": 0, "operation": "nothing", "paths": []})
                edits[0]["number"] = self._log.namespace.last_edit + 1
                self._log.namespace.apply(edits[0])
            await self._log.append(edits)
            answers = results
        finally:
            for request, answer in zip(batch, answers, strict=True):
                request.reply(answer)

    def _do(self, words: Sequence[str], edits: list[Edit]) -> str:
        namespace = self._log.namespace
        try:
            if len(words) == 2 and words[0] == "list":
                return " ".join(["ok", *namespace.children(words[1])])
            edit = namespace.prepare(*words)
        except NamespaceError as error:
            return f"error {error}"
        namespace.apply(edit)
        edits.append(edit)
        return f"ok {edit['number']}"

    async def on_line(self, line: str) -> str:
        """The answer to a client's line."""
        words = line.split()
        if not words:
            return "error an operation is needed"
        if words == ["role"]:
            return "ok active" if self._can_write() else "ok standby"
        if not self._can_write():
            leader = None
            with contextlib.suppress(MetadataError):  # a standby that can't tell who else it is
                leader = await self._election.leader()
            return f"standby {'' if leader is None else leader.decode()}".strip()
        request = Request(words)
        await self._requests.put(request)
        if not self._can_write():
            request.reply("standby")  # we stopped while it waited, and won't look at it
        return await request.answer

    def _can_write(self) -> bool:
        return self._is_active

    async def on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection: one line after the other."""
        with contextlib.suppress(OSError, ValueError, MetadataError):  # ValueError: a long line
            while line := await reader.readline():
                answer = await self.on_line(line.decode(errors="replace"))
                writer.write(f"{answer}\n".encode())
                await writer.drain()
        writer.close()


async def serve(arguments: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with connect_ledgers(
        arguments.metadata, session_timeout_s=arguments.session_timeout
    ) as ledgers:
        quorums = tuple(int(each) for each in arguments.quorums.split("/"))
        if len(quorums) != 3:
            raise SystemExit("--quorums: E/Qw/Qa, such as 3/3/2")
        log = EditLog(ledgers, arguments.log, quorums, arguments.edits_max)
        server = await asyncio.start_server(
            lambda reader, writer: node.on_client(reader, writer), "127.0.0.1", arguments.port
        )
        port = server.sockets[0].getsockname()[1]
        election = LeaderElection(
            ledgers.store,
            f"/edit-logs/{arguments.log}/active",
            f"{arguments.name} 127.0.0.1:{port}".encode(),
            lambda state: _log.info("%s", state.value),
        )
        node = Node(log, election)
        await election.elect()
        running = asyncio.create_task(node.run())
        print(f"edit log node: {arguments.name} at 127.0.0.1:{port} ready", flush=True)
        ended = asyncio.create_task(stopped.wait())
        await asyncio.wait((running, ended), return_when=asyncio.FIRST_COMPLETED)
        server.close()
        for task in (running, ended):
            task.cancel()
        done = await asyncio.gather(running, ended, return_exceptions=True)
        await election.close()
        if isinstance(done[0], Exception):
            raise done[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metadata", required=True, help="zk:HOST:PORT/CHROOT of the cluster")
    parser.add_argument("--name", required=True, help="this node's")
    parser.add_argument("--log", default="names", help="name of the log; its nodes share it")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--quorums", default="3/3/2", help="E/Qw/Qa of its ledgers")
    parser.add_argument("--edits-max", type=int, default=1000, help="edits per ledger")
    parser.add_argument("--session-timeout", type=float, default=10.0, help="seconds")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
