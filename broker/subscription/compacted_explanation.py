"""What a compaction did with a message that a subscription with ``readCompacted`` doesn't get."""

from typing import Final

from magnetar.broker.compaction.compacted_ledger import CompactedLedger
from magnetar.broker.compaction.keyed_messages import KeyedMessage, OpenedEntry
from magnetar.broker.dispatch.explanation import Explanation, Reason
from magnetar.managed_ledger.entry_batch import Buffer
from magnetar.managed_ledger.position import Position

_SCAN_BYTES: Final = 16 << 20
"""So many bytes of the compacted ledger are looked at for the message that came instead."""
_READ_BYTES: Final = 1 << 20


async def explain_compacted(
    compacted: CompactedLedger, position: Position, batch_index: int, body: Buffer | None
) -> Explanation | None:
    """Why it is not in the compacted ledger; None: it is.

    Args:
        position: REQUIRES: up to the horizon.
        batch_index: of a message in a batch; -1: of the whole entry.
        body: of the entry in the log; None: it is there no more.

    Raises:
        LedgerError, MetadataError.
    """
    following = await compacted.find(position)
    left = await compacted.read(following, 1)
    if left.batches and (left.batches[0].ledger_id, left.batches[0].first) == position:
        kept = OpenedEntry(left.batches[0].bodies[0]).messages
        if not 0 <= batch_index < len(kept) or not kept[batch_index].is_gone:
            return None
    message = None if body is None else _message(body, batch_index)
    if message is None:
        return _compacted_away(None)
    if message.key is None:
        return _compacted_without_key()
    if message.removes:
        return _removed_its_key()
    newer, is_whole = await _newest_of(compacted, following, message.key)
    if newer is None and is_whole:
        return _key_removed_later()
    return _compacted_away(newer)


def _message(body: Buffer, batch_index: int) -> KeyedMessage | None:
    """None: it can't be told, or is one of several."""
    messages = OpenedEntry(body).messages
    if batch_index < 0 and len(messages) == 1:
        return messages[0]
    return messages[batch_index] if 0 <= batch_index < len(messages) else None


async def _newest_of(compacted: CompactedLedger, entry: int, key: bytes) -> tuple[str | None, bool]:
    """Id of the message that the compacted ledger has of a key, from an entry on; and whether all
    of it was looked at.
    """
    size = 0
    while size < _SCAN_BYTES:
        run = await compacted.read(entry, _READ_BYTES)
        if not run.batches:
            return None, True
        for batch in run.batches:
            for at, body in enumerate(batch.bodies, batch.first):
                size += len(body)
                opened = OpenedEntry(body).messages
                for index, each in enumerate(opened):
                    if each.key == key and not each.is_gone:
                        found = f"{batch.ledger_id}:{at}"
                        return (f"{found}:-1:{index}" if len(opened) > 1 else found), True
        entry = run.following
    return None, False


# --- what is told


def _compacted_away(newer: str | None) -> Explanation:
    """Of a subscription that reads compacted; ``newer``: id of the message that it gets instead,
    None: it can't be told.
    """
    return Explanation(
        Reason.COMPACTED_AWAY,
        "It is compacted away" + (f" by {newer}." if newer else "."),
        "Who reads compacted gets the newest message of its key instead.",
        details={"newerMessageId": newer} if newer else {},
    )


def _key_removed_later() -> Explanation:
    return Explanation(
        Reason.COMPACTED_AWAY,
        "It is compacted away by a later message without a value, which removed its key.",
        "Who reads compacted gets nothing of this key until it has a value again.",
    )


def _removed_its_key() -> Explanation:
    return Explanation(
        Reason.COMPACTED_AWAY,
        "It is compacted away: it has no value and removed its key.",
        "Who reads compacted gets nothing of this key until it has a value again.",
    )


def _compacted_without_key() -> Explanation:
    return Explanation(
        Reason.COMPACTED_AWAY,
        "It is compacted away: it has no key.",
        "Set topicCompactionRetainNullKey if such messages shall stay.",
    )
