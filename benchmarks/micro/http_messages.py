"""What REST and WebSocket do to each message, without sockets and storage; µs a message.

Run: python -m benchmarks.micro.http_messages
"""

import base64
import time
import timeit
from collections.abc import Callable

import orjson

from magnetar.broker.http.messaging.consumed_message import ConsumedMessage, parse_key
from magnetar.broker.http.messaging.rest_produce import parse_messages
from magnetar.broker.http.websocket.consumer import message_json
from magnetar.broker.http.websocket.fields import base64_bytes
from magnetar.broker.protocol.messages import (
    Message,
    OutgoingMessage,
    SingleEncoder,
    encode_message_id,
)

COUNT, ROUNDS = 100, 2_000


def main() -> None:
    text = "x" * 100
    payload = base64.b64encode(text.encode()).decode()
    body = orjson.dumps({"messages": [{"payload": text}] * COUNT})
    messages = [OutgoingMessage(text.encode(), 1_000 + n) for n in range(COUNT)]
    now_ms, message_id = 1_700_000_000_123, encode_message_id(5, 1_000, -1)
    message = Message(-1, 0, text.encode(), None, {}, now_ms, 0, 7, "producer")
    delivery = ConsumedMessage(-1, 5, 1_000, message, 0)
    show("REST: JSON read", lambda: orjson.loads(body))
    show("REST: messages of it", lambda: parse_messages(orjson.loads(body)))
    show(
        "an entry of a message",
        lambda: SingleEncoder("standalone-http-0123456789ab", now_ms).encode(messages),
    )
    show("WebSocket: payload read", each(lambda: base64_bytes(payload)))
    show("WebSocket: message id written", each(lambda: encode_message_id(5, 1_000, -1)))
    show("WebSocket: message id read", each(lambda: parse_key(message_id)))
    show("WebSocket: delivery written", each(lambda: orjson.dumps(message_json(delivery))))


def each(work: Callable[[], object]) -> Callable[[], None]:
    def many() -> None:
        for _ in range(COUNT):
            work()

    return many


def show(name: str, work: Callable[[], object]) -> None:
    work()
    times = timeit.repeat(work, timer=time.process_time, repeat=ROUNDS // 50, number=50)
    print(f"{name}: {min(times) / 50 / COUNT * 1e6:.2f}")


if __name__ == "__main__":
    main()
