"""Finds the page of a request, renders it, and tells browsers what they may do with it."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import logging
import math
import re
import secrets
import time
from collections.abc import (
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from magnetar.broker.console.admin_api import AdminError
from magnetar.broker.console.form_fields import form_fields
from magnetar.broker.console.formats import FILTERS, named
from magnetar.broker.console.kept_reads import FINDINGS_AGE, Age, KeptReads
from magnetar.broker.console.menu import MENU
from magnetar.broker.console.pages import FORMS, PAGES, STREAMS, Page
from magnetar.broker.console.poll_pace import PollPace
from magnetar.broker.console.source import Source
from magnetar.broker.console.views import CHOICE, Ask, Streamed, View, choices_of
from magnetar.broker.http.middleware.console_sessions import FRAGMENT
from magnetar.broker.http.page_answers import PAGE_HEADERS
from magnetar.broker.http.streamed_answers import StreamedAnswer
from magnetar.metadata.loop_turns import next_turn

if TYPE_CHECKING:
    from starlette.requests import Request


T = TypeVar("T")

logger = logging.getLogger(__name__)

_STATIC: Final = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "find.js": "text/javascript; charset=utf-8",
    "theme.js": "text/javascript; charset=utf-8",
    "follow.js": "text/javascript; charset=utf-8",
    "idiomorph.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_SHARED_S: Final = 2.0
"""While pages fetch themselves each five seconds; as many times longer as they do so rarer."""
_FRAGMENTS_MAX: Final = 200
_COUNTS_AGE: Final = Age(fresh_s=10.0, share=50.0, most_s=math.inf)
_TURN_S: Final = 0.0005
_CONTEXTS: Final = "contexts"
_PIECES: Final = 16
"""Of a page, between two looks at the clock."""
_COLORS: Final = {"red": "e", "yellow": "w", "green": "o"}


@dataclass(frozen=True, slots=True)
class ClusterLook:
    """What the head of every page says of the cluster."""

    name: str
    product: str
    version: str
    environment: str = ""
    """Of the setting ``webConsoleEnvironment``: a name, as "production"."""
    color: str = ""
    """Of the same: `e` red, `w` yellow, `o` green."""
    read_only: bool = False
    """Of the setting ``webConsoleReadOnly``."""
    own_version: str = ""
    """Of a console that is a process of its own; empty: a broker's, of its version."""

    @classmethod
    def of(
        cls, name: str, product: str, version: str, environment: str, read_only: bool = False
    ) -> Self:
        """
        Args:
            environment: ``production:red``, see ``webConsoleEnvironment``.
        """
        word, _, color = environment.partition(":")
        return cls(name, product, version, word.strip(), _COLORS.get(color.strip(), ""), read_only)


class _Context(Context):
    """Of a template of a page, which names the list of them.

    A context knows its macros, and these know it. Of a hundred and fifty pages these rings were
    50,000 objects, which one collection of garbage would walk through in 20 ms.
    """

    def __init__(
        self,
        environment: Environment,
        parent: dict[str, Any],
        name: str | None,
        blocks: dict[str, Any],
        globals: MutableMapping[str, Any] | None = None,
    ) -> None:
        super().__init__(environment, parent, name, blocks, globals)
        if (contexts := parent.get(_CONTEXTS)) is not None:
            contexts.append(self)


class FragmentCache:
    """Middles of pages, for those who look at the same one: they fetch it every five seconds."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._found: dict[Hashable, tuple[bytes, float, float]] = {}

    def get(self, key: Hashable, kept_s: float) -> bytes | None:
        """None: it is older than that, or than what was said of it.

        So it is no older than the page that fetches it, also where pages have just become rarer or
        more frequent.
        """
        body, at_s, own_s = self._found.get(key, (None, 0.0, 0.0))
        return body if self._clock_s() - at_s < min(kept_s, own_s) else None

    def put(self, key: Hashable, body: bytes, kept_s: float) -> None:
        self._found.pop(key, None)
        self._found[key] = body, self._clock_s(), kept_s
        while len(self._found) > _FRAGMENTS_MAX:
            del self._found[next(iter(self._found))]


class Console:
    """Answers requests for pages and files below ``/console/``."""

    def __init__(
        self,
        look: ClusterLook,
        open_source: Callable[[Request], Source],
        contents: str = "full",
        form_key: bytes = b"",
        has_ended: Callable[[Request], Awaitable[bool]] | None = None,
    ) -> None:
        """
        Args:
            open_source: the cluster, as the sender of a request may see it.
            contents: what of messages is shown, see ``webConsoleMessages``.
            form_key: for tokens of forms, the same at all brokers; empty: nobody shares it.
            has_ended: whether a request's session has ended since; None: there are no sessions.
        """
        self._look, self._open_source, self._contents = look, open_source, contents
        self._environment = _environment()
        self._form_key = form_key or secrets.token_bytes(32)
        self._has_ended = has_ended
        self._fragments = FragmentCache(time.monotonic)
        self._counts = KeptReads[dict[str, int]](time.monotonic, _COUNTS_AGE)
        self._findings = KeptReads[list[dict[str, Any]]](time.monotonic, FINDINGS_AGE)
        self._pace = PollPace(time.monotonic())
        # A hundred pages that come at once have a hundred turns at each round of the loop, and
        # keep as many halves of pages: one after the other they are ready sooner, and cheaper.
        self._rendering = asyncio.Lock()
        for kept in (_patterns, _streams):  # 4 ms; a broker makes its console in a thread
            kept()
        for name in _STATIC:  # the first page would read the files
            static_path(name)

    async def close(self) -> None:
        """Ends what is being read for pages to come."""
        await self._counts.close()
        await self._findings.close()

    async def respond(self, request: Request, path: str) -> Response:
        """
        Args:
            path: below ``/console/``, percent-encoded.
        """
        if path.startswith("static/"):
            return _static_response(path.removeprefix("static/"))
        if (found := _find(path, _streams())) is not None:
            return await self._stream(request, path, *found)
        if FRAGMENT not in request.headers:
            view, source = await self._view(request, path)
            return await self.page(request, view, path, source)
        self._pace.begin(time.thread_time())
        try:
            return await self._fragment(request, path)
        finally:
            self._pace.end(time.monotonic(), time.thread_time())

    async def _fragment(self, request: Request, path: str) -> Response:
        """The middle of a page that fetches itself, and its menu."""
        key, kept_s = _who_and_what(request, path), _SHARED_S * self._pace.factor
        if (body := self._fragments.get(key, kept_s)) is None:
            view, source = await self._view(request, path)
            counts = await self._counts_of(request, source)
            body = await self._render("fragment.html", view, path, None, counts)
            if view.live and view.status == 200:
                self._fragments.put(key, body, kept_s)
            else:
                return _page_response(view.status, body)
        return _page_response(200, body)

    async def _stream(
        self,
        request: Request,
        path: str,
        make: Callable[[Ask], Awaitable[Streamed]],
        names: Mapping[str, str],
    ) -> Response:
        """What goes wrong behind its beginning ends the connection."""
        try:
            found = await make(self._ask(self._open_source(request), names, request, path))
        except AdminError as error:
            if "text/html" in request.headers.get("accept", ""):
                return await self.page(request, _refusal(str(error), error.status), path)
            return Response(str(error), error.status, PAGE_HEADERS, "text/plain")
        return _StreamedResponse(found)

    async def act(self, request: Request, path: str) -> Response:
        """A form that was sent: does it, and leads back; else the form again, with the reason."""
        if self._look.read_only:
            return await self.page(request, _refusal("This console is read-only.", 403), path)
        found = find_page(path)
        if found is None or found[0] not in FORMS:
            return await self.page(request, _refusal("There is no such step.", 404), path)
        act, bytes_max = FORMS[found[0]]
        source = self._open_source(request)
        fields = await form_fields(request, bytes_max)
        done = await act(self._ask(source, found[1], request, path), fields)
        if isinstance(done, View):
            return await self.page(request, done, path, source)
        return Response(status_code=303, headers={**PAGE_HEADERS, "Location": done})

    def _ask(self, source: Source, names: Mapping[str, str], request: Request, path: str) -> Ask:
        token = hmac.new(self._form_key, _who(request).encode(), hashlib.sha256).hexdigest()
        query, root = dict(request.query_params), "../" * path.count("/")
        choices = choices_of(request.cookies)
        is_red = self._look.color == _COLORS["red"]
        findings = functools.partial(self._findings.of, _who(request), source.findings)
        ask = Ask(
            source,
            names,
            query,
            self._contents,
            token,
            root,
            choices,
            is_red,
            findings,
            request.headers.get(FRAGMENT, ""),
        )
        if self._has_ended is None:
            return ask
        return replace(ask, has_ended=functools.partial(self._has_ended, request))

    async def page(
        self, request: Request, view: View, path: str, source: Source | None = None
    ) -> Response:
        """
        Args:
            source: tells who looks; None: nobody is known yet.
        """
        visitor: Mapping[str, str] | None = None
        counts: Mapping[str, int] | None = None
        if source is not None:
            visitor, counts = await asyncio.gather(
                _visitor(source), self._counts_of(request, source)
            )
        body = await self._render("page.html", view, path, visitor, counts)
        return _page_response(view.status, body)

    async def _render(
        self,
        template: str,
        view: View,
        path: str,
        visitor: Mapping[str, str] | None,
        counts: Mapping[str, int] | None,
    ) -> bytes:
        content = {
            **view.content,
            "view": view,
            "live": view.live * self._pace.factor,
            "root": "../" * path.count("/"),
            "cluster": self._look,
            "choices": CHOICE,
            "can_change": not self._look.read_only,
            "menu": MENU,
            "counts_of_menu": counts or {},
            "short_menu": [each for _, links in MENU for each in links if each.short],
            "visitor": visitor,
        }
        content[_CONTEXTS] = contexts = list[Context]()
        try:
            async with self._rendering:
                return await _in_turns(self._environment.get_template(template).generate(content))
        finally:
            for each in contexts:
                each.vars.clear()
            contexts.clear()

    async def _counts_of(self, request: Request, source: Source) -> Mapping[str, int] | None:
        try:
            return await self._counts.of(_who(request), source.counts)
        except AdminError:  # the log has it; a page shall not lack more than these numbers
            return None

    async def _view(self, request: Request, path: str) -> tuple[View, Source]:
        source = self._open_source(request)
        if (found := find_page(path)) is None:
            return _refusal("There is no such page.", 404), source
        page, names = found
        return await page(self._ask(source, names, request, path)), source


async def _in_turns(pieces: Iterable[str]) -> bytes:
    """A page, of which no turn of the loop makes more than half a millisecond."""
    await next_turn()  # what it shows has been read in this turn
    made, began_s = list[str](), time.perf_counter()
    for number, piece in enumerate(pieces):
        made.append(piece)
        if number % _PIECES == 0 and time.perf_counter() - began_s > _TURN_S:
            await next_turn()
            began_s = time.perf_counter()
    return "".join(made).encode()


class _StreamedResponse(StreamedAnswer):
    """Closes what it is made of however it ends: a client may leave before the first piece."""

    def __init__(self, found: Streamed) -> None:
        headers = {**PAGE_HEADERS, "Cache-Control": "no-store", **found.headers}
        super().__init__(found.pieces, 200, headers, found.media_type)
        self._found = found

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._found.close()


def _refusal(text: str, status: int) -> View:
    return View("message.html", "Nothing here", "", {"text": text}, status, live=0)


async def _visitor(source: Source) -> Mapping[str, str] | None:
    try:
        return await source.visitor()
    except AdminError as error:
        logger.debug("who looks at the console can't be told: %s", error)
        return None


def _who(request: Request) -> str:
    state = request.scope.get("state", {})
    return f"{state.get('role')}\0{state.get('original_role')}"


def _who_and_what(request: Request, path: str) -> tuple[object, ...]:
    """Two requests with the same one are answered alike."""
    choices, shown = frozenset(choices_of(request.cookies).items()), request.headers.get(FRAGMENT)
    return _who(request), path, request.scope.get("query_string", b""), choices, shown


def _page_response(status: int, body: bytes) -> Response:
    """Not kept by the browser: it has what a role may see, and the middle has the page's URL."""
    headers = {**PAGE_HEADERS, "Cache-Control": "no-store", "Vary": FRAGMENT}
    return Response(body, status, headers, "text/html; charset=utf-8")


def find_page(path: str) -> tuple[Page, dict[str, str]] | None:
    return _find(path, _patterns())


def _find(
    path: str, patterns: Sequence[tuple[re.Pattern[str], T]]
) -> tuple[T, dict[str, str]] | None:
    """What a path leads to, and its parts, decoded."""
    for pattern, page in patterns:
        if (match := pattern.fullmatch(path.rstrip("/"))) is not None:
            names = {name: named(text) for name, text in match.groupdict().items()}
            return page, names
    return None


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], Page], ...]:
    return tuple((re.compile(_expression(path)), page) for path, page in PAGES.items())


@functools.cache
def _streams() -> tuple[tuple[re.Pattern[str], Callable[[Ask], Awaitable[Streamed]]], ...]:
    return tuple((re.compile(_expression(path)), each) for path, each in STREAMS.items())


def _expression(path: str) -> str:
    """Of a key of PAGES."""
    parts = re.split(r"\{(\w+)(?::([\w|-]+))?\}", path)
    texts = [re.escape(text) for text in parts[::3]]
    groups = [
        f"(?P<{name}>{only or '[^/]+'})"
        for name, only in zip(parts[1::3], parts[2::3], strict=True)
    ]
    return "".join(text + group for text, group in zip(texts, [*groups, ""], strict=True))


def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("magnetar.broker.console"),
        auto_reload=False,  # else it looks at a file for each template of each page
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.context_class = _Context
    found.filters |= FILTERS | {"markup": Markup}
    found.globals["static"] = static_path
    for name in found.list_templates():  # now, as a page would compile them on the loop
        found.get_template(name)
    return found


@functools.cache
def static_path(name: str) -> str:
    """Of a file, below ``/console/``: with its hash, so that it is good for ever."""
    stem, _, kind = name.rpartition(".")
    return f"static/{stem}.{hashlib.sha256(_read(name)).hexdigest()[:12]}.{kind}"


@functools.cache
def _read(name: str) -> bytes:
    return resources.files("magnetar.broker.console").joinpath("static", name).read_bytes()


def _static_response(asked: str) -> Response:
    for name, kind in _STATIC.items():
        if static_path(name) == f"static/{asked}":
            headers = {**PAGE_HEADERS, "Cache-Control": "public, max-age=31536000, immutable"}
            return Response(_read(name), 200, headers, kind)
    return Response("Not Found", 404, PAGE_HEADERS, "text/plain")
