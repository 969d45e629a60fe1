"""What a page is made of: its template with what the template reads, and panels that may fail."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import unquote, urlencode

from magnetar.broker.console.admin_api import AdminError
from magnetar.metadata.loop_turns import Steps, next_turn, run_in_turns

if TYPE_CHECKING:
    from magnetar.broker.console.source import Source

T = TypeVar("T")
R = TypeVar("R")

Choices = Mapping[str, frozenset[str]]
"""Texts by what they are chosen for; the server only reads them."""
CHOICE: Final = "magnetar-"
"""Names of cookies with choices begin with it."""


@dataclass(frozen=True, slots=True)
class PanelError:
    """In place of a panel's content."""

    asked: str
    status: int
    reason: str
    call: str = ""
    """Method and path of the admin API."""
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Panel(Generic[T]):
    """A part of a page; one that fails leaves the others."""

    value: T | None = None
    error: PanelError | None = None


async def panel(asked: str, call: Awaitable[R], read: Callable[[R], T]) -> Panel[T]:
    """What ``read`` makes of an answer, or the refusal.

    Args:
        asked: what for, in the words of a person: "Topics".
    """
    try:
        found = await call
        await next_turn()  # ``read`` has a turn of the loop for itself
        return Panel(read(found))
    except AdminError as error:
        refusal = PanelError(asked, error.status, str(error), error.asked, error.request_id)
        return Panel(error=refusal)


async def panel_in_turns(
    asked: str, call: Awaitable[R], steps: Callable[[R], Steps[T]]
) -> Panel[T]:
    """The same of an answer that may be long."""

    async def read() -> T:
        return await run_in_turns(steps(await call))

    return await panel(asked, read(), lambda found: found)


@dataclass(frozen=True, slots=True)
class View:
    """A page, or its part that is fetched again."""

    template: str
    title: str
    menu: str
    """Key of the entry of the menu that it belongs to."""
    content: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    live: int = 5
    """Seconds between two fetches of it; 0: it is the same for ever."""


def choices_of(cookies: Mapping[str, str]) -> Choices:
    """What the page's script has kept: percent-encoded texts with ``&`` between them."""
    return {
        name.removeprefix(CHOICE): frozenset(unquote(each) for each in text.split("&") if each)
        for name, text in cookies.items()
        if name.startswith(CHOICE)
    }


async def _nothing() -> None:
    pass


async def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer that is no page: a file, or one that goes on."""

    pieces: AsyncIterator[bytes]
    media_type: str = "application/octet-stream"
    headers: Mapping[str, str] = field(default_factory=dict)
    close: Callable[[], Awaitable[None]] = _nothing
    """Called when it was sent, or can't be."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for a page."""

    source: Source
    names: Mapping[str, str]
    """Parts of its path, decoded."""
    query: Mapping[str, str]
    contents: str = "full"
    """What of messages may be shown: ``full``, ``metadata`` or ``off``."""
    form_token: str = ""
    """Of the visitor's forms; another one's is no good."""
    root: str = ""
    """Steps up to ``/console/``, of a relative address."""
    choices: Choices = field(default_factory=dict)
    """What was chosen in this browser."""
    is_red: bool = False
    """Whether the cluster is marked red, see ``webConsoleEnvironment``."""
    findings: Callable[[], Awaitable[list[dict[str, Any]] | None]] = _nothing
    """What needs attention; None: that is being looked at. Raises AdminError."""
    shown: str = ""
    """Order of the rows that the browser shows, see ``KeptOrder``; empty: it shows none yet."""
    has_ended: Callable[[], Awaitable[bool]] = _never
    """Whether the session has ended that the request came with."""

    def address(self, **changes: str) -> str:
        """This page with other parameters; an empty one is left out."""
        merged = {name: value for name, value in {**self.query, **changes}.items() if value}
        return "?" + urlencode(merged)


def row_id(*names: str) -> str:
    """Of a row, the same in each fetch, whatever its names are made of."""
    return "r" + hashlib.blake2b("\0".join(names).encode(), digest_size=8).hexdigest()
