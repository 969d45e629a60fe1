"""The version of this product."""

import argparse


def run_version(_: argparse.Namespace) -> int:
    print(product_version())
    return 0


def product_version() -> str:
    """The installed version; that of the sources where nothing is installed."""
    from contextlib import suppress
    from importlib.metadata import PackageNotFoundError, version

    for name in ("magnetar", "magnetar-client"):
        with suppress(PackageNotFoundError):
            return version(name)
    return "0.1.0"
