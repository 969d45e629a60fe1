"""Core: ends of transactions on a terminated topic, whose log takes no more entries."""

from collections.abc import Mapping
from typing import Final

from magnetar.broker.transaction.transaction_id import TransactionId

ENDS_PROPERTY: Final = "pulsar.topic.transactions.ended"
"""Of the managed ledger: ``most:least:commit`` or ``most:least:abort``, with blanks between."""
_COMMIT: Final = "commit"
_ABORT: Final = "abort"


def stored_ends(properties: Mapping[str, str]) -> list[tuple[TransactionId, bool]]:
    """Each transaction, and whether it commits."""
    found = []
    for each in properties.get(ENDS_PROPERTY, "").split():
        most, least, how = each.split(":")
        found.append((TransactionId(int(most), int(least)), how == _COMMIT))
    return found


def with_end(
    before: Mapping[str, str], transaction: TransactionId, *, commit: bool
) -> dict[str, str]:
    """The properties with one more end; an older one of the same transaction stays."""
    if transaction in dict(stored_ends(before)):
        return dict(before)
    end = f"{transaction.most}:{transaction.least}:{_COMMIT if commit else _ABORT}"
    return {**before, ENDS_PROPERTY: f"{before.get(ENDS_PROPERTY, '')} {end}".lstrip()}
