"""PARTITIONED_METADATA, LOOKUP, GET_TOPICS_OF_NAMESPACE and the topic list watchers.

Failures of the first two use their own response types: some clients ignore ERROR for them.
Trouble with a single topic is MetadataError there, since ServiceNotReady makes every client drop
the whole connection.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.errors import (
    BrokerError,
    BrokerMetadataError,
    InvalidTopicError,
    NamespaceNotFoundError,
    NotAllowedError,
    ServiceNotReadyError,
    TenantNotFoundError,
    TooManyRequestsError,
    as_broker_error,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.topic_name import (
    InvalidTopicNameError,
    TopicName,
    valid_namespace_part,
)
from magnetar.broker.topic.topic_list import (
    PATTERN_LENGTH_MAX,
    TopicPattern,
    fill,
    topics_hash,
)
from magnetar.bundles.errors import BundleError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import Redirect
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.loop_turns import run_in_turns

if TYPE_CHECKING:
    from magnetar.broker.connection.connection import Connection

logger = logging.getLogger(__name__)

TOPIC_NAME_LENGTH_MAX: Final = 4_096
_FAILED = pb.CommandLookupTopicResponse.Failed
_CONNECT = pb.CommandLookupTopicResponse.Connect
_REDIRECT = pb.CommandLookupTopicResponse.Redirect
_METADATA_FAILED = pb.CommandPartitionedTopicMetadataResponse.Failed
_METADATA_SUCCESS = pb.CommandPartitionedTopicMetadataResponse.Success
_MODES: Final = {
    pb.CommandGetTopicsOfNamespace.PERSISTENT: "persistent",
    pb.CommandGetTopicsOfNamespace.NON_PERSISTENT: "non-persistent",
    pb.CommandGetTopicsOfNamespace.ALL: "all",
}


def parse_topic(text: str) -> TopicName:
    """Raises InvalidTopicError."""
    if len(text) > TOPIC_NAME_LENGTH_MAX:  # before any cache keeps it
        raise InvalidTopicError(f"Topic name longer than {TOPIC_NAME_LENGTH_MAX} characters")
    try:
        return TopicName.parse(text)
    except InvalidTopicNameError as error:
        raise InvalidTopicError(str(error)) from error


def _run_limited(connection: Connection, work: Callable[[], Awaitable[None]]) -> None:
    """Run a LOOKUP-class request. Raises TooManyRequestsError.

    ``work`` is a function: a task cancelled before its first step would lose a coroutine.
    """
    service = connection.service
    if service.lookups >= service.config.max_concurrent_lookup_request:
        raise TooManyRequestsError("Failed due to too many pending lookup requests")

    async def counted() -> None:
        service.lookups += 1
        try:
            await work()
        finally:
            service.lookups -= 1

    connection.run(counted())


# --- PARTITIONED_METADATA


def on_partitioned_metadata(
    connection: Connection, command: pb.CommandPartitionedTopicMetadata
) -> None:
    try:
        name = parse_topic(command.topic)
        _run_limited(connection, lambda: _partitions(connection, command, name))
    except BrokerError as error:
        reply_partitions(connection, command.request_id, 0, error)


async def _partitions(
    connection: Connection, command: pb.CommandPartitionedTopicMetadata, name: TopicName
) -> None:
    error: BrokerError | None = None
    count = 0
    try:
        count = await connection.service.directory.partitions_for_client(
            name, create=command.metadata_auto_creation_enabled
        )
    except ServiceNotReadyError as failed:
        error = BrokerMetadataError(str(failed))
    except (BrokerError, MetadataError) as failed:
        error = as_broker_error(failed)
    reply_partitions(connection, command.request_id, count, error)


def refuse_partitions(connection: Connection, command: Any, error: BrokerError) -> None:
    """Refuse a client that lacks the permission; a missing tenant is told to it all the same.

    It is the first that clients ask about a topic, and a misspelled name shows here
    (ServerCnx.handlePartitionMetadataRequest).
    """
    try:
        name = parse_topic(command.topic)
        _run_limited(connection, lambda: _refuse(connection, command, name, error))
    except BrokerError:
        reply_partitions(connection, command.request_id, 0, error)


async def _refuse(
    connection: Connection,
    command: pb.CommandPartitionedTopicMetadata,
    name: TopicName,
    error: BrokerError,
) -> None:
    with suppress(MetadataError):  # the refusal stands then
        if await connection.service.resources.tenant(name.tenant) is None:
            error = TenantNotFoundError(
                f"Tenant or namespace or topic does not exist: {name.namespace}"
            )
    reply_partitions(connection, command.request_id, 0, error)


def reply_partitions(
    connection: Connection, request_id: int, count: int, error: BrokerError | None
) -> None:
    reply = pb.CommandPartitionedTopicMetadataResponse(request_id=request_id)
    if error is None:
        reply.partitions, reply.response = count, _METADATA_SUCCESS
    else:
        reply.response, reply.error, reply.message = _METADATA_FAILED, error.wire_code, str(error)
    connection.send(reply)


# --- LOOKUP


def on_lookup(connection: Connection, command: pb.CommandLookupTopic) -> None:
    try:
        name = parse_topic(command.topic)
        _run_limited(connection, lambda: _lookup(connection, command, name))
        _note_listener(connection, command.advertised_listener_name)
    except BrokerError as error:
        reply_lookup_error(connection, command.request_id, error)


def _note_listener(connection: Connection, listener: str) -> None:
    if not connection.has_looked_up:
        connection.has_looked_up, connection.listener = True, listener
    elif connection.listener != listener:
        connection.listener = None


async def _lookup(connection: Connection, command: pb.CommandLookupTopic, name: TopicName) -> None:
    service = connection.service
    began_s = perf_counter()
    try:
        if not await service.resources.namespace_exists(name.namespace):
            raise NamespaceNotFoundError(f"Namespace {name.namespace} does not exist")
        answer = await service.bundles.lookup(str(name), authoritative=command.authoritative)
        if answer is None:
            raise BrokerMetadataError(f"Nobody serves {name} now")
        broker: BrokerLookup | None = answer.broker
        if listener := command.advertised_listener_name:  # "" means unset
            broker = answer.broker.by_listener(listener)
        if broker is None:
            # One of the texts that C++ clients forgive
            raise ServiceNotReadyError(f"the broker do not have {listener} listener")
    except (BrokerError, BundleError, MetadataError) as error:
        reply_lookup_error(connection, command.request_id, as_broker_error(error))
        return
    # Another broker that owns it is authoritative as well: the ownership node proves it.
    reply = pb.CommandLookupTopicResponse(
        request_id=command.request_id,
        response=_REDIRECT if isinstance(answer, Redirect) else _CONNECT,
        authoritative=not isinstance(answer, Redirect) or answer.authoritative,
        brokerServiceUrl=broker.broker_url or "",
        proxy_through_service_url=False,
    )
    if broker.broker_url_tls:
        reply.brokerServiceUrlTls = broker.broker_url_tls
    connection.send(reply)
    service.metrics.lookup.record((perf_counter() - began_s) * 1000)


def reply_lookup_error(connection: Connection, request_id: int, error: BrokerError) -> None:
    connection.service.metrics.lookup_failures += 1
    connection.send(
        pb.CommandLookupTopicResponse(
            request_id=request_id, response=_FAILED, error=error.wire_code, message=str(error)
        )
    )


# --- GET_TOPICS_OF_NAMESPACE


def on_get_topics(connection: Connection, command: pb.CommandGetTopicsOfNamespace) -> None:
    try:
        check_namespace(command.namespace)
        pattern = None
        if 0 < len(command.topics_pattern) <= PATTERN_LENGTH_MAX:
            pattern = TopicPattern(command.topics_pattern)
        _run_limited(connection, lambda: _get_topics(connection, command, pattern))
    except BrokerError as error:
        connection.reply_error(command.request_id, error)


async def _get_topics(
    connection: Connection,
    command: pb.CommandGetTopicsOfNamespace,
    pattern: TopicPattern | None,
) -> None:
    try:
        topics = await connection.service.watchers.matching(
            connection, command.namespace, _MODES[command.mode], pattern
        )
    except (BrokerError, MetadataError) as error:
        connection.reply_error(command.request_id, BrokerMetadataError(str(error)))
        return
    reply = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=command.request_id,
        filtered=pattern is not None,
        topics_hash=await run_in_turns(topics_hash(topics)),
    )
    reply.changed = not command.topics_hash or command.topics_hash != reply.topics_hash
    if reply.changed:
        await run_in_turns(fill(reply.topics, topics))
    connection.send(reply)


def check_namespace(namespace: str) -> None:
    parts = namespace.split("/")
    if len(parts) != 2 or not all(map(valid_namespace_part, parts)):
        raise InvalidTopicError(f"Invalid namespace name: {namespace}")


# --- WATCH_TOPIC_LIST


def on_watch_topic_list(connection: Connection, command: pb.CommandWatchTopicList) -> None:
    try:
        check_namespace(command.namespace)
        if len(command.topics_pattern) > PATTERN_LENGTH_MAX:
            raise NotAllowedError(f"Topics pattern longer than maximum: {PATTERN_LENGTH_MAX}")
        _run_limited(connection, lambda: _watch(connection, command))
    except BrokerError as error:
        connection.reply_error(command.request_id, error)


async def _watch(connection: Connection, command: pb.CommandWatchTopicList) -> None:
    try:
        await connection.service.watchers.add(connection, command)
    except (BrokerError, MetadataError) as error:
        connection.reply_error(command.request_id, as_broker_error(error))


def on_watch_topic_list_close(
    connection: Connection, command: pb.CommandWatchTopicListClose
) -> None:
    connection.service.watchers.remove(connection, command.watcher_id)
    connection.reply_success(command.request_id)


HANDLERS: Final[dict[int, Any]] = {
    pb.BaseCommand.PARTITIONED_METADATA: on_partitioned_metadata,
    pb.BaseCommand.LOOKUP: on_lookup,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE: on_get_topics,
    pb.BaseCommand.WATCH_TOPIC_LIST: on_watch_topic_list,
    pb.BaseCommand.WATCH_TOPIC_LIST_CLOSE: on_watch_topic_list_close,
}
