"""Text fields that aren't UTF-8: protobuf hands them out as ``bytes`` where a ``str`` is promised.

(proto2 doesn't validate; the upb runtime gives what it can't decode as bytes.)
"""

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message


@cache
def _texts(kind: Descriptor) -> tuple[tuple[str, bool], ...] | None:
    """Names of the text fields, and whether they are repeated; None: it holds other messages."""
    if any(field.message_type is not None for field in kind.fields):
        return None
    texts = (field for field in kind.fields if field.type == FieldDescriptor.TYPE_STRING)
    return tuple((field.name, field.is_repeated) for field in texts)


@cache
def _can_hold_text(kind: Descriptor, holders: frozenset[Descriptor] = frozenset()) -> bool:
    """Whether a message, at any depth, has a text field; ``holders``: what it is a field of."""
    if kind in holders:
        return False  # a message id in a message id: whoever asks looks at its fields already
    return any(
        field.type == FieldDescriptor.TYPE_STRING
        or (field.message_type is not None and _can_hold_text(field.message_type, holders | {kind}))
        for field in kind.fields
    )


def has_broken_text(message: Message) -> bool:
    """Whether any text field of a parsed message, at any depth, isn't UTF-8."""
    if (texts := _texts(message.DESCRIPTOR)) is not None:
        for name, is_repeated in texts:  # half the time of a walk over all its fields
            value = getattr(message, name)
            if bytes in map(type, value) if is_repeated else type(value) is bytes:
                return True
        return False
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                if bytes in map(type, value):
                    return True
            elif type(value) is bytes:
                return True
        elif field.message_type is not None and _can_hold_text(field.message_type):
            if field.is_repeated:
                if any(map(has_broken_text, value)):
                    return True
            elif has_broken_text(value):
                return True
    return False


def readable(text: str | bytes) -> str:
    """The text as a ``str`` in any case: what isn't UTF-8 becomes U+FFFD, as in Java."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
