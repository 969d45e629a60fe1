"""What becomes of a call whose parts are done by several brokers."""

import asyncio
from itertools import pairwise

import pytest

from magnetar.broker.cluster.broker_client import BrokerRefusedError, BrokerUnreachableError
from magnetar.broker.errors import BrokerError, ServiceNotReadyError
from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.routing.scatter_gather import PartResult, ScatterResults, each
from magnetar.metadata import loop_turns

MISSING = ApiError(404, "nowhere")


def answers(**parts: object) -> ScatterResults[object]:
    return ScatterResults(
        [
            PartResult(name, error=value)
            if isinstance(value, Exception)
            else PartResult(name, value)
            for name, value in parts.items()
        ],
        "partitions",
    )


def test_all_that_is_well_is_told() -> None:
    found = answers(a=1, b=None)
    assert found.check().values == [1, None]
    assert found.found(MISSING).by_name() == {"a": 1, "b": None}


def test_a_silent_broker_makes_the_whole_an_error_that_names_it() -> None:
    parts = {f"p{n}": BrokerUnreachableError(f"Broker b{n} can't be reached") for n in range(5)}
    with pytest.raises(ServiceNotReadyError) as raised:
        answers(a=1, gone=ApiError(404, "no"), **parts).check()
    told = str(raised.value)
    assert told.startswith("Done for 1 of 7 partitions. p0: Broker b0 can't be reached; p1: ")
    assert told.endswith("; and 2 more")
    assert raised.value.http_status == 503


@pytest.mark.parametrize("error", [ApiError(409, "is"), BrokerRefusedError("b:1", 412, "is")])
def test_a_refusal_is_told_as_that_of_a_single_topic(error: Exception) -> None:
    with pytest.raises(type(error), match=r"^is$"):
        answers(a=1, b=error, c=ApiError(400, "later")).check()


def test_what_some_parts_lack_is_missing_only_if_all_do() -> None:
    here, there = ApiError(404, "not here"), BrokerRefusedError("b:1", 404, "not there")
    assert answers(a=1, b=here, c=there).found(MISSING).values == [1]
    with pytest.raises(ApiError, match="nowhere"):
        answers(b=here, c=there).found(MISSING)
    with pytest.raises(ApiError, match="nowhere"):
        answers().found(MISSING)
    with pytest.raises(BrokerError, match="elsewhere"):
        answers(b=here, d=BrokerError("elsewhere")).found(MISSING)


def test_a_broker_that_is_silent_is_not_one_that_lacks_it() -> None:
    silent = BrokerUnreachableError("Broker b can't be reached")
    with pytest.raises(ServiceNotReadyError, match="Broker b"):
        answers(a=ApiError(404, "no"), b=silent).found(MISSING)


async def test_many_are_asked_a_bounded_number_at_a_time_and_answer_in_order() -> None:
    asked, waiting = list[int](), 0
    all_wait, may_answer = asyncio.Event(), asyncio.Event()

    async def ask(number: int) -> int:
        nonlocal waiting
        asked.append(number)
        if number % 2:
            waiting += 1
            assert waiting <= 64
            if waiting == 64:
                all_wait.set()
            await may_answer.wait()
            waiting -= 1
        return 10 * number

    work = asyncio.create_task(each(range(200), ask))
    await all_wait.wait()
    assert sorted(asked) == list(range(128))  # what is answered at once makes room
    may_answer.set()
    assert await work == [10 * number for number in range(200)]
    assert sorted(asked) == list(range(200))
    assert await each([], ask) == []


async def test_what_is_answered_at_once_is_asked_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_turns, "TURN_S", 0.0)  # each turn is over at once
    asked = list[int]()

    async def ask(number: int) -> None:
        asked.append(number)

    work = asyncio.create_task(each(range(640), ask))
    seen = list[int]()
    while not work.done():
        seen.append(len(asked))
        await asyncio.sleep(0)
    # Two of each of the 64 that are under way; then two of them have a turn at a time.
    assert {after - before for before, after in pairwise(seen)} <= {0, 1, 2, 128}


async def test_after_an_error_no_more_is_asked() -> None:
    asked, all_wait, may_fail, may_answer = 0, asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def ask(number: int) -> None:
        nonlocal asked
        asked += 1
        if asked == 64:
            all_wait.set()
        if number == 3:
            await may_fail.wait()
            raise LookupError
        await may_answer.wait()

    work = asyncio.create_task(each(range(1000), ask))
    await all_wait.wait()
    others = asyncio.all_tasks() - {work, asyncio.current_task()}
    may_fail.set()
    with pytest.raises(LookupError):
        await work
    may_answer.set()
    await asyncio.gather(*others, return_exceptions=True)
    assert asked == 64
