"""The sample program: nodes over bookies and a ZooKeeper, killed and paused while clients ask.

A client notes what was answered "ok"; whoever is active at the end must know all of it, in order.
"""

import asyncio
import contextlib
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.bookkeeper.ledgers import connect_ledgers
from tests.bookie_process import BookieProcess
from tests.child_process import ChildProcess

BOOKIES = 4

_READY = re.compile(r"^edit log node: \S+ at 127\.0\.0\.1:(\d+) ready$", re.MULTILINE)
_SECONDS = 60.0


class NodeProcess(ChildProcess):
    """``python -m examples.edit_log.node``."""

    def __init__(self, folder: Path, name: str, metadata_url: str) -> None:
        super().__init__(folder / f"{name}.log")
        self.name, self.port = name, 0
        self._metadata_url = metadata_url

    def start(self) -> None:
        offset = len(self.log)
        self._process = self.popen(
            [
                *(sys.executable, "-m", "examples.edit_log.node", "--name", self.name),
                *("--metadata", self._metadata_url, "--session-timeout", "6"),
                *("--edits-max", "40"),
            ]
        )
        self.port = int(self.wait_for_line(_READY, self.name, offset)[1])

    def ask(self, line: str, seconds: float = 30.0) -> str:
        """The node's answer; "" if there was none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), seconds) as connection:
                connection.sendall(f"{line}\n".encode())
                with connection.makefile() as answers:
                    return answers.readline().strip()
        except OSError:
            return ""


class Client(threading.Thread):
    """Makes folders /0, /1, /2, ... at whoever is active, each until it is known to exist."""

    def __init__(self, nodes: list[NodeProcess]) -> None:
        super().__init__()
        self._nodes = nodes
        self.made: list[str] = []
        self.answers: list[str] = []
        self.stopped = False

    def run(self) -> None:
        number = 0
        while not self.stopped:
            for node in self._nodes:
                answer = node.ask(f"mkdir /{number}", 2.0)
                self.answers.append(f"{node.name} /{number}: {answer}")
                # An answer may have been lost: then it exists already.
                if answer.startswith("ok") or answer == f"error /{number}: exists":
                    self.made.append(str(number))
                    number += 1
                    break
            else:
                time.sleep(0.02)


@pytest.fixture
def nodes(tmp_path: Path, url: str, bookies: list[BookieProcess]) -> Iterator[list[NodeProcess]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(NodeProcess(tmp_path, name, url)) for name in ("one", "two")]


def active(nodes: list[NodeProcess]) -> NodeProcess:
    deadline = time.monotonic() + _SECONDS
    while True:
        for node in nodes:
            if node.is_running and node.ask("role") == "ok active":
                return node
        assert time.monotonic() < deadline, [node.log for node in nodes]
        time.sleep(0.02)


def wait_for(client: Client, count: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while len(client.made) < count:
        assert time.monotonic() < deadline, client.answers[-5:]
        time.sleep(0.02)


def folders(node: NodeProcess) -> list[str]:
    """What is in "/", once the node can tell."""
    deadline = time.monotonic() + _SECONDS
    while not (answer := node.ask("list /")).startswith("ok"):
        assert time.monotonic() < deadline, answer
    return sorted(answer.split()[1:], key=int)


def test_a_standby_takes_over_from_a_killed_node_and_nothing_is_lost(
    url: str, nodes: list[NodeProcess], bookies: list[BookieProcess]
) -> None:
    client = Client(nodes)
    first = active(nodes)
    client.start()
    try:
        wait_for(client, 50)
        bookies[0].kill()
        wait_for(client, 100)
        first.kill()
        wait_for(client, 150)
        second = active(nodes)
        assert second is not first
        first.start()  # follows from now on, from an image: the first ledgers are gone
        wait_for(client, 200)
        second.kill()
        wait_for(client, 250)
    finally:
        client.stopped = True
        client.join()
    assert active(nodes) is first
    assert folders(first)[: len(client.made)] == client.made

    async def remaining() -> int:
        async with connect_ledgers(url) as ledgers:
            return len([ledger_id async for ledger_id in ledgers.ids()])

    # One image, the ledger in use, and what crashes have left: not one for every 40 edits.
    assert asyncio.run(remaining()) <= 5


def test_a_paused_node_confirms_nothing_after_it_was_replaced(nodes: list[NodeProcess]) -> None:
    first = active(nodes)
    second = next(node for node in nodes if node is not first)
    assert first.ask("mkdir /0").startswith("ok")
    # One client is connected to the node that falls asleep, and asks while it sleeps.
    with (
        socket.create_connection(("127.0.0.1", first.port), _SECONDS) as connection,
        connection.makefile() as answers,
    ):
        connection.sendall(b"role\n")
        assert answers.readline() == "ok active\n"
        first.pause()
        connection.sendall(b"mkdir /late\nlist /\n")
        assert active([second]) is second
        assert second.ask("mkdir /1").startswith("ok")
        first.resume()
        late, listed = answers.readline().strip(), answers.readline().strip()
    # It may believe to be active for a moment, but the bookies know better.
    assert late.split()[0] in ("unknown", "standby"), late
    assert listed.split()[0] in ("unknown", "standby"), listed
    assert folders_by_name(second) == ["0", "1"]


def folders_by_name(node: NodeProcess) -> list[str]:
    return node.ask("list /").split()[1:]


def test_requests_that_cannot_be_done_are_refused_and_change_nothing(
    nodes: list[NodeProcess],
) -> None:
    node = active(nodes)
    standby = next(each for each in nodes if each is not node)
    assert standby.ask("mkdir /a") == f"standby {node.name} 127.0.0.1:{node.port}"
    asked = [
        ("mkdir /a", "ok"),
        ("create /a/f", "ok"),
        ("mkdir /a", "error /a: exists"),
        ("create /b/f", "error /b: no such folder"),
        ("delete /a", "error /a: not empty"),
        ("rename /a/f /g", "ok"),
        ("delete /a", "ok"),
        ("list /", "ok g"),
        ("list /g", "error /g: no such folder"),
        ("mkdir relative", "error relative: not an absolute path"),
        ("explode /", "error no such operation: explode /"),
        ("", "error an operation is needed"),
    ]
    for line, answer in asked:
        said = node.ask(line)
        # Behind the "ok" of a change is its number in the log, reads and refusals count, too.
        assert re.sub(r"^ok \d+$", "ok", said) == answer, line
