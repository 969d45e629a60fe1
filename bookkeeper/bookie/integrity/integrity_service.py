"""Everything that looks after a bookie's data: scrub, repair, data-integrity check."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

from magnetar.bookkeeper.bookie.bookie import Bookie
from magnetar.bookkeeper.bookie.integrity.integrity_check import IntegrityCheck, IntegrityConfig
from magnetar.bookkeeper.bookie.integrity.integrity_listener import IntegrityMetrics
from magnetar.bookkeeper.bookie.integrity.replica_source import ReplicaSource
from magnetar.bookkeeper.bookie.integrity.scrub_repairer import ScrubRepairer
from magnetar.bookkeeper.bookie.integrity.scrubber import Scrubber, ScrubConfig

_DAMAGES_SHOWN = _DISPUTES_SHOWN = 100


@dataclass(frozen=True, slots=True)
class IntegrityServiceConfig:
    """What of it runs by itself; on demand everything does."""

    scrub_enabled: bool = True
    scrub: ScrubConfig = field(default_factory=ScrubConfig)
    integrity_check_enabled: bool = True
    integrity: IntegrityConfig = field(default_factory=IntegrityConfig)


class IntegrityService:
    """The ``DataIntegrityListener`` of a bookie: ``start()``, ``close()`` before the bookie's.

    Args:
        replica_source: None: there are no others; damage is reported and not repaired.
    """

    def __init__(
        self, bookie: Bookie, replica_source: ReplicaSource | None, config: IntegrityServiceConfig
    ) -> None:
        self.metrics = IntegrityMetrics()
        self._bookie = bookie
        self._config = config
        self.repairer = ScrubRepairer(bookie, replica_source, self.metrics)
        self.scrubber = Scrubber(bookie, self.repairer, self.metrics, config.scrub)
        self.integrity: IntegrityCheck | None = None
        if replica_source is not None:
            self.integrity = IntegrityCheck(bookie, replica_source, self.metrics, config.integrity)

    def start(self) -> None:
        self._bookie.integrity = self
        self.scrubber.start(by_itself=self._config.scrub_enabled)
        if self.integrity is not None:
            self.integrity.start(by_itself=self._config.integrity_check_enabled)

    async def close(self) -> None:
        self._bookie.integrity = None
        await self.scrubber.close()
        if self.integrity is not None:
            await self.integrity.close()
        await self.repairer.close()

    @property
    def damaged_now(self) -> int:
        return sum(known.damage.end - known.damage.first for known in self.repairer.damages)

    def on_damaged(self, ledger_id: int, entry_id: int) -> None:
        self.repairer.suspect(ledger_id, entry_id)

    def on_damaged_logs(self, log_ids: Iterable[int]) -> None:
        self.scrubber.check_logs(log_ids)

    def on_report(self, ledger_id: int, entry_id: int) -> bool:
        return self.repairer.report(ledger_id, entry_id)

    def check(self, *, scrub: bool, integrity: bool) -> str:
        if scrub:
            self.scrubber.request()
        if integrity and self.integrity is not None:
            self.integrity.request()
        return json.dumps(self.status())

    def status(self) -> dict[str, object]:
        """docs/operate/bookies.md shows one."""
        storage = self._bookie.storage
        damages = self.repairer.damages
        return {
            "inLimbo": storage.limbo_phase != 0,
            "ledgersInLimbo": len(storage.limbo_ledgers()),
            "ledgersInDispute": len(storage.disputed),
            "disputes": sorted(storage.disputed)[:_DISPUTES_SHOWN],
            "integrityCheck": None if self.integrity is None else self.integrity.status(),
            "scrub": self.scrubber.status(),
            "damagedEntries": self.damaged_now,
            "damagedEntriesFound": self.metrics.damaged_entries,
            "damagedEntriesRepaired": self.metrics.repaired_entries,
            "damages": [
                {
                    "ledger": known.damage.ledger_id,
                    "firstEntry": known.damage.first,
                    "lastEntry": known.damage.end - 1,
                    "file": known.damage.path,
                    "offset": known.damage.offset,
                    "what": known.damage.reason,
                    "whyNotRepaired": known.why,
                }
                for known in damages[:_DAMAGES_SHOWN]
            ],
        }
