"""What ``-mp`` shows of a message beside its content: pulsar-client's words in its order. Pure."""

import base64
from collections.abc import Iterator

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import Message


def facts_of(
    metadata: pb.MessageMetadata,
    place: tuple[int, int, int],
    message: Message,
    redelivery_count: int,
) -> str:
    """One line; every fact begins with a comma.

    Args:
        metadata: of the entry, as it came.
        place: ledger, entry and partition.
    """
    index = f":{message.batch_index}" if message.batch_index >= 0 else ""
    shown_id = ":".join(map(str, place)) + index
    facts = {
        "message-id": shown_id,
        "producer-name": metadata.producer_name,
        "sequence-id": str(message.sequence_id),
        "replicated-from": metadata.replicated_from or "null",
        "redelivery-count": str(redelivery_count),
        "ordering-key": _base64(metadata.ordering_key),
        "schema-version": _base64(metadata.schema_version),
    }
    encryption = "".join(f", {part}" for part in _encryption(metadata))
    return encryption + "".join(f", {name}:{value}" for name, value in facts.items())


def _encryption(metadata: pb.MessageMetadata) -> Iterator[str]:
    if not metadata.encryption_keys:
        return
    for key in metadata.encryption_keys:
        pairs = ", ".join(f"{pair.key}={pair.value}" for pair in key.metadata)
        value = _base64(key.value)
        yield f"encryption-keys:[name:{key.key}, key-value:{value}, metadata:[{pairs}]]"
    yield f"param:{_base64(metadata.encryption_param)}"
    yield f"algorithm:{metadata.encryption_algo or 'null'}"
    yield f"compression-type:{pb.CompressionType.Name(metadata.compression)}"
    yield f"uncompressed-size:{metadata.uncompressed_size}"
    if metadata.HasField("num_messages_in_batch"):
        yield f"batch-size:{metadata.num_messages_in_batch}"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
