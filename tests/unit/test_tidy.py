"""The style as a test: sizes, banned words, and what a repository of ours must not contain."""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [
    *("metadata", "bookkeeper", "managed_ledger", "bundles", "loadbalance"),
    *("broker", "pipeline", "magnetar"),
]
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
# Functions that may stay long, with the reason beside them. None may be added without one.
LONG_FUNCTIONS: dict[str, str] = {}

# What users import (docs/guides: embedding, ledgers, spark), and packages that re-export.
ENTRY_POINTS = {
    "magnetar/__init__.py",
    "bookkeeper/ledgers.py",
    "pipeline/records.py",
    "pipeline/source.py",
    "bookkeeper/client/placement/__init__.py",
}


def _tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


def _sources() -> list[Path]:
    return [
        path
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.endswith("_pb2.py")
    ]


def test_files_and_functions_fit_in_the_head() -> None:
    wrong = []
    for path in _sources():
        text = path.read_text()
        if (lines := text.count("\n")) > FILE_LINES_MAX:
            wrong.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                size = node.end_lineno - node.lineno + 1
                name = f"{path.relative_to(ROOT)}:{node.name}"
                if size > FUNCTION_LINES_MAX and name not in LONG_FUNCTIONS:
                    wrong.append(f"{name}: {size} lines")
    assert wrong == []


def test_no_unfinished_work_is_committed() -> None:
    banned = re.compile(r"\b(FIXME|XXX|TODO|HACK)\b|NotImplementedError\(\)")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if banned.search(line)
    ]
    assert wrong == []


def test_nothing_waits_by_a_call_that_loses_a_cancellation() -> None:
    """Before Python 3.12 ``asyncio.wait_for`` returns what it waited for, if that is there when its
    task is cancelled, and the task goes on for ever: use ``asyncio.timeout``.
    """
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _sources()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if "asyncio.wait_for" in line
    ]
    assert wrong == []


def test_ignores_name_their_code() -> None:
    bare = re.compile(r"#\s*(type:\s*ignore|noqa)(?!\[|:\s*[A-Z])")
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*_sources(), *sorted((ROOT / "tests").rglob("*.py"))]
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if bare.search(line) and path.name != Path(__file__).name
    ]
    assert wrong == []


def test_nothing_committed_names_a_registry_or_this_machine() -> None:
    # Built from parts, so that this file does not contain what it forbids.
    parts = [("pypi", ".org"), ("pythonhosted", ".org"), ("registry.npmjs", ".org")]
    parts += [("repo1.maven", ".org"), ("proxy.golang", ".org"), ("crates", ".io"), ("/root", "/")]
    parts += [("index", "-url")]
    banned = re.compile("|".join(re.escape("".join(pair)) for pair in parts))
    wrong = []
    for path in _tracked():
        if path == Path(__file__) or path.suffix in {".png", ".ico", ".webp"}:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if banned.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert wrong == []


def test_each_package_tells_what_it_is() -> None:
    missing = [package for package in PACKAGES if not (ROOT / package / "README.md").is_file()]
    assert missing == []


def test_only_entry_points_list_their_names() -> None:
    """Nobody star-imports: everywhere else ``__all__`` says again what the module shows."""
    listing = {
        str(path.relative_to(ROOT))
        for path in _tracked("*.py")
        if re.search(r"^__all__\b", path.read_text(), re.M)
    }
    assert listing == ENTRY_POINTS
