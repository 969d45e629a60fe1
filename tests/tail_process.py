"""A process that tails one ledger: `python -m tests.tail_process METADATA_URL LEDGER_ID`.

Prints "ready" once it waits, then a line with entry id and body for each entry, "end" at the end.
"""

import asyncio
import random
import sys

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.client.placement import RandomPlacement
from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.layout.find_layout import open_layout
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.metadata.factory import connect_store


async def tail(url: str, ledger_id: int) -> None:
    store = await connect_store(url, None, session_timeout_s=10.0, operation_timeout_s=30.0)
    layout = await open_layout(store)
    connector = BookieConnector(store, TransportConfig(), layout=layout)
    pool = BookiePool(store, connector.connect)
    await pool.start()
    rng = random.Random(1)
    client = BookKeeperClient(
        store, pool, RandomPlacement(rng), clock=lambda: 0, rng=rng, layout=layout
    )
    reader = await client.open_ledger(ledger_id, recover=False)
    print("ready", flush=True)
    entry_id = 0
    while True:
        while entry_id <= reader.last_confirmed:
            run = await reader.read(entry_id, reader.last_confirmed, 1 << 20)
            for number, body in enumerate(run.bodies, run.first):
                print(number, bytes(body).decode(), flush=True)
            entry_id = run.first + len(run.bodies)
        if reader.is_closed and entry_id > reader.last_confirmed:
            break
        await reader.wait(entry_id - 1, 60.0)
    print("end", flush=True)
    await pool.close()
    await connector.close()
    await store.close()


if __name__ == "__main__":
    asyncio.run(tail(sys.argv[1], int(sys.argv[2])))
