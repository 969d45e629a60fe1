"""Messages of the entries that were taken apart last, for other consumers of the same entries."""

from collections import OrderedDict
from typing import Final

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.messages import Message

_ENTRIES_MAX: Final = 128
_ENTRY_BYTES_MAX: Final = 16 * 1024
_MESSAGES_MAX: Final = 16  # of an entry


class DecodedEntries:
    """Hundreds of HTTP consumers of a topic get the same entries, nearly at the same time.

    Each would hold a copy of what it has not sent yet. An entry is known by its object, which the
    topic's cache hands out to all of them. At most 4 MiB are kept, and as much of entries.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[int, tuple[bytes, list[Message]]] = OrderedDict()

    def find(self, body: bytes | memoryview) -> list[Message] | None:
        """None: they have to be made."""
        found = self._entries.get(id(body))
        return None if found is None else found[1]  # it keeps its entry: no other has that id

    def add(
        self, body: bytes | memoryview, metadata: pb.MessageMetadata, messages: list[Message]
    ) -> None:
        """Keep them, if the next consumer would get the same and they are small."""
        if (
            type(body) is bytes  # a view would keep what it is a part of
            and len(body) <= _ENTRY_BYTES_MAX
            and len(messages) <= _MESSAGES_MAX
            and metadata.compression == pb.NONE
            and not metadata.encryption_keys
            and metadata.num_chunks_from_msg <= 1
        ):
            self._entries[id(body)] = (body, messages)
            if len(self._entries) > _ENTRIES_MAX:
                self._entries.popitem(last=False)
