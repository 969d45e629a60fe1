"""The version of this product."""

from __future__ import annotations


def product_version() -> str:
    """The installed version; that of the sources where nothing is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("magnetar")
    except PackageNotFoundError:
        return "0.1.0"
