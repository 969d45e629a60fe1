"""Commands of docs/operate run as they are written, those that one broker answers.

The others need ZooKeeper, bookies or other machines: tests/unit/test_pages.py sees that the command
line takes them.
"""

import re
from pathlib import Path

import httpx
import pytest

from tests.integration.test_docs_get_started import _environment, _run
from tests.standalone_process import StandaloneProcess

_PAGES = Path(__file__).parents[2] / "docs" / "operate"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FINDS = " || [ $? -eq 1 ]"
"""The doctor may find something in the machine that runs this test."""


@pytest.mark.parametrize(
    ("page", "lines", "count", "printed"),
    [
        ("explain", "", 5, '"billing": .*noProducer.*noProducer.*pastEnd.*noProducer.*pastEnd'),
        ("doctor", "", 1, r"cluster standalone, seen by"),
        ("index", r"export|curl -s \$|magnetar admin", 3, r"ready.*localhost:\d+"),
        ("backup", "magnetar admin", 2, "public"),
        ("bookies", "magnetar tokens", 3, ""),
    ],
)
def test_commands_do_what_the_page_says(
    server: StandaloneProcess, tmp_path: Path, page: str, lines: str, count: int, printed: str
) -> None:
    topic = f"{server.admin_url}/admin/v2/persistent/public/default/orders"
    for path in ("", "/subscription/billing"):
        assert httpx.put(topic + path, timeout=60).status_code in (204, 409)
    blocks = _BLOCK.findall((_PAGES / f"{page}.md").read_text())
    typed = [line for block in blocks for line in block.splitlines() if re.match(lines, line)]
    assert len(typed) == count, typed
    text = "\n".join(typed) + (_FINDS if page == "doctor" else "")
    text = text.replace("http://BROKER:8080", server.admin_url).replace("TOPIC", "orders")
    assert re.search(printed, _run("bash", text, _environment(server), tmp_path), re.DOTALL)
    if page == "backup":
        assert "replication_clusters" in (tmp_path / "public-default.json").read_text()
    if page == "bookies":
        assert (tmp_path / "broker.token").read_text() != (tmp_path / "bookie.token").read_text()
