"""``magnetar top``: once for scripts, or a screen that is renewed (the extra ``magnetar[top]``)."""

import argparse
import asyncio
import json
import shutil
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

import httpx

from magnetar.broker.cli.errors import CliError, RefusedError, UnreachableError
from magnetar.broker.cli.profiles import ClusterTarget, target_of
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.tables import plain_text
from magnetar.broker.cli.top.figures import VIEWS, Figures, TopView, read_figures
from magnetar.broker.cli.top.filter_text import FilterTextError, parse_filter_text
from magnetar.broker.cli.top.lines import counts_text, head_lines, list_lines
from magnetar.broker.console.admin_api import AdminError, RemoteApi
from magnetar.broker.console.kind_of_cluster import connect
from magnetar.broker.console.source import Source

_ADMIN: Final = {
    "pulsar": ("http", 8080),
    "pulsar+ssl": ("https", 8443),
    "ws": ("http", None),
    "wss": ("https", None),
    "http": ("http", None),
    "https": ("https", None),
}
"""By the scheme of ``--url``: scheme and port of the admin API; None: the port of the URL."""
_AGAIN_S: Final = 0.5
_AGAIN_MAX_S: Final = 4.0
"""Between two questions whether all topics were read."""


def run_top(options: argparse.Namespace) -> int:
    """Raises CliError: no answer, no terminal, or Textual isn't installed."""
    show = _print_once if options.once else _show_screen
    asyncio.run(show(options))
    return 0


def top_target(options: argparse.Namespace) -> ClusterTarget:
    """The cluster whose admin API is asked. Of a cluster that ``--url`` alone names, it is looked
    for at the same host: the one that the user's settings name may be another cluster's.

    Raises:
        CliError: no such profile, or no URL of a cluster.
    """
    target = target_of(options)
    if not options.url or options.admin_url or options.profile:
        return target
    at = urlsplit(options.url.partition(",")[0])
    if at.scheme not in _ADMIN or not at.hostname:
        raise CliError(f"{options.url} is no URL of a cluster, as pulsar://host:6650")
    scheme, port = _ADMIN[at.scheme]
    host = f"[{at.hostname}]" if ":" in at.hostname else at.hostname
    return replace(
        target, admin_url=f"{scheme}://{host}:{port}" if port else f"{scheme}://{at.netloc}"
    )


@asynccontextmanager
async def _connected(target: ClusterTarget) -> AsyncIterator[Source]:
    """Raises CliError: no answer, or a refusal."""
    access = target.access
    # Not httpx's own context for a plain URL: it reads all authorities, and none is asked.
    is_encrypted = target.admin_url.startswith("https:")
    tls = access.tls() if is_encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        async with httpx.AsyncClient(verify=tls, trust_env=False) as client:
            yield await connect(
                lambda url: RemoteApi(client, url, access.headers), target.admin_url
            )
    except AdminError as error:
        if error.status == 503:
            raise UnreachableError(str(error), target.admin_url) from error
        raise RefusedError(f"HTTP {error.status}\nReason: {error}", error.status) from error


async def _print_once(options: argparse.Namespace) -> None:
    view = next(each for each in VIEWS if each.name == options.view)
    async with _connected(top_target(options)) as source:
        try:
            figures = await _read_all(source, view, options.filter)
        except FilterTextError as error:
            raise CliError(f"--filter {error}") from error
    if options.json:
        print(json.dumps(figures.as_json(view), indent=2, ensure_ascii=False))
        return
    now_ms = time.time_ns() // 1_000_000
    width = shutil.get_terminal_size().columns
    rows = list_lines(view, figures, now_ms, width, cuts=sys.stdout.isatty())
    head = map(plain_text, head_lines(figures, now_ms, width))
    for line in (*head, "", *rows, "", counts_text(figures)):
        print(line)


async def _read_all(source: Source, view: TopView, text: str) -> Figures:
    """Of all topics. The first to ask a broker with very many waits until it has looked at them:
    in short calls, as nobody knows how long that takes, and with a line about it.

    Raises:
        AdminError, FilterTextError.
    """
    parse_filter_text(text, view.name)  # before anything is asked
    again_s, done = _AGAIN_S, 0
    answer = await source.namespaces(partial=True)
    with progress("topics read", answer.read[1]) as advance:
        while not answer.is_complete:
            advance(answer.read[0] - done)
            done = answer.read[0]
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _AGAIN_MAX_S)
            answer = await source.namespaces(partial=True)  # a page would cost ten times as much
    return await read_figures(source, view, view.sorts[0] if view.sorts else "", text)


async def _show_screen(options: argparse.Namespace) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CliError("top needs a terminal; --once prints the figures, with --json for programs")
    try:
        from magnetar.broker.cli.top.screen import TopApp
    except ModuleNotFoundError as error:
        raise CliError(
            f"{error}: the screen of top needs Textual: pip install 'magnetar[top]'; "
            "--once prints the figures without it"
        ) from error
    async with _connected(top_target(options)) as source:
        app = TopApp(source, options.interval, options.filter, read_only=options.read_only)
        await app.run_async()
