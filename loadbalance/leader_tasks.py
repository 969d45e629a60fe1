"""Runs the leader's work: it follows the load reports, and places, moves and splits bundles."""

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson

from magnetar.loadbalance.balancer import Balancer
from magnetar.loadbalance.config import BalancerConfig
from magnetar.loadbalance.documents import (
    broker_average_document,
    bundle_load_document,
    bundle_load_of,
    parse,
    quota_of,
)
from magnetar.loadbalance.errors import InvalidDocumentError
from magnetar.loadbalance.leader import LEADER_PATH
from magnetar.loadbalance.leader_epoch import LeaderEpoch
from magnetar.loadbalance.model import BrokerLoad, BundleData, Move, Split, namespace_of
from magnetar.loadbalance.policy_reader import PolicyReader
from magnetar.loadbalance.registry import BrokerRegistry, StoredReport
from magnetar.loadbalance.unload_cooldowns import StoreClock, UnloadCooldowns
from magnetar.metadata.errors import MetadataError, NotFoundError
from magnetar.metadata.item_errors import ItemErrors
from magnetar.metadata.recipes import update
from magnetar.metadata.store import VALUE_BYTES_MAX, MetadataStore

logger = logging.getLogger(__name__)

BUNDLE_DATA_ROOT: Final = "/loadbalance/bundle-data"
AVERAGES_ROOT: Final = "/loadbalance/broker-time-average"
_QUOTA_ROOT: Final = "/loadbalance/resource-quota/namespace"
_MOVED_PATH: Final = "/loadbalance/moved-bundles"
_AT_ONCE: Final = 16
"""Moves, or writes of averages."""
_REPORTS_AT_ONCE: Final = 4
"""Read without a pause: the first one of a broker with 100 bundles takes 0.7 ms."""
_AGAIN_S: Final = 1.0
_ORDER_WITHIN_S: Final = 240.0
"""A move that hasn't begun by then isn't ordered: it was decided by what was true before."""


@dataclass(frozen=True, slots=True)
class UnloadCallbacks:
    """Holds the calls by which a leader has the owners of bundles move and split them.

    Attributes:
        move: whether the bundle left its source.
        split: whether the bundle was cut.
        bundle_count: of a namespace; None: not known.
    """

    move: Callable[[Move], Awaitable[bool]]
    split: Callable[[Split], Awaitable[bool]]
    bundle_count: Callable[[str], Awaitable[int | None]]


class LeaderTasks:
    """A ``Balancer`` fed from the store. A new one for each term as the leader.

    A broker that has to place a bundle while there is no leader has one for that alone.
    """

    def __init__(
        self,
        store: MetadataStore,
        registry: BrokerRegistry,
        policies: PolicyReader,
        config: BalancerConfig,
        *,
        broker_id: str = "",
        leader_epoch: LeaderEpoch | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            broker_id: the leader's id.
            leader_epoch: the leader alone decides, and only in its own epoch; None: it advises.
            clock: seconds, never jumps; no two processes need to have the same.
        """
        self._broker_id, self._leader_epoch = broker_id, leader_epoch
        self._epoch = 0  # ours; 0: none has begun, or none is used
        self.balancer = Balancer(config, rng or random.Random())
        self.config = config
        self._store, self._registry, self._policies = store, registry, policies
        self._clock, self._store_clock = clock, StoreClock()
        self._following = asyncio.Lock()  # else an older report could be told after a newer one
        self._seen: object = None  # the reports that were told last
        self._fed: dict[str, BrokerLoad] = {}
        self._used: object = None  # the policies that the balancer knows
        self._all_overloaded = False
        self._restored: set[str] = set()  # bundles whose stored averages were looked for

    # --- knowing

    async def follow(self) -> None:
        """Tell the balancer what is new.

        Raises:
            MetadataError: the store can't tell.
            InvalidDocumentError: policies can't be parsed; the leader places nothing without them.
        """
        async with self._following:
            policies = await self._policies.read()
            if policies is not self._used:
                self._used = policies
                self.balancer.on_policies(policies)
            reports = await self._registry.reports()
            if reports is not self._seen:
                await self._tell(reports)
                self._seen = reports

    async def _tell(self, reports: Mapping[str, StoredReport]) -> None:
        for name in self._fed.keys() - reports.keys():
            del self._fed[name]
            self.balancer.on_broker_gone(name)
        news = {
            name: each for name, each in reports.items() if self._fed.get(name) is not each.load
        }
        await self._restore({bundle for each in news.values() for bundle in each.load.stats})
        # Not by our own wall clock, nor by the brokers': they differ, by minutes if they want to.
        for _, modified_ms in reports.values():
            self._store_clock.see(modified_ms, self._clock())
        for number, (name, (load, modified_ms)) in enumerate(news.items(), 1):
            now_s = self._clock()
            # One that changes while we watch is new; another was made when it was stored.
            age_s = 0.0 if name in self._fed else self._store_clock.age_s(modified_ms, now_s)
            self._fed[name] = load
            self.balancer.on_report(load, now_s, age_s)
            if not number % _REPORTS_AT_ONCE:
                await asyncio.sleep(0)

    async def place(self, bundle: str) -> str | None:
        """Choose the broker that is to own a bundle without an owner; None: no broker may.

        Raises:
            MetadataError, InvalidDocumentError: as ``follow``.
        """
        await self.follow()
        await self._restore({bundle})
        chosen = self.balancer.place(bundle, self._clock())
        if chosen is None or await self._decides(bundle, chosen):
            return chosen
        logger.warning("%s isn't placed: this broker doesn't lead, or not yet", bundle)
        return None

    async def _decides(self, bundle: str, broker: str | None) -> bool:
        """Assign the chosen broker, and tell whether it holds; True where the leader advises."""
        if self._leader_epoch is None:
            return True
        if not self._epoch:
            return False
        return broker is None or await self._leader_epoch.assign(bundle, broker, self._epoch)

    async def _is_leader(self) -> bool:
        """Tell whether to go on; begin an epoch if ours isn't the latest and this broker leads."""
        if self._leader_epoch is None or (
            self._epoch and await self._leader_epoch.is_current(self._epoch)
        ):
            return True
        self._epoch = 0
        # A broker that was paused after its election mustn't outdo the present leader's epoch.
        seat = await self._store.get(LEADER_PATH)
        if seat is None or not seat.stat.created_by_self:
            logger.warning("a later epoch has begun, and this broker doesn't lead")
            return False
        self._epoch = await self._leader_epoch.begin(self._broker_id)
        logger.info("epoch %d has begun", self._epoch)
        return True

    async def _restore(self, bundles: set[str]) -> None:
        """Restore the loads of bundles from earlier leaders' averages or operators' quotas."""
        new: dict[str, list[str]] = {}
        for bundle in bundles - self._restored:
            new.setdefault(namespace_of(bundle), []).append(bundle)
        left = sorted(new.items())
        while left:
            some, left = left[:_AT_ONCE], left[_AT_ONCE:]
            names = [name for _, its in some for name in its]
            self._restored.update(names)
            try:
                await asyncio.gather(*(self._restore_of(*each) for each in some))
            except BaseException:
                self._restored.difference_update(names)
                raise

    async def _restore_of(self, namespace: str, bundles: list[str]) -> None:
        """Of most bundles nothing is stored, so a list of those that there are comes first."""
        stored: set[str] = set()
        for root in (BUNDLE_DATA_ROOT, _QUOTA_ROOT):
            names = await self._store.children(f"{root}/{namespace}")
            stored.update(f"{namespace}/{name}" for name in names)
        for bundle in stored.intersection(bundles):
            if (load := await self._stored_load(bundle)) is not None:
                self.balancer.restore(bundle, load)

    async def _stored_load(self, bundle: str) -> BundleData | None:
        for root, read in (
            (BUNDLE_DATA_ROOT, bundle_load_of),
            (_QUOTA_ROOT, lambda document: BundleData.of_quota(quota_of(document))),
        ):
            path = f"{root}/{bundle}"
            if (node := await self._store.get(path)) is None:
                continue
            try:
                return read(parse(path, node.value))
            except InvalidDocumentError as error:
                logger.warning("%s", error)
        return None

    # --- doing

    async def run(self, actions: UnloadCallbacks) -> None:
        """Rounds of moves and splits, until it is cancelled."""
        rounds = self.rounds(actions)
        done_s = dict.fromkeys(rounds, self._clock())
        told = ItemErrors("load balancing", logger, (MetadataError, InvalidDocumentError))
        await self._begin()
        while True:
            await asyncio.sleep(self.config.load_balancer_shedding_interval_minutes * 60)
            with told.round() as each:
                for name, (every_minutes, work) in rounds.items():
                    if self._clock() - done_s[name] >= every_minutes * 60:
                        with each.item(name):
                            await work()
                            done_s[name] = self._clock()

    def rounds(
        self, actions: UnloadCallbacks
    ) -> dict[str, tuple[float, Callable[[], Awaitable[None]]]]:
        """List the leader's periodic tasks by name, with the least minutes between two runs."""
        averages_minutes = self.config.load_balancer_resource_quota_update_interval_minutes
        return {
            "moves and splits": (0, partial(self._round, actions)),
            "averages of loads": (averages_minutes, self._store_averages),
        }

    async def _begin(self) -> None:
        while True:
            try:
                await self._is_leader()
                return
            except MetadataError as error:
                logger.info("%s", error)
                await asyncio.sleep(_AGAIN_S)

    async def _round(self, actions: UnloadCallbacks) -> None:
        if not await self._is_leader():
            return
        await self._read_cooldowns()
        await self.follow()
        moves = []
        for move in self.balancer.round(self._clock()):
            if move is None:
                await asyncio.sleep(0)
            else:
                moves.append(move)
        self._report_overload()
        if moves:
            claimed: set[str] = set()
            try:
                claimed = await self._claim([move.bundle for move in moves])
            finally:
                for move in moves:
                    if move.bundle not in claimed:
                        self.balancer.on_move_failed(move, self._clock())
            await self._carry_out([move for move in moves if move.bundle in claimed], actions)
        await self._split(actions)

    def _report_overload(self) -> None:
        """Log when all brokers become overloaded, as no move helps then, and when that ends."""
        metrics = self.balancer.metrics
        all_overloaded = 0 < metrics.brokers == metrics.overloaded
        if all_overloaded and not self._all_overloaded:
            logger.warning("all %d brokers are overloaded: add brokers", metrics.brokers)
        elif self._all_overloaded and not all_overloaded:
            logger.info("%d of %d brokers are overloaded", metrics.overloaded, metrics.brokers)
        self._all_overloaded = all_overloaded

    async def _carry_out(self, moves: Sequence[Move], actions: UnloadCallbacks) -> None:
        decided_s, left = self._clock(), iter(moves)

        async def one_after_the_other() -> None:
            for move in left:  # each of them takes the next
                moved = False
                try:
                    if self._clock() - decided_s < _ORDER_WITHIN_S:
                        moved = await self._move(move, actions)
                finally:
                    answer = self.balancer.on_moved if moved else self.balancer.on_move_failed
                    answer(move, self._clock())

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_AT_ONCE, len(moves))):
                group.create_task(one_after_the_other())

    async def _move(self, move: Move, actions: UnloadCallbacks) -> bool:
        logger.info(
            "moving %s from %s to %s: %s", move.bundle, move.source, move.target, move.reason
        )
        try:
            if not await self._decides(move.bundle, move.target):
                return False
            return await actions.move(replace(move, epoch=self._epoch))
        except (MetadataError, TimeoutError) as error:
            logger.warning("%s isn't moved: %s", move.bundle, error)
        except Exception:  # one bundle's trouble isn't that of the others
            logger.exception("%s isn't moved", move.bundle)
        return False

    async def _split(self, actions: UnloadCallbacks) -> None:
        namespaces = {name.rpartition("/")[0] for name in self.balancer.state.owners}
        counts = {name: await actions.bundle_count(name) for name in namespaces}
        async with asyncio.TaskGroup() as group:  # ten at most
            for split in self.balancer.splits(counts.get):
                group.create_task(self._split_one(split, actions))

    async def _split_one(self, split: Split, actions: UnloadCallbacks) -> None:
        logger.info("splitting %s at %s: %s", split.bundle, split.owner, split.reason)
        done = False
        try:
            done = await actions.split(replace(split, epoch=self._epoch))
            if done:  # its parts have figures of their own
                with contextlib.suppress(NotFoundError):
                    await self._store.delete(f"{BUNDLE_DATA_ROOT}/{split.bundle}")
        except (MetadataError, TimeoutError) as error:
            logger.warning("%s isn't split: %s", split.bundle, error)
        except Exception:  # nor is this the others' trouble
            logger.exception("%s isn't split", split.bundle)
        finally:
            answer = self.balancer.on_split if done else self.balancer.on_split_failed
            answer(split)

    # --- remembering

    async def _store_averages(self) -> None:
        documents = {
            f"{BUNDLE_DATA_ROOT}/{bundle}": bundle_load_document(load)
            for bundle, load in self.balancer.averages().items()
        }
        for broker, loads in self.balancer.averages_by_broker().items():
            documents[f"{AVERAGES_ROOT}/{broker}"] = broker_average_document(loads)
        left = list(documents.items())
        while left:
            some, left = left[:_AT_ONCE], left[_AT_ONCE:]
            await asyncio.gather(*(self._put(path, document) for path, document in some))
        for name in await self._store.children(AVERAGES_ROOT):
            if name not in self._fed:
                with contextlib.suppress(NotFoundError):
                    await self._store.delete(f"{AVERAGES_ROOT}/{name}")

    async def _read_cooldowns(self) -> None:
        """Read the cooldowns of bundles that other leaders moved, by the time of the store."""
        if self._store_clock.is_exact:
            found = await self._store.get(_MOVED_PATH)
            cooldowns = UnloadCooldowns.decode(None if found is None else found.value)
        else:
            cooldowns = await self._change_cooldowns(lambda cooldowns: cooldowns)
        now_s = self._clock()
        self.balancer.restore_cooldowns(cooldowns.ages_s(self._store_clock.now_ms(now_s)), now_s)

    async def _claim(self, bundles: Sequence[str]) -> set[str]:
        """Claim bundles in the shared list of moves; returns those without a cooldown there."""
        claimed: list[str] = []

        def enter(cooldowns: UnloadCooldowns) -> UnloadCooldowns:
            now_ms, grace_s = self._store_clock.now_ms(self._clock()), self.balancer.grace_s
            cooldowns, claimed[:] = cooldowns.claim(bundles, now_ms, grace_s, VALUE_BYTES_MAX)
            return cooldowns

        await self._change_cooldowns(enter)
        if len(claimed) < len(bundles):
            logger.info("%d moves have to wait", len(bundles) - len(claimed))
        return set(claimed)

    async def _change_cooldowns(
        self, change: Callable[[UnloadCooldowns], UnloadCooldowns]
    ) -> UnloadCooldowns:
        writer = secrets.token_hex(8)
        found = await update(
            self._store,
            _MOVED_PATH,
            lambda value: change(UnloadCooldowns.decode(value)).encode(writer),
        )
        assert found is not None
        self._store_clock.learn(found.stat.modified_ms, self._clock())
        return UnloadCooldowns.decode(found.value)

    async def _put(self, path: str, document: Mapping[str, Any]) -> None:
        await self._store.put(path, orjson.dumps(document))
