"""SENDs of one read, from bytes to the batch, and the whole way to their receipts; µs per message.

Run: python -m benchmarks.micro.send_path

Ledgers are in memory, so the second figure is the broker's own work but for the sockets.
"""

import asyncio
import time

from magnetar.broker.connection.command_turns import COST_PER_TURN
from tests.unit.broker.doubles import Broker, Client, message

MESSAGES, ROUNDS = 500, 60


async def main() -> None:
    broker = await Broker().start()
    client = broker.client()
    await client.receive_one()  # CONNECTED
    await client.produce("public/default/topic")
    parse_s = whole_s = float("inf")
    for number in range(ROUNDS):
        first = number * MESSAGES
        frames = b"".join(message(first + each, b"x" * 100) for each in range(MESSAGES))
        parse_s = min(parse_s, _parse(client, frames))
        began = time.process_time()
        client.feed(frames)
        await client.expect_something()
        whole_s = min(whole_s, time.process_time() - began)
        await client.receive(MESSAGES)
    await broker.close()
    print(f"parsed {parse_s / MESSAGES * 1e6:.3f}")
    print(f"to the receipt {whole_s / MESSAGES * 1e6:.3f}")


def _parse(client: Client, frames: bytes) -> float:
    """Parse the SENDs and forget them."""
    connection, view = client.connection, memoryview(frames)
    began = time.process_time()
    assert connection._take_frames(view, len(view), COST_PER_TURN) == len(view)
    took_s = time.process_time() - began
    connection.sends._batches.clear()
    return took_s


if __name__ == "__main__":
    asyncio.run(main())
