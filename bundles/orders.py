"""Orders to brokers about their bundles: give one to another broker, or cut it.

An order is an ephemeral node of whoever gives it, below ``/loadbalance/orders``; its name says all,
so that nobody has to read it. Its source, the owner of the bundle, carries it out; a broker that
doesn't own the bundle forgets it. So two leaders, or a leader that was deposed, can do no harm:
a bundle leaves its owner by the owner's hand alone. The node goes when it is done, or can't be.

No HTTP call between brokers, and so no credentials for it: docs/decisions/0028.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bundles.errors import BundleError
from bundles.lookup import BrokerLookup
from metadata.errors import BadVersionError, MetadataError, NotFoundError
from metadata.paths import decode_name, encode_name
from metadata.store import CREATE_ONLY, EventType, MetadataEvent, SessionEvent

if TYPE_CHECKING:
    from bundles.ownership import OwnershipService
    from metadata.store import MetadataStore

__all__ = ["ORDERS_ROOT", "BundleOrders", "Order"]

_log = logging.getLogger(__name__)

ORDERS_ROOT: Final = "/loadbalance/orders"
_MOVE, _SPLIT = "move", "split"

FindBroker = Callable[[str], Awaitable[BrokerLookup | None]]
"""A live broker by its id; None: it isn't live."""
SplitBundle = Callable[[str, str, bool], Awaitable[None]]
"""Cut an owned bundle by an algorithm, and unload the parts or not."""

AcceptsEpoch = Callable[[int], Awaitable[bool]]
"""Whether orders of an epoch are to be carried out. Raises MetadataError."""


@dataclass(frozen=True, slots=True)
class Order:
    """
    Attributes:
        source: id of the broker that owns the bundle.
        destination: id of the broker that gets it; "": whoever is chosen for the next lookup.
        algorithm: "": it is to be moved; else how it is to be cut.
        unload: unload the parts of a cut bundle.
        epoch: of the leader that gives it; 0: epochs aren't used.
    """

    bundle: str
    source: str
    destination: str = ""
    algorithm: str = ""
    unload: bool = False
    epoch: int = 0

    @property
    def path(self) -> str:
        detail = f"{self.algorithm}{'+unload' if self.unload else ''}"
        parts: tuple[str, ...] = (
            (_SPLIT, self.source, detail, self.bundle)
            if self.algorithm
            else (_MOVE, self.source, self.destination, self.bundle)
        )
        if self.epoch:
            parts = (*parts, str(self.epoch))
        return f"{ORDERS_ROOT}/{encode_name('|'.join(parts))}"

    @classmethod
    def of_path(cls, path: str) -> Order | None:
        """None: not a node of an order."""
        if not path.startswith(f"{ORDERS_ROOT}/"):
            return None
        parts = decode_name(path.removeprefix(f"{ORDERS_ROOT}/")).split("|")
        if len(parts) == 4:
            parts.append("0")
        if len(parts) != 5 or parts[0] not in (_MOVE, _SPLIT) or not parts[4].isdecimal():
            return None
        kind, source, detail, bundle, epoch = parts
        if kind == _MOVE:
            return cls(bundle, source, detail, epoch=int(epoch))
        algorithm, _, unload = detail.partition("+")
        return cls(bundle, source, algorithm=algorithm, unload=bool(unload), epoch=int(epoch))


class BundleOrders:
    """Gives orders, and carries out those that concern this broker."""

    def __init__(
        self,
        store: MetadataStore,
        ownership: OwnershipService,
        broker_id: str,
        find: FindBroker,
        split: SplitBundle,
        accepts: AcceptsEpoch | None = None,
    ) -> None:
        """``accepts``: None: orders of any epoch are carried out."""
        self._accepts = accepts
        self._store, self._ownership, self._broker_id = store, ownership, broker_id
        self._find, self._split = find, split
        self._open: dict[Order, asyncio.Event] = {}  # set when its node is gone
        self._refuses = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches = (
            store.watch(ORDERS_ROOT, self._on_event),
            store.on_session_event(self._on_session_event),
        )

    def promised_to(self, bundle: str) -> str | None:
        """The broker that a bundle is on its way to; None: it isn't on its way."""
        return next(
            (each.destination for each in self._open if each.bundle == bundle and each.destination),
            None,
        )

    async def give(self, order: Order, timeout_s: float) -> bool:
        """Give an order and wait for its end; whether the source doesn't own the bundle any more.

        Raises:
            MetadataError: the store can't tell.
        """
        gone = asyncio.Event()
        watch = self._store.watch(
            order.path, lambda event: gone.set() if event.type is EventType.DELETED else None
        )
        try:
            source = await self._find(order.source)
            try:
                await self._store.put(order.path, b"", CREATE_ONLY, ephemeral=True)
            except BadVersionError:
                return False  # somebody gives it already
            try:
                async with asyncio.timeout(timeout_s):
                    await gone.wait()
            except TimeoutError:
                _log.warning("no answer to %s", order)
            finally:
                await self._end(order)
        finally:
            watch.close()
        owner = await self._ownership.owner_of_bundle(order.bundle)
        return owner is None or owner != source

    async def hand_over(self, order: Order, taken_s: float) -> bool:
        """Give a bundle of this broker's own away, as one does that stops; whether it left.

        Unlike ``give`` it doesn't depend on the other one, which may be stopping, too: the bundle
        is given up, clients are told where it goes, and who finds it with nobody chooses anew.

        Args:
            taken_s: how long to wait for the other one to have it.
        Raises:
            MetadataError: the store can't tell.
        """
        assert order.source == self._broker_id
        if (heir := await self._find(order.destination)) is None or order in self._open:
            return False
        gone = self._open[order] = asyncio.Event()  # so it isn't carried out on its event, too
        try:
            await self._store.put(order.path, b"", CREATE_ONLY, ephemeral=True)
        except MetadataError as error:
            self._open.pop(order, None)
            if isinstance(error, BadVersionError):
                return False
            raise
        try:
            given = await self._ownership.release(order.bundle, heir)
            with suppress(TimeoutError):
                async with asyncio.timeout(taken_s if given else 0.0):
                    await gone.wait()
        finally:
            await self._end(order)
        return given

    def refuse(self) -> None:
        """Take no bundles any more: their givers are told at once."""
        self._refuses = True

    async def close(self) -> None:
        """Carry out no more; what was begun is broken off."""
        for watch in self._watches:
            watch.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- carrying out

    def _on_event(self, event: MetadataEvent) -> None:
        if (order := Order.of_path(event.path)) is None:
            return
        if event.type is EventType.CREATED:
            self._begin(order)
        elif event.type is EventType.DELETED and (gone := self._open.pop(order, None)) is not None:
            gone.set()

    def _begin(self, order: Order) -> None:
        if order in self._open:
            return
        gone = self._open[order] = asyncio.Event()
        if order.source == self._broker_id:
            self._spawn(self._carry_out(order))
        elif order.destination == self._broker_id:
            self._spawn(self._receive(order, gone))

    async def _carry_out(self, order: Order) -> None:
        heir = None
        try:
            if not await self._is_accepted(order):
                _log.warning("of a leader that was deposed: %s", order)
            elif order.bundle not in self._ownership.owned_bundles:
                _log.info("not owned here: %s", order)
            elif order.algorithm:
                await self._split(order.bundle, order.algorithm, order.unload)
            elif not order.destination:
                await self._ownership.release(order.bundle)
            elif (heir := await self._find(order.destination)) is None:
                _log.warning("its destination is gone: %s", order)
            elif not await self._ownership.release(order.bundle, heir):
                heir = None  # it goes to another one
        except (BundleError, MetadataError) as error:
            _log.warning("not carried out: %s: %s", order, error)
            heir = None
        if heir is None:  # else the destination ends it when it has the bundle
            await self._end(order)

    async def _receive(self, order: Order, gone: asyncio.Event) -> None:
        if self._refuses:
            await self._end(order)
            return
        giver = None
        try:
            if not await self._is_accepted(order):
                return  # its source says so, too, and ends it
        except MetadataError as error:
            _log.info("%s: %s", order, error)
            return
        with suppress(MetadataError):  # without it, the end of the order ends the wait
            giver = await self._find(order.source)
        await self._ownership.expect(order.bundle, gone, giver)
        await self._end(order)

    async def _is_accepted(self, order: Order) -> bool:
        return self._accepts is None or await self._accepts(order.epoch)

    async def _end(self, order: Order) -> None:
        try:
            with suppress(NotFoundError):
                await self._store.delete(order.path)
        except MetadataError as error:  # it ends with its giver's session
            _log.info("%s: %s", order, error)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            self._spawn(self._compare())  # events were lost meanwhile

    async def _compare(self) -> None:
        before = list(self._open)
        try:
            names = await self._store.children(ORDERS_ROOT)
        except MetadataError as error:
            _log.info("orders: %s", error)  # the next session event comes
            return
        found = {Order.of_path(f"{ORDERS_ROOT}/{name}") for name in names}
        for order in before:
            if order not in found and (gone := self._open.pop(order, None)) is not None:
                gone.set()
        for each in found:
            if each is not None:
                self._begin(each)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("an order failed", exc_info=error)
