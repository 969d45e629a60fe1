"""Where the messages of one partition are: the answer of ``.../segments``, decoded. Pure.

Layout of the answer: docs/guides/http.md. Ledgers are listed in ascending order and hold nothing
above ``last_confirmed``; the highest one may still be written.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from magnetar.bookkeeper.ledger_metadata import (
    DIGEST_CRC32C,
    EnsembleSegment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.managed_ledger.offload.context import LedgerCopy
from magnetar.pipeline.errors import SegmentsUnavailableError
from magnetar.pipeline.offsets import BEGINNING, Offset


@dataclass(frozen=True, slots=True)
class TopicLedger:
    """One ledger of a topic.

    Attributes:
        entries: how many may be read; of an open ledger those up to the last confirmed one.
        size: of these entries in bytes, heads and bodies, without replicas.
        created_ms: wall clock of the broker; -1: unknown.
        closed_ms: the same; 0: it may still be written.
        metadata: None: bookies don't have it (any more), or the caller didn't ask for it.
        copy: a complete copy elsewhere; None: there is none.
        copy_is_only: bookies must not be asked.
    """

    ledger_id: int
    entries: int
    size: int
    created_ms: int = -1
    closed_ms: int = 0
    metadata: LedgerMetadata | None = None
    copy: LedgerCopy | None = None
    copy_is_only: bool = False

    @property
    def entry_bytes(self) -> float:
        """Mean size of an entry; 0 for an empty ledger."""
        return self.size / self.entries if self.entries else 0.0


@dataclass(frozen=True, slots=True)
class CompactedPart:
    """What the last compaction left of a partition.

    Attributes:
        ledger: each of its entries stands for one of the topic (docs/formats/compacted-ledger.md).
        horizon: before the first entry of the topic that was not compacted.
    """

    ledger: TopicLedger
    horizon: Offset


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """One partition at one moment.

    Attributes:
        first: the first entry that is stored; nothing is stored: the next entry there will be.
        end: before the first entry that isn't confirmed.
        bookies: bookie id -> host and port.
        instance_id: of the cluster of bookies; "": unknown.
        bookie_token: what bookies want to see; "": what the user gave.
        bookie_protocol: "": ours; "bookie-rpc": Apache BookKeeper's.
        compacted: is read in place of what lies before its horizon; None: it wasn't asked for, or
            no compaction ran.
    """

    topic: str
    ledgers: tuple[TopicLedger, ...]
    first: Offset
    end: Offset
    terminated: bool = False
    bookies: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    instance_id: str = ""
    bookie_token: str = field(default="", repr=False)
    bookie_protocol: str = ""
    compacted: CompactedPart | None = None

    @property
    def begin(self) -> Offset:
        """Where readers begin. The compacted part may have what the log has lost."""
        return self.first if self.compacted is None else BEGINNING

    def index_from(self, ledger_id: int) -> int:
        """Index of the first listed ledger whose id isn't below ``ledger_id``."""
        return bisect_left(self.ledgers, ledger_id, key=lambda x: x.ledger_id)

    def find(self, ledger_id: int) -> TopicLedger | None:
        """A listed ledger, or the compacted one."""
        index = self.index_from(ledger_id)
        if index < len(self.ledgers) and self.ledgers[index].ledger_id == ledger_id:
            return self.ledgers[index]
        if self.compacted is not None and self.compacted.ledger.ledger_id == ledger_id:
            return self.compacted.ledger
        return None

    def clamp(self, point: Offset) -> Offset:
        """The same point, or the nearest one that lies within what is stored."""
        return min(max(point, self.begin), self.end)


def parse_snapshot(answer: Any, *, compacted: bool = False) -> TopicSnapshot:
    """Decode the endpoint's answer.

    Args:
        compacted: it was asked what a compaction left.

    Raises:
        SegmentsUnavailableError: it isn't one; says what is wrong.
    """
    try:
        last = answer["lastConfirmed"]
        return TopicSnapshot(
            topic=str(answer["topic"]),
            ledgers=tuple(_ledger(each) for each in answer["ledgers"]),
            first=_point(answer["first"]),
            end=_point(last).after_entry,
            terminated=bool(answer["terminated"]),
            bookies={
                str(name): (str(place["host"]), int(place["port"]))
                for name, place in answer.get("bookies", {}).items()
            },
            instance_id=str(answer.get("instanceId", "")),
            bookie_token=str(answer.get("bookieToken", "")),
            bookie_protocol=str(answer.get("bookieProtocol", "")),
            compacted=_compacted(answer["compacted"]) if compacted else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SegmentsUnavailableError(
            f"the broker's list of a topic's ledgers can't be read: {error!r}; "
            "is it older than this package?"
        ) from error


def _compacted(value: Mapping[str, Any] | None) -> CompactedPart | None:
    if value is None:
        return None
    # It was closed before anybody was told of it. What it holds is of any age.
    ledger = replace(_ledger({**value, "closedAt": 1}), closed_ms=0)
    return CompactedPart(ledger, _point(value["horizon"]).after_entry)


def _point(value: Mapping[str, Any]) -> Offset:
    return Offset(int(value["ledgerId"]), int(value["entryId"]))


def _ledger(value: Mapping[str, Any]) -> TopicLedger:
    ledger_id, entries = int(value["ledgerId"]), int(value["entries"])
    closed_ms = int(value["closedAt"])
    metadata = copy = None
    if (fields := value.get("metadata")) is not None:
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=int(fields["ensembleSize"]),
            write_quorum=int(fields["writeQuorum"]),
            ack_quorum=int(fields["ackQuorum"]),
            segments=tuple(
                EnsembleSegment(int(each["firstEntry"]), tuple(map(str, each["bookies"])))
                for each in fields["ensembles"]
            ),
            # A reader without recovery treats every ledger as one that ends where it was told.
            state=LedgerState.CLOSED if closed_ms else LedgerState.OPEN,
            last_entry=entries - 1 if closed_ms else -1,
            digest_type=str(fields.get("digestType", DIGEST_CRC32C)),
        )
    if (fields := value.get("copy")) is not None:
        copy = LedgerCopy(
            ledger_id,
            str(fields["uuid"]),
            str(fields["driver"]),
            {str(key): str(text) for key, text in fields["location"].items()},
        )
    return TopicLedger(
        ledger_id,
        entries,
        int(value["size"]),
        int(value.get("createdAt", -1)),
        closed_ms,
        metadata,
        copy,
        copy is not None and bool(value["copy"].get("isOnly", False)),
    )
