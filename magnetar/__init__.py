"""Magnetar, a Pulsar-compatible message broker in Python."""

from __future__ import annotations

from importlib import metadata as _metadata

__all__ = ["__version__"]

__version__ = _metadata.version("magnetar")
