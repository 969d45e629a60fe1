"""The program on the page about ledgers as a library, run as it stands there."""

import asyncio
import contextlib
import re
import subprocess
import sys
from pathlib import Path

from magnetar.bookkeeper.ledgers import connect_ledgers
from tests.bookie_process import BookieProcess
from tests.zookeeper_process import ZooKeeperProcess

_PAGE = Path(__file__).parents[2] / "docs" / "guides" / "ledgers.md"
_URL = "zk:127.0.0.1:2181/demo"  # in the page
_SECONDS = 180.0


def program() -> str:
    """The only Python on the page."""
    (block,) = re.findall(r"^```python\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


def test_the_program_of_the_page_does_what_it_says(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    url = zookeeper.url("/docs-ledgers")
    text = program()
    assert text.count(_URL) == 1
    script = tmp_path / "program.py"
    script.write_text(text.replace(_URL, url))
    with contextlib.ExitStack() as stack:
        bookies = [BookieProcess(tmp_path / f"bookie-{number}", url) for number in range(3)]
        for bookie in bookies:
            bookie.launch()
            stack.push(bookie)
        for bookie in bookies:
            bookie.wait_until_ready()
        ended = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr

        async def remaining() -> list[int]:
            async with connect_ledgers(url) as ledgers:
                return [ledger_id async for ledger_id in ledgers.ids()]

        assert asyncio.run(remaining()) == []  # it deletes its ledger
    # Entry 0 is "first", entry n the number n - 1.
    tail = [f"{entry_id} {b'%d' % (entry_id - 1)!r}" for entry_id in range(990, 1001)]
    assert ended.stdout.splitlines() == [f"1000 {[b'first', b'0']}", *tail]
    assert ended.stderr == ""
