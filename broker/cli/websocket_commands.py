"""``produce``, ``consume`` and ``read`` over WebSocket: URLs that begin with ws (http-api 6)."""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.sync.client import ClientConnection, connect

from broker.cli.errors import CliError
from broker.cli.output import describe
from broker.cli.payloads import contents_of, paced, properties_of
from broker.cli.profiles import Target
from broker.cli.progress import progress
from broker.cli.request import topic_parts
from broker.cli.values import parse_time
from broker.protocol import pulsar_api_pb2 as pb

__all__ = ["consume_by_websocket", "produce_by_websocket", "read_by_websocket"]

IN_FLIGHT_MAX = 500  # messages: half of what a server lets a socket have
ANSWER_S_MAX = 30.0


def produce_by_websocket(target: Target, options: argparse.Namespace) -> int:
    """Send; prints how many arrived. Raises CliError when one didn't."""
    _refuse(options, "-vs", options.value_schema != "bytes")
    _refuse(options, "-kvet", options.key_value_encoding_type)
    _refuse(options, "-c", options.chunking)
    common: dict[str, Any] = {"properties": properties_of(options)}
    if options.key is not None:
        common["key"] = options.key
    if options.disable_replication:
        common["disableReplication"] = True
    frames = [
        json.dumps({"payload": base64.b64encode(content).decode(), **common})
        for content in contents_of(options)
    ]
    total = len(frames) * options.num_produce
    batching = "false" if options.disable_batching or options.rate > 0 else "true"
    path = f"producer/{_path(options.topic)}?batchingEnabled={batching}"
    all_frames = itertools.chain.from_iterable(itertools.repeat(frames, options.num_produce))
    in_flight = 0
    with _connection(target, path) as socket, progress("messages", total) as advance:
        for group in paced(([frame] for frame in all_frames), options.rate):
            socket.send(group[0])
            in_flight += 1
            if in_flight == IN_FLIGHT_MAX:
                _take_receipt(socket)
                in_flight -= 1
            advance(1)
        for _ in range(in_flight):
            _take_receipt(socket)
    print(f"{total} messages successfully produced")
    return 0


def _take_receipt(socket: ClientConnection) -> None:
    answer = _receive(socket, ANSWER_S_MAX)
    if answer is None:
        raise CliError(f"no receipt within {ANSWER_S_MAX:.0f} s")
    if answer.get("result") != "ok":
        raise CliError(f"{answer.get('result')}: {answer.get('errorMsg')}")


def consume_by_websocket(target: Target, options: argparse.Namespace) -> int:
    """Receive, show and acknowledge. Exit code 1 when the silence was too long."""
    _refuse(options, "--regex", options.regex)
    _refuse(options, "-p Earliest", options.subscription_position != "Latest")
    _refuse(options, "-rs", options.replicated)
    query = {
        "subscriptionType": options.subscription_type,
        "subscriptionMode": options.subscription_mode,
        **_receiving(options),
    }
    subscription = quote(options.subscription_name, safe="")
    path = f"consumer/{_path(options.topic)}/{subscription}?{urlencode(query)}"
    return _show_all(target, path, options, "consumed")


def read_by_websocket(target: Target, options: argparse.Namespace) -> int:
    """Receive and show from a message on, without a subscription that stays."""
    _refuse(options, "-i", options.start_message_id_inclusive)
    _refuse(options, "-rc", options.readCompacted)
    start = options.start_message_id.lower()
    if start not in ("latest", "earliest"):
        try:
            ledger, entry = map(int, start.split(":"))
        except ValueError:
            raise CliError(f"-m {start}: not a message id") from None
        data = pb.MessageIdData(ledgerId=ledger, entryId=entry)
        start = base64.b64encode(data.SerializeToString()).decode()
    query = urlencode({"messageId": start, **_receiving(options)})
    return _show_all(target, f"reader/{_path(options.topic)}?{query}", options, "read")


def _receiving(options: argparse.Namespace) -> dict[str, Any]:
    _refuse(options, "-st auto_consume", options.schema_type != "bytes")
    queue = max(1, min(options.queue_size, options.num_messages or options.queue_size))
    return {"receiverQueueSize": queue, "cryptoFailureAction": options.crypto_failure_action}


def _show_all(target: Target, path: str, options: argparse.Namespace, done: str) -> int:
    timeout_s = options.timeout if options.timeout > 0 else None
    started, count = time.monotonic(), 0
    with (
        _connection(target, path) as socket,
        progress("messages", options.num_messages or None) as advance,
    ):
        while not 0 < options.num_messages <= count:
            message = _receive(socket, timeout_s)
            if message is None:
                print(f"{count} messages received, then silence", file=sys.stderr)
                return 1
            if options.rate > 0:
                time.sleep(max(0.0, started + count / options.rate - time.monotonic()))
            count += 1
            if options.hide_content:
                advance(1)
            else:
                print("----- got message -----")
                print(_describe(message, as_hex=options.hex), flush=True)
            socket.send(json.dumps({"messageId": message["messageId"]}))
        if done == "consumed":
            # Acknowledgements have no answer; this one comes behind them.
            socket.send(json.dumps({"type": "isEndOfTopic"}))
            while "endOfTopic" not in (_receive(socket, ANSWER_S_MAX) or {"endOfTopic": None}):
                pass
    print(f"{count} messages successfully {done}")
    return 0


def _describe(message: dict[str, Any], *, as_hex: bool) -> str:
    payload = base64.b64decode(message["payload"])
    return describe(
        parse_time(message["publishTime"]),
        parse_time(message["eventTime"]) if "eventTime" in message else 0,
        message.get("key"),
        message.get("properties", {}),
        payload.hex(" ") if as_hex else payload.decode(errors="replace"),
    )


def _path(topic: str) -> str:
    return "/".join(quote(part, safe="") for part in topic_parts(topic))


def _refuse(options: argparse.Namespace, word: str, given: object) -> None:
    if given:
        raise CliError(f"{word} is not possible over WebSocket: use a pulsar:// URL")


@contextmanager
def _connection(target: Target, path: str) -> Iterator[ClientConnection]:
    """Raises CliError: refused, or nobody listens there, or closed meanwhile."""
    url, access = target.service_url, target.access
    address = f"{url.rstrip('/')}/ws/v2/{path}"
    try:
        with connect(
            address,
            max_size=None,
            compression=None,
            additional_headers=access.headers(),
            ssl=access.tls() if url.startswith("wss:") else None,
        ) as socket:
            yield socket
    except InvalidStatus as error:
        text = (error.response.body or b"").decode(errors="replace")
        raise CliError(f"HTTP {error.response.status_code}\nReason: {text}") from error
    except ConnectionClosed as error:
        raise CliError(f"{url}: connection closed: {error}") from error
    except (OSError, InvalidHandshake, InvalidURI) as error:
        raise CliError(f"{url} can't be reached: {error}") from error


def _receive(socket: ClientConnection, timeout_s: float | None) -> dict[str, Any] | None:
    """The next frame; None when the time is over. Raises CliError: it is none of Pulsar's."""
    try:
        value = json.loads(socket.recv(timeout_s))
    except TimeoutError:
        return None
    except ValueError as error:
        raise CliError(f"not a frame of Pulsar's WebSocket API: {error}") from error
    if not isinstance(value, dict):
        raise CliError("not a frame of Pulsar's WebSocket API")
    return value
