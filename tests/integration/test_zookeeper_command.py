"""``magnetar zookeeper``: members of an ensemble, and what their probes say."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.broker.cli.main import main
from magnetar.metadata.factory import connect_store
from tests.child_process import ChildProcess
from tests.free_port import free_port
from tests.waiting import wait_until

WAIT_S = 120.0
HOST = "127.0.0.1"


class Member(ChildProcess):
    """One server of an ensemble that knows of all of them."""

    def __init__(self, folder: Path, number: int, members: list[str]) -> None:
        super().__init__(folder / f"zookeeper-{number}.log")
        self.port = free_port()
        self.data = folder / f"data-{number}"
        self._command = [
            *(sys.executable, "-m", "magnetar.broker.cli.main", "zookeeper", "--bind", HOST),
            *("--client-port", str(self.port), "--data", str(self.data), "--heap", "96m"),
            *(word for each in members for word in ("--server", each)),
            *("--id", str(number), "--set", "quorumListenOnAllIPs=false", "--set", "tickTime=500"),
        ]

    def start(self) -> None:
        self._process = self.popen(self._command)

    def answers(self, what: str) -> bool:
        """As a probe asks."""
        assert self.is_running, self.log
        return main(["zookeeper", "--check", what, "--client-port", str(self.port)]) == 0


@pytest.fixture
def members(tmp_path: Path) -> Iterator[list[Member]]:
    """Three, not started."""
    names = [f"{number}={HOST}:{free_port()}:{free_port()}" for number in (1, 2, 3)]
    made = [Member(tmp_path, number, names) for number in (1, 2, 3)]
    yield made
    for each in made:
        if each.is_running:
            each.kill()


async def test_one_of_three_is_alive_and_two_serve(members: list[Member]) -> None:
    """Without a quorum a restart helps nobody, and no client should come."""
    first, second, _ = members
    first.start()
    wait_until(lambda: first.answers("live"), "the first lives", WAIT_S)
    assert not first.answers("ready")
    assert first.is_running
    second.start()
    for each in (first, second):
        wait_until(lambda each=each: each.answers("ready"), "there is a quorum", WAIT_S)  # type: ignore[misc]
    assert [(each.data / "myid").read_text() for each in (first, second)] == ["1\n", "2\n"]
    assert any("leaderConnectDelayDuringRetryMs: 500" in each.log for each in (first, second))
    store = await connect_store(f"zk:{HOST}:{first.port},{HOST}:{second.port}/chroot")
    await store.put("/node", b"kept")
    await store.close()
    second.kill()
    wait_until(lambda: not first.answers("ready"), "the quorum is gone", WAIT_S)
    wait_until(lambda: first.answers("live"), "it lives on", WAIT_S)


def test_a_server_is_found_at_its_new_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a pod's successor: same name, same data, another address; then the leader goes, too.

    Java is told to keep addresses for ever unless it is told otherwise: nobody waits here for what
    it keeps for half a minute.
    """
    hosts = tmp_path / "hosts"
    addresses = {number: f"127.0.0.{number}" for number in (11, 12, 13)}

    def write_hosts() -> None:
        hosts.write_text("".join(f"{each} zk-{n}\n" for n, each in addresses.items()))

    write_hosts()
    forever = "-Dsun.net.inetaddr.ttl=-1 -Dsun.net.inetaddr.negative.ttl=-1"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djdk.net.hosts.file={hosts} {forever}")
    names = [f"{number}=zk-{number}:{free_port()}:{free_port()}" for number in addresses]
    first, second, last = members = [Member(tmp_path, number, names) for number in addresses]
    try:
        for each in members:
            each.start()
        for each in members:
            wait_until(lambda each=each: each.answers("ready"), "there is a quorum", WAIT_S)  # type: ignore[misc]
        last.kill()
        addresses[13] = "127.0.0.14"
        write_hosts()
        last.start()
        wait_until(lambda: last.answers("ready"), "it is back", WAIT_S)
        second.kill()
        for each in (first, last):
            wait_until(lambda each=each: each.answers("ready"), "there is a quorum", WAIT_S)  # type: ignore[misc]
    finally:
        for each in members:
            if each.is_running:
                each.kill()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--server", "1=zk"], "ID=HOST:PEER_PORT:ELECTION_PORT"),
        (["--id", "2", "--server", "1=zk:1:2"], "server 2 isn't among"),
        (["--heap", "lots"], "a size such as"),
        (["--set", "dataDir=/"], "options, not settings"),
        (["--set", "nothing"], "KEY=VALUE"),
        (["--config", "/nowhere/zoo.cfg"], "/nowhere/zoo.cfg"),
    ],
)
def test_mistakes_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    assert main(["zookeeper", "--data", str(tmp_path / "data"), *words]) == 1
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
