"""``consume`` and ``read`` show messages, of either protocol: as many as wanted, at their pace."""

import argparse
import base64
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from magnetar.broker.cli.output import readable
from magnetar.broker.cli.payloads import wait_for_turn
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import Message


class MessageOutput:
    """Counts the messages of one command."""

    def __init__(self, options: argparse.Namespace, advance: Callable[[int], None]) -> None:
        """``advance``: told of messages that aren't shown."""
        self.count = 0
        self._options, self._advance = options, advance
        self._started_s = time.monotonic()

    @property
    def is_enough(self) -> bool:
        return bool(0 < self._options.num_messages <= self.count)

    async def show(self, describe: Callable[[], str]) -> None:
        """One more; ``describe`` makes its text, where it is wanted."""
        await wait_for_turn(self._started_s, self.count, self._options.rate)
        self.count += 1
        if self._options.hide_content:
            self._advance(1)
            return
        print("----- got message -----")
        print(readable(describe(), sys.stdout), flush=True)

    def content(self, payload: bytes) -> str:
        return payload.hex(" ") if self._options.hex else payload.decode(errors="replace")

    def end(self, done: str, *, silent: bool) -> int:
        """The exit code: 1 when the silence was too long."""
        if silent:
            print(f"{self.count} messages received, then silence", file=sys.stderr)
            return 1
        print(f"{self.count} messages successfully {done}")
        return 0


def describe(
    publish_time_ms: int,
    event_time_ms: int,
    key: str | None,
    properties: Mapping[str, str],
    content: str,
) -> str:
    """A received message in one line, as pulsar-client prints it."""
    pairs = ", ".join(f"{name}={value}" for name, value in properties.items())
    return (
        f"publishTime:[{publish_time_ms}], eventTime:[{event_time_ms}], "
        f"key:[{key if key is not None else 'null'}], properties:[{pairs}], content:{content}"
    )


def facts_of(
    metadata: pb.MessageMetadata,
    place: tuple[int, int, int],
    message: Message,
    redelivery_count: int,
) -> str:
    """The facts that ``-mp`` adds: pulsar-client's words in its order, a comma before each.

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
