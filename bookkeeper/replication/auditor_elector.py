"""One of the candidates is auditor: elected, and stopped at once when its session is lost.

In our own layout the seat is one ephemeral node, in BookKeeper's it has votes below it, so that our
candidates and BookKeeper's elect one of them all. (Those of Pulsar's own metadata driver elect at
another path: two auditors at once cost work, and nothing else.) All candidates wake up when the
auditor ends, which is nothing for some dozens of them.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from magnetar.bookkeeper.layout.layout import Layout
from magnetar.bookkeeper.replication.auditor import Auditor, AuditorDependencies
from magnetar.bookkeeper.replication.metrics import AuditorMetrics
from magnetar.bookkeeper.service_info import UNDER_REPLICATION_ROOT
from magnetar.metadata.coordination import LeaderElection, LeaderState
from magnetar.metadata.store import MetadataStore
from magnetar.metadata.vote_election import VoteElection, read_leader

AUDITOR_PATH: Final = f"{UNDER_REPLICATION_ROOT}/auditorelection"
PULSARS_AUDITOR_PATH: Final = f"{UNDER_REPLICATION_ROOT}/leader"
"""Of auto-recovery with Pulsar's own driver (``metadata-store:``): the name in JSON."""
_AGAIN_S: Final = 10.0
_log = logging.getLogger(__name__)


class AuditorElector:
    """Takes part in the election from ``start`` to ``close``.

    Args:
        name: of this candidate; no two processes may have the same.
        make: a new auditor that has been started, for each election that is won.
    """

    def __init__(
        self,
        ports: AuditorDependencies,
        name: str,
        make: Callable[[], Auditor],
        metrics: AuditorMetrics,
    ) -> None:
        self.auditor: Auditor | None = None
        self._make, self._metrics = make, metrics
        self._name = name
        self._ending: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None  # after a failure
        self._format = ports.ledgers.layout.under_replication
        election = VoteElection if self._format.elects_by_votes else LeaderElection
        proposal = self._format.encode_auditor(name)
        self._election = election(ports.store, AUDITOR_PATH, proposal, self._on_state)

    async def start(self) -> None:
        """Run for the seat; from now on also whenever it becomes free."""
        await self._election.elect()

    async def leader(self) -> str | None:
        """Name of the candidate that is auditor now, as stored."""
        found = await self._election.leader()
        return None if found is None else self._format.decode_auditor(found)

    async def close(self) -> None:
        """Stop auditing, then give up the seat."""
        self._stop()
        await asyncio.gather(*self._ending)
        await self._election.close()

    def _on_state(self, state: LeaderState) -> None:
        if state is not LeaderState.NO_LEADER:
            self._metrics.election_attempts += 1
        if state is LeaderState.LEADING:
            _log.info("%s is auditor now", self._name)
            self._metrics.is_auditor = True
            self._start()
        else:
            self._stop()

    def _start(self) -> None:
        """An auditor, and after a while another one if it fails: the seat is ours, so nobody else
        would do it."""
        self._again = None
        self.auditor = self._make()
        self.auditor.on_failed = self._on_failed

    def _on_failed(self) -> None:
        auditor, self.auditor = self.auditor, None
        if auditor is not None:
            self._end(auditor)
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(_AGAIN_S, self._start)

    def _stop(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._metrics.is_auditor:
            _log.info("%s is no auditor any more", self._name)
        self._metrics.is_auditor = False
        self._metrics.zones = {}  # another one's to tell
        self._metrics.all_zones_down = False
        auditor, self.auditor = self.auditor, None
        if auditor is not None:
            self._end(auditor)

    def _end(self, auditor: Auditor) -> None:
        auditor.stop()  # at once, not when the loop gets round to it
        task = asyncio.get_running_loop().create_task(auditor.close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


async def read_auditor(store: MetadataStore, layout: Layout) -> str | None:
    """Name of the candidate that is auditor now, one of Pulsar's included; None: there is none.

    Raises:
        MetadataError.
    """
    form = layout.under_replication
    if not form.elects_by_votes:
        node = await store.get(AUDITOR_PATH)
        return None if node is None else form.decode_auditor(node.value)
    if (value := await read_leader(store, AUDITOR_PATH)) is not None:
        return form.decode_auditor(value)
    node = await store.get(PULSARS_AUDITOR_PATH)
    return None if node is None else node.value.decode(errors="replace").strip('"')
