"""Orders to brokers about their bundles: give one to another broker, or cut it.

A broker gives an order by an ephemeral node below ``/loadbalance/orders``; the node's name says
all, and its value is empty. Its source, the bundle's owner, carries it out; a broker that
doesn't own the bundle forgets it. So two leaders, or a leader that was deposed, can do no harm:
a bundle leaves its owner by the owner's hand alone. The node goes when it is done, or can't be.

No HTTP call between brokers, and so no credentials for it: docs/decisions/0028.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from magnetar.bundles.errors import BundleError
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OwnershipService
from magnetar.metadata.errors import BadVersionError, MetadataError, NotFoundError
from magnetar.metadata.paths import decode_name, encode_name
from magnetar.metadata.store import (
    CREATE_ONLY,
    EventType,
    MetadataEvent,
    MetadataStore,
    SessionEvent,
)

_log = logging.getLogger(__name__)

COMMANDS_ROOT: Final = "/loadbalance/orders"
_MOVE, _SPLIT = "move", "split"

FindBroker = Callable[[str], Awaitable[BrokerLookup | None]]
"""A live broker by its id; None: it isn't live."""
SplitBundle = Callable[[str, str, bool], Awaitable[None]]
"""Cut an owned bundle by an algorithm, and unload the parts or not."""

AcceptsEpoch = Callable[[int], Awaitable[bool]]
"""Tells whether brokers carry out orders of an epoch. Raises MetadataError."""


@dataclass(frozen=True, slots=True)
class BundleCommand:
    """
    Attributes:
        source: id of the broker that owns the bundle.
        destination: id of the broker that gets it; "": the one chosen at the next lookup.
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
        return f"{COMMANDS_ROOT}/{encode_name('|'.join(parts))}"

    @classmethod
    def of_path(cls, path: str) -> "BundleCommand | None":
        """None: not a node of an order."""
        if not path.startswith(f"{COMMANDS_ROOT}/"):
            return None
        parts = decode_name(path.removeprefix(f"{COMMANDS_ROOT}/")).split("|")
        if len(parts) == 4:
            parts.append("0")
        if len(parts) != 5 or parts[0] not in (_MOVE, _SPLIT) or not parts[4].isdecimal():
            return None
        kind, source, detail, bundle, epoch = parts
        if kind == _MOVE:
            return cls(bundle, source, detail, epoch=int(epoch))
        algorithm, _, unload = detail.partition("+")
        return cls(bundle, source, algorithm=algorithm, unload=bool(unload), epoch=int(epoch))


class BundleCommandQueue:
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
        self._open: dict[BundleCommand, asyncio.Event] = {}  # set when its node is gone
        self._refuses = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches = (
            store.watch(COMMANDS_ROOT, self._on_event),
            store.on_session_event(self._on_session_event),
        )

    def promised_to(self, bundle: str) -> str | None:
        """The broker that a bundle is on its way to; None: it isn't on its way."""
        return next(
            (each.destination for each in self._open if each.bundle == bundle and each.destination),
            None,
        )

    async def give(self, command: BundleCommand, timeout_s: float) -> bool:
        """Give an order and wait for its end; whether the source doesn't own the bundle any more.

        Raises:
            MetadataError: the store can't tell.
        """
        gone = asyncio.Event()
        watch = self._store.watch(
            command.path, lambda event: gone.set() if event.type is EventType.DELETED else None
        )
        try:
            source = await self._find(command.source)
            try:
                await self._store.put(command.path, b"", CREATE_ONLY, ephemeral=True)
            except BadVersionError:
                return False  # another broker gives it already
            try:
                async with asyncio.timeout(timeout_s):
                    await gone.wait()
            except TimeoutError:
                _log.warning("no answer to %s", command)
            finally:
                await self._end(command)
        finally:
            watch.close()
        owner = await self._ownership.owner_of_bundle(command.bundle)
        return owner is None or owner != source

    async def hand_over(self, command: BundleCommand, taken_s: float) -> bool:
        """Give a bundle of this broker, which stops, to another one; returns whether it left.

        Unlike ``give`` it doesn't depend on the other one, which may be stopping, too: this broker
        gives the bundle up and tells clients its new owner; if none takes it, a lookup chooses.

        Args:
            taken_s: how long to wait for the other one to have it.
        Raises:
            MetadataError: the store can't tell.
        """
        assert command.source == self._broker_id
        if (new_owner := await self._find(command.destination)) is None or command in self._open:
            return False
        gone = self._open[command] = asyncio.Event()  # so it isn't carried out on its event, too
        try:
            await self._store.put(command.path, b"", CREATE_ONLY, ephemeral=True)
        except MetadataError as error:
            self._open.pop(command, None)
            if isinstance(error, BadVersionError):
                return False
            raise
        try:
            given = await self._ownership.release(command.bundle, new_owner)
            with suppress(TimeoutError):
                async with asyncio.timeout(taken_s if given else 0.0):
                    await gone.wait()
        finally:
            await self._end(command)
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
        if (command := BundleCommand.of_path(event.path)) is None:
            return
        if event.type is EventType.CREATED:
            self._begin(command)
        elif (
            event.type is EventType.DELETED and (gone := self._open.pop(command, None)) is not None
        ):
            gone.set()

    def _begin(self, command: BundleCommand) -> None:
        if command in self._open:
            return
        gone = self._open[command] = asyncio.Event()
        if command.source == self._broker_id:
            self._spawn(self._carry_out(command))
        elif command.destination == self._broker_id:
            self._spawn(self._receive(command, gone))

    async def _carry_out(self, command: BundleCommand) -> None:
        new_owner = None
        try:
            if not await self._is_accepted(command):
                _log.warning("of a leader that was deposed: %s", command)
            elif command.bundle not in self._ownership.owned_bundles:
                _log.info("not owned here: %s", command)
            elif command.algorithm:
                await self._split(command.bundle, command.algorithm, command.unload)
            elif not command.destination:
                await self._ownership.release(command.bundle)
            elif (new_owner := await self._find(command.destination)) is None:
                _log.warning("its destination is gone: %s", command)
            elif not await self._ownership.release(command.bundle, new_owner):
                new_owner = None  # it goes to another one
        except (BundleError, MetadataError) as error:
            _log.warning("not carried out: %s: %s", command, error)
            new_owner = None
        if new_owner is None:  # else the destination ends it when it has the bundle
            await self._end(command)

    async def _receive(self, command: BundleCommand, gone: asyncio.Event) -> None:
        if self._refuses:
            await self._end(command)
            return
        giver = None
        try:
            if not await self._is_accepted(command):
                return  # its source says so, too, and ends it
        except MetadataError as error:
            _log.info("%s: %s", command, error)
            return
        with suppress(MetadataError):  # without it, the end of the order ends the wait
            giver = await self._find(command.source)
        await self._ownership.expect(command.bundle, gone, giver)
        await self._end(command)

    async def _is_accepted(self, command: BundleCommand) -> bool:
        return self._accepts is None or await self._accepts(command.epoch)

    async def _end(self, command: BundleCommand) -> None:
        try:
            with suppress(NotFoundError):
                await self._store.delete(command.path)
        except MetadataError as error:  # it ends with its giver's session
            _log.info("%s: %s", command, error)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in {SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED}:
            self._spawn(self._compare())  # events were lost meanwhile

    async def _compare(self) -> None:
        before = list(self._open)
        try:
            names = await self._store.children(COMMANDS_ROOT)
        except MetadataError as error:
            _log.info("orders: %s", error)  # the next session event comes
            return
        found = {BundleCommand.of_path(f"{COMMANDS_ROOT}/{name}") for name in names}
        for command in before:
            if command not in found and (gone := self._open.pop(command, None)) is not None:
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
