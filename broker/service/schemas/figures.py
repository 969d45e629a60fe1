"""What the schema registry counts for metrics, by namespace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from broker.errors import BrokerError, BrokerMetadataError

__all__ = ["OPERATIONS", "NamespaceSchemas", "SchemaFigures"]

OPERATIONS: Final = ("get", "put", "del")


class NamespaceSchemas:
    """Operations on the schemas of one namespace: by kind their number, milliseconds, failures."""

    __slots__ = ("compatible", "counts", "failed", "incompatible", "ms")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(OPERATIONS, 0)
        self.ms = dict.fromkeys(OPERATIONS, 0.0)
        self.failed = dict.fromkeys(OPERATIONS, 0)
        self.compatible = 0
        self.incompatible = 0


class SchemaFigures:
    """Of all namespaces whose schemas somebody asked for."""

    def __init__(self) -> None:
        self.of_namespace: dict[str, NamespaceSchemas] = {}

    def of(self, namespace: str) -> NamespaceSchemas:
        if (found := self.of_namespace.get(namespace)) is None:
            found = self.of_namespace[namespace] = NamespaceSchemas()
        return found

    @contextmanager
    def operation(self, kind: str, namespace: str) -> Iterator[NamespaceSchemas]:
        """Count one; a refusal is an answer, a store that fails is a failure."""
        figures, began_s = self.of(namespace), perf_counter()
        try:
            yield figures
        except BrokerMetadataError:
            figures.failed[kind] += 1
            raise
        except BrokerError:
            self._count(figures, kind, began_s)
            raise
        self._count(figures, kind, began_s)

    @staticmethod
    def _count(figures: NamespaceSchemas, kind: str, began_s: float) -> None:
        figures.counts[kind] += 1
        figures.ms[kind] += (perf_counter() - began_s) * 1000
