"""Describes the offloaded copies of ledgers, as a managed ledger's list stores them. Pure.

A copy goes one way: STARTED (named, perhaps half written), COMPLETE (proved equal to the ledger),
ONLY (bookies are about to lose, or have lost, the ledger), SETTLED (they have). Each step is one
compare-and-set of the list.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any


class CopyState(IntEnum):
    """How far a copy is; each includes the ones before."""

    STARTED = 0
    COMPLETE = 1
    """Its bytes were read back and are the ledger's."""
    ONLY = 2
    """Pulsar's bookkeeperDeleted: never again read from bookies."""
    SETTLED = 3
    """The ledger is known to be gone from bookies."""


@dataclass(frozen=True, slots=True)
class LedgerCopy:
    """One attempt to copy one ledger; a second attempt is another copy, with another UUID."""

    ledger_id: int
    uuid: str
    driver: str
    """Name of the offloader that has it."""
    location: Mapping[str, str] = field(default_factory=dict)
    """Settings by which that offloader finds it again, also after the settings have changed."""

    @property
    def name(self) -> str:
        """Of its objects: unique among all copies of all ledgers."""
        return f"{self.ledger_id}-{self.uuid}"


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """A listed ledger's copy."""

    copy: LedgerCopy
    state: CopyState = CopyState.STARTED
    completed_ms: int = 0
    """Wall clock when it was proved complete."""
    size: int = 0
    """Bytes that the copy takes where it is."""

    @property
    def is_complete(self) -> bool:
        return self.state >= CopyState.COMPLETE

    @property
    def is_only(self) -> bool:
        """Tells whether readers must not read the ledger from bookies any more."""
        return self.state >= CopyState.ONLY


def copy_fields(copy: LedgerCopy) -> dict[str, Any]:
    """A copy as JSON."""
    return {
        "ledger": copy.ledger_id,
        "uuid": copy.uuid,
        "driver": copy.driver,
        "location": dict(copy.location),
    }


def context_fields(context: OffloadContext) -> dict[str, Any]:
    """A context as JSON."""
    return {
        **copy_fields(context.copy),
        "state": int(context.state),
        "completed_ms": context.completed_ms,
        "size": context.size,
    }


def parse_copy(fields: Any) -> LedgerCopy:
    """Inverse of `copy_fields`.

    Raises:
        ValueError, KeyError, TypeError: it isn't one.
    """
    location = fields["location"]
    texts = [fields["uuid"], fields["driver"], *location, *location.values()]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"not the texts of a copy: {fields!r:.200}")
    return LedgerCopy(_integer(fields["ledger"]), fields["uuid"], fields["driver"], dict(location))


def parse_context(fields: Any) -> OffloadContext:
    """Inverse of `context_fields`; raises as `parse_copy` does."""
    return OffloadContext(
        parse_copy(fields),
        CopyState(_integer(fields["state"])),
        _integer(fields["completed_ms"]),
        _integer(fields["size"]),
    )


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"not an integer: {value!r:.60}")
    return value
