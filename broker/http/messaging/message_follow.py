"""Follows the end of a topic's log: new messages that a filter finds, as they are stored.

No cursor and no subscription take part, and nothing is read before the topic says that its log has
grown. A follower sees at most some messages and bytes a second: of more the last ones, and how many
there were. One that can't keep up with reading goes on at the end of the log.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.messaging.message_search import (
    Log,
    MessageSearch,
    Newest,
    Place,
    Search,
)

if TYPE_CHECKING:
    from magnetar.broker.service.access_control import Right
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.topic.persistent_topic import PersistentTopic

FOLLOWERS_MAX: Final = 32
"""Of a broker."""
MESSAGES_PER_S: Final = 200
BYTES_PER_S: Final = 1 << 20
"""Of payloads."""
ALIVE_S: Final = 15.0
SECONDS_MAX: Final = 300.0
"""Then whoever follows asks again, so his rights are looked at again."""
_GATHER_S: Final = 0.05
"""What is stored within it is read together."""
_READING_S: Final = 0.25
_REST: Final = 3.0
"""After reading, all followers rest for so many times as long: filters take the interpreter's lock
from those who produce and consume. A filter of JSON took half of the throughput without it."""


@dataclass(frozen=True, slots=True)
class FollowStep:
    next: Place
    """Where to go on after it."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """As `SearchResult` has them."""
    found: int = 0
    """Messages, of which the last ones are shown."""
    skipped: int = 0
    """Entries that were not read."""


class Pace:
    """How much may still be shown in the second that runs. Pure."""

    def __init__(self, now_s: float) -> None:
        self._began_s, self._messages, self._bytes = now_s, 0, 0

    def took(self, messages: int, size: int) -> None:
        self._messages += messages
        self._bytes += size

    def wait_s(self, now_s: float) -> float:
        """Until something may be shown."""
        messages, size = self.room(now_s)
        return 0.0 if messages > 0 and size > 0 else self._began_s + 1.0 - now_s

    def room(self, now_s: float) -> tuple[int, int]:
        """Messages and bytes that may be shown."""
        if now_s - self._began_s >= 1.0:
            self._began_s, self._messages, self._bytes = now_s, 0, 0
        return MESSAGES_PER_S - self._messages, BYTES_PER_S - self._bytes


class Followed(Protocol):
    """A log whose end is followed."""

    news: asyncio.Event
    """Set when the log may have grown, and when it is over."""

    @property
    def log(self) -> Log:
        """Where what is new is read."""

    def is_over(self) -> bool:
        """Whether nothing more will be told."""

    def turn(self) -> AbstractAsyncContextManager[None]:
        """In which it may be read."""

    def behind(self, place: Place) -> tuple[Place, int]:
        """Where one goes on who can't keep up, and how many entries are skipped for it."""


async def follow_steps(
    followed: Followed, searching: MessageSearch, search: Search, alive_s: float
) -> AsyncGenerator[FollowStep | None, None]:
    """New messages, by steps; the first one has none and says where it begins.

    Args:
        search: its ``start`` is where to begin.
        alive_s: None is yielded when nothing else was for so long.
    Raises:
        ManagedLedgerError, LedgerError, BrokerError: the log can't be read now.
    """
    clock_s = asyncio.get_running_loop().time
    until_s, pace, place = clock_s() + SECONDS_MAX, Pace(clock_s()), search.start
    yield FollowStep(place)
    followed.news.set()  # there may be some already
    while clock_s() < until_s and not followed.is_over():
        try:
            async with asyncio.timeout(alive_s):
                await followed.news.wait()
        except TimeoutError:
            yield None
            continue
        await asyncio.sleep(max(_GATHER_S, pace.wait_s(clock_s())))
        if followed.is_over():
            return
        if pace.wait_s(clock_s()) > 0:  # timers may be early
            continue
        followed.news.clear()
        kept = Newest(*pace.room(clock_s()))
        async with followed.turn():
            step = await _step(followed, searching, replace(search, start=place), kept)
        pace.took(len(step.messages), kept.bytes)
        if step.found or step.skipped:
            yield step
        place = step.next


async def _step(
    followed: Followed, searching: MessageSearch, search: Search, kept: Newest
) -> FollowStep:
    until_s = time.monotonic() + _READING_S
    messages, place, is_end = await searching.newest(followed.log, search, kept, until_s)
    if is_end:
        return FollowStep(place, messages, kept.found)
    followed.news.set()
    place, skipped = followed.behind(place)
    return FollowStep(place, messages, kept.found, skipped)


async def lines_of(
    steps: AsyncGenerator[FollowStep | None, None], *, events: bool
) -> AsyncIterator[bytes]:
    """As they are sent: a line of JSON each, or server-sent events."""
    async with aclosing(steps):
        async for step in steps:
            if step is None:
                yield b":\n\n" if events else b"\n"
                continue
            place = str(step.next)
            counts = {"found": step.found, "shown": len(step.messages)}
            last = orjson.dumps({"next": place, **counts, "skippedEntries": step.skipped})
            lines = [orjson.dumps(each) for each in step.messages]
            if events:
                parts = [b"data: " + each + b"\n\n" for each in lines]
                head = f"id: {place}\nevent: next\ndata: ".encode()
                yield b"".join([*parts, head, last, b"\n\n"])
            else:
                yield b"".join(each + b"\n" for each in [*lines, last])


class Follower:
    """Somebody who follows a topic, until he leaves, loses his rights, or the topic closes."""

    def __init__(
        self, owner: Followers, topic: PersistentTopic, who: str, right: Right | None
    ) -> None:
        self.who = who
        self.closed = False
        self.rights: Iterable[Right] = () if right is None else (right,)
        self._owner, self._topic = owner, topic
        self.news = asyncio.Event()
        topic.watch(self.news.set)

    @property
    def log(self) -> Log:
        return self._topic.ledger

    def is_over(self) -> bool:
        return self.closed or self._topic.closing

    def turn(self) -> AbstractAsyncContextManager[None]:
        return self._owner.turn()

    def behind(self, place: Place) -> tuple[Place, int]:
        """At the end of the log."""
        end, offsets, at = self._topic.ledger.last_confirmed, self.log.offsets, place.position
        read = at if place.index else offsets.previous_position(at)
        return Place(offsets.next_position(end)), offsets.entries_between(read, end)

    def revoke(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._topic.unwatch(self.news.set)
            self._owner.forget(self)
            self.news.set()


class Followers:
    """All of a broker."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._open: set[Follower] = set()
        self._by_opener: Counter[str] = Counter()
        self._turn = asyncio.Lock()
        self._rests_until_s = 0.0

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """In which one follower reads."""
        clock_s = asyncio.get_running_loop().time
        async with self._turn:
            await asyncio.sleep(self._rests_until_s - clock_s())
            began_s = clock_s()
            try:
                yield
            finally:
                now_s = clock_s()
                self._rests_until_s = now_s + _REST * (now_s - began_s)

    def open(self, topic: PersistentTopic, who: str, right: Right | None) -> Follower:
        """
        Args:
            who: the role, or the address where roles are unknown: the half of all is for others.
        Raises:
            ApiError: 429 there are too many.
        """
        if len(self._open) >= FOLLOWERS_MAX:
            raise ApiError(429, f"{FOLLOWERS_MAX} clients follow topics of this broker already")
        if self._by_opener[who] >= FOLLOWERS_MAX // 2:
            raise ApiError(429, f"You follow {FOLLOWERS_MAX // 2} topics of this broker already")
        follower = Follower(self, topic, who, right)
        self._open.add(follower)
        self._by_opener[who] += 1
        if (access := self._service.access) is not None and right is not None:
            access.start_use(follower)
        return follower

    def forget(self, follower: Follower) -> None:
        if (access := self._service.access) is not None:
            access.live.discard(follower)
        self._open.discard(follower)
        self._by_opener -= Counter((follower.who,))

    def close_all(self) -> None:
        for each in list(self._open):
            each.close()
