"""What a leader knows and does while it leads: it follows the reports, places, moves and splits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from loadbalance.balancer import Balancer
from loadbalance.documents import (
    broker_average_document,
    bundle_load_document,
    bundle_load_of,
    parse,
    quota_of,
)
from loadbalance.errors import InvalidDocumentError
from loadbalance.model import BundleLoad, Move, Split
from metadata.errors import MetadataError, NotFoundError

if TYPE_CHECKING:
    from loadbalance.config import BalancerConfig
    from loadbalance.model import BrokerLoad
    from loadbalance.policy_reader import PolicyReader
    from loadbalance.registry import BrokerRegistry
    from metadata.store import MetadataStore

__all__ = ["AVERAGES_ROOT", "BUNDLE_DATA_ROOT", "Actions", "Office"]

logger = logging.getLogger(__name__)

BUNDLE_DATA_ROOT: Final = "/loadbalance/bundle-data"
AVERAGES_ROOT: Final = "/loadbalance/broker-time-average"
_QUOTA_ROOT: Final = "/loadbalance/resource-quota/namespace"
_RESTING_PATH: Final = "/loadbalance/moved-bundles"
_MOVES_AT_ONCE: Final = 16
_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Actions:
    """What a leader can have done, by the brokers that own the bundles.

    Attributes:
        move: whether the bundle left its source.
        split: whether the bundle was cut.
        bundle_count: of a namespace; None: not known.
    """

    move: Callable[[Move], Awaitable[bool]]
    split: Callable[[Split], Awaitable[bool]]
    bundle_count: Callable[[str], Awaitable[int | None]]


class Office:
    """A ``Balancer`` fed from the store. A new one for each time in office.

    A broker that has to place a bundle while there is no leader has one for that alone.
    """

    def __init__(
        self,
        store: MetadataStore,
        registry: BrokerRegistry,
        policies: PolicyReader,
        config: BalancerConfig,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self.balancer = Balancer(config, rng or random.Random())
        self.config = config
        self._store, self._registry, self._policies = store, registry, policies
        self._fed: dict[str, BrokerLoad] = {}
        self._used: object = None  # the policies that the balancer knows
        self._restored: set[str] = set()  # bundles whose stored averages were looked for

    # --- knowing

    async def follow(self) -> None:
        """Tell the balancer what is new.

        Raises:
            MetadataError: the store can't tell.
            InvalidDocumentError: policies that nobody can read; nothing is placed by chance.
        """
        policies = await self._policies.read()
        reports = await self._registry.reports()
        await self._restore({name for each in reports.values() for name in each.load.stats})
        now_s = time.monotonic()
        if policies is not self._used:
            self._used = policies
            self.balancer.on_policies(policies)
        for name in self._fed.keys() - reports.keys():
            del self._fed[name]
            self.balancer.on_broker_gone(name)
        for name, (load, modified_ms) in reports.items():
            if self._fed.get(name) is not load:
                # One that changes while we watch is new; another was made when it was stored.
                age_s = 0.0 if name in self._fed else time.time() - modified_ms / 1000
                self._fed[name] = load
                self.balancer.on_report(load, now_s, age_s)

    async def place(self, bundle: str) -> str | None:
        """The broker that is to own a bundle that nobody owns; None: none may.

        Raises:
            MetadataError, InvalidDocumentError: as ``follow``.
        """
        await self.follow()
        await self._restore({bundle})
        return self.balancer.place(bundle, time.monotonic())

    async def _restore(self, bundles: set[str]) -> None:
        """What leaders before have learned of bundles, or operators expect."""
        new = sorted(bundles - self._restored)
        self._restored.update(new)
        for start in range(0, len(new), 100):
            some = new[start : start + 100]
            for name, load in zip(some, await self._gather(some), strict=True):
                if load is not None:
                    self.balancer.restore(name, load)

    async def _gather(self, names: list[str]) -> list[BundleLoad | None]:
        try:
            return await asyncio.gather(*map(self._stored_load, names))
        except BaseException:
            self._restored.difference_update(names)
            raise

    async def _stored_load(self, bundle: str) -> BundleLoad | None:
        for root, read in (
            (BUNDLE_DATA_ROOT, bundle_load_of),
            (_QUOTA_ROOT, lambda document: BundleLoad.of_quota(quota_of(document))),
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

    async def lead(self, actions: Actions) -> None:
        """Rounds of moves and splits, until it is cancelled."""
        await self._again_until_done(self._restore_resting)
        stored_s = time.monotonic()
        while True:
            await asyncio.sleep(self.config.load_balancer_shedding_interval_minutes * 60)
            try:
                await self._round(actions)
                every_s = self.config.load_balancer_resource_quota_update_interval_minutes * 60
                if time.monotonic() - stored_s >= every_s:
                    await self._store_averages()
                    stored_s = time.monotonic()
            except (MetadataError, InvalidDocumentError) as error:
                logger.warning("no round of load balancing: %s", error)
            except Exception:
                logger.exception("a round of load balancing failed")

    async def _again_until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
                return
            except MetadataError as error:
                logger.info("%s", error)
                await asyncio.sleep(_AGAIN_S)

    async def _round(self, actions: Actions) -> None:
        await self.follow()
        running: set[asyncio.Task[None]] = set()
        try:
            for move in self.balancer.round(time.monotonic()):
                if move is None:
                    await asyncio.sleep(0)
                    continue
                if len(running) >= _MOVES_AT_ONCE:
                    _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if not running:
                    await self._store_resting()
                running.add(asyncio.get_running_loop().create_task(self._move(move, actions)))
            if running:
                await asyncio.wait(running)
            await self._split(actions)
        finally:
            for task in running:
                task.cancel()

    async def _move(self, move: Move, actions: Actions) -> None:
        logger.info(
            "moving %s from %s to %s: %s", move.bundle, move.source, move.target, move.reason
        )
        try:
            moved = await actions.move(move)
        except (MetadataError, TimeoutError) as error:
            logger.warning("%s isn't moved: %s", move.bundle, error)
            moved = False
        if moved:
            self.balancer.on_moved(move, time.monotonic())
        else:
            self.balancer.on_move_failed(move, time.monotonic())

    async def _split(self, actions: Actions) -> None:
        namespaces = {name.rpartition("/")[0] for name in self.balancer.state.owners}
        counts = {name: await actions.bundle_count(name) for name in namespaces}
        for split in self.balancer.splits(counts.get):
            logger.info("splitting %s at %s: %s", split.bundle, split.owner, split.reason)
            done = False
            try:
                done = await actions.split(split)
            finally:
                if done:
                    self.balancer.on_split(split)
                else:
                    self.balancer.on_split_failed(split)

    # --- remembering

    async def _store_averages(self) -> None:
        averages = self.balancer.averages()
        for bundle, load in averages.items():
            await self._put(f"{BUNDLE_DATA_ROOT}/{bundle}", bundle_load_document(load))
        for broker, loads in self.balancer.averages_by_broker().items():
            await self._put(f"{AVERAGES_ROOT}/{broker}", broker_average_document(loads))
        for name in await self._store.children(AVERAGES_ROOT):
            if name not in self._fed:
                with contextlib.suppress(NotFoundError):
                    await self._store.delete(f"{AVERAGES_ROOT}/{name}")

    async def _store_resting(self) -> None:
        now_ms = time.time() * 1000
        ages = self.balancer.resting(time.monotonic())
        await self._put(
            _RESTING_PATH, {name: int(now_ms - age_s * 1000) for name, age_s in ages.items()}
        )

    async def _restore_resting(self) -> None:
        if (node := await self._store.get(_RESTING_PATH)) is None:
            return
        try:
            document = parse(_RESTING_PATH, node.value)
        except InvalidDocumentError as error:
            logger.warning("%s", error)
            return
        now_ms = time.time() * 1000
        ages = {
            name: (now_ms - moved_ms) / 1000
            for name, moved_ms in document.items()
            if isinstance(moved_ms, int)
        }
        self.balancer.restore_resting(ages, time.monotonic())

    async def _put(self, path: str, document: Mapping[str, Any]) -> None:
        await self._store.put(path, orjson.dumps(document))
