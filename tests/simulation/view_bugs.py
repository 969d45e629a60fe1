"""Planted bugs of what looks at a broker: explanations, lists with figures, history, search.

Worlds are tests of these parts, which must notice. ``rotation.py`` plants them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import httpx

from magnetar.broker.dispatch.explanation import Explanation, Reason
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.http.messaging import message_search
from magnetar.broker.http.server.app import create_app
from magnetar.broker.index import history as histories
from magnetar.broker.index.broker_index import IndexTables
from magnetar.broker.index.figure_table import FigureTable, PageScan
from magnetar.broker.index.history import History
from tests.simulation import test_dispatch_explanations
from tests.simulation.plant import Bugs, Plant
from tests.unit.broker.doubles import Broker
from tests.unit.broker.http import test_http_message_search
from tests.unit.broker.index import test_broker_index, test_figure_table, test_history


def _shared(seed: int) -> None:
    for make in test_dispatch_explanations.WORLDS:
        test_dispatch_explanations.test_each_undelivered_entry_is_explained(seed, make)


def _of_broker(test: Callable[[Broker], Awaitable[None]]) -> Callable[[int], None]:
    async def run() -> None:
        broker = await Broker().start()
        try:
            await test(broker)
        finally:
            await broker.close()

    return lambda seed: asyncio.run(run())


async def _search(broker: Broker) -> None:
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        await test_http_message_search.test_all_messages_page_by_page_and_no_cursor_moves(client)


def _history(seed: int) -> None:
    test_history.test_points_come_every_ten_seconds_at_most()
    test_history.test_a_row_that_is_gone_leaves_its_place_but_not_its_figures()


def _pages(seed: int) -> None:
    test_figure_table.test_pages_are_those_of_a_look_at_every_row()


WORLDS: Final[dict[str, Callable[[int], None]]] = {
    "explained": _shared,
    "active explained": (
        test_dispatch_explanations.test_each_undelivered_entry_of_a_single_active_consumer
    ),
    "topics come and go": _of_broker(test_broker_index.test_topics_come_and_go),
    "subscriptions come and go": _of_broker(test_broker_index.test_subscriptions_come_and_go),
    "pages": _pages,
    "history": _history,
    "search": _of_broker(_search),
}

BUGS: Final = Bugs(lambda world, seed: WORLDS[world](seed))
bug: Final = BUGS.of


# Explanations


def _renamed(plant: Plant, owner: Any, was: Reason, says: Reason) -> None:
    def explain(self: Any, *arguments: Any) -> Explanation | None:
        found: Explanation | None = old(self, *arguments)
        return replace(found, reason=says) if found is not None and found.reason is was else found

    old = plant.set(owner, "explain", explain)


@bug("explained")
def a_full_consumer_is_said_to_have_no_permits(plant: Plant) -> None:
    _renamed(plant, SharedDispatcher, Reason.CONSUMER_UNACKED_LIMIT, Reason.NO_PERMITS)


@bug("explained")
def who_has_an_entry_is_not_told(plant: Plant) -> None:
    def explain(self: Any, *arguments: Any) -> Explanation | None:
        found: Explanation | None = old(self, *arguments)
        return None if found is not None and found.reason is Reason.PENDING else found

    old = plant.set(SharedDispatcher, "explain", explain)


@bug("active explained")
def an_active_consumer_that_waits_is_said_to_have_no_permits(plant: Plant) -> None:
    _renamed(plant, SingleActiveDispatcher, Reason.FAILOVER_DELAY, Reason.NO_PERMITS)


# Lists with figures


@bug("topics come and go")
def deleted_topics_stay_in_the_list(plant: Plant) -> None:
    plant.set(IndexTables, "_deleted", lambda self, full: None)
    plant.set(FigureTable, "remove", lambda self, slot: None)


@bug("topics come and go")
def unloaded_topics_keep_their_figures(plant: Plant) -> None:
    plant.set(IndexTables, "_unload", lambda self, slot, full: None)


@bug("subscriptions come and go")
def deleted_subscriptions_stay_in_the_list(plant: Plant) -> None:
    plant.set(IndexTables, "_forget_others", lambda self: iter(()))


@bug("pages")
def a_page_forgets_the_worst_of_its_rows(plant: Plant) -> None:
    def offer(self: Any, slots: list[int]) -> None:
        old(self, slots[:-1] if len(slots) > 1 else slots)

    old = plant.set(PageScan, "_offer", offer)


# History


@bug("history")
def there_are_more_points_than_one_in_ten_seconds(plant: Plant) -> None:
    plant.set(histories, "POINT_MS", 9_000)


@bug("history")
def who_comes_later_has_the_points_of_a_row_before(plant: Plant) -> None:
    def series(self: Any, key: Any) -> Any:
        for slot in range(len(self._since_ms)):
            self._since_ms[slot] = 0
        return old(self, key)

    old = plant.set(History, "series", series)


# Search


@bug("search")
def a_search_skips_the_first_entry_of_each_read(plant: Plant) -> None:
    def items(entries: Any, *rest: Any) -> Iterator[Any]:
        found: Iterator[Any] = old(list(entries)[1:], *rest)
        return found

    old = plant.set(message_search, "_items", items)


@bug("search")
def the_next_page_begins_with_the_last_message_again(plant: Plant) -> None:
    plant.set(message_search, "_after", lambda place: place)
