"""Unit tests of what differs from a commit: ``make test-quick [SINCE=main]``.

Prints the changed ones, those that import a changed module, by themselves or through helpers of
tests, and those in the folder of its package: ``tests/unit/broker/topic`` is that of
``broker/topic``. What else uses it isn't followed: ``make test`` runs everything.
"""

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[1]
_ALWAYS: Final = ("tests/unit/test_import_rules.py", "tests/unit/test_tidy.py")


def affected(changed: Collection[str], root: Path = _ROOT) -> list[str]:
    """Files of unit tests, by path from the root; ``changed`` likewise."""
    paths = {str(each.relative_to(root)): each for each in (root / "tests").rglob("*.py")}
    imports = {path: set(_imports(ast.parse(each.read_text()))) for path, each in paths.items()}
    found: set[str] = set()
    reached = set(changed)
    while not reached <= found:
        found |= reached
        modules = {name for path in found for name in _modules_of(path)}
        reached = {path for path, names in imports.items() if not modules.isdisjoint(names)}
    found |= {*_ALWAYS, *(path for path in paths if _is_of_package(path, changed))}
    return sorted(x for x in paths if x in found and _is_unit_test(x))


def _modules_of(path: str) -> tuple[str, str]:
    """The second by its link (docs/decisions/0043)."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name, f"magnetar.{name}"


def _is_of_package(test: str, changed: Collection[str]) -> bool:
    folder = test.removeprefix("tests/unit/").rpartition("/")[0]
    return folder != "" and any(x.startswith(f"{folder}/") for x in changed)


def _is_unit_test(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return f"{folder}/".startswith("tests/unit/") and name.startswith("test_")


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _changed(since: str) -> set[str]:
    """Also what isn't committed, or not even added."""
    base = _git("merge-base", "HEAD", since).strip()
    told = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    return set(told.splitlines())


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=_ROOT, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    print(*affected(_changed(sys.argv[1])))
