#!/usr/bin/env python3
"""What two servers make of odd WebSocket frames: `compare_websocket.py PULSAR_URL OUR_URL [KIND]`.

Each frame is sent on a socket of its own, to a producer, a consumer (pushed to, or ``pull``) or a
reader (KIND: one of these, or ``parameters``: whether odd ones open the socket). A row tells the
server's answer, or how it closed, and what the frame had for an effect: the message as a reader
sees it, or what is left unacknowledged. URLs are those of HTTP. Rows that differ are marked; those
on purpose are explained in docs/reference/http-differences.md.
"""

import base64
import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

NAMESPACE = "public/compare-ws"
ANSWER_S = 10.0
QUIET_S = 0.4
BIG = 2**63
PAYLOAD = base64.b64encode(b"x").decode()


def _message(**fields: Any) -> str:
    return json.dumps({"payload": PAYLOAD, **fields})


NUMBERS: tuple[Any, ...] = (-1, 0, 1.5, "5", "x", True, None, BIG, 2**31, 10**400, [], {})


_TEXTS = ("", "x", "-1", "0", "1", "1.5", "2147483648", "true", "TRUE", "%00", " 5", "None")
_PARAMETERS = {
    "producer": "sendTimeoutMillis batchingEnabled batchingMaxMessages batchingMaxPublishDelay"
    " maxPendingMessages messageRoutingMode hashingScheme compressionType producerName"
    " initialSequenceId unknown",
    "consumer": "ackTimeoutMillis subscriptionType subscriptionMode receiverQueueSize consumerName"
    " priorityLevel maxRedeliverCount deadLetterTopic pullMode negativeAckRedeliveryDelay"
    " cryptoFailureAction subscriptionInitialPosition unknown",
    "reader": "readerName receiverQueueSize messageId cryptoFailureAction unknown",
}


def queries() -> Iterator[tuple[str, str]]:
    """Endpoint and query."""
    for kind, names in _PARAMETERS.items():
        for name in names.split():
            for value in _TEXTS:
                yield kind, f"{name}={value}"
    for value in ("snappy", "SNAPPY", "LZ4", "RAR"):
        yield "producer", f"compressionType={value}"
    for value in ("shared", "Shared", "key_shared", "Key_Shared"):
        yield "consumer", f"subscriptionType={value}"
    for value in ("latest", "LATEST", "earliest", "CAAQAQ==", "CAAQAQ", "AAAA"):
        yield "reader", f"messageId={value}"
    yield "producer", "batchingEnabled=true&batchingMaxMessages=1"
    yield "producer", "batchingEnabled=true&batchingMaxMessages=0"
    yield "producer", "batchingEnabled=true&batchingMaxPublishDelay=0"
    yield "consumer", "receiverQueueSize=5&receiverQueueSize=x"
    yield "consumer", "maxRedeliverCount=2&deadLetterTopic=a%20b"


def producer_frames() -> Iterator[str]:
    value: Any
    yield from ("", "null", "[]", "1", '"x"', "{", "{}", '{"payload":null}', '{"payload":5}')
    for payload in ("", "x", "eA", "eA=", "eA==\n", "e A==", "eA==eA==", "\u00e9", "-_-_"):
        yield json.dumps({"payload": payload})
    yield '{"payload":["eA=="]}'
    yield '{"payload":"eA==","payload":"eQ=="}'
    yield '{"payload":"eA=="} trailing'
    yield '{"payload":"eA==","unknown":1}'
    yield '{"payload":"eA==","key":"\\ud800"}'
    for field in ("sequenceId", "deliverAt", "deliverAfter", "deliverAfterMs"):
        for value in NUMBERS:
            yield _message(**{field: value})
    odd: tuple[Any, ...] = (5, True, None, [], {}, "", "\0")
    for value in odd:
        yield _message(key=value)
        yield _message(context=value)
    for value in (5, "x", [], {}, None, {"a": 1}, {"a": None}, {"a": {}}, {"": ""}, {"a": True}):
        yield _message(properties=value)
    for value in (
        *(0, 1700000000000, "", "x", None, True, [], "2026-01-02", "2026-01-02T03:04:05"),
        *("2026-01-02T03:04:05Z", "2026-01-02T03:04:05+02:00", "2026-01-02T03:04:05.678+0200"),
        *("1960-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-02T03:04:05+02:00[Europe/Oslo]"),
        *("2026-13-02T03:04:05Z", "20260102T030405Z", "2026-W01-1T00:00:00Z"),
    ):
        yield _message(eventTime=value)
    for value in ("x", 5, [], [1], [None], ["a", "b"], {}, None):
        yield _message(replicationClusters=value)
    for value in (True, False, "true", 0, None, "x", []):
        yield _message(disableReplication=value)
    for value in ({}, [], "x", 5, None, {"keys": {}}, {"keys": {"k": {"keyValue": "eA=="}}}):
        yield _message(encryptionContext=value)


def consumer_frames(message_id: str) -> Iterator[str]:
    yield from ("", "null", "[]", "1", '"x"', "{", "{}", '{"messageId":null}', '{"messageId":5}')
    for text in (
        "",
        "x",
        "eA==",
        "AAAA",
        message_id,
        message_id + "=",
        message_id[:-4],
        "CAAQAQ==",
    ):
        yield json.dumps({"messageId": text})
        yield json.dumps({"type": "negativeAcknowledge", "messageId": text})
    yield json.dumps({"messageId": "CP//////////fxD//////////38="})
    yield json.dumps({"messageId": "CP///////////wEQ////////////AQ=="})
    yield json.dumps({"type": "negativeAcknowledge"})
    odd: tuple[Any, ...] = ("", "x", "PERMIT", 5, None, [], {}, True)
    for value in odd:
        yield json.dumps({"type": value})
        yield json.dumps({"type": value, "messageId": message_id})
    yield json.dumps({"type": "permit"})
    for value in NUMBERS:
        yield json.dumps({"type": "permit", "permitMessages": value})
    yield json.dumps({"type": "isEndOfTopic", "unknown": 1})
    yield json.dumps({"messageId": message_id, "unknown": {"a": [1]}})
    yield json.dumps({"type": "unsubscribe"})


class Server:
    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=f"{url}/admin/v2", timeout=60)
        self._sockets = url.replace("http", "ws") + "/ws/v2"
        self._http.put(f"/namespaces/{NAMESPACE}")

    def topic(self) -> str:
        name = f"persistent/{NAMESPACE}/t-{secrets.token_hex(6)}"
        self._http.put(f"/{name}").raise_for_status()
        return name

    def delete(self, topic: str) -> None:
        self._http.delete(f"/{topic}?force=true")

    def open(self, path: str) -> ClientConnection:
        return connect(f"{self._sockets}/{path}", compression=None, open_timeout=ANSWER_S)

    def unacknowledged(self, topic: str) -> str:
        """Of its subscription, once that has come to rest."""
        before = ""
        for _ in range(20):
            subscriptions = self._http.get(f"/{topic}/stats").json()["subscriptions"]
            now = f"left {subscriptions['s']['msgBacklog']}" if "s" in subscriptions else "no s"
            if now == before:
                break
            before = now
            time.sleep(0.1)
        return before

    def opened(self, kind: str, query: str) -> str:
        topic = self.topic()
        tail = "/s" if kind == "consumer" else ""
        try:
            with self.open(f"{kind}/{topic}{tail}?{query}"):
                return "opens"
        except InvalidStatus as error:
            return str(error.response.status_code)
        finally:
            self.delete(topic)

    def produced(self, frame: str) -> str:
        topic = self.topic()
        try:
            with self.open(f"producer/{topic}") as producer:
                said = _told(producer, frame, lambda answer: _result(answer))
                if not said.startswith("ok"):
                    return said
            with self.open(f"reader/{topic}?messageId=earliest") as reader:
                seen = json.loads(reader.recv(ANSWER_S))
            for name in ("messageId", "publishTime", "redeliveryCount"):
                seen.pop(name, None)
            return f"{said} {json.dumps(seen, sort_keys=True)[:150]}"
        finally:
            self.delete(topic)

    def consumed(self, kind: str, make: Callable[[str], str]) -> str:
        topic = self.topic()
        path = f"reader/{topic}?messageId=earliest"
        if kind != "reader":
            mode = "pullMode=true" if kind == "pull" else "negativeAckRedeliveryDelay=0"
            path = f"consumer/{topic}/s?subscriptionType=Shared&{mode}"
        try:
            with self.open(path) as socket, self.open(f"producer/{topic}") as producer:
                for _ in range(2):
                    producer.send(_message())
                    producer.recv(ANSWER_S)
                if kind == "pull":
                    socket.send('{"type":"permit","permitMessages":1}')
                message_id = json.loads(socket.recv(ANSWER_S))["messageId"]
                if kind != "pull":
                    socket.recv(ANSWER_S)
                said = _told(socket, make(message_id), lambda answer: _delivery(answer))
                return f"{said}, {self.unacknowledged(topic)}"
        finally:
            self.delete(topic)


def _told(socket: ClientConnection, frame: str, shown: Callable[[dict[str, Any]], str]) -> str:
    """The answers to a frame, or how it ended the session."""
    answers: list[str] = []
    try:
        socket.send(frame)
        while len(answers) < 4:
            # Nothing is said about acknowledgements: silence is an answer.
            text = socket.recv(ANSWER_S if not answers and "payload" in frame else QUIET_S)
            answers.append(shown(json.loads(text)))
            if answers[-1].startswith(("ok", "send-error")):
                break
    except TimeoutError:
        return " ".join(answers) or "silence"
    except ConnectionClosed as error:
        code = error.rcvd.code if error.rcvd is not None else "without a frame"
        answers.append(f"closed {code}")
    return " ".join(answers)


def _result(answer: dict[str, Any]) -> str:
    context = f" context={answer['context']!r}" if "context" in answer else ""
    return f"{answer['result']}{context}"


def _delivery(answer: dict[str, Any]) -> str:
    return "message" if "messageId" in answer else json.dumps(answer)


def rows(servers: list[Server], kind: str) -> Iterator[tuple[str, list[str]]]:
    if kind == "parameters":
        for endpoint, query in queries():
            shown = f"{endpoint}?{query}"
            yield shown, [_safely(server.opened, endpoint, query) for server in servers]
        return
    if kind == "producer":
        for frame in producer_frames():
            yield frame, [_safely(server.produced, frame) for server in servers]
        return
    for number, frame in enumerate(consumer_frames("<id>")):

        def make(message_id: str, number: int = number) -> str:
            return list(consumer_frames(message_id))[number]

        yield frame, [_safely(server.consumed, kind, make) for server in servers]


def _safely(ask: Callable[..., str], *arguments: Any) -> str:
    try:
        return ask(*arguments)
    except (OSError, ConnectionClosed, httpx.HTTPError) as error:
        return f"failed: {error!r:.80}"


def main() -> None:
    servers = [Server(url) for url in sys.argv[1:3]]
    different = 0
    for kind in sys.argv[3:] or ("parameters", "producer", "consumer", "pull", "reader"):
        for frame, (theirs, ours) in rows(servers, kind):
            mark = " " if theirs == ours else "*"
            different += theirs != ours
            print(f"{mark} {kind} {frame[:100]}\n    {theirs}")
            if theirs != ours:
                print(f"    {ours}", flush=True)
    print(f"{different} rows differ")


if __name__ == "__main__":
    main()
