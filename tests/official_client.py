"""The official client as tests use it: it says nothing but errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pulsar

QUIET: Final = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


def open_client(url: str, **options: Any) -> pulsar.Client:
    """One that is closed by hand."""
    return pulsar.Client(url, logger=QUIET, **options)


@contextmanager
def client_of(url: str, **options: Any) -> Iterator[pulsar.Client]:
    client = open_client(url, **options)
    try:
        yield client
    finally:
        client.close()
