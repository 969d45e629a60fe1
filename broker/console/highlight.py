"""What a search found, marked in the texts that a page shows. Pure."""

import re
from collections.abc import Callable, Iterable, Sequence
from json import JSONDecoder
from typing import Any, Final

from magnetar.broker.http.messaging.message_filter import MessageFilter

Pieces = Sequence[tuple[str, bool]]
"""Of a text, in order: each with whether the search found it."""
Span = tuple[int, int]

_SPACE: Final = re.compile(r"[ \t\n\r]*")


def field_pieces(text: str, path: tuple[str, ...], matches: MessageFilter) -> Pieces:
    """Of a field that is shown alone, see `MessageFilter.spans`."""
    return pieces_of(text, matches.spans(path, text))


def value_pieces(text: str, matches: MessageFilter) -> Pieces:
    """Of a value; if it is JSON, also its members that the search looked at.

    Args:
        text: the value or its beginning.
    """
    members = (json_span(text, path) for path in matches.value_paths())
    found = [span for span in members if span is not None]
    return pieces_of(text, [*matches.spans(("value",), text), *found])


def text_of(pieces: Pieces) -> str:
    return "".join(text for text, _ in pieces)


def pieces_of(text: str, spans: Iterable[Span]) -> Pieces:
    """Spans may overlap."""
    pieces: list[tuple[str, bool]] = []
    at = 0
    for start, end in sorted(spans):
        if end <= max(at, start):
            continue
        if at < start:
            pieces.append((text[at:start], False))
        pieces.append((text[max(at, start) : end], True))
        at = end
    if at < len(text):
        pieces.append((text[at:], False))
    return pieces


def json_span(text: str, path: Sequence[str]) -> Span | None:
    """Where a member stands in JSON, without the quotation marks of a text.

    Args:
        text: may be cut anywhere.

    Returns:
        None: there is none, or the text isn't JSON up to there.
    """
    decode = JSONDecoder().raw_decode
    try:
        at = _after_space(text, 0)
        for name in path:
            at = _member(text, at, name, decode)
    except (ValueError, IndexError, RecursionError):
        return None
    try:
        end = decode(text, at)[1]
    except (ValueError, RecursionError):
        return (at + text.startswith('"', at), len(text))  # it is cut
    return (at + 1, end - 1) if text[at] == '"' else (at, end)


def _member(text: str, at: int, name: str, decode: Callable[..., tuple[Any, int]]) -> int:
    """Where its value begins. Raises ValueError, IndexError: it has none."""
    is_object = text[at] == "{"
    if not is_object and text[at] != "[":
        raise ValueError(name)
    number = 0
    while True:
        at = _after_space(text, at + 1)
        key = str(number)
        if is_object:
            if text[at] != '"':
                raise ValueError(name)
            key, at = decode(text, at)
            at = _after_space(text, _after_space(text, at) + 1)  # behind the colon
        if key == name:
            return at
        at = _after_space(text, decode(text, at)[1])
        if text[at] != ",":
            raise ValueError(name)
        number += 1


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
