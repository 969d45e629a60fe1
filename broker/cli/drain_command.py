"""``magnetar bookie-drain``: what runs before a bookie is stopped (docs/guides/containers.md).

Kubernetes runs it as a ``preStop`` hook, beside the bookie, over the bookie's HTTP port.
"""

import argparse
import time
from typing import Any, Final

from magnetar.broker.cli.admin_client import AdminClient
from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.progress import progress

_PATH: Final = "/api/v1/bookie/drain"
_ANSWER_S_MAX: Final = 10.0
_LOOK_S: Final = 0.2


def run_bookie_drain(options: argparse.Namespace) -> int:
    """0: the writers are gone (or, with ``--undo``, may come back); 1: not in time."""
    token = _token(options.token)

    def ask(method: str) -> dict[str, Any]:
        return _ask(method, options.address, token)

    if options.undo:
        ask("DELETE")
        print("takes writers again")
        return 0
    deadline = time.monotonic() + options.timeout
    state = ask("PUT")
    with progress("waiting for the writers to leave", None):
        while not state.get("done"):
            if time.monotonic() >= deadline:
                raise CliError(
                    f"after {options.timeout:g} s there are still writers; it is read-only"
                )
            time.sleep(_LOOK_S)
            state = ask("GET")
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


def _ask(method: str, address: str, token: str | None) -> dict[str, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    with AdminClient(address, _ANSWER_S_MAX, headers) as bookie:
        # Bookies send nobody elsewhere, and the token is for this one alone.
        answer = bookie.call(method, _PATH, redirects=0)
        call = f"{method} {bookie.url}{_PATH}"
    found = answer.value()
    if not answer.ok:
        raise CliError(f"{call}: {answer.status} {answer.reason}")
    if not isinstance(found, dict):
        raise CliError(f"{call}: not a bookie of ours")
    return found
