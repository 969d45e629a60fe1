"""What the schema registry counts for metrics, by namespace."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from magnetar.broker.errors import BrokerError, BrokerMetadataError

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


class SchemaMetrics:
    """Of all namespaces whose schemas were asked for."""

    def __init__(self) -> None:
        self.of_namespace: dict[str, NamespaceSchemas] = {}

    def of(self, namespace: str) -> NamespaceSchemas:
        if (found := self.of_namespace.get(namespace)) is None:
            found = self.of_namespace[namespace] = NamespaceSchemas()
        return found

    @contextmanager
    def operation(self, kind: str, namespace: str) -> Iterator[NamespaceSchemas]:
        """Count one; a refusal is an answer, a store that fails is a failure."""
        metrics, began_s = self.of(namespace), perf_counter()
        try:
            yield metrics
        except BrokerMetadataError:
            metrics.failed[kind] += 1
            raise
        except BrokerError:
            self._count(metrics, kind, began_s)
            raise
        self._count(metrics, kind, began_s)

    @staticmethod
    def _count(metrics: NamespaceSchemas, kind: str, began_s: float) -> None:
        metrics.counts[kind] += 1
        metrics.ms[kind] += (perf_counter() - began_s) * 1000
