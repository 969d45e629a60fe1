"""``magnetar metadata recover``: what it says is lost is what is lost, and no id comes again."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.integration.failure_tools import check_history, flip_byte, keep, new_topic, publish
from tests.integration.test_metadata_older import Grown, grow
from tests.raw_client import Position

ROOT = Path(__file__).parents[2]


def recover(data: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "magnetar.broker.cli.main",
            "metadata",
            "recover",
            "--data",
            data,
            *options,
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def snapshot(data: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(data)): each.read_bytes()
        for each in sorted(data.rglob("*"))
        if each.is_file() and each.name != "lock.mdb"
    }


def ledgers(receipts: dict[str, dict[int, Position]]) -> set[int]:
    return {ledger for each in receipts.values() for ledger, _ in each.values()}


def go_on(grown: Grown, known: dict[str, dict[int, Position]]) -> None:
    """``known`` topics have all they had; new ledgers have ids that none ever had."""
    used = ledgers(grown.receipts)
    with grown.process:
        grown.check(known)
        topic = new_topic()
        keep(grown.process.service_url, topic)
        receipts = publish(grown.process.service_url, topic, range(20))
        assert ledgers({topic: receipts}).isdisjoint(used)
        assert min(ledgers({topic: receipts})) > max(used)
        check_history(grown.process.service_url, topic, receipts)


def test_metadata_of_before(tmp_path: Path) -> None:
    grown, early = grow(tmp_path, killed=True)
    data = grown.process.data
    assert recover(data) == (0, f"{data / 'metadata'}: nothing is lost, start the broker\n")
    shutil.rmtree(data / "metadata")
    shutil.copytree(grown.of_before / "metadata", data / "metadata")
    before = snapshot(data)
    code, said = recover(data)
    assert code == 1
    assert re.search(r"lost: commits \d+ to \d+, which the bookie has seen", said)
    lost = ledgers(grown.receipts) - ledgers(early)
    told = re.search(r"ledgers that the bookie holds and no metadata know: ([\d, ]+);", said)
    assert told is not None
    assert lost <= {int(each) for each in told[1].split(", ")}
    assert snapshot(data) == before  # it only asked
    code, said = recover(data, "--accept-data-loss")
    assert code == 0, said
    aside = data / "metadata.damaged-1"
    assert f"the old files are in {aside}" in said
    kept = {f"metadata/{name}": content for name, content in snapshot(aside).items()}
    assert kept.items() <= before.items()
    assert recover(data)[0] == 0
    go_on(grown, early)


def test_damaged_nodes_are_left_out(tmp_path: Path) -> None:
    grown, _ = grow(tmp_path, killed=False)
    data = grown.process.data
    database = data / "metadata" / "metadata.sqlite"
    at = database.read_bytes().index(b"adminRoles")
    flip_byte(database, at + 1)
    assert "is damaged" in grown.process.refuse_to_start()
    code, said = recover(data)
    assert code == 1
    (node,) = re.findall(r"lost: the node (\S+)\n", said)
    assert f"the row of {node} is damaged" in said
    assert recover(data, "--accept-data-loss")[0] == 0
    assert node in ("/admin/policies/public", "/admin/policies/pulsar")
    go_on(grown, grown.receipts)


def test_no_metadata_at_all(tmp_path: Path) -> None:
    grown, _ = grow(tmp_path, killed=True)
    data = grown.process.data
    shutil.rmtree(data / "metadata")
    code, said = recover(data)
    assert code == 1
    assert "the file is missing" in said
    assert re.search(r"lost: commits 1 to \d+, which the bookie has seen", said)
    assert recover(data, "--accept-data-loss")[0] == 0
    go_on(grown, {})


def test_while_the_broker_runs_or_without_one(tmp_path: Path) -> None:
    grown = Grown(tmp_path)
    with grown.process:
        code, said = recover(grown.process.data)
        assert code == 1
        assert "another process uses it" in said
    code, said = recover(tmp_path / "nothing")
    assert code == 1
    assert "is missing" in said
