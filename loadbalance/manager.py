"""One broker's part in the sharing of work: it is registered, reports, and may lead.

| broker | parts |
|---|---|
| every broker | ``BrokerRegistry``, ``LoadReporter``, a candidate in ``BrokerElection`` |
| the leader | a ``LeaderTasks``: places bundles without an owner, moves and splits bundles |
| every broker, while there is no leader | a ``LeaderTasks``: answers the lookups it receives |
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from functools import partial

from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.leader import BrokerElection, LeaderBroker
from magnetar.loadbalance.leader_epoch import LeaderEpoch
from magnetar.loadbalance.leader_tasks import LeaderTasks, UnloadCallbacks
from magnetar.loadbalance.model import BrokerLoad, Weights
from magnetar.loadbalance.policies import pinned_broker
from magnetar.loadbalance.policy_reader import PolicyReader
from magnetar.loadbalance.registry import BrokerRegistry
from magnetar.loadbalance.reporter import LoadReporter
from magnetar.metadata.store import MetadataStore

logger = logging.getLogger(__name__)


class NoCandidateError(Exception):
    """No broker may own the bundle now, or that can't be told; ask again."""


@dataclass(frozen=True, slots=True)
class RedirectTarget:
    """Names the broker to ask about a bundle that no broker owns.

    Attributes:
        authoritative: that broker shall own it; else it is the leader and shall choose.
    """

    broker: BrokerLoad
    authoritative: bool


class LoadManager:
    """Life: construct, ``start``, ``leave`` (no new bundles come), ``close``."""

    def __init__(
        self,
        store: MetadataStore,
        cluster: str,
        config: BalancerConfig,
        measure: Callable[[], Awaitable[BrokerLoad]],
        actions: UnloadCallbacks,
    ) -> None:
        """
        Args:
            measure: this broker's load of now.
            actions: what this broker can order when it leads.
        """
        self.config = config
        self.registry = BrokerRegistry(store, Weights.of(config))
        self.leader_epoch = LeaderEpoch(store)
        self.reporter = LoadReporter(self.registry, lambda: self.config, measure)
        self._store, self._measure, self._actions = store, measure, actions
        self._policies = PolicyReader(store, cluster)
        self._election: BrokerElection | None = None
        self._leader_tasks: LeaderTasks | None = None
        self._leading: asyncio.Task[None] | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._broker_id = ""

    async def start(self, wait_s: float) -> None:
        """Be a candidate for bundles and for the lead.

        Args:
            wait_s: for a former broker of the same name but other URLs to go.
        Raises:
            LockBusyError: it stays. MetadataError: the store can't tell.
        """
        load = await self._measure()
        self._broker_id = load.broker_id
        await self.registry.register(load, wait_s)
        url = load.web_service_url or load.web_service_url_tls
        me = LeaderBroker(load.broker_id, url, load.incarnation)
        self._election = BrokerElection(self._store, me, self._on_leading)
        await self._election.start()
        self._reporting = asyncio.get_running_loop().create_task(self.reporter.run())

    async def begin_drain(self) -> None:
        """Report the load by ``measure`` at once: all brokers learn that this broker drains.

        Raises:
            MetadataError: the store can't tell.
        """
        await self.reporter.look(forced=True)

    async def assigned_broker(self, bundle: str) -> str | None:
        """Choose the broker that gets a bundle of this broker, which drains.

        None: no broker can take the bundle, or only the leader may choose, and this broker isn't
        the leader: then the next lookup asks the leader.

        Raises:
            MetadataError: the store can't tell.
        """
        config = self.config
        if not config.load_balancer_enabled or pinned_broker(bundle.rpartition("/")[0]):
            return None
        if config.load_balancer_leader_epoch_enabled and not self.is_leader:
            return None
        if self._leader_tasks is None:
            self._leader_tasks = self._new_leader_tasks()
        try:
            chosen = await self._leader_tasks.place(bundle)
        except InvalidDocumentError as error:
            logger.warning("%s: %s", bundle, error)
            return None
        return None if chosen == self._broker_id else chosen

    async def leave(self) -> None:
        """Lead no more and get no more bundles; those that are here stay."""
        for task in (self._reporting, self._leading):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))
        await self.registry.close()
        if self._election is not None:
            await self._election.close()

    async def close(self) -> None:
        await self.leave()
        self._policies.close()

    def reconfigure(self, config: BalancerConfig) -> None:
        """Go on with other settings; a leader begins its judgement anew."""
        before, self.config = self.config, config
        # A broker's whole configuration may be this one's subclass: its other settings don't count.
        if all(
            getattr(config, each.name) == getattr(before, each.name)
            for each in fields(BalancerConfig)
        ):
            return
        self._leader_tasks = None
        if self.is_leader:
            self._begin_to_lead()

    @property
    def is_leader(self) -> bool:
        return self._election is not None and self._election.is_leader

    async def leader(self) -> LeaderBroker | None:
        """Read the leader from the store; None: there is no leader now. Raises MetadataError."""
        return None if self._election is None else await self._election.leader()

    async def choose(
        self, bundle: str, promised_to: str | None = None, *, alone: bool = False
    ) -> RedirectTarget | None:
        """Name the broker to ask about a bundle without an owner; None: this broker shall own it.

        Followers name the leader. The leader decides; without a leader the broker asked decides.

        Args:
            promised_to: the broker that the bundle is on its way to.
            alone: decide without the leader; no follower may where the leader decides by epochs.
        Raises:
            NoCandidateError: retriable. MetadataError: the store can't tell.
        """
        if not self.config.load_balancer_enabled:
            return None
        pinned = pinned_broker(bundle.rpartition("/")[0])
        if pinned == self._broker_id:
            return None
        live = await self.registry.live()
        if promised_to is not None and promised_to in live:
            return self._redirect_target(live[promised_to])
        leader = None if alone or pinned or self.is_leader else await self.leader()
        # One that isn't registered can't be reached: decide without it.
        if leader is not None and leader.broker_id != self._broker_id and leader.broker_id in live:
            return RedirectTarget(live[leader.broker_id], False)
        if self.config.load_balancer_leader_epoch_enabled and not (self.is_leader or pinned):
            why = "this broker doesn't lead" if alone else "there is none"
            raise NoCandidateError(f"only a leader places bundles, and {why}")
        if self._leader_tasks is None:
            self._leader_tasks = self._new_leader_tasks()
        try:
            chosen = await self._leader_tasks.place(bundle)
        except InvalidDocumentError as error:
            raise NoCandidateError(str(error)) from error
        if chosen is None or (load := (await self.registry.live()).get(chosen)) is None:
            raise NoCandidateError("no broker is available to own it")
        return self._redirect_target(load)

    def _redirect_target(self, load: BrokerLoad) -> RedirectTarget | None:
        return None if load.broker_id == self._broker_id else RedirectTarget(load, True)

    def rounds(self) -> dict[str, Callable[[], Awaitable[object]]]:
        """List this broker's periodic tasks by name; a leader has more."""
        rounds: dict[str, Callable[[], Awaitable[object]]] = {
            "load report": partial(self.reporter.look, forced=True)
        }
        if self.is_leader and self._leader_tasks is not None:
            leading = self._leader_tasks.rounds(self._actions)
            rounds |= {name: work for name, (_, work) in leading.items()}
        return rounds

    def _new_leader_tasks(self) -> LeaderTasks:
        by_epoch = self.config.load_balancer_leader_epoch_enabled
        return LeaderTasks(
            *(self._store, self.registry, self._policies, self.config),
            broker_id=self._broker_id,
            leader_epoch=self.leader_epoch if by_epoch else None,
        )

    def _on_leading(self, leading: bool) -> None:
        self._leader_tasks = None  # the leader of the meantime knows better
        if leading:
            self._begin_to_lead()
        elif self._leading is not None:
            self._leading.cancel()

    def _begin_to_lead(self) -> None:
        if self._leading is not None:
            self._leading.cancel()
        self._leader_tasks = tasks = self._new_leader_tasks()
        self._leading = asyncio.get_running_loop().create_task(tasks.run(self._actions))
