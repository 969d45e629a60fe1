"""Why a stored subscription delivers nothing now, and what became of one of its messages.

Its dispatcher knows most of it. Here is what needs the entry itself: whether there is one, and what
keeps a client from giving it to its application. Nothing is moved by this.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.dispatch import explanation
from magnetar.broker.dispatch.explanation import Explanation, Reason
from magnetar.broker.errors import STORAGE_ERRORS
from magnetar.broker.protocol.entry_header import (
    FLAG_CHUNK,
    FLAG_MARKER,
    FLAG_TRANSACTION,
    EntryHeader,
    parse_header,
)
from magnetar.broker.protocol.framing import MalformedFrameError, parse_entry_body
from magnetar.broker.protocol.pulsar_api_pb2 import MessageMetadata
from magnetar.broker.subscription.compacted_explanation import explain_compacted
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.subscription.subscription import Subscription
from magnetar.broker.subscription.transaction_explanation import TransactionExplainer
from magnetar.managed_ledger.entry_batch import Buffer, EntryBatch
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position, format_position

NO_MESSAGE: Final = (-1, -1)
"""Position that a producer is told of a message which wasn't stored."""
_SCAN_ENTRIES: Final = 1_000
_SCAN_BYTES: Final = 64 << 20
"""So many entries and bytes are looked at for the parts of a chunked message."""
_READ_BYTES: Final = 4 << 20
_PARTS_MAX: Final = 10
"""Parts of a message that a sentence names."""


async def explain_now(subscription: Subscription, publishing: Explanation | None) -> Explanation:
    """As ``Subscription.explain``; of a message that a client has, also what its bytes say."""
    found = subscription.explain(publishing)
    if not isinstance(subscription, PersistentSubscription):
        return found
    if found.reason in (Reason.NO_CONSUMER, Reason.CONSUMER_REFUSED, Reason.DELAYED):
        return await _with_first_due(subscription, found)
    if found.reason is Reason.PENDING:
        oldest = subscription.cursor.state.first_unacked()
        batch, _ = await _read(subscription.ledger, oldest)
        found = await _of_content(subscription, oldest, batch, found)
    return found


async def explain_message(
    subscription: PersistentSubscription, position: Position, batch_index: int = -1
) -> Explanation:
    """What became of a message, or why it isn't delivered yet.

    Args:
        batch_index: of a message in a batch; -1: of the whole entry.
    """
    ledger, state = subscription.ledger, subscription.cursor.state
    missing = _explain_missing(ledger, position)
    compacted = None
    if missing is None or missing.reason is Reason.TRIMMED:
        compacted = _compacted_of(subscription, position)
    if compacted is not None:
        gone = await _explain_gone(subscription, compacted, position, batch_index)
        if gone is not None:
            return gone
    elif missing is not None:
        return missing
    transactions = subscription.explain_transactions()
    # Dispatch acknowledges what was aborted: only the entry tells.
    is_needed = transactions.buffer is not None or batch_index >= 0 or not state.is_acked(position)
    batch, error = await _read(ledger, position) if is_needed else (None, "")
    head: EntryHeader | None = None if batch is None else parse_header(batch.heads[0])
    if head is not None and batch_index >= head.message_count:
        return explanation.not_found(position, head.message_count, in_batch=True)
    if batch is not None and (found := _of_transaction(transactions, batch)) is not None:
        return found
    left = state.batch_ack_set(position) if batch_index >= 0 else None
    if state.is_acked(position) or (left is not None and not _has_bit(left, batch_index)):
        return subscription.with_unread(explanation.acknowledged())
    told = subscription.explain_entry(position, head, batch_index)
    if error and told.reason is not Reason.PENDING:
        return explanation.unreadable(error)
    return await _of_content(subscription, position, batch, told)


def _compacted_of(
    subscription: PersistentSubscription, position: Position
) -> CompactedLedger | None:
    """What its consumers read in place of the log; None: they read the log there."""
    compacted = subscription.topic.compacted
    if compacted is None or position > compacted.horizon:
        return None
    reads_compacted = any(each.request.read_compacted for each in subscription.consumers)
    return compacted if reads_compacted else None


async def _explain_gone(
    subscription: PersistentSubscription,
    compacted: CompactedLedger,
    position: Position,
    batch_index: int,
) -> Explanation | None:
    """None: it isn't compacted away. Whether a consumer got it before, nobody knows: what lies
    before the read position counts as pending.
    """
    batch, _ = await _read(subscription.ledger, position)
    body = None if batch is None else batch.bodies[0]
    try:
        return await explain_compacted(compacted, position, batch_index, body)
    except STORAGE_ERRORS as error:
        return explanation.unreadable(str(error) or type(error).__name__)


def _of_transaction(transactions: TransactionExplainer, batch: EntryBatch) -> Explanation | None:
    if parse_header(batch.heads[0]).flags & (FLAG_TRANSACTION | FLAG_MARKER) != FLAG_TRANSACTION:
        return None
    metadata = _metadata(batch.bodies[0])
    return None if metadata is None else transactions.of_message(metadata)


def _has_bit(words: Sequence[int], index: int) -> bool:
    return index < 64 * len(words) and bool(words[index // 64] >> index % 64 & 1)


def _explain_missing(ledger: ManagedLedger, position: Position) -> Explanation | None:
    """Why there is no such entry; None: it exists."""
    if position == NO_MESSAGE:
        return explanation.duplicate()
    last, entries = ledger.last_confirmed, ledger.offsets.entries(position[0])
    if position > last:
        return explanation.past_end(last, position[0] if entries is None else None)
    if entries is None:
        return explanation.trimmed(position)
    return explanation.not_found(position, entries) if position[1] >= entries else None


async def _read(ledger: ManagedLedger, position: Position) -> tuple[EntryBatch | None, str]:
    """The entry at a position; None: there is none now, or it can't be read, and why."""
    try:
        batch = await ledger.read(position, 1, 1)
    except STORAGE_ERRORS as error:
        return None, str(error) or type(error).__name__
    if batch is None or (batch.ledger_id, batch.first) != position:
        return None, ""
    return batch, ""


async def _of_content(
    subscription: PersistentSubscription,
    position: Position,
    batch: EntryBatch | None,
    found: Explanation,
) -> Explanation:
    """What a client needs besides the entry, to give the message to its application.

    Args:
        batch: the entry at ``position``; None: it couldn't be read.
    """
    if found.reason is not Reason.PENDING or batch is None:
        return found
    if (metadata := _metadata(batch.bodies[0])) is None:
        return found
    if metadata.encryption_keys:
        found = _of_encrypted(
            found, format_position(position), [each.key for each in metadata.encryption_keys]
        )
    parts = metadata.num_chunks_from_msg
    if parts > 1:
        found = _of_chunk(found, format_position(position), metadata.chunk_id + 1, parts)
        there = await _parts(subscription, metadata)
        if there is not None and (missing := [n + 1 for n in range(parts) if n not in there]):
            found = _incomplete(found, missing)
    return found


def _metadata(body: Buffer) -> MessageMetadata | None:
    """None: a producer stored what is no message."""
    try:
        return parse_entry_body(body)[0]
    except (MalformedFrameError, DecodeError):
        return None


class _TooMuchError(Exception):
    """There is more than may be looked at, or it can't be read."""


async def _unacked(
    subscription: PersistentSubscription, first_max: int = _SCAN_ENTRIES
) -> AsyncGenerator[tuple[EntryHeader, Buffer], None]:
    """Its entries without an acknowledgment, in order.

    Args:
        first_max: entries of the first read.
    Raises:
        _TooMuchError
    """
    ledger, state = subscription.ledger, subscription.cursor.state
    position = state.first_unacked()
    entries, size, entries_max = 0, 0, first_max
    while entries < _SCAN_ENTRIES and size < _SCAN_BYTES:
        try:
            batch = await ledger.read(position, entries_max, _READ_BYTES)
        except STORAGE_ERRORS as error:
            raise _TooMuchError from error
        if batch is None:
            return
        acked = frozenset(state.acked_in(batch.ledger_id, batch.first, len(batch.heads)) or ())
        for index, raw in enumerate(batch.heads):
            if batch.first + index not in acked:
                yield parse_header(raw), batch.bodies[index]
        entries += len(batch.heads)
        size += sum(map(len, batch.bodies))
        position, entries_max = (batch.ledger_id, batch.first + len(batch.heads)), _SCAN_ENTRIES
    raise _TooMuchError


async def _parts(subscription: PersistentSubscription, wanted: MessageMetadata) -> set[int] | None:
    """Chunk ids of a message that are unacknowledged; None: there is too much to look at."""
    found = set[int]()
    try:
        async with aclosing(_unacked(subscription)) as entries:
            async for head, body in entries:
                metadata = _metadata(body) if head.flags & FLAG_CHUNK else None
                if metadata is not None and metadata.uuid == wanted.uuid:
                    found.add(metadata.chunk_id)
                    if len(found) >= wanted.num_chunks_from_msg:
                        break
    except _TooMuchError:
        return None
    return found


async def _with_first_due(subscription: PersistentSubscription, found: Explanation) -> Explanation:
    """Without a consumer, or when the rest was sent: when the first delayed message is due."""
    now_ms, due_ms = subscription.now_ms(), list[int]()
    if not subscription.topic.policies.delayed_delivery.active:
        return found
    try:
        # Mostly the oldest message isn't delayed: then no other is read.
        async with aclosing(_unacked(subscription, first_max=1)) as entries:
            async for head, _ in entries:
                if head.deliver_at_ms > now_ms:
                    due_ms.append(head.deliver_at_ms)
                elif found.reason is not Reason.DELAYED and not head.flags & FLAG_MARKER:
                    return found
    except _TooMuchError:
        return found
    if not due_ms or (first_ms := min(due_ms)) == found.until_ms:
        return found
    return _due_first(found, first_ms, now_ms)


# --- what is told


def _due_first(found: Explanation, due_ms: int, now_ms: int) -> Explanation:
    """``found``: that no consumer is connected, or that the oldest message is due later."""
    told = f"The first one is due in {explanation.duration(due_ms - now_ms)}."
    if found.reason is Reason.DELAYED:
        return replace(found, message=f"{found.message} {told}", until_ms=due_ms)
    return replace(
        found,
        message=f"{found.message} All messages are delayed by their producers. {told}",
        next=f"{found.next} Shared and Key_Shared subscriptions get a message when it is due.",
        until_ms=due_ms,
    )


def _of_encrypted(found: Explanation, place: str, keys: Sequence[str]) -> Explanation:
    """A pending entry that clients must decrypt; ``keys``: their names."""
    return replace(
        found,
        message=f"{found.message} Message {place} is encrypted (key {', '.join(keys)}): a client "
        "without the private key does not give it to its application.",
        details={**found.details, "encryptionKeys": list(keys)},
    )


def _of_chunk(found: Explanation, place: str, part: int, parts: int) -> Explanation:
    """A pending entry that is a part of a message, from 1 on."""
    return replace(
        found,
        message=f"{found.message} Message {place} is part {part} of {parts} of a chunked one, "
        "which a client gives to its application when it has all parts.",
        details={**found.details, "part": part, "parts": parts},
    )


def _incomplete(found: Explanation, missing: Sequence[int]) -> Explanation:
    """A pending part of a message whose other parts aren't there; see ``_of_chunk``."""
    named = ", ".join(map(str, missing[:_PARTS_MAX]))
    more = ", ..." if len(missing) > _PARTS_MAX else ""
    return replace(
        found,
        reason=Reason.INCOMPLETE,
        message=f"{found.message} No client can have them: part {named}{more} is not among the "
        "unacknowledged messages.",
        next="If its producer is still sending, the rest comes. Else a client gives it up after a "
        "while (expireTimeOfIncompleteChunkedMessage), or it is skipped (topics skip).",
        details={**found.details, "missingParts": list(missing[:_PARTS_MAX])},
    )
