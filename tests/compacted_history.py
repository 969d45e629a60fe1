"""A topic that one broker after another compacts, and what a reader of the compacted view gets."""

from typing import Final

import httpx
import pulsar

from tests.official_client import client_of
from tests.waiting import wait_until

BATCH: Final = 10
_KEYS: Final = 23
_RECEIVE_MS: Final = 60_000

Seen = tuple[str, bytes, str]
"""Key, data and id of a message."""


class CompactedHistory:
    """Without retention: what an earlier broker has compacted is in no other ledger later.

    Attributes:
        seen: the compacted view as the last broker left it.
    """

    def __init__(self, namespace: str, count: int) -> None:
        self.namespace, self._count, self._round = namespace, count, 0
        self._topics = ("compacted-alone", "compacted-batches")
        self.seen = dict[str, list[Seen]]()

    def make(self, admin_url: str) -> None:
        """The namespace, on a broker of Pulsar."""
        httpx.put(
            f"{admin_url}/admin/v2/namespaces/{self.namespace}", json={}, timeout=60
        ).raise_for_status()

    def look(self, url: str) -> None:
        """Every view is as it was left."""
        with client_of(url) as client:
            for local in self._topics:
                assert self._view(client, local) == self.seen[local], local

    def work(self, service_url: str, admin_url: str) -> None:
        """Newer messages of some keys, one key less, a compaction, and a tail behind it."""
        with client_of(service_url) as client:
            for local in self._topics:
                before = self.seen.get(local, [])
                sent = self._send(client, local, self._count)
                self._compact(admin_url, local)
                newest = {key: (key, data, place) for key, data, place in [*before, *sent]}
                kept = [each for each in [*before, *sent] if newest[each[0]] == each and each[1]]
                assert self._view(client, local) == kept, local
                self.seen[local] = [*kept, *self._send(client, local, BATCH)]
                assert self._view(client, local) == self.seen[local], local
        self._round += 1

    def _name(self, local: str) -> str:
        return f"persistent://{self.namespace}/{local}"

    def _path(self, admin_url: str, local: str, what: str) -> str:
        return f"{admin_url}/admin/v2/persistent/{self.namespace}/{local}/{what}"

    def _send(self, client: pulsar.Client, local: str, count: int) -> list[Seen]:
        is_batched = local.endswith("batches")
        producer = client.create_producer(
            self._name(local),
            batching_enabled=is_batched,
            batching_max_messages=BATCH,
            batching_max_publish_delay_ms=60_000,
            block_if_queue_full=True,
            compression_type=pulsar.CompressionType.LZ4,
        )
        sent = list[Seen]()

        def on_sent(seen: tuple[str, bytes], result: pulsar.Result, place: object) -> None:
            assert result == pulsar.Result.Ok
            sent.append((*seen, str(place)))

        for number in range(count):
            key = f"key {(self._round * 7 + number) % _KEYS}"
            is_gone = number == count - 1  # its key was sent before
            data = b"" if is_gone else b"%d of %d" % (number, self._round)
            producer.send_async(
                data,
                lambda result, place, seen=(key, data): on_sent(seen, result, place),
                partition_key=key,
            )
        producer.flush()
        producer.close()
        assert len(sent) == count
        return sent

    def _compact(self, admin_url: str, local: str) -> None:
        path = self._path(admin_url, local, "compaction")
        httpx.put(path, timeout=60).raise_for_status()
        wait_until(lambda: httpx.get(path, timeout=60).json()["status"] != "RUNNING")
        assert httpx.get(path, timeout=60).json()["status"] == "SUCCESS"

    def _view(self, client: pulsar.Client, local: str) -> list[Seen]:
        """The C++ client shows messages that were taken out of their batch as empty ones."""
        reader = client.create_reader(
            self._name(local), pulsar.MessageId.earliest, is_read_compacted=True
        )
        found = list[Seen]()
        while reader.has_message_available():
            each = reader.read_next(_RECEIVE_MS)
            if each.partition_key():
                found.append((each.partition_key(), each.data(), str(each.message_id())))
        reader.close()
        return found
