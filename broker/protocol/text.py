"""Text fields that aren't UTF-8: protobuf hands them out as ``bytes`` where a ``str`` is promised.

(proto2 doesn't validate; the upb runtime gives what it can't decode as bytes.)
"""

from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message


@cache
def _may_have_text(kind: Descriptor) -> bool:
    """Whether a message of the type may hold text itself, or holds other messages."""
    return any(
        field.type == FieldDescriptor.TYPE_STRING or field.message_type is not None
        for field in kind.fields
    )


def has_broken_text(message: Message) -> bool:
    """Whether any text field of a parsed message, at any depth, isn't UTF-8."""
    if not _may_have_text(message.DESCRIPTOR):
        return False
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.is_repeated:
                if bytes in map(type, value):
                    return True
            elif type(value) is bytes:
                return True
        elif field.message_type is not None:
            if field.is_repeated:
                if any(map(has_broken_text, value)):
                    return True
            elif has_broken_text(value):
                return True
    return False


def readable(text: str | bytes) -> str:
    """The text as a ``str`` in any case: what isn't UTF-8 becomes U+FFFD, as in Java."""
    return text.decode("utf-8", "replace") if isinstance(text, bytes) else text
