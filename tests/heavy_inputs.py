"""Inputs that stand for much work: made by chance, as large as the ports take them.

Nested schemas, batches by count, ack sets, long keys, metadata without end, payloads that
decompress to nothing or to much, JSON of many values. What they cost a broker is what counts
(stalls.py), not what it answers.
"""

import base64
import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import COMPRESSIONS, compress
from magnetar.broker.protocol.framing import encode_body
from tests.raw_client import encode_command

ENTRY_BYTES_MAX = 5 * 1024 * 1024  # maxMessageSize
BATCH_COUNTS = (1_000, 200_000, 262_144, 262_145, 1_000_000)
COUNTS = (0, 1, 2, 2**31 - 1, -1)
ACK_WORDS_MAX = 120_000  # of one command, which has 1 MiB at most


@dataclass(frozen=True)
class HeavyInputs:
    """Of one seed. ``scale``: of sizes, 1 is as large as is taken."""

    rng: random.Random
    scale: float = 1.0

    def size(self, most: int) -> int:
        """Up to that much, mostly near to it."""
        return int(most * self.scale * self.rng.uniform(0.5, 1.0))

    # --- schemas

    def schema(self) -> tuple[str, bytes]:
        """Type and definition."""
        kinds: list[Callable[[], tuple[str, bytes]]] = [
            lambda: (self.rng.choice(("AVRO", "JSON")), self._avro()),
            lambda: ("PROTOBUF_NATIVE", self._descriptors()),
            lambda: (self.rng.choice(("AVRO", "JSON")), self._brackets()),
        ]
        return self.rng.choice(kinds)()

    def _avro(self) -> bytes:
        """As text: `json` writes nothing this deep."""
        rng = self.rng
        shape = rng.choice(('"null"', '"long"', '{"type":"fixed","name":"F","size":2147483647}'))
        for level in range(self.size(rng.choice((30, 900)))):
            wrap = rng.randrange(4)
            if wrap == 0:
                shape = f'{{"type":"array","items":{shape}}}'
            elif wrap == 1:
                shape = f'{{"type":"map","values":{shape}}}'
            elif wrap == 2 and shape[0] == "{":
                shape = f'["null",{shape}]'
            else:
                again = (f',{{"name":"a{n}","type":"R{level}"}}' for n in range(rng.randrange(3)))
                fields = f'[{{"name":"x","type":{shape}}}{"".join(again)}]'
                shape = f'{{"type":"record","name":"R{level}","fields":{fields}}}'
        return shape.encode()

    def _brackets(self) -> bytes:
        """No definition, and deeper than one can be."""
        depth = self.size(400_000)
        opening = self.rng.choice((b"[", b'{"type":', b'{"type":"array","items":'))
        return (opening * depth)[:500_000]

    def _descriptors(self) -> bytes:
        message = root = descriptor_pb2.DescriptorProto(name="M")
        if self.rng.random() < 0.5:
            for _ in range(self.size(95)):
                message = message.nested_type.add(name="M")
        for number in range(1, self.size(10_000)):
            message.field.add(name=f"f{number}", number=number, type=1, label=3)
        file = descriptor_pb2.FileDescriptorProto(name="f", package="p", message_type=[root])
        files = descriptor_pb2.FileDescriptorSet(file=[file])
        document = {
            "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": "p.M",
            "rootFileDescriptorName": "f",
        }
        return json.dumps(document).encode()

    # --- messages as the binary port takes them

    def sends(self) -> Iterator[bytes]:
        """Frames of SEND of producer 1."""
        makers = [self._batch, self._long_key, self._much_metadata, self._payload]
        for number, make in enumerate(self.rng.sample(makers, len(makers))):
            metadata, payload = make()
            metadata.producer_name, metadata.sequence_id, metadata.publish_time = "p", number, 1
            command = pb.BaseCommand(type=pb.BaseCommand.SEND)
            command.send.producer_id, command.send.sequence_id = 1, number
            yield encode_command(command, encode_body(metadata, payload))

    def _batch(self) -> tuple[pb.MessageMetadata, bytes]:
        count = self.size(self.rng.choice(BATCH_COUNTS))
        single = self.rng.choice(
            (b"\x18\x00", b"\x18\x00\x12\x01k", b"\x0a\x04\x0a\x00\x12\x00" * 9)
        )
        single = single if single.startswith(b"\x18") else single + b"\x18\x00"
        data = ((struct.pack(">I", len(single)) + single) * count)[: 4 * ENTRY_BYTES_MAX]
        told = self.rng.choice((count, count, *COUNTS))
        return self._compressed(data, num_messages_in_batch=told)

    def _payload(self) -> tuple[pb.MessageMetadata, bytes]:
        """Of few bytes when compressed; what is said of its size may be a lie."""
        size = self.rng.choice((0, 1_000_000, 4 * ENTRY_BYTES_MAX))
        unit = self.rng.choice((b"\0", b"a", "\u20ac".encode(), b'"\\', b"\xff"))
        return self._compressed(unit * (self.size(size) // len(unit)))

    def _compressed(self, data: bytes, **fields: Any) -> tuple[pb.MessageMetadata, bytes]:
        kind = self.rng.choice([each for each in COMPRESSIONS.values() if each != pb.NONE])
        told = self.rng.choice((len(data), len(data), len(data), 0, 1, 4 * ENTRY_BYTES_MAX))
        packed = compress(kind, data)
        if len(packed) > ENTRY_BYTES_MAX:
            packed = packed[:ENTRY_BYTES_MAX]
        return pb.MessageMetadata(compression=kind, uncompressed_size=told, **fields), packed

    def _long_key(self) -> tuple[pb.MessageMetadata, bytes]:
        metadata, size = pb.MessageMetadata(), self.size(ENTRY_BYTES_MAX)
        which = self.rng.randrange(3)
        if which == 0:
            metadata.ordering_key = self.rng.randbytes(size)
        else:
            metadata.partition_key = "\u00e9" * (size // 2) if which == 1 else "QUJD" * (size // 4)
            metadata.partition_key_b64_encoded = which == 2
        return metadata, b"x"

    def _much_metadata(self) -> tuple[pb.MessageMetadata, bytes]:
        """Small fields without end: 6 bytes a property, 2 bytes a name of a cluster."""
        metadata = pb.MessageMetadata()
        repeated = self.rng.choice((b"\x22\x04\x0a\x00\x12\x00", b"\x3a\x00", b"\xf8\x01\x00"))
        metadata.MergeFromString(repeated * (self.size(ENTRY_BYTES_MAX) // len(repeated)))
        return metadata, b"x"

    def acks(self, positions: list[tuple[int, int]]) -> Iterator[pb.BaseCommand]:
        """Of consumer 1: sets that are longer than any batch, and that lie."""
        for words_each in (1, 50, 4_096, ACK_WORDS_MAX):
            command = pb.BaseCommand(type=pb.BaseCommand.ACK)
            ack, left = command.ack, self.size(ACK_WORDS_MAX)
            ack.consumer_id, ack.ack_type = 1, pb.CommandAck.Individual
            while left > 0:
                ledger_id, entry_id = self.rng.choice(positions)
                word = self.rng.choice((0, 1))  # one byte each
                count = min(words_each, left)
                ack.message_id.add(
                    ledgerId=ledger_id,
                    entryId=self.rng.choice((entry_id, entry_id + self.rng.randrange(1_000))),
                    batch_size=self.rng.choice((0, 64 * words_each, 2**31 - 1)),
                    ack_set=[word] * count,
                )
                left -= count + 9
            yield command

    # --- JSON

    def publish_body(self, bytes_max: int) -> bytes:
        """A ProducerMessages object of about so many bytes at most."""
        rng, room = self.rng, self.size(bytes_max)
        which = rng.randrange(6)
        if which == 0:  # many messages
            messages: list[Any] = [{"payload": ""}] * min(10_000, room // 14)
        elif which == 1:  # one with properties without end
            properties = {f"{n:x}": "" for n in range(min(room, ENTRY_BYTES_MAX) // 12)}
            messages = [{"payload": "", "properties": properties}]
        elif which == 2:  # keys that are hashed
            messages = [{"payload": "", "key": "k" * (min(room, ENTRY_BYTES_MAX) - 100)}]
        elif which == 3:  # texts of what JSON has to escape
            size = min(room, ENTRY_BYTES_MAX) // 6
            messages = [{"payload": "\0" * size} for _ in range(max(1, room // (6 * size + 20)))]
        elif which == 4:  # values that nobody asked for
            messages = [{"payload": "x", "unknown": [0] * (room // 4)}]
        else:
            deep = "[" * rng.choice((500, 1_020, 100_000))
            messages = [{"payload": deep + "]" * len(deep)}]
        return json.dumps({"messages": messages}, ensure_ascii=False).encode()

    def frame(self, characters_max: int) -> str:
        """A text of a WebSocket producer's."""
        rng, room = self.rng, self.size(characters_max)
        which = rng.randrange(4)
        item: dict[str, Any] = {"payload": "", "context": "c"}
        if which == 0:
            item["payload"] = base64.b64encode(rng.randbytes(room * 3 // 4 - 100)).decode()
        elif which == 1:
            item["payload"] = base64.b64encode(b"a" * (room * 3 // 4 - 100)).decode()
        elif which == 2:
            item["properties"] = {f"{n:x}": "" for n in range(room // 14)}
        else:
            item["key"] = "k" * (room - 100)
        return json.dumps(item)
