"""Logs of pending acknowledgements whose subscriptions are deleted, until they are gone, too.

The topic's log names them in a property, from before the cursor's end. So a deletion that fails, or
that a crash ends, is made up for when the topic is loaded the next time, or deleted.
"""

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from magnetar.broker.errors import STORAGE_ERRORS
from magnetar.managed_ledger.managed_ledger import ManagedLedger

logger = logging.getLogger(__name__)

DELETED_LOGS: Final = "pulsar.pending.acks.deleted"
"""Property of the topic's log: names of managed ledgers, one a line."""


def deleted_logs(ledger: ManagedLedger) -> list[str]:
    """Those that may still be there."""
    return ledger.properties.get(DELETED_LOGS, "").splitlines()


async def note_deleted(ledger: ManagedLedger, name: str) -> None:
    """A log is about to be deleted, with its subscription.

    Raises:
        LedgerError, ManagedLedgerError, MetadataError.
    """
    await _change(ledger, lambda names: [*(x for x in names if x != name), name])


async def forget_deleted(ledger: ManagedLedger, gone: Collection[str]) -> None:
    """They are deleted, or in use again. Raises as `note_deleted` does."""
    await _change(ledger, lambda names: [x for x in names if x not in gone])


async def _change(ledger: ManagedLedger, change: Callable[[list[str]], list[str]]) -> None:
    def changed(before: "dict[str, str]") -> dict[str, str]:
        names = change(before.get(DELETED_LOGS, "").splitlines())
        others = {x: y for x, y in before.items() if x != DELETED_LOGS}
        return others | ({DELETED_LOGS: "\n".join(names)} if names else {})

    await ledger.update_properties(lambda before: changed(dict(before)))


async def delete_left(
    ledger: ManagedLedger, used: Collection[str], delete: Callable[[str], Awaitable[None]]
) -> None:
    """Make up for deletions, while nobody can acknowledge; what fails again is left.

    Args:
        used: those of subscriptions that are there: one of the same name was made since.
    """
    try:
        for name in (left := deleted_logs(ledger)):
            if name not in used:
                await delete(name)
        if left:
            await forget_deleted(ledger, left)
    except STORAGE_ERRORS as error:
        logger.warning("%s: logs of deleted subscriptions are left: %s", ledger.name, error)
