"""Annotations of nested functions are evaluated late: an import shows no mistake in them."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker", "bookkeeper", "bundles", "loadbalance", "managed_ledger", "metadata")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _nested(node: ast.AST, *, is_inside: bool = False) -> Iterator[ast.expr]:
    """Annotations of functions that are defined within functions."""
    for child in ast.iter_child_nodes(node):
        if is_inside and isinstance(child, FUNCTIONS):
            arguments = [each for each in ast.walk(child.args) if isinstance(each, ast.arg)]
            yield from (each.annotation for each in arguments if each.annotation is not None)
            if child.returns is not None:
                yield child.returns
        yield from _nested(child, is_inside=is_inside or isinstance(child, FUNCTIONS))


@pytest.mark.parametrize("package", [*PACKAGES, "pipeline"])
def test_annotations_of_nested_functions_can_be_evaluated(package: str) -> None:
    """``sys.UnraisableHookArgs`` is known to type checkers only: brokers didn't start."""
    wrong = []
    for path in sorted((ROOT / package).rglob("*.py")):
        text = path.read_text()
        if "from __future__ import annotations" in text or path.stem in ("__main__", "__init__"):
            continue
        name = ".".join(("magnetar", *path.relative_to(ROOT).with_suffix("").parts))
        for annotation in _nested(ast.parse(text)):
            try:
                eval(ast.unparse(annotation), vars(importlib.import_module(name)).copy())
            except NameError:  # of the outer function; ruff knows undefined names
                continue
            except (AttributeError, TypeError) as error:
                wrong.append(f"{path.relative_to(ROOT)}:{annotation.lineno}: {error}")
    assert not wrong, "\n".join(wrong)
