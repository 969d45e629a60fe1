"""An election as Apache BookKeeper's auditors hold it: one vote a candidate, the oldest one wins.

Votes are ephemeral sequential nodes below the seat. The winner writes its value into the seat
itself, for who asks; that stays when it ends, so the votes say who leads.
"""

from contextlib import suppress

from magnetar.metadata.coordination import LeaderElection
from magnetar.metadata.errors import (
    LockBusyError,
    NotFoundError,
    SessionLostError,
    StoreClosedError,
)
from magnetar.metadata.paths import join
from magnetar.metadata.store import EventType, MetadataEvent, MetadataStore

_PREFIX = "V_"
_ROUNDS_MAX = 100


class VoteElection(LeaderElection):
    """See ``LeaderElection``. No two candidates of one session may have the same proposal."""

    _vote = ""  # path of our vote; "": there was none when we last looked

    async def leader(self) -> bytes | None:
        return await read_leader(self._store, self.path)

    async def _claim(self) -> bool:
        for _ in range(_ROUNDS_MAX):
            invalidations = self._invalidations
            votes = await _votes(self._store, self.path)
            if self._vote not in votes or not await self._is_ours(self._vote):
                self._vote = await self._find(votes)
                if not self._vote:
                    node = await self._store.put(
                        f"{self.path}/{_PREFIX}", self.value, ephemeral=True, sequential=True
                    )
                    self._vote = node.path
                continue  # it is to be seen among the others
            if votes[0] != self._vote:
                raise LockBusyError(self.path, None)
            found = await self._store.get(self.path)
            if found is None or found.value != self.value:
                await self._store.put(self.path, self.value)
            if invalidations == self._invalidations:
                return True
        return False

    async def _find(self, votes: list[str]) -> str:
        """Our own, whose reply was lost."""
        for path in votes:
            if await self._is_ours(path):
                return path
        return ""

    async def _is_ours(self, path: str) -> bool:
        found = await self._store.get(path)
        return found is not None and found.stat.created_by_self and found.value == self.value

    def _on_event(self, event: MetadataEvent) -> None:
        if event.type is EventType.DELETED and event.path.startswith(f"{self.path}/"):
            self._invalidations += 1
            self._check_soon()

    async def _leave(self) -> None:
        self._stop()
        async with self._mutex:
            with suppress(SessionLostError, StoreClosedError):  # it ends with the session
                vote = await self._find(await _votes(self._store, self.path))
                if vote:
                    with suppress(NotFoundError):
                        await self._store.delete(vote)


async def read_leader(store: MetadataStore, path: str) -> bytes | None:
    """The value of the oldest vote, read now; None: nobody leads."""
    for vote in await _votes(store, path):
        if (found := await store.get(vote)) is not None:
            return found.value
    return None


async def _votes(store: MetadataStore, path: str) -> list[str]:
    """Paths, the oldest first."""
    names = [name for name in await store.children(path) if name.startswith(_PREFIX)]
    return [join(path, name) for name in sorted(names, key=_number)]


def _number(name: str) -> int:
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits.lstrip("-").isdigit() else 0
