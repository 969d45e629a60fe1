"""Records what a cluster of Apache Pulsar has stored, for ``test_migration_forms.py``.

    python -m tests.unit.broker.migration.record zk:HOST:PORT > FILE

The nodes, and all entries of the ledgers of cursors, schemas and topic policies. Its brokers must
be stopped: ledgers that are open are recovered.

``pulsar_4_2_4.json`` is a cluster of Pulsar 4.2.4 with three bookies, filled by the official client
and the admin API. Its first broker was stopped. The second one, which compressed its nodes (LZ4 for
lists, ZSTD for cursors, from 0 bytes on), made the topics ``killed`` and was killed.
"""

import asyncio
import base64
import json
import sys

from magnetar.bookkeeper.ledgers import connect_ledgers
from magnetar.metadata.store import MetadataStore

_ROOTS = ("/managed-ledgers", "/schemas", "/admin")
_COMPONENTS = ("pulsar/cursor", "pulsar/schemaId")
_EVENTS = b"/__change_events"


async def _read_nodes(store: MetadataStore, path: str, nodes: dict[str, str]) -> None:
    found = await store.get(path)
    if found is not None and found.value:
        nodes[path] = base64.b64encode(found.value).decode()
    for name in await store.children(path):
        await _read_nodes(store, f"{path}/{name}", nodes)


async def main(url: str) -> None:
    nodes: dict[str, str] = {}
    entries: dict[str, list[str]] = {}
    ends: dict[str, list[int]] = {}
    async with connect_ledgers(f"zk+hierarchical://{url.removeprefix('zk:')}/ledgers") as ledgers:
        for root in _ROOTS:
            await _read_nodes(ledgers.store, root, nodes)
        async for ledger_id in ledgers.ids():
            reader = await ledgers.open(ledger_id)
            metadata = await ledgers.metadata(ledger_id)
            assert metadata is not None
            ends[str(ledger_id)] = [metadata.last_entry, metadata.length]
            custom = metadata.custom_metadata
            log = custom.get("pulsar/managed-ledger", b"")
            if any(key in custom for key in _COMPONENTS) or log.endswith(_EVENTS):
                entries[str(ledger_id)] = [
                    base64.b64encode(entry).decode() async for _, entry in reader.entries()
                ]
    json.dump({"nodes": nodes, "entries": entries, "ends": ends}, sys.stdout, indent=0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
