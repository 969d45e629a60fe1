"""The figures of all topics and subscriptions of this broker, ready to be sorted and paged.

It exists only while somebody asks: the first request lists the names and takes the first look at
every loaded topic, the last one is two minutes ago when it is dropped. In between it looks at all
of them every five seconds, half a millisecond of the loop at a time. Of very many it is shown each
topic while rates are sampled, so that there is one walk through all of them and not two.
Who doesn't want to wait for the first look at 100,000 topics gets what was looked at so far.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from magnetar.broker.errors import STORAGE_ERRORS, ServiceNotReadyError
from magnetar.broker.index.backlog_trend import trend
from magnetar.broker.index.bundle_places import BundlePlaces
from magnetar.broker.index.figure_table import (
    LOADED,
    SLICE_ROWS,
    UNKNOWN,
    UNLOADED,
    FigureTable,
    PageQuery,
    PageScan,
    Sight,
    SumScan,
    subscription_key,
)
from magnetar.broker.index.group_scan import GroupScan
from magnetar.broker.index.history import POINT_MS
from magnetar.broker.index.history_answer import HistoryScan
from magnetar.broker.index.page_answer import PageAnswer, Row
from magnetar.broker.index.stored_names import StoredNames
from magnetar.broker.index.topic_figures import (
    GREATEST,
    GREATEST_OF_PARTITIONS,
    SUBSCRIPTION_FIELDS,
    SUBSCRIPTION_VIEWS,
    TOPIC_FIELDS,
    TOPIC_VIEWS,
    catch_up_seconds,
    shown,
    subscription_figures,
    topic_figures,
)
from magnetar.broker.protocol.entry_header import parse_header
from magnetar.broker.protocol.topic_name import PARTITION_MARK, TopicName, is_system_topic
from magnetar.broker.subscription.consumer import SUB_TYPE_NAMES
from magnetar.broker.subscription.persistent_subscription import PersistentSubscription
from magnetar.broker.topic.persistent_topic import PersistentTopic
from magnetar.broker.topic.topic_stats import find_last_publish_time
from magnetar.bundles.namespace_bundles import namespace_of
from magnetar.metadata.loop_turns import LoopTurns, Steps, in_turns, next_turn, run_in_turns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from magnetar.broker.index.figure_recorder import Recording
    from magnetar.broker.service.broker_service import BrokerService
    from magnetar.broker.subscription.subscription import Subscription
    from magnetar.broker.topic.topic import Topic
    from magnetar.managed_ledger.position import Position

logger = logging.getLogger(__name__)

_EVERY_S: Final = 5.0
_KEEP_S: Final = 150.0
"""After the last request: of very many pages each asks every two minutes."""
_SHARE: Final = 100
"""A look may begin when so many times the time that the last one took has passed."""
_LONG_S: Final = POINT_MS / 1000 / _SHARE
"""A look that takes longer would be as rare as samples of rates are while somebody asks."""
_QUICK_SHARE: Final = 20
"""The same of one that is taken at a request."""
_QUICK_S: Final = 0.01
"""A look that takes no longer is taken at a request, so that its figures are those of now."""
_READS_MAX: Final = 64
"""Oldest entries that are read in a round, and last ones; the others keep what was known of them.
"""
_FIRST_READS_S: Final = 0.5
"""So long the first request waits for them: without, it told the oldest of a few messages."""
_SUBSCRIPTIONS_A_STEP: Final = 32
_FIRST_ROWS: Final = 2_000
"""With more of them than that, who takes a part needn't wait for all: 30 ms of a processor."""
_CACHED_PAGES_MAX: Final = 64
_STORED: Final = TOPIC_FIELDS.index("storageSize")
_NO_OLDEST: Final = (-1, -1, UNKNOWN)
"""Ledger, entry and figure."""


class _Scan(Protocol):
    def step(self) -> bool: ...


class BrokerIndex:
    """Nothing but a few words while nobody asks."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self._tables: IndexTables | None = None
        self._task: asyncio.Task[None] | None = None
        self._asked_s = 0.0

    @property
    def is_open(self) -> bool:
        """Whether somebody has asked in the last minute."""
        return self._tables is not None

    async def tables(self, *, partial: bool = False) -> IndexTables:
        """What there is, of now where a look at all topics is a matter of milliseconds.

        Args:
            partial: whether a part will do while the first look at many topics is being taken.
        Raises:
            ServiceNotReadyError: the names can't be read now.
        """
        self._asked_s = self._service.loop.time()
        if (tables := self._tables) is None:
            tables = self._tables = IndexTables(self._service)
            self._task = self._service.run(self._keep(tables))
        try:
            await asyncio.shield(tables.begun if partial else tables.opened)
        except STORAGE_ERRORS as error:
            raise ServiceNotReadyError(f"Names of topics can't be read: {error}") from error
        except asyncio.CancelledError:
            if self._tables is not tables:  # not this request is cancelled: the broker stops
                raise ServiceNotReadyError("This broker is stopping") from None
            raise
        if tables.is_complete:
            await tables.renew_if_quick()
        return tables

    def begin_walk(self) -> IndexTables | None:
        """The tables, if a walk through all topics that begins now has to show them each topic."""
        tables = self._tables
        if tables is None or not (tables.is_complete and tables.is_long):
            return None
        tables.begin_look()
        return tables

    async def _keep(self, tables: IndexTables) -> None:
        try:
            try:
                await tables.open()
            except STORAGE_ERRORS as error:
                tables.fail(error)
                return
            loop = self._service.loop
            while loop.time() < self._asked_s + _KEEP_S:
                await asyncio.sleep(max(_EVERY_S, _SHARE * min(tables.took_s, _LONG_S)))
                if not tables.is_long:
                    await tables.renew()
        finally:
            self._tables = None
            tables.close()


class IndexTables:
    """Both tables, and the looks that fill them."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self.topics, self.subscriptions = (
            FigureTable(TOPIC_FIELDS),
            FigureTable(SUBSCRIPTION_FIELDS, are_parts=True),
        )
        self.took_s = 0.0
        """Seconds of a processor that it took."""
        self._names = StoredNames(service.resources, added=self._stored, removed=self._deleted)
        self._looks = 0
        self._elapsed_s = 0.0  # between the last two
        self._is_closed = False
        # By slot of a subscription; numbers, as collections of garbage walk through objects. The
        # look that has met it, its topic, and its oldest message: ledger (-1: none is known),
        # entry, figure.
        numbers = self.subscriptions.numbers
        self._met, self._owner = numbers("Q", 0), numbers("Q", 0)
        self._oldest = numbers("q", -1), numbers("q", -1), numbers("d", UNKNOWN)
        # By slot of a topic: whether it is stored; when the last look began, if the next one of a
        # topic in which nothing happens tells the same (else 0); the last look that it counted in,
        # and the last one that has met its subscriptions.
        topic_numbers = self.topics.numbers
        self._is_stored, self._settled_ms = topic_numbers("b", 0), topic_numbers("q", 0)
        self._seen, self._looked = topic_numbers("Q", 0), topic_numbers("Q", 0)
        self._places = (
            None if service.sharing is None else BundlePlaces(service.store, service.bundles)
        )
        self._silent: dict[int, PersistentTopic] = {}  # slot -> whose last message is to be read
        self._unread: dict[int, tuple[PersistentSubscription, Position]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._reading_last: asyncio.Task[None] | None = None
        self._ended_s = 0.0
        self._read = 0  # loaded topics, at the first look
        self.begun: asyncio.Future[None] = service.loop.create_future()
        """Done when there is something to show: many topics, or all of them."""
        self.opened: asyncio.Future[None] = service.loop.create_future()
        self._sums: tuple[tuple[int, int], dict[str, Row]] | None = None
        self._pages: dict[tuple[int, int, PageQuery], asyncio.Task[PageAnswer]] = {}
        self._scanning = asyncio.Lock()  # one at each round of the loop, however many are asked for

    @property
    def as_of_ms(self) -> int:
        """When the last look began."""
        return self.topics.as_of_ms

    @property
    def is_complete(self) -> bool:
        """Whether all topics were looked at once."""
        return self.opened.done()

    @property
    def read(self) -> tuple[int, int]:
        """Loaded topics that were looked at, and how many there are."""
        loaded = len(self._service.topics)
        return (loaded if self.is_complete else min(self._read, loaded)), loaded

    async def open(self) -> None:
        """Raises MetadataError."""
        if self._places is not None:
            self._places.open()
        self.topics.as_of_ms = self._service.clock()
        served = self._service.topics
        served.on_loaded = self._loaded
        recording, turns = None, LoopTurns()
        if len(served) <= _FIRST_ROWS:  # of more of them, the samples of rates record as often
            recording = self._service.figure_recorder.begin(self._service.wall_clock())
        self._looks += 1
        for topic in served.walk():
            self._add_loaded(topic.full_name)
            for _ in self.look(topic, recording):
                if turns.is_over:
                    await turns.next()
            self._read += 1
            if turns.is_over:
                await turns.next()
        walked_s = turns.used_s
        await self._names.open()
        await self._end_look(walked_s + await self._look_at_rows(None), recording)
        self._service.periodic_tasks.collections.keep()
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_FIRST_READS_S)
        for future in (self.begun, self.opened):
            if not future.done():
                future.set_result(None)

    def fail(self, error: Exception) -> None:
        """Whoever waits gets the error."""
        for future in (self.begun, self.opened):
            if not future.done():
                future.set_exception(error)
                future.exception()  # seen, even if who has asked is gone

    def close(self) -> None:
        self._is_closed = True
        self.begun.cancel()
        self.opened.cancel()
        self._names.close()
        if self._places is not None:
            self._places.close()
        self._service.topics.on_loaded = None
        for task in (self._renewing, self._reading, self._reading_last):
            if task is not None:
                task.cancel()

    # --- names

    def _stored(self, full: str, namespace: str) -> None:
        slot = self.topics.slot_of.get(full)
        self._is_stored[self._add(full, namespace) if slot is None else slot] = True

    def _loaded(self, full: str) -> None:
        self._add_loaded(full)
        if (slot := self.topics.slot_of.get(full)) is not None:
            self._seen[slot] = 0  # whatever was met under its name before

    def _add_loaded(self, full: str) -> None:
        """Also of a topic that isn't stored, or not yet; the next look moves its row."""
        if full not in self.topics.slot_of and not is_system_topic(full):
            self._add(full, namespace_of(full))

    def _add(self, full: str, namespace: str) -> int:
        slot = self.topics.add(full, full, namespace, UNLOADED, _group_of(full))
        self._settled_ms[slot] = self._seen[slot] = 0
        if slot >= _FIRST_ROWS and not self.begun.done():
            self.begun.set_result(None)
        return slot

    def _deleted(self, full: str) -> None:
        if (slot := self.topics.slot_of.get(full)) is not None:
            self._is_stored[slot] = False
            if self.topics.places[slot] != LOADED:  # else it is just being closed
                self.topics.remove(slot)

    def _place_of(self, full: str, space: int) -> int:
        """Of a topic that isn't loaded here."""
        return UNLOADED if self._places is None else self._places.place_of(full, space)

    # --- looks

    async def renew_if_quick(self) -> None:
        """Look now, if that is quick and was not done just now."""
        due = perf_counter() - self._ended_s >= _QUICK_SHARE * self.took_s
        if due and self.took_s < _QUICK_S:
            await self.renew()

    async def renew(self) -> None:
        """Look at all loaded topics; whoever comes meanwhile waits for the same look."""
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew())
        await asyncio.shield(self._renewing)

    async def _renew(self) -> None:
        self.begin_look()
        recording = self._service.figure_recorder.begin(self._service.wall_clock())
        await self._end_look(await self._look_at_rows(recording), recording)

    @property
    def is_long(self) -> bool:
        """Whether looks take so long that a walk which is made anyway takes them."""
        return self.took_s >= _LONG_S

    def begin_look(self) -> None:
        """All loaded topics are going to be looked at."""
        now_ms = self._service.clock()
        self._elapsed_s = (now_ms - self.as_of_ms) / 1000 if self.as_of_ms else 0.0
        self.topics.as_of_ms = now_ms
        self._looks += 1

    def look(self, topic: Topic, recording: Recording | None) -> Iterable[None]:
        """One of them, unless it is the system's."""
        slot = self.topics.slot_of.get(topic.full_name)
        if slot is None:
            return ()
        self._seen[slot] = self._looks
        return self._look(slot, topic, self._elapsed_s, recording)

    def is_current(self, topic: Topic) -> bool:
        """Whether a look at a topic in which nothing happens would tell what the last one did.

        If so, it counts as looked at.
        """
        slot = self.topics.slot_of.get(topic.full_name)
        if slot is None:
            return True
        if self._settled_ms[slot] <= topic.still_ms:
            return False
        self._seen[slot] = self._looks
        return True

    async def end_walk(self, used_s: float) -> None:
        """Each that was there when ``begin_look`` was called has been looked at.

        Args:
            used_s: seconds of a processor that it took.
        """
        if not self._is_closed:
            await self._end_look(used_s + await self._look_at_rows(None), None)

    async def _look_at_rows(self, recording: Recording | None) -> float:
        """Those that this look hasn't met. How many seconds of a processor it took."""
        served, keys, places = self._service.topics, self.topics.keys, self._places
        moved = frozenset[int]() if places is None else await places.renew(self.topics.space_names)
        turns, first, known = LoopTurns(), 0, self.topics.places
        seen, looks = self._seen, self._looks
        while first < self.topics.end:  # rows may come meanwhile
            end = min(first + SLICE_ROWS, self.topics.end)
            for slot in [slot for slot in range(first, end) if seen[slot] != looks]:
                if (full := keys[slot]) is None:
                    continue
                if (topic := served.get(full)) is not None:
                    mark = topic.quiet_mark()
                    if mark is None or not self.is_current(topic):
                        await turns.run(self._look(slot, topic, self._elapsed_s, recording))
                    elif recording is not None:
                        recording.add_quiet(topic, mark)
                elif known[slot] == LOADED or not self._is_stored[slot]:
                    self._unload(slot, full)
                elif self.topics.spaces[slot] in moved:
                    self.topics.move(slot, self._place_of(full, self.topics.spaces[slot]))
                if turns.is_over:
                    await turns.next()
            first = end
            if turns.is_over:
                await turns.next()
        await turns.run(self._forget_others())
        return turns.used_s

    def _forget_others(self) -> Steps[None]:
        """Subscriptions that the last look at their topics has not met, and those of others."""
        met, owner, looked, keys = self._met, self._owner, self._looked, self.subscriptions.keys
        for first in range(0, self.subscriptions.end, SLICE_ROWS):
            slots = range(first, min(first + SLICE_ROWS, self.subscriptions.end))
            for slot in [slot for slot in slots if met[slot] < looked[owner[slot]]]:
                if keys[slot] is not None:
                    self.subscriptions.remove(slot)
                    self._set_oldest(slot, *_NO_OLDEST)
                    self._unread.pop(slot, None)
            yield

    async def _end_look(self, took_s: float, recording: Recording | None) -> None:
        self.took_s = took_s
        self._ended_s = perf_counter()
        if recording is not None:
            await run_in_turns(recording.end())
        self._pages.clear()
        if self._unread and (self._reading is None or self._reading.done()):
            self._reading = self._service.run(self._read_oldest())
        if self._silent and (self._reading_last is None or self._reading_last.done()):
            self._reading_last = self._service.run(self._read_last())

    def _look(
        self, slot: int, topic: Topic, elapsed_s: float, recording: Recording | None = None
    ) -> Steps[None]:
        full, looks, as_of_ms = topic.full_name, self._looks, self.as_of_ms
        self._settled_ms[slot] = 0
        self.topics.move(slot, LOADED)
        settled = True
        backlogs, consumers, oldest, growth = dict[str, int](), 0, UNKNOWN, 0.0
        rate_out = bytes_out = 0.0
        for at, name in enumerate([*topic.subscriptions], 1):
            if (subscription := topic.subscriptions.get(name)) is None:
                continue  # deleted meanwhile
            backlog, age, grows, is_settled = self._look_at(slot, name, subscription, elapsed_s)
            backlogs[name] = backlog
            growth += grows
            settled = settled and is_settled
            consumers += len(subscription.consumers)
            rate_out += subscription.rates.rates[0]
            bytes_out += subscription.rates.rates[1]
            oldest = max(oldest, age)
            if at % _SUBSCRIPTIONS_A_STEP == 0:
                yield
                if self._service.topics.get(full) is not topic:
                    return
        used = UNKNOWN
        if isinstance(topic, PersistentTopic) and topic.backlog.is_limited:
            found = yield from topic.backlog.used(self._service.clock())
            used = UNKNOWN if found is None else found
        out = rate_out, bytes_out
        figures = topic_figures(topic, backlogs.values(), consumers, out, oldest, growth, used)
        if self._service.topics.get(full) is not topic:
            return  # it went meanwhile, and its row perhaps
        self.topics.set(slot, figures)
        self._looked[slot] = looks
        if settled and not (topic.stored_bytes and not topic.last_publish_ms):
            # A share of a quota that depends on an age changes by itself.
            self._settled_ms[slot] = 0 if used != UNKNOWN and any(backlogs.values()) else as_of_ms
        if (
            not topic.last_publish_ms
            and len(self._silent) < _READS_MAX
            and isinstance(topic, PersistentTopic)
            and topic.holds_entries
        ):
            self._silent[slot] = topic
        if recording is not None:
            yield from recording.add(full, backlogs, (*figures[:5], figures[_STORED]))

    def _look_at(
        self, topic_slot: int, name: str, subscription: Subscription, elapsed_s: float
    ) -> tuple[int, float, float, bool]:
        """Its backlog, the figure of its oldest message, its trend, and whether these stay so."""
        full = subscription.topic.full_name
        table, key = self.subscriptions, subscription_key(full, name)
        slot = table.slot_of.get(key)
        if slot is None:
            slot = table.add(
                key, f"{full}\n{name}", subscription.topic.name.namespace, LOADED, full
            )
        self._met[slot], self._owner[slot] = self._looks, topic_slot
        backlog = subscription.backlog
        oldest = self._oldest_of(slot, subscription, backlog)
        columns = table.columns
        if (before := columns["msgBacklog"][slot]) == UNKNOWN:
            growth = self._growth_before(full, name, backlog)
        else:
            growth = trend(before, columns["msgBacklogTrend"][slot], backlog, elapsed_s)
        table.set(slot, subscription_figures(subscription, backlog, growth, oldest))
        is_settled = not growth and (not backlog or self._knows_oldest(slot, subscription))
        return backlog, oldest, growth, is_settled

    def _growth_before(self, full: str, name: str, backlog: int) -> float:
        """Of a subscription that is new in the table: what the history tells."""
        history, now_ms = self._service.figure_recorder.subscriptions, self._service.wall_clock()
        return history.growth((full, name), "msgBacklog", backlog, now_ms) or 0.0

    def _unload(self, slot: int, full: str) -> None:
        self._settled_ms[slot], self._looked[slot] = 0, self._looks + 1  # none of them is met
        if self._is_stored[slot]:
            self.topics.move(slot, self._place_of(full, self.topics.spaces[slot]))
        else:
            self.topics.remove(slot)

    # --- when the oldest message of a backlog was published

    def _oldest_of(self, slot: int, subscription: Subscription, backlog: int) -> float:
        """The figure; that of before while the entry would have to be read."""
        if not backlog or not isinstance(subscription, PersistentSubscription):
            if self._oldest[0][slot] < 0:
                return UNKNOWN  # most of them
            return self._set_oldest(slot, *_NO_OLDEST)
        position = subscription.cursor.state.first_unacked()
        ledgers, entries, figures = self._oldest
        if (ledgers[slot], entries[slot]) == position:
            return figures[slot]
        if (head := subscription.ledger.cached_head(position)) is not None:
            return self._set_oldest(slot, *position, -float(parse_header(head).publish_time_ms))
        if len(self._unread) < _READS_MAX:
            self._unread[slot] = subscription, position
        return figures[slot]

    def _knows_oldest(self, slot: int, subscription: Subscription) -> bool:
        """REQUIRES: it has a backlog."""
        position = self._oldest[0][slot], self._oldest[1][slot]
        cursor = subscription.cursor
        return cursor is not None and position == cursor.state.first_unacked()

    def _set_oldest(self, slot: int, ledger: int, entry: int, figure: float) -> float:
        self._oldest[0][slot], self._oldest[1][slot], self._oldest[2][slot] = ledger, entry, figure
        return figure

    async def _read_oldest(self) -> None:
        """Read what no cache has, one after the other."""
        while self._unread:
            slot, (subscription, position) = self._unread.popitem()
            with suppress(*STORAGE_ERRORS):
                batch = await subscription.ledger.read(position, 1, 1)
                full = subscription.topic.full_name
                key = subscription_key(full, subscription.name)
                if batch is None or self.subscriptions.slot_of.get(key) != slot:
                    continue
                figure = -float(parse_header(batch.heads[0]).publish_time_ms)
                self._set_oldest(slot, *position, figure)
                if self._service.topics.get(full) is subscription.topic:
                    slot = self.topics.slot_of[full]
                    await run_in_turns(self._look(slot, subscription.topic, 0.0))

    async def _read_last(self) -> None:
        """Read when the last message of a topic was published, one after the other."""
        while self._silent:
            slot, topic = self._silent.popitem()
            await find_last_publish_time(topic)
            full = topic.full_name
            is_here = self._service.topics.get(full) is topic
            if is_here and topic.last_publish_ms and self.topics.slot_of.get(full) == slot:
                await run_in_turns(self._look(slot, topic, 0.0))

    # --- answers

    async def topic_page(self, query: PageQuery, sight: Sight | None = None) -> PageAnswer:
        return await self._page(self.topics, query, sight)

    async def subscription_page(self, query: PageQuery, sight: Sight | None = None) -> PageAnswer:
        return await self._page(self.subscriptions, query, sight)

    async def _page(self, table: FigureTable, query: PageQuery, sight: Sight | None) -> PageAnswer:
        """One scan for all who ask the same while nothing has changed."""
        if sight is not None or query.only is not None:
            return await self._scan_page(table, query, sight)
        key = (id(table), table.version, query)
        if (task := self._pages.get(key)) is None:
            if len(self._pages) >= _CACHED_PAGES_MAX:
                del self._pages[next(iter(self._pages))]
            task = self._pages[key] = asyncio.get_running_loop().create_task(
                self._scan_page(table, query, None)
            )
        page = await asyncio.shield(task)
        await next_turn()  # all who share it are told in the same turn
        return page

    async def _scan_page(
        self, table: FigureTable, query: PageQuery, sight: Sight | None
    ) -> PageAnswer:
        if query.grouped:
            return await self._grouped_page(query, sight)
        of_topics = table is self.topics
        scan = PageScan(table, query, TOPIC_VIEWS if of_topics else SUBSCRIPTION_VIEWS, sight)
        await self._run(scan)
        page = scan.page
        row_of = self._topic_row if of_topics else self._subscription_row
        keys = [table.keys[slot] for slot in page.slots]
        rows = [
            row_of(slot)
            async for slot, key in in_turns(zip(page.slots, keys, strict=True))
            if table.keys[slot] == key  # still
        ]
        if query.points:
            await self._run(HistoryScan(self._service.figure_recorder, rows, query.points))
        return PageAnswer(
            self.as_of_ms,
            page.total,
            page.matching,
            page.views,
            rows,
            has_more=page.has_more,
            is_complete=self.is_complete,
            read=self.read,
        )

    async def _grouped_page(self, query: PageQuery, sight: Sight | None) -> PageAnswer:
        scan = GroupScan(self.topics, query, TOPIC_VIEWS, sight)
        await self._run(scan)
        page, rows = scan.page, []
        for name, slots in scan.groups:
            rows.append(self._group_row(name, slots))
            await asyncio.sleep(0)  # there may be thousands of partitions
        if query.points:  # those of partitions have points at other times
            whole = [row for row in rows if not row["partitions"]]
            await self._run(HistoryScan(self._service.figure_recorder, whole, query.points))
        return PageAnswer(
            self.as_of_ms,
            page.total,
            page.matching,
            page.views,
            rows,
            has_more=scan.has_more,
            is_complete=self.is_complete,
            read=self.read,
        )

    def _group_row(self, name: str, slots: list[int]) -> Row:
        """Of a topic, or of those of its partitions that this broker tells of."""
        topics = self.topics
        slots = [slot for slot in slots if topics.groups[slot] == name]  # still
        is_loaded = any(topics.places[slot] == LOADED for slot in slots)
        row: Row = {
            "topic": name,
            "broker": self._service.broker_id if is_loaded else None,
            "partitions": sum(topics.names[slot] != name for slot in slots),
        }
        for field, column in topics.columns.items():
            known = [figure for slot in slots if (figure := column[slot]) != UNKNOWN]
            together = max if field in GREATEST_OF_PARTITIONS else sum
            row[field] = shown(field, together(known)) if known else None
        return {**row, "catchUpSeconds": catch_up_seconds(row)}

    def _topic_row(self, slot: int) -> Row:
        is_loaded = self.topics.places[slot] == LOADED
        return {
            "topic": self.topics.keys[slot],
            "broker": self._service.broker_id if is_loaded else None,
            **self._shown(self.topics, slot),
        }

    def _subscription_row(self, slot: int) -> Row:
        full = self.subscriptions.groups[slot]
        name = self.subscriptions.names[slot][len(full) + 1 :]
        topic = self._service.topics.get(full)
        subscription = None if topic is None else topic.subscriptions.get(name)
        kind = None if subscription is None else subscription.sub_type
        return {
            "topic": full,
            "subscription": name,
            "type": None if kind is None else SUB_TYPE_NAMES[kind],
            "broker": self._service.broker_id,
            **self._shown(self.subscriptions, slot),
        }

    def _shown(self, table: FigureTable, slot: int) -> Row:
        figures = zip(table.fields, table.figures(slot), strict=True)
        row = {field: shown(field, figure) for field, figure in figures}
        return {**row, "catchUpSeconds": catch_up_seconds(row)}

    async def sums(self, sight: Sight | None = None, place_max: int = UNLOADED) -> dict[str, Row]:
        """Figures of each namespace; the same for all who see everything while nothing changes."""
        key = self.topics.version, place_max
        if sight is None and self._sums is not None and self._sums[0] == key:
            return self._sums[1]
        scan = SumScan(self.topics, GREATEST, sight, place_max)
        await self._run(scan)
        answer: dict[str, Row] = {}
        async for space, count in in_turns(scan.rows.items()):
            figures = scan.figures.get(space, [UNKNOWN] * len(TOPIC_FIELDS))
            answer[self.topics.space_names[space]] = {
                "topicCount": count,
                "loadedTopicCount": scan.loaded.get(space, 0),
            } | {
                field: shown(field, figure)
                for field, figure in zip(TOPIC_FIELDS, figures, strict=True)
            }
        if sight is None:
            self._sums = key, answer
        return answer

    async def _run(self, scan: _Scan) -> None:
        async with self._scanning:
            turns = LoopTurns()
            while scan.step():
                if turns.is_over:
                    await turns.next()


def _group_of(full: str) -> str | None:
    """The partitioned topic of a partition; None: it is none."""
    if PARTITION_MARK not in full:  # most of them; to take a name apart costs ten times as much
        return None
    name = TopicName.parse(full)
    return str(name.base) if name.is_partition else None
