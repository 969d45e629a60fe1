"""Answers with very many elements, most of them JSON: made, encoded and sent by pieces.

No turn of the loop is of all of them, and no memory: a topic's million ledgers are 90 MB of JSON.
"""

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from typing import Any, Final, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from magnetar.metadata.loop_turns import Steps, in_turns, run_in_turns

_Result = TypeVar("_Result")
_JSON: Final = "application/json"
IN_PIECES: Final = "gzip_pieces"
"""Key of a request's state, see ``allow_compression``."""
TAKEN: Final = "taken_values"
"""Key of a request's state, see ``long_json``: the list for the value."""
_ELEMENTS: Final = 64
_NAMES: Final = 2_000
_FIELDS_MAX: Final = 100
"""Of statistics there are about fifty."""
_WHOLE_BYTES: Final = 256 * 1024
"""A shorter answer goes out as any other does."""


class StreamedAnswer(StreamingResponse):
    """Made while it is sent, as long as its client is there.

    Not as Starlette does it: the first task group of a process imports a module of anyio, which
    holds the loop for 12 ms.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await while_connected(receive, self.stream_response(send))


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """Nothing is done for a client that has gone. Raises ClientDisconnect: it has."""

    async def left() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def allow_compression(scope: Scope) -> None:
    """This request's answer may be held back and compressed although it is sent in pieces."""
    scope["state"][IN_PIECES] = True


async def long_array(
    fields: Mapping[str, Any], name: str, pieces: AsyncIterable[bytes]
) -> AsyncIterator[bytes]:
    """An object with some fields and one array more.

    Args:
        pieces: of the array, each an array.
    """
    async for piece in _beginning(fields, name):
        yield piece
    yield b"["
    comma = b""
    async for piece in pieces:
        if len(piece) > 2:
            yield comma + piece[1:-1]
            comma = b","
        await asyncio.sleep(0)
    yield b"]}"


async def long_object(
    fields: Mapping[str, Any], name: str, parts: Mapping[str, AsyncIterator[bytes] | bytes]
) -> AsyncIterator[bytes]:
    """An object with some fields and one object more; ``parts`` are that one's fields, encoded."""
    async for piece in _beginning(fields, name):
        yield piece
    async for piece in object_of(parts.items()):
        yield piece
    yield b"}"


async def object_of(
    parts: Iterable[tuple[str, AsyncIterator[bytes] | bytes]],
) -> AsyncIterator[bytes]:
    """An object of such fields, encoded."""
    yield b"{"
    comma = b""
    async for key, part in in_turns(parts):
        yield comma + orjson.dumps(key) + b":"
        comma = b","
        if isinstance(part, bytes):
            for start in range(0, len(part), _WHOLE_BYTES):
                yield part[start : start + _WHOLE_BYTES]
        else:
            async for piece in part:
                yield piece
    yield b"}"


async def _beginning(fields: Mapping[str, Any], name: str) -> AsyncIterator[bytes]:
    """Up to the value of the field that follows."""
    before = b""
    async for piece in json_pieces(dict(fields)):
        if before:
            yield before
        before = piece
    yield before[:-1] + (b"," if fields else b"") + orjson.dumps(name) + b":"


async def long_json(request: Request, value: Any, *, is_shared: bool = False) -> Response:
    """JSON of a value that may be large; who asks in this process may take the value as it is.

    Args:
        value: of texts, numbers, lists and dicts.
        is_shared: others have it, too, and nobody changes it; else it is taken apart.
    """
    taken: list[Any] | None = request.scope["state"].get(TAKEN)
    if taken is None:
        return await in_pieces(request, json_pieces(value) if is_shared else taken_apart(value))
    taken.append(value)
    return Response()


async def long_names(request: Request, names: Sequence[str]) -> Response:
    """The same of a list of texts, in larger pieces; 100,000 of them at once are a turn of 5 ms."""
    taken: list[Any] | None = request.scope["state"].get(TAKEN)
    if taken is None:
        return await in_pieces(request, _array_of(names))
    taken.append(names)
    return Response()


async def _array_of(names: Sequence[str]) -> AsyncIterator[bytes]:
    mark = b"["
    async for first in in_turns(range(0, len(names), _NAMES)):
        yield mark + orjson.dumps(names[first : first + _NAMES])[1:-1]
        mark = b","
    yield b"[]" if mark == b"[" else b"]"


async def taken_apart(value: Any) -> AsyncIterator[bytes]:
    """As ``json_pieces``, and frees it by pieces; nobody else has it."""
    async for piece in json_pieces(value):
        yield piece
    await run_in_turns(let_go(value))


def let_go(value: Any) -> Steps[None]:
    """Empties the long parts of an answer that nobody else has: those of statistics, or all of it.

    To free 10,000 subscriptions' in one go takes 8 ms.
    """
    if not isinstance(value, dict):
        return
    names = ("partitions", "subscriptions", "publishers", "consumers", "cursors")
    for part in (value,) if len(value) > _FIELDS_MAX else [value.get(name) for name in names]:
        while part and isinstance(part, dict | list):
            yield from let_go(part.popitem()[1] if isinstance(part, dict) else part.pop())
            yield


async def json_pieces(value: Any) -> AsyncIterator[bytes]:
    """Encoded, some elements of its long lists and objects at a time."""
    for piece in _pieces(value):
        yield piece
        await asyncio.sleep(0)


def _pieces(value: Any) -> Iterator[bytes]:
    if not _is_long(value):
        yield orjson.dumps(value)
        return
    is_object = isinstance(value, dict)
    items = value.items() if is_object else enumerate(value)
    yield b"{" if is_object else b"["
    comma, some = b"", list[tuple[Any, Any]]()

    def encoded() -> bytes:
        part = dict(some) if is_object else [each for _, each in some]
        some.clear()
        return comma + orjson.dumps(part)[1:-1]

    for key, item in items:
        if not _is_long(item):
            some.append((key, item))
            if len(some) < _ELEMENTS:
                continue
        if some:
            yield encoded()
            comma = b","
        if _is_long(item):
            yield comma + (orjson.dumps(key) + b":" if is_object else b"")
            yield from _pieces(item)
            comma = b","
    if some:
        yield encoded()
    yield b"}" if is_object else b"]"


def _is_long(value: Any) -> bool:
    """Whether it has a list or an object in it that isn't encoded at once."""
    if isinstance(value, dict):
        return len(value) > _FIELDS_MAX or any(map(_is_long, value.values()))
    return isinstance(value, list) and (len(value) > _ELEMENTS or any(map(_is_long, value)))


async def in_pieces(
    request: Request, pieces: AsyncIterator[bytes], media_type: str = _JSON
) -> Response:
    """The answer. Of a long one, what goes wrong behind its beginning ends the connection."""
    whole: list[bytes] = []
    size = 0
    async for piece in pieces:
        whole.append(piece)
        size += len(piece)
        if size > _WHOLE_BYTES and request.scope["http_version"] != "1.0":
            allow_compression(request.scope)
            return StreamedAnswer(_chain(whole, pieces), media_type=media_type)
    return Response(b"".join(whole), media_type=media_type)


async def _chain(first: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield b"".join(first)
    async for piece in rest:
        yield piece
