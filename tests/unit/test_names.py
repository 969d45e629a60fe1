"""Names are those of the field: no metaphors, and no class name that means two things."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("bookkeeper", "broker", "bundles", "loadbalance"),
    *("magnetar", "managed_ledger", "metadata", "pipeline"),
)

# Words of names, each alone: docs/reference/glossary.md has the word that is used instead.
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
    "squeeze": "an argument of matplotlib.pyplot.subplots",
}
_TERM_PATTERNS = (
    re.compile(r"(book|zoo)_?keeper", re.I),
    re.compile(r"dead_?letter", re.I),  # Pulsar
    re.compile(r"deadline", re.I),
    re.compile(r"(session|no|num)_?tickets?", re.I),  # TLS, and Python's ssl
)


# Of texts for people, comments and docstrings: those that are always metaphors.
BANNED_IN_PROSE = re.compile(
    r"\b(afterlife|countersign|death watch|doors?|doorsteps?|gossip|guests?|heirs?|lanes?"
    r"|poorhouse|strangers?|sweepers?|twins?)\b",
    re.I,
)


def _files(*folders: str) -> Iterator[Path]:
    for folder in folders or PACKAGES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                yield path


def _banned_names() -> Iterator[str]:
    """Where, and the name: files, and the identifiers in them."""
    for path in _files(*PACKAGES, "tests", "scripts", "benchmarks", "examples"):
        where = str(path.relative_to(ROOT))
        if _is_banned(stem := path.stem if path.stem != "__init__" else path.parent.name):
            yield f"{where} {stem}"
        text = path.read_text()
        # To parse all files takes ten seconds: only those with such a word, be it in a comment.
        if found := {word for word in set(re.findall(r"[A-Za-z_]\w*", text)) if _is_banned(word)}:
            nodes = ast.walk(ast.parse(text))
            found &= {name for node in nodes for name in _identifiers(node)}
            yield from (f"{where} {name}" for name in sorted(found))


def _identifiers(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield name
        case ast.keyword(arg=str(name)) | ast.alias(asname=str(name)):
            yield name


@cache
def _is_banned(name: str) -> bool:
    if name in TERMS:
        return False
    for pattern in _TERM_PATTERNS:
        name = pattern.sub("", name)
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return not BANNED.isdisjoint(words)


def test_no_name_is_a_metaphor() -> None:
    assert list(_banned_names()) == []


def test_no_comment_and_no_text_of_the_product_is_a_metaphor() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BANNED_IN_PROSE.search(line) and "add-lane" not in line  # a header of the wire
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
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    rows = re.findall(r"^\| [^|]+ \| [^|]+ \| [^|]+ \| `([^`]+)` \|$", page, re.M)
    assert rows, "the table is gone"
    assert [path for path in rows if not (ROOT / path).exists()] == []
