"""Where a topic's entries are: its ledgers, their bookies and copies, up to the last confirmed one.

For readers that take entries from bookies and copies themselves: docs/guides/http.md.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import orjson

from magnetar.bookkeeper.ledger_metadata import DIGEST_CRC32C, LedgerMetadata
from magnetar.bookkeeper.service_info import RPC_PROTOCOL
from magnetar.broker.errors import PersistenceError, TopicFencedError
from magnetar.broker.http.routing.scatter_gather import each
from magnetar.broker.http.streamed_answers import long_array
from magnetar.broker.http.topics.topic_access import stored
from magnetar.broker.service.bookie_access import BookieAccess, BookieAddressResolver
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.offload.context import OffloadContext
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.readable_range import ReadableLedger, ReadableRange, extent_of, left_of


async def topic_segments(
    topic: PersistentTopic,
    directory: BookieAddressResolver | None,
    from_ledger: int,
    *,
    locations: bool,
    compacted: bool = False,
) -> AsyncIterator[bytes]:
    """The answer about one topic, as of one moment.

    Args:
        from_ledger: ledgers below are left out.
        locations: also where each ledger is, and where the bookies are.
        compacted: also what the last compaction left.
    Raises:
        TopicFencedError: the topic is no longer served here.
        BrokerError: the metadata store, or a port, fails.
    """
    log = topic.ledger
    names: set[str] = set()
    fields: dict[str, Any] = {}
    if compacted:  # before the rest: the log must reach as far as its horizon
        row, found_metadata = await _compacted_row(topic, locations=locations)
        fields["compacted"] = row
        names |= named_bookies(found_metadata)
    extent = extent_of(log, from_ledger)
    pieces: list[tuple[int, bytes]] = []
    for ledgers in extent.pieces():
        wanted = [x for x in ledgers if x.is_in_bookies and (locations or x.size < 0)]
        found = await _read_metadata(log, wanted)
        names |= named_bookies(x for x in found.values() if x is not None)
        if left := left_of(ledgers, log):
            rows = [ledger_row(x, found.get(x.ledger_id), locations=locations) for x in left]
            pieces.append((left[-1].ledger_id, orjson.dumps(rows)))
        await asyncio.sleep(0)  # others' turn: a topic may have very many
    if not log.is_open:
        raise TopicFencedError(f"Topic {topic.name} is being closed")
    first = extent.first_left(log)
    access = BookieAccess({})
    if locations and directory is not None:
        access = await stored(directory.find(names, log.name), "Finding bookies")
    head = segments_head(str(topic.name), extent, first) | fields
    if locations:
        head |= access_fields(access)
    return long_array(head, "ledgers", _from(first[0], pieces))


async def _compacted_row(
    topic: PersistentTopic, *, locations: bool
) -> tuple[dict[str, Any] | None, list[LedgerMetadata]]:
    """What the last compaction left, None: there was none; and its ledger's metadata if its
    location is wanted.
    """
    while (current := topic.compacted) is not None:
        try:
            opened = await stored(current.opened(), "Opening the compacted ledger")
            ledger = ReadableLedger(
                *(current.ledger_id, opened.row.entries, opened.row.size),
                offload=current.copy,
            )
            found = None
            if locations and ledger.is_in_bookies:
                read = topic.ledger.client.read_ledger_metadata(current.ledger_id)
                found = await stored(read, "Reading ledger metadata")
                if found is None and ledger.copy is None:
                    raise PersistenceError(f"Compacted ledger {current.ledger_id} doesn't exist")
        except PersistenceError:
            if topic.compacted is current:
                raise
            continue  # another compaction has ended meanwhile
        row = ledger_row(ledger, found, locations=locations)
        row["horizon"] = position_fields(current.horizon)
        return row, [] if found is None else [found]
    return None, []


async def _from(ledger_id: int, pieces: list[tuple[int, bytes]]) -> AsyncIterator[bytes]:
    """Without those that were trimmed since they were made."""
    for last, piece in pieces:
        if last >= ledger_id:
            yield piece


async def _read_metadata(
    log: ManagedLedger, ledgers: list[ReadableLedger]
) -> dict[int, LedgerMetadata | None]:
    """By id; None: the ledger doesn't exist any more.

    Never from memory: auto-recovery changes the bookies of closed ledgers, too.
    """

    async def read(ledger: ReadableLedger) -> LedgerMetadata | None:
        return await log.client.read_ledger_metadata(ledger.ledger_id)

    async def read_all() -> list[LedgerMetadata | None]:
        answers = await each(ledgers, read)
        # Trimmed here, or by an owner who came after us and of whom we haven't heard yet.
        if None in answers and not await log.owns_list():
            raise TopicFencedError(f"{log.name} is served by another broker")
        return answers

    answers = await stored(read_all(), "Reading ledger metadata")
    return {x.ledger_id: answer for x, answer in zip(ledgers, answers, strict=True)}


def named_bookies(found: Iterable[LedgerMetadata]) -> set[str]:
    """Of all segments."""
    return {bookie for x in found for segment in x.segments for bookie in segment.bookies}


def segments_head(name: str, extent: ReadableRange, first: Position) -> dict[str, Any]:
    """The part of the answer that is of the whole topic."""
    return {
        "topic": name,
        "headBytes": 0,  # entries are stored as Pulsar stores them
        "terminated": extent.terminated,
        "first": position_fields(first),
        "lastConfirmed": position_fields(extent.last_confirmed),
    }


def ledger_row(
    ledger: ReadableLedger, metadata: LedgerMetadata | None, *, locations: bool
) -> dict[str, Any]:
    """One of its ledgers.

    Args:
        metadata: None: not asked for, or bookies don't have the ledger any more.
    """
    size = ledger.size
    if size < 0:
        size = 0 if metadata is None else metadata.length
    row: dict[str, Any] = {
        "ledgerId": ledger.ledger_id,
        "entries": ledger.entries,
        "size": size,
        "createdAt": -1 if metadata is None else metadata.created_ms,
        "closedAt": ledger.closed_ms,
    }
    if not locations:
        return row
    if metadata is not None and ledger.is_in_bookies:
        row["metadata"] = _quorums(metadata)
    if (copy := ledger.copy) is not None:
        row["copy"] = _copy(copy)
    return row


def _quorums(metadata: LedgerMetadata) -> dict[str, Any]:
    digest = {} if metadata.digest_type == DIGEST_CRC32C else {"digestType": metadata.digest_type}
    return digest | {
        "ensembleSize": metadata.ensemble_size,
        "writeQuorum": metadata.write_quorum,
        "ackQuorum": metadata.ack_quorum,
        "ensembles": [
            {"firstEntry": x.first_entry, "bookies": list(x.bookies)} for x in metadata.segments
        ],
    }


def _copy(context: OffloadContext) -> dict[str, Any]:
    copy = context.copy
    return {
        "uuid": copy.uuid,
        "driver": copy.driver,
        "location": dict(copy.location),
        "isOnly": context.is_only,
        "size": context.size,
    }


def access_fields(access: BookieAccess) -> dict[str, Any]:
    """Where the bookies are."""
    bookies = {
        name: {"host": host, "port": port} for name, (host, port) in access.addresses.items()
    }
    fields: dict[str, Any] = {"bookies": bookies, "instanceId": access.instance_id}
    if access.token:
        fields["bookieToken"] = access.token
    if access.is_apache:
        fields["bookieProtocol"] = RPC_PROTOCOL
    return fields


def position_fields(position: Position) -> dict[str, int]:
    return {"ledgerId": position[0], "entryId": position[1]}
