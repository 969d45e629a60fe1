"""All bookies of a cluster: where each is, whether it takes entries, and what it says of itself."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from magnetar.bookkeeper.client.pool import BookiePool
from magnetar.bookkeeper.errors import BookkeeperError
from magnetar.bookkeeper.service_info import COOKIES_PATH
from magnetar.bookkeeper.transport import BookieStatus
from magnetar.metadata.paths import decode_name
from magnetar.metadata.store import MetadataStore


@dataclass(frozen=True, slots=True)
class BookieState:
    """One bookie, as a client sees it.

    Attributes:
        is_registered: in the metadata store now; else only its cookie is there.
        location: ``/rack`` or ``/zone/upgrade-domain``; None: not known.
        address: ``host:port`` of its service; None: it has none, or never registered.
        status: what it answered; None: see ``error``.
        answer_ms: how long that took.
        asked_ms, answered_ms: between which moments of the clock, since 1970.
        error: why it didn't answer; "": it did, or it isn't registered.
    """

    bookie_id: str
    is_registered: bool
    is_writable: bool
    is_quarantined: bool
    location: str | None
    address: str | None
    status: BookieStatus | None = None
    answer_ms: float | None = None
    asked_ms: int = 0
    answered_ms: int = 0
    error: str = ""


async def bookie_states(
    pool: BookiePool,
    store: MetadataStore,
    *,
    answer_s: float,
    clock_ms: Callable[[], int],
) -> list[BookieState]:
    """By id.

    Args:
        answer_s: how long each has to answer; all are asked at once.
    Raises:
        MetadataError: which bookies there are can't be read.
    """
    known = {decode_name(each) for each in await store.children(COOKIES_PATH)}
    known.update(pool.registered)
    asked = (_state(pool, each, answer_s, clock_ms) for each in sorted(known))
    return list(await asyncio.gather(*asked))


async def _state(
    pool: BookiePool, name: str, answer_s: float, clock_ms: Callable[[], int]
) -> BookieState:
    info = pool.infos.get(name)
    address = info.any_address if info is not None else None
    state = BookieState(
        name,
        pool.is_registered(name),
        name in pool.writable,
        pool.health.is_quarantined(name),
        pool.location(name),
        None if address is None else f"{address[0]}:{address[1]}",
    )
    if not state.is_registered:
        return state
    asked_ms, began_s = clock_ms(), time.perf_counter()
    try:
        async with asyncio.timeout(answer_s):
            status = await pool.client(name).info()
    except (BookkeeperError, TimeoutError) as error:
        return replace(state, error=str(error) or f"no answer within {answer_s:.0f} s")
    answer_ms = (time.perf_counter() - began_s) * 1000
    return replace(
        state,
        status=status,
        answer_ms=answer_ms,
        asked_ms=asked_ms,
        answered_ms=clock_ms(),
    )
