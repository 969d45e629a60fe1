"""The protocol's error words by number and by name, for replies, logs and HTTP texts."""

from typing import Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb

ServerError = pb.ServerError
NAMES: Final[dict[int, str]] = {
    value.number: value.name for value in pb.DESCRIPTOR.enum_types_by_name["ServerError"].values
}


def name_of(code: int) -> str:
    """Enum name of a wire code, ``ServerError(n)`` for a number this version does not know."""
    return NAMES.get(code, f"ServerError({code})")
