"""``produce``, ``consume`` and ``read`` over WebSocket: URLs that begin with ws."""

import argparse
import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from magnetar.broker.cli.argument_values import parse_time
from magnetar.broker.cli.consume_command import start_of
from magnetar.broker.cli.encryption import (
    Decryptor,
    Encryptor,
    UndecryptableError,
    decryptor_of,
    encryptor_of,
)
from magnetar.broker.cli.errors import CliError, RefusedError, UnreachableError
from magnetar.broker.cli.message_output import MessageOutput, describe
from magnetar.broker.cli.payloads import contents_of, properties_of, wait_for_turn
from magnetar.broker.cli.profiles import ClusterTarget
from magnetar.broker.cli.progress import progress
from magnetar.broker.cli.request import topic_parts
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.compression import COMPRESSIONS
from magnetar.broker.protocol.messages import UndecodableEntryError, messages_of

IN_FLIGHT_MAX = 500  # messages: half of what a server lets a socket have
ANSWER_S_MAX = 30.0
PAYLOAD_BYTES_MAX = 64 * 1024 * 1024


async def produce_by_websocket(target: ClusterTarget, options: argparse.Namespace) -> int:
    """Send; prints how many arrived. Raises CliError when one didn't."""
    _refuse("-vs", options.value_schema != "bytes")
    _refuse("-kvet", options.key_value_encoding_type)
    _refuse("-c", options.chunking)
    _refuse_routes(target)
    _refuse("-ml", options.memory_limit)
    common: dict[str, Any] = {"properties": properties_of(options)}
    if options.key is not None:
        common["key"] = options.key
    if options.disable_replication:
        common["disableReplication"] = True
    contents, encryptor = contents_of(options), encryptor_of(options)
    total = len(contents) * options.num_produce

    def frames() -> Iterator[str]:
        for _ in range(options.num_produce):
            for content in contents:
                yield json.dumps({**_payload(content, encryptor), **common})

    batching = "false" if options.disable_batching or options.rate > 0 else "true"
    path = f"v2/producer/{_path(options.topic)}?batchingEnabled={batching}"
    if encryptor is not None:
        path += f"&{_keys_of(encryptor)}"
    with progress("messages", total) as advance:
        async with _connection(target, path) as socket:
            started_s = time.monotonic()
            for number, frame in enumerate(frames()):
                await wait_for_turn(started_s, number, options.rate)
                if number >= IN_FLIGHT_MAX:
                    await _take_receipt(socket)
                await socket.send(frame)
                advance(1)
            for _ in range(min(total, IN_FLIGHT_MAX)):
                await _take_receipt(socket)
    print(f"{total} messages successfully produced")
    return 0


def _payload(content: bytes, encryptor: Encryptor | None) -> dict[str, Any]:
    """The fields of a frame that hold the content, encrypted where that is asked for."""
    if encryptor is None:
        return {"payload": base64.b64encode(content).decode()}
    metadata = pb.MessageMetadata()
    sealed = encryptor.seal(metadata, content)
    return {
        "payload": base64.b64encode(sealed).decode(),
        "encryptionParam": base64.b64encode(metadata.encryption_param).decode(),
    }


def _keys_of(encryptor: Encryptor) -> str:
    """The query parameter that tells a server what messages are encrypted with."""
    key = {"keyValue": base64.b64encode(encryptor.wrapped).decode(), "metadata": {}}
    keys = json.dumps({encryptor.name: key}).encode()
    return urlencode({"encryptionKeys": base64.b64encode(keys).decode()})


async def _take_receipt(socket: ClientConnection) -> None:
    answer = await _receive(socket, ANSWER_S_MAX)
    if answer is None:
        raise CliError(f"no receipt within {ANSWER_S_MAX:.0f} s")
    if answer.get("result") != "ok":
        raise CliError(f"{answer.get('result')}: {answer.get('errorMsg')}")


async def consume_by_websocket(target: ClusterTarget, options: argparse.Namespace) -> int:
    """Receive, show and acknowledge. Exit code 1 when the silence was too long."""
    _refuse("-p Earliest", options.subscription_position != "Latest")
    _refuse("-rs", options.replicated)
    _refuse("-stp", options.start_timestamp)
    _refuse_routes(target)
    query = {
        "subscriptionType": options.subscription_type,
        "subscriptionMode": options.subscription_mode,
        **_receiving(options),
    }
    subscription = quote(options.subscription_name, safe="")
    if options.regex:
        query["topicsPattern"] = options.topic
        path = f"v3/consumer/{subscription}?{urlencode(query)}"
    else:
        path = f"v2/consumer/{_path(options.topic)}/{subscription}?{urlencode(query)}"
    return await _show_all(target, path, options, "consumed")


async def read_by_websocket(target: ClusterTarget, options: argparse.Namespace) -> int:
    """Receive and show from a message on, without a subscription that stays."""
    _refuse("-i", options.start_message_id_inclusive)
    _refuse("-rc", options.readCompacted)
    _refuse_routes(target)
    start = options.start_message_id.lower()
    if start not in ("latest", "earliest"):
        start = base64.b64encode(start_of(options).SerializeToString()).decode()
    query = urlencode({"messageId": start, **_receiving(options)})
    return await _show_all(target, f"v2/reader/{_path(options.topic)}?{query}", options, "read")


def _receiving(options: argparse.Namespace) -> dict[str, Any]:
    _refuse("-st auto_consume", options.schema_type != "bytes")
    _refuse("-mp", options.print_metadata)
    queue = max(1, min(options.queue_size, options.num_messages or options.queue_size))
    # With a key it is for us to fail: the server has none.
    action = "CONSUME" if options.encryption_key_value else options.crypto_failure_action
    return {"receiverQueueSize": queue, "cryptoFailureAction": action}


async def _show_all(
    target: ClusterTarget, path: str, options: argparse.Namespace, done: str
) -> int:
    timeout_s = options.timeout if options.timeout > 0 else None
    end_ms = getattr(options, "end_timestamp", 0)
    decryptor = decryptor_of(options)
    with progress("messages", options.num_messages or None) as advance:
        async with _connection(target, path) as socket:
            output = MessageOutput(options, advance)
            while not output.is_enough:
                frame = await _receive(socket, timeout_s)
                if frame is None:
                    return output.end(done, silent=True)
                if end_ms and parse_time(frame["publishTime"]) > end_ms:
                    break  # and it stays unacknowledged
                for content, key, properties in _opened(frame, decryptor, options):
                    text = output.content(content)
                    await output.show(partial(_describe, frame, key, properties, text))
                await socket.send(json.dumps({"messageId": frame["messageId"]}))
            if done == "consumed":
                # Acknowledgements have no answer; this one comes behind them.
                await socket.send(json.dumps({"type": "isEndOfTopic"}))
                ended = {"endOfTopic": None}
                while "endOfTopic" not in (await _receive(socket, ANSWER_S_MAX) or ended):
                    pass
    return output.end(done, silent=False)


_Shown: TypeAlias = tuple[bytes, str | None, Mapping[str, str]]
"""Content, key and properties of a message."""


def _opened(
    frame: dict[str, Any], decryptor: Decryptor | None, options: argparse.Namespace
) -> list[_Shown]:
    """A frame's messages: one, or all of a batch that was encrypted as a whole.

    Raises:
        CliError: it can't be decrypted, and such a message ends the command.
    """
    payload = base64.b64decode(frame["payload"])
    as_it_is: list[_Shown] = [(payload, frame.get("key"), frame.get("properties", {}))]
    context = frame.get("encryptionContext")
    if context is None or decryptor is None:
        return as_it_is
    try:
        metadata = _sealed_metadata(frame, context)
        messages = messages_of(metadata, decryptor.open(metadata, payload), PAYLOAD_BYTES_MAX)
    except (UndecryptableError, UndecodableEntryError) as error:
        match options.crypto_failure_action:
            case "CONSUME":
                return as_it_is
            case "DISCARD":
                return []
        raise CliError(f"an encrypted message: {error} (-ca CONSUME shows it)") from error
    return [(message.payload, message.key, message.properties) for message in messages]


def _sealed_metadata(frame: dict[str, Any], context: dict[str, Any]) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(compression=COMPRESSIONS[context.get("compressionType", "NONE")])
    metadata.uncompressed_size = context.get("uncompressedMessageSize") or 0
    if (count := context.get("batchSize")) is not None:
        metadata.num_messages_in_batch = count
    for name, key in context["keys"].items():
        metadata.encryption_keys.add(key=name, value=base64.b64decode(key["keyValue"]))
    metadata.encryption_param = base64.b64decode(context["param"])
    if (key := frame.get("key")) is not None:
        metadata.partition_key = key
    for name, value in frame.get("properties", {}).items():
        metadata.properties.add(key=name, value=value)
    return metadata


def _describe(
    message: dict[str, Any], key: str | None, properties: Mapping[str, str], content: str
) -> str:
    return describe(
        parse_time(message["publishTime"]),
        parse_time(message["eventTime"]) if "eventTime" in message else 0,
        key,
        properties,
        content,
    )


def _refuse_routes(target: ClusterTarget) -> None:
    _refuse("--listener-name", target.listener_name)
    _refuse("--proxy-url", target.proxy_url)


def _path(topic: str) -> str:
    return "/".join(quote(part, safe="") for part in topic_parts(topic))


def _refuse(word: str, given: object) -> None:
    if given:
        raise CliError(f"{word} is not possible over WebSocket: use a pulsar:// URL")


@asynccontextmanager
async def _connection(target: ClusterTarget, path: str) -> AsyncIterator[ClientConnection]:
    """Raises CliError: refused, or nobody listens there, or closed meanwhile."""
    url, access = target.service_url, target.access
    address = f"{url.rstrip('/')}/ws/{path}"
    tls: dict[str, Any] = (
        {"ssl": access.tls()} if url.startswith("wss:") else {}
    )  # also without, it may lead there
    try:
        socket = await connect(
            address,
            max_size=None,
            compression=None,
            additional_headers=access.headers(),
            **tls,
        )
        try:
            yield socket
        except BaseException:
            # The library would wait until all is written, for ever where the server doesn't read.
            socket.transport.abort()
            raise
        await socket.close()
    except InvalidStatus as error:
        text = (error.response.body or b"").decode(errors="replace")
        status = error.response.status_code
        raise RefusedError(f"HTTP {status}\nReason: {text}", status) from error
    except ConnectionClosed as error:
        raise CliError(f"{url}: connection closed: {error}") from error
    except (OSError, InvalidHandshake, InvalidURI) as error:
        reason = str(error) or type(error).__name__
        raise UnreachableError(f"{url} can't be reached: {reason}", url) from error


async def _receive(socket: ClientConnection, timeout_s: float | None) -> dict[str, Any] | None:
    """The next frame; None when the time is over. Raises CliError: it is none of Pulsar's."""
    try:
        async with asyncio.timeout(timeout_s):
            frame = await socket.recv()
        value = json.loads(frame)
    except TimeoutError:
        return None
    except ValueError as error:
        raise CliError(f"not a frame of Pulsar's WebSocket API: {error}") from error
    if not isinstance(value, dict):
        raise CliError("not a frame of Pulsar's WebSocket API")
    return value
