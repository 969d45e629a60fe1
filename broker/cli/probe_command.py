"""``magnetar probe``: the health check of an image that has no other HTTP client."""

import argparse
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

from magnetar.broker.cli.errors import CliError

_BODY_MAX: Final = 4096


def run_probe(options: argparse.Namespace) -> int:
    """0: the page was answered with 200; 1: anything else. The body goes to standard output."""
    if urlsplit(options.address).scheme not in ("http", "https"):
        raise CliError(f"{options.address}: not an HTTP URL")
    # Not by way of a proxy: it is beside us.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(options.address, timeout=options.timeout) as answer:
            status, body = answer.status, answer.read(_BODY_MAX)
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read(_BODY_MAX)
    except (OSError, ValueError, HTTPException) as error:
        raise CliError(f"{options.address}: {str(error) or type(error).__name__}") from error
    print(body.decode(errors="replace"))
    if status != 200:
        print(f"magnetar: {options.address}: {status}", file=sys.stderr)
        return 1
    return 0
