"""``stored-values.md`` names every path of the metadata store that the product knows."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("metadata", "bookkeeper", "managed_ledger", "bundles", "loadbalance", "broker")
HTTP = ("broker/http", "broker/cli", "broker/console")  # their texts are requests
_PATH = re.compile(r"(/[A-Za-z][\w-]*)+/?")
# Texts of the same form that aren't stored under; a new one belongs here or into the page.
REQUESTS = re.compile(r"/(admin/v2|api/v1|lookup)/.*")
FILES = re.compile(r"/(proc|sys)/.*|/schedstat")
OTHERS = {
    *("/heartbeat", "/is_ready", "/livez", "/metrics", "/ownedNamespaces", "/ready", "/readyz"),
    *("/lost_bookie_recovery_delay", "/stats", "/status", "/subscription/", "/who_is_auditor"),
    *("/default-rack", "/default-zone/default-upgrade-domain"),  # places of bookies
    "/admin/resourcegroups",  # of Pulsar's brokers alone
    "/magnetar",  # chroot of brokers beside Apache BookKeeper on one machine
}


def texts_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def paths() -> set[str]:
    return {
        text
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        if not str(file.relative_to(ROOT)).startswith(HTTP)
        for text in texts_of(file)
        if _PATH.fullmatch(text)
    }


def test_every_path_is_in_the_table() -> None:
    page = (ROOT / "docs/internals/stored-values.md").read_text()
    found = {
        path
        for path in paths() - OTHERS
        if REQUESTS.fullmatch(path) is None and FILES.fullmatch(path) is None
    }
    assert len(found) > 30
    assert [x for x in sorted(found) if not re.search(rf"{x.rstrip('/')}(?![\w-])", page)] == []


def test_no_exception_is_out_of_date() -> None:
    assert OTHERS - paths() == set()
