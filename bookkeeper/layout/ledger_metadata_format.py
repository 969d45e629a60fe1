"""A ledger's metadata as Apache BookKeeper stores it (docs/formats/bookkeeper-zookeeper.md).

``BookieMetadataFormatVersion\\t3\\n``, a varint with the size, then a ``LedgerMetadataFormat``.
Format 2 has the same message as text. What a newer BookKeeper has added is kept: a version is
written over the bytes of the one before.
"""

from typing import Final

from google.protobuf import text_format
from google.protobuf.message import Error
from google.protobuf.unknown_fields import UnknownFieldSet

from magnetar.bookkeeper.bookie_protocol.digests import DigestType
from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.ledger_metadata import EnsembleSegment, LedgerMetadata, LedgerState
from magnetar.bookkeeper.proto.data_formats_pb2 import LedgerMetadataFormat

_HEADER: Final = b"BookieMetadataFormatVersion\t"
_FORMAT_3: Final = _HEADER + b"3\n"
_CREATOR: Final = "magnetar/creatorToken"
"""Custom metadata with ``LedgerMetadata.creator_token``: BookKeeper's own ``cToken`` is 0 again
after the first change by one of its clients."""
_STATES: Final[dict[LedgerState, "LedgerMetadataFormat.State.ValueType"]] = {
    LedgerState.OPEN: LedgerMetadataFormat.OPEN,
    LedgerState.IN_RECOVERY: LedgerMetadataFormat.IN_RECOVERY,
    LedgerState.CLOSED: LedgerMetadataFormat.CLOSED,
}
_OUR_STATES: Final = {number: state for state, number in _STATES.items()}
_FIELDS: Final = LedgerMetadataFormat.DESCRIPTOR.fields_by_name
_CHOICES: Final = {_FIELDS["state"].number: "state", _FIELDS["digestType"].number: "digest type"}


def encode(metadata: LedgerMetadata) -> bytes:
    """The stored bytes."""
    message = LedgerMetadataFormat()
    if metadata.stored:
        message.ParseFromString(metadata.stored)
    else:
        _describe(message, metadata)
    message.length, message.lastEntryId = metadata.length, metadata.last_entry
    message.state = _STATES[metadata.state]
    del message.segment[:]
    for segment in metadata.segments:
        message.segment.add(ensembleMember=segment.bookies, firstEntryId=segment.first_entry)
    body = message.SerializeToString(deterministic=True)
    return b"".join((_FORMAT_3, _varint(len(body)), body))


def _describe(message: LedgerMetadataFormat, metadata: LedgerMetadata) -> None:
    """What never changes."""
    message.quorumSize, message.ensembleSize = metadata.write_quorum, metadata.ensemble_size
    message.ackQuorumSize = metadata.ack_quorum
    message.digestType = LedgerMetadataFormat.DigestType.Value(metadata.digest_type)
    message.password = metadata.password
    if metadata.created_ms >= 0:
        message.ctime = metadata.created_ms
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    if metadata.creator_token:
        message.customMetadata.add(key=_CREATOR, value=str(metadata.creator_token).encode())
    message.cToken = metadata.creator_token


def decode(ledger_id: int, value: bytes) -> LedgerMetadata:
    """
    Raises:
        LedgerMetadataError: another format, or not a ledger's metadata.
    """
    try:
        message = _message(value)
        found = {each.key: each.value for each in message.customMetadata}
        token = int(found.pop(_CREATOR, b"0"))
        ack_quorum = message.ackQuorumSize if message.HasField("ackQuorumSize") else None
        return LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=message.ensembleSize,
            write_quorum=message.quorumSize,
            ack_quorum=message.quorumSize if ack_quorum is None else ack_quorum,
            segments=tuple(
                EnsembleSegment(each.firstEntryId, tuple(each.ensembleMember))
                for each in message.segment
            ),
            state=_OUR_STATES[message.state],
            last_entry=message.lastEntryId if message.HasField("lastEntryId") else -1,
            length=message.length,
            password=message.password,
            custom_metadata=found,
            created_ms=message.ctime if message.HasField("ctime") else -1,
            creator_token=token,
            digest_type=DigestType(message.digestType).name,
            stored=message.SerializeToString(),
        )
    except (Error, text_format.ParseError, ValueError, KeyError) as error:
        raise LedgerMetadataError(f"ledger {ledger_id}: unreadable metadata: {error!r}") from error


def _message(value: bytes) -> LedgerMetadataFormat:
    head, newline, body = value.partition(b"\n")
    if not head.startswith(_HEADER) or not newline:
        raise ValueError("it begins with no BookieMetadataFormatVersion")
    version = head[len(_HEADER) :]
    message = LedgerMetadataFormat()
    if version == b"2":
        text_format.Parse(body.decode(), message)
    elif version == b"3":
        size, at = _read_varint(body)
        if size > len(body) - at:
            raise ValueError(f"{size} bytes are announced, {len(body) - at} are there")
        _parse(message, body[at : at + size])
    else:
        raise ValueError(f"format {version.decode(errors='replace')!r} is not known")
    return message


def _parse(message: LedgerMetadataFormat, body: bytes) -> None:
    message.MergeFromString(body)
    # A number that the enum doesn't have is an unknown field: the digest would be CRC32 then.
    unknown = UnknownFieldSet(message)
    for at in range(len(unknown)):  # it has an iterator, but its stubs don't know
        field = unknown[at]
        if (name := _CHOICES.get(field.field_number)) is not None:
            raise ValueError(f"{name} {field.data} is not known")


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _read_varint(data: bytes) -> tuple[int, int]:
    """The number, and where it ends."""
    number = 0
    for at, byte in enumerate(data[:10]):
        number |= (byte & 0x7F) << 7 * at
        if byte < 0x80:
            return number, at + 1
    raise ValueError("no size")
