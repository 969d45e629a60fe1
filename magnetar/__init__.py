"""Magnetar, a Pulsar-compatible message broker in Python.

Importing this module costs nothing: what is behind its names is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from os import PathLike

    from magnetar.broker.config import BrokerConfig
    from magnetar.embedding import EmbeddedBroker

    __version__: str

__all__ = ["__version__", "embedded"]


def embedded(
    path: str | PathLike[str] | None = None,
    mode: Literal["thread", "process"] = "thread",
    *,
    config: BrokerConfig | None = None,
    start_timeout_s: float = 30.0,
    clock: Literal["real", "virtual"] = "real",
    **settings: object,
) -> EmbeddedBroker:
    """A broker for the time of a ``with`` (or ``async with``) block; docs/guides/embedding.md.

        with magnetar.embedded() as broker:
            client = pulsar.Client(broker.service_url)

    Args:
        path: directory of its data, made when it is missing and kept; None: a temporary one.
        mode: "thread": in this process, on a thread with its own event loop; "process": a child.
        config: settings to start from; its directory, address and ports don't count.
        start_timeout_s: how long the start may take.
        clock: "virtual": `EmbeddedBroker.advance` sets it ahead.
        settings: single settings, by Pulsar's key or our name (``maxMessageSize=...``).
    Raises:
        ConfigError: a setting doesn't exist or can't have this value.
        EmbeddedError: from ``with``: it did not start; ``__cause__`` is what went wrong.
    """
    from magnetar.embedding import EmbeddedBroker

    return EmbeddedBroker(path, mode, config, start_timeout_s, settings, clock)


def __getattr__(name: str) -> str:
    if name == "__version__":
        from magnetar.broker.cli.version import product_version

        return product_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
