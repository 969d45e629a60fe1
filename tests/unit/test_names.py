"""Names are those of the field: no metaphors, and no class name that means two things."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("bookkeeper", "broker", "bundles", "loadbalance"),
    *("magnetar", "managed_ledger", "metadata", "pipeline"),
)

# Words of names, each alone: docs/glossary.md has the word that is used instead.
BANNED = frozenset(
    (
        *("afterlife", "bond", "bonds", "buried", "burial", "burials", "bury", "corpse"),
        *("dead", "death", "deathwatch", "door", "doors", "doorstep", "doubt", "doubts"),
        *("doubtful", "ghost", "gossip", "grave", "guest", "guests", "heir", "heirs"),
        *("house", "judge", "judged", "keeper", "lane", "lanes", "mend", "mourn"),
        *("office", "offices", "pacer", "poorhouse", "resting", "shelf", "shelves"),
        *("squeeze", "stranger", "strangers", "sweeper", "ticket", "tickets"),
        *("countersign", "twin", "upkeep", "widow", "wish"),
    )
)

# Whole names with such a word which are terms of Pulsar, BookKeeper, ZooKeeper, HTTP or TLS.
TERMS: dict[str, str] = {
    "BookKeeperClient": "Apache BookKeeper",
    "ZooKeeperSettings": "Apache ZooKeeper",
}
_TERM_PATTERNS = (
    re.compile(r"(book|zoo)_?keeper", re.I),
    re.compile(r"dead_?letter", re.I),  # Pulsar
    re.compile(r"deadline", re.I),
    re.compile(r"session_?tickets?", re.I),  # TLS
)


def _files() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                yield path


def _names() -> Iterator[tuple[str, str]]:
    """Where, and the name: modules, classes, functions, methods."""
    for path in _files():
        where = str(path.relative_to(ROOT))
        yield where, path.stem if path.stem != "__init__" else path.parent.name
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{where}:{node.lineno}", node.name


def _words(name: str) -> list[str]:
    for pattern in _TERM_PATTERNS:
        name = pattern.sub("", name)
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def test_no_name_is_a_metaphor() -> None:
    wrong = [
        f"{where} {name}"
        for where, name in _names()
        if name not in TERMS and BANNED.intersection(_words(name))
    ]
    assert wrong == []


def test_a_public_class_name_means_one_thing() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path in _files():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_the_glossary_names_modules_that_exist() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| [^|]+ \| `([^`]+)` \|$", page, re.M)
    assert rows, "the table is gone"
    assert [path for path in rows if not (ROOT / path).exists()] == []
