"""Every block of docs/get-started.md runs, and prints what the page shows below it.

The page begins with ``make setup``, which made the environment of this test, and with the start of
a broker, which the test does on free ports.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.standalone_process import StandaloneProcess

_PAGE = Path(__file__).parents[2] / "docs" / "get-started.md"
_BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STARTED_BY_THE_TEST = ("make setup", "magnetar standalone --data data")
_URLS = ("pulsar://localhost:6650", "http://localhost:8080")
_SECONDS = 120.0


def blocks() -> list[tuple[str, str]]:
    """Language and text of each, in the order of the page."""
    return [(language, text) for language, text in _BLOCK.findall(_PAGE.read_text())]


def _with_urls(text: str, broker: StandaloneProcess) -> str:
    for written, real in zip(_URLS, (broker.service_url, broker.admin_url), strict=True):
        text = text.replace(written, real)
    return text


def _pattern(expected: str) -> str:
    """Lines that must follow each other in an output; ``...`` stands for anything."""
    return ".*?".join(re.escape(part) for part in re.split(r"\.\.\.|\n", expected.strip()))


def _run(language: str, text: str, environment: dict[str, str], folder: Path) -> str:
    command = [sys.executable, "-c"] if language == "python" else ["bash", "-ec"]
    ended = subprocess.run(
        [*command, text],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, f"{text}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def _environment(broker: StandaloneProcess) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MAGNETAR_SERVICE_URL": broker.service_url,
        "MAGNETAR_ADMIN_URL": broker.admin_url,
    }


def _runs(broker: StandaloneProcess, folder: Path) -> Iterator[tuple[str, str]]:
    """What the page promises, and what was printed."""
    printed = ""
    for language, text in blocks():
        if language == "text":
            yield text, printed
        elif text.startswith(_STARTED_BY_THE_TEST):
            printed = f"magnetar standalone: {' '.join(_URLS)} ready"
        else:
            printed = _run(language, _with_urls(text, broker), _environment(broker), folder)


def test_every_block_does_what_the_page_says(tmp_path: Path) -> None:
    broker = StandaloneProcess(tmp_path / "data")
    broker.start()
    try:
        for expected, printed in _runs(broker, tmp_path):
            assert re.search(_pattern(expected), printed, re.DOTALL), f"{expected}\n{printed}"
    finally:
        broker.stop()
    assert len(blocks()) > 15
