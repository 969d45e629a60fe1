"""``magnetar bookie-shell`` on real bookies: what it tells, what it refuses, what it repairs."""

import asyncio
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookkeeper.ledgers import Ledgers, connect_ledgers
from magnetar.broker.cli.main import main
from tests.bookie_process import BookieProcess, running_bookies
from tests.waiting import wait_until

SESSION = ("--set", "metadataStoreSessionTimeoutMillis=10000")
Shell = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def bookies(tmp_path: Path, url: str) -> Iterator[list[BookieProcess]]:
    def bookie(number: int) -> BookieProcess:
        place = f"networkLocation=/zone-{number % 2}/ud"
        return BookieProcess(tmp_path / f"bookie-{number}", url, *SESSION, "--set", place)

    with running_bookies(map(bookie, range(4))) as running:
        yield running


@pytest.fixture
def shell(url: str, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Runs an action; its exit code, its answers, what it said on stderr."""

    def run(*words: str) -> tuple[int, list[dict[str, Any]], str]:
        capfd.readouterr()
        code = main(["bookie-shell", "--metadata", url, "--json", *words])
        said = capfd.readouterr()
        return code, [json.loads(line) for line in said.out.splitlines()], said.err

    return run


def write(url: str, entries: int, quorums: tuple[int, int, int] = (3, 3, 3)) -> int:
    """A closed ledger, all copies of which are there; its id."""

    async def work(ledgers: Ledgers) -> int:
        ledger = await ledgers.create(*quorums, custom_metadata={"application": b"test"})
        await ledger.append_all([b"%d" % n for n in range(entries)])
        await ledger.close()
        return ledger.ledger_id

    async def run() -> int:
        async with connect_ledgers(url) as ledgers:
            return await work(ledgers)

    return asyncio.run(run())


def test_what_there_is(url: str, bookies: list[BookieProcess], shell: Shell) -> None:
    ledger = write(url, 10)
    code, answers, _ = shell("listbookies")
    assert code == 0
    assert {each["bookie"] for each in answers} == {bookie.bookie_id for bookie in bookies}
    assert {each["networkLocation"] for each in answers} == {"/zone-0/ud", "/zone-1/ud"}
    assert not any(each["readOnly"] for each in answers)
    assert shell("listbookies", "-ro")[1] == []
    code, answers, _ = shell("bookieinfo")
    assert (code, len(answers)) == (0, 5)
    assert answers[-1]["totalBytes"] == sum(each["totalBytes"] for each in answers[:-1]) > 0
    assert len(shell("whatisinstanceid")[1][0]["instanceId"]) == 36

    assert shell("listledgers")[1] == [{"ledger": ledger}]
    (meta,) = shell("ledgermetadata", "-l", str(ledger))[1]
    assert meta["creatorToken"] > 0
    assert (meta["state"], meta["lastEntry"], meta["length"]) == ("CLOSED", 9, 10)
    assert meta["customMetadata"] == {"application": "test"}
    member = meta["segments"][0]["bookies"][0]
    assert shell("listledgers", "--metadata", "--bookie", member)[1] == [meta]
    assert shell("listledgers", "--bookie", "nobody:1")[1] == []
    code, answers, _ = shell("readledger", "-ledgerid", str(ledger), "-fe", "3", "-le", "4", "-msg")
    assert code == 0
    assert [(each["entry"], bytes.fromhex(each["hex"])) for each in answers] == [
        (3, b"3"),
        (4, b"4"),
    ]
    code, answers, error = shell("readledger", "-l", str(ledger), "-fe", "3", "-le", "10")
    assert (code, answers) == (1, [])
    assert "has entries 0 to 9" in error
    assert {each["phase"] for each in shell("zones")[1]} == {"up"}
    assert shell("simpletest", "-e", "4", "-w", "3", "-a", "2", "-n", "20")[0] == 0
    assert shell("listledgers")[1] == [{"ledger": ledger}]
    for words in (
        ("ledgermetadata", "-l", "77"),
        ("readledger", "-l", "77"),
        ("cookie", "get", "x"),
    ):
        code, _, error = shell(*words)
        assert code == 1, words
        assert "Traceback" not in error


def test_a_ledgers_password_need_not_be_in_the_list_of_processes(
    url: str,
    bookies: list[BookieProcess],
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    password = b"s3cr\xe9t of it "

    async def write_one() -> int:
        async with connect_ledgers(url) as ledgers:
            ledger = await ledgers.create(1, 1, 1, password=password)
            await ledger.append_all([b"x"])
            await ledger.close()
            return ledger.ledger_id

    read = ("readledger", "-l", str(asyncio.run(write_one())))
    file = tmp_path / "password"
    file.write_bytes(password + b"\r\n")

    def stdin(content: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    stdin(password + b"\n")
    good = [
        (),
        ("--password-file", str(file)),
        ("--password-stdin",),
        ("-p", os.fsdecode(password)),
    ]
    for words in good:
        monkeypatch.setenv("LEDGER_PASSWORD", os.fsdecode(password if not words else b"another"))
        assert shell(*read, *words)[:2] == (0, [{"entry": 0, "bytes": 1}]), words
    monkeypatch.delenv("LEDGER_PASSWORD")
    stdin(b"another")
    for words in ((), ("-p", ""), ("-p", "another"), ("--password-stdin",)):
        code, answers, error = shell(*read, *words)
        assert (code, answers) == (1, []), words
        assert "another" not in error
    code, _, error = shell(*read, "--password-file", str(tmp_path / "nowhere"))
    assert code == 1
    assert "--password-file" in error
    with pytest.raises(SystemExit):
        shell(*read, "-p", "x", "--password-stdin")


def test_a_damaged_replica_is_told(url: str, bookies: list[BookieProcess], shell: Shell) -> None:
    ledger = write(url, 200)
    assert shell("verifyledger", "-l", str(ledger))[0] == 0
    (meta,) = shell("ledgermetadata", "-l", str(ledger))[1]
    victim = next(b for b in bookies if b.bookie_id == meta["segments"][0]["bookies"][1])
    victim.kill()
    code, answers, _ = shell("verifyledger", "-l", str(ledger))
    assert code == 1
    assert answers[0]["bookie"] == victim.bookie_id
    assert answers[-1]["findings"] == 1


def test_switches_and_markers(url: str, bookies: list[BookieProcess], shell: Shell) -> None:
    assert shell("autorecovery")[1] == [{"enabled": True}]
    (off,) = shell("autorecovery", "-d", "moving racks")[1]
    assert (off["enabled"], off["reason"]) == (False, "moving racks")
    assert shell("autorecovery", "-s")[1] == [off]
    assert shell("autorecovery", "-e")[1] == [{"enabled": True}]
    assert shell("autorecovery", "-e", "-d")[0] == 1
    assert shell("lostbookierecoverydelay")[1] == [{"seconds": None}]
    assert shell("lostbookierecoverydelay", "-s", "90")[1] == [{"seconds": 90.0}]
    assert shell("lostbookierecoverydelay", "-s", "-1")[0] == 1
    assert shell("triggeraudit")[0] == 0
    assert shell("lostbookierecoverydelay", "-g")[1] == [{"seconds": 90.0}]
    assert shell("listunderreplicated")[1] == []
    code, _, error = shell("whoisauditor")
    assert code == 1
    assert "nobody audits" in error


def test_bookies_are_emptied_and_forgotten(
    url: str, bookies: list[BookieProcess], shell: Shell
) -> None:
    ledgers = [write(url, 50, quorums) for quorums in ((3, 3, 3), (3, 2, 2), (1, 1, 1))]
    running = bookies[0].bookie_id
    code, answers, _ = shell("recover", running, "--dry-run")
    assert code == 0
    concerned = answers[:-1]
    assert all("would repair" in each["problem"] for each in concerned)
    # It runs, so also what only it has can be copied.
    code, answers, _ = shell("recover", running)
    assert code == 0, answers
    assert answers[-1] == {"ledgers": len(concerned), "left": 0}
    assert shell("listledgers", "--bookie", running)[1] == []

    code, _, error = shell("cookie", "delete", running)
    assert code == 1
    assert "is registered" in error
    code, _, error = shell("decommissionbookie", running)
    assert code == 1
    assert "stop it first" in error
    bookies[0].stop()
    code, answers, error = shell("decommissionbookie", running)
    assert code == 0, error
    assert answers[-1]["done"]
    assert running not in {each["bookie"] for each in shell("cookie", "list")[1]}
    for ledger in ledgers:
        assert shell("verifyledger", "-l", str(ledger))[0] == 0
    assert shell("deleteledger", "-l", str(ledgers[0]))[0] == 1
    assert shell("deleteledger", "-l", str(ledgers[0]), "-f")[0] == 0
    assert {each["ledger"] for each in shell("listledgers")[1]} == set(ledgers[1:])


def test_a_decommission_tells_what_it_waits_for(
    url: str, bookies: list[BookieProcess], shell: Shell
) -> None:
    ledger = write(url, 20)
    (meta,) = shell("ledgermetadata", "-l", str(ledger))[1]
    gone = meta["segments"][0]["bookies"][0]
    next(each for each in bookies if each.bookie_id == gone).stop()
    # Nobody repairs: the decommission waits, until it is done by hand.
    words = ("bookie-shell", "--metadata", url, "--json", "decommissionbookie", gone)
    with subprocess.Popen(
        [sys.executable, "-m", "magnetar.broker.cli.main", *words], stdout=subprocess.DEVNULL
    ) as decommission:
        try:
            wait_until(
                lambda: bool(shell("listunderreplicated", "-b", gone)[1]),
                "it marked nothing",
            )
            (marker,) = shell("listunderreplicated", "-b", gone)[1]
            assert (marker["ledger"], marker["bookies"]) == (ledger, [gone])
            assert decommission.poll() is None
            recovered = shell("recover", gone)
            assert recovered[0] == 0, recovered
            assert decommission.wait(60) == 0
        finally:
            decommission.kill()


def test_formatting_is_refused_while_anybody_runs(
    url: str, bookies: list[BookieProcess], shell: Shell, tmp_path: Path
) -> None:
    write(url, 20)
    data = str(bookies[0].data)
    assert shell("listfilesondisc", "--data", data)[0] == 0
    code, _, error = shell("bookieformat", "--data", data, "-f")
    assert code == 1
    assert "running" in error
    code, _, error = shell("metaformat", "-f")
    assert code == 1
    assert "stop them first" in error
    before = shell("whatisinstanceid")[1]
    for bookie in bookies:
        bookie.stop()
    code, _, error = shell("metaformat")
    assert code == 1
    assert "1 ledgers would be lost" in error
    assert shell("metaformat", "-f")[0] == 0
    assert shell("listledgers")[1] == []
    assert shell("whatisinstanceid")[1] != before
    # The directories of the old cluster are refused by the new one, until they are emptied.
    assert "cluster" in bookies[0].refuse_to_start()
    assert shell("bookieformat", "--data", data)[0] == 1
    assert shell("bookieformat", "--data", data, "-f")[0] == 0
    assert list(bookies[0].data.iterdir()) == []
    bookies[0].start()
    assert len(shell("listbookies")[1]) == 1

    strange = tmp_path / "strange"
    strange.mkdir()
    assert "isn't a bookie's" in shell("bookieformat", "--data", str(strange), "-f")[2]
    (strange / "lock").touch()
    (strange / "thesis.txt").touch()
    assert "thesis.txt" in shell("bookieformat", "--data", str(strange), "-f")[2]
    assert shell("bookieformat", "--data", str(tmp_path / "none"), "-f")[0] == 1


def test_a_shell_without_a_cluster_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bookie-shell", "listbookies"]) == 1
    assert "which cluster?" in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["bookie-shell", "dance"])
