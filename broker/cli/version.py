"""The version of this product."""

from __future__ import annotations

__all__ = ["product_version"]


def product_version() -> str:
    """The installed version; that of the sources where nothing is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("magnetar")
    except PackageNotFoundError:
        return "0.1.0"
