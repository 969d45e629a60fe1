"""What clients of the HTTP port leave behind is freed by reference counting, at once.

Rings of objects wait for a collection, which stops the loop: 700 WebSockets that had come and gone
were one of 100 ms.
"""

import asyncio
import gc
from pathlib import Path

import uvloop

from magnetar.broker.config import BrokerConfig
from magnetar.broker.server.standalone import Standalone
from tests.integration.test_http_garbage import HOST, SOCKETS, TOPIC, Peer, frame

VISITS = 10
_CLOSE = frame(8, b"\3\xe8")
_MESSAGE, _NO_JSON = frame(1, b'{"payload":"aGk="}'), frame(1, b"nonsense")
_PRODUCER, _CONSUMER, _READER = SOCKETS
_WITH_OPTIONS = _CONSUMER.replace(b"/s ", b"/s?ackTimeoutMillis=1000&maxRedeliverCount=2 ")
_PATTERN = _CONSUMER.replace(
    f"/ws/v2/consumer/{TOPIC}/s".encode(),
    b"/ws/v3/consumer/of-a-pattern?topicsPattern=public/default/gar.*",
)
_PUBLISH = (
    f"POST /topics/{TOPIC} HTTP/1.1\r\n{HOST}Connection: close\r\n"
    "Content-Type: application/json\r\nContent-Length: 30\r\n\r\n"
    '{"messages":[{"payload":"a"}]}'
).encode()


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n".encode()


WAYS: dict[str, tuple[bytes, ...]] = {
    "producer": (_PRODUCER, _CLOSE),
    "producer that sent": (_PRODUCER, _MESSAGE, _CLOSE),
    "producer of no JSON": (_PRODUCER, _NO_JSON, _CLOSE),
    "consumer": (_CONSUMER, _CLOSE),
    "consumer with options": (_WITH_OPTIONS, _CLOSE),
    "consumer of a pattern": (_PATTERN, _CLOSE),
    "consumer of no JSON": (_CONSUMER, _NO_JSON),
    "reader": (_READER, _CLOSE),
    "no WebSocket frame": (_READER, frame(1, b"{}", masked=False)),
    "publish": (_PUBLISH,),
    "REST": (_get("/admin/v2/clusters"),),
    "REST, not found": (_get("/admin/v2/persistent/public/default/absent/stats"),),
    "page of the console": (_get("/console/topics"),),
}


def _visit(port: int, words: tuple[bytes, ...], *, is_reset: bool) -> None:
    """Say each word when the one before is answered, and hear the end."""
    with Peer(port) as peer:
        for word in words:
            peer.send(word)
            answer = peer.hear()
            assert answer or word is not words[0]
        if is_reset:
            peer.reset()
            return
        while peer.hear():
            pass


async def _left(folder: Path) -> dict[str, int]:
    """Objects that only a collection found, of each way."""
    standalone = Standalone(
        BrokerConfig(
            data_dir=str(folder),
            broker_service_port=0,
            web_service_port=0,
            bind_address="127.0.0.1",
        )
    )
    await standalone.start()
    port = int(standalone.web_url.rpartition(":")[2])
    left = dict[str, int]()
    for way, words in WAYS.items():
        for number in range(-2, VISITS):
            if number == 0:  # what is made once has been made
                gc.collect()
                gc.disable()
            await asyncio.to_thread(_visit, port, words, is_reset=bool(number % 2))
        # The last one may be on its way out: that is no garbage yet.
        left[way] = gc.collect()
        gc.enable()
    await standalone.close()
    return left


def test_nothing_is_left_to_the_collector(tmp_path: Path) -> None:
    # As servers have it: asyncio's own sockets are rings.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        left = runner.run(_left(tmp_path))
    assert max(left.values()) < VISITS, left
