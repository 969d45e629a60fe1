"""``magnetar bookie-drain``: what runs before a bookie is stopped (docs/guides/containers.md).

Kubernetes runs it as a ``preStop`` hook, beside the bookie, over the bookie's HTTP port.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.error
import urllib.request
from typing import Any, Final

from magnetar.broker.cli.errors import CliError

_PATH: Final = "/api/v1/bookie/drain"
_ANSWER_S_MAX: Final = 10.0
_LOOK_S: Final = 0.2


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Bookies send nobody elsewhere, and the token is for this one alone."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None  # so that the answer is an error like any


def run_bookie_drain(options: argparse.Namespace) -> int:
    """0: the writers are gone (or, with ``--undo``, may come back); 1: not in time."""
    token = _token(options.token)
    url = options.address.rstrip("/") + _PATH
    if options.undo:
        _ask("DELETE", url, token)
        print("takes writers again")
        return 0
    deadline = time.monotonic() + options.timeout
    state = _ask("PUT", url, token)
    while not state.get("done"):
        if time.monotonic() >= deadline:
            raise CliError(f"after {options.timeout:g} s there are still writers; it is read-only")
        time.sleep(_LOOK_S)
        state = _ask("GET", url, token)
    print("read-only, and no writers any more")
    return 0


def _token(source: str | None) -> str | None:
    if source is None:
        return None
    from magnetar.bookkeeper.auth.errors import KeyFormatError
    from magnetar.bookkeeper.auth.token_source import TokenSource

    try:
        return TokenSource(source).token()
    except (KeyFormatError, OSError) as error:
        raise CliError(f"--token: {error}") from error


def _ask(method: str, url: str, token: str | None) -> dict[str, Any]:
    try:
        request = urllib.request.Request(url, method=method)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        # Not by way of a proxy: it is beside us.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
        with opener.open(request, timeout=_ANSWER_S_MAX) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        said = error.read(1000).decode(errors="replace").strip()
        raise CliError(f"{method} {url}: {error.code} {said}") from error
    except (OSError, ValueError) as error:
        raise CliError(f"{method} {url}: {error}") from error
    if not isinstance(found, dict):
        raise CliError(f"{method} {url}: not a bookie of ours")
    return found
