"""What a lookup over HTTP answers while nobody can tell whose the topic is."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from magnetar.broker.http.server.app import create_app
from magnetar.bundles.lookup import BrokerLookup
from magnetar.bundles.ownership import OWNERS_ROOT, Redirect
from magnetar.metadata.errors import (
    MetadataError,
    MetadataWriteError,
    OutcomeUnknownError,
    SessionLostError,
    StoreClosedError,
    StoreUnreachableError,
)
from tests.unit.broker.doubles import Broker

Ask = Callable[[str], Awaitable[httpx.Response]]
LOOKUP = "/lookup/v2/topic/persistent/public"
OTHER = BrokerLookup("pulsar://other:6650", None, "http://other:8080", None)

#: What a store may say of any call, and of a write only.
READ_ERRORS: tuple[MetadataError, ...] = (
    SessionLostError("1"),
    StoreUnreachableError("zk:h", "down"),
    StoreClosedError(),
)
WRITE_ERRORS: tuple[MetadataError, ...] = (
    *READ_ERRORS,
    MetadataWriteError("/a", OSError("throttled")),
    OutcomeUnknownError("/a"),
)


@pytest.fixture
async def ask(broker: Broker) -> AsyncIterator[Ask]:
    transport = httpx.ASGITransport(create_app(broker.service), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client.get


@pytest.fixture
async def ask_strictly() -> AsyncIterator[Ask]:
    """A broker that makes no topics by itself."""
    broker = await Broker(allow_auto_topic_creation=False).start()
    transport = httpx.ASGITransport(create_app(broker.service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client.get
    await broker.close()


class FailingStore:
    """Fails one call of the store's, counted from 0, once."""

    def __init__(self, number: int, error: MetadataError, *, of_writes: bool) -> None:
        self._number, self._error, self._of_writes = number, error, of_writes
        self._count = itertools.count()
        self.has_failed = False

    @contextmanager
    def in_place_of(self, store: Any) -> Iterator[None]:
        methods = ("put", "delete") if self._of_writes else ("get", "children", "exists")
        with pytest.MonkeyPatch.context() as patch:
            for name in methods:
                patch.setattr(store, name, self._failing(getattr(store, name)))
            yield

    def _failing(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **named: Any) -> Any:
            if next(self._count) == self._number:
                self.has_failed = True
                raise self._error
            return await method(*arguments, **named)

        return call


@pytest.mark.parametrize(
    ("of_writes", "error"),
    [(False, error) for error in READ_ERRORS] + [(True, error) for error in WRITE_ERRORS],
    ids=lambda value: type(value).__name__ if isinstance(value, MetadataError) else None,
)
@pytest.mark.parametrize("path", ["", "/bundle"])
async def test_a_store_that_can_t_tell_is_no_error_of_the_broker(
    broker: Broker, ask: Ask, path: str, of_writes: bool, error: MetadataError
) -> None:
    """Each call of the store fails in turn, with the first lookup in a namespace."""
    failed = 0
    for number in itertools.count():
        namespace = f"new{number}"
        await broker.service.resources.create_namespace(f"public/{namespace}", ["standalone"], 1)
        store = FailingStore(number, error, of_writes=of_writes)
        with store.in_place_of(broker.service.store):
            answer = await ask(f"{LOOKUP}/{namespace}/t{path}")
        if not store.has_failed:
            assert answer.status_code == 200
            break
        assert answer.status_code in (200, 503), answer.text  # 200: the broker asked again
        if answer.status_code == 503:
            assert answer.json()["reason"]
            failed += 1
        again = await ask(f"{LOOKUP}/{namespace}/t{path}")
        assert again.status_code == 200, again.text
    assert number > 0
    assert failed > 0 or isinstance(error, OutcomeUnknownError)


@pytest.mark.parametrize("path", ["", "/bundle"])
async def test_a_lost_session_answers_503(broker: Broker, ask: Ask, path: str) -> None:
    await broker.service.resources.create_namespace("public/known", ["standalone"], 1)
    assert (await ask(f"{LOOKUP}/known/t")).status_code == 200
    await broker.service.resources.create_namespace("public/unknown", ["standalone"], 1)
    broker.service.store.lose_session()  # type: ignore[attr-defined] # the embedded store's
    for namespace in ("known", "unknown"):
        answer = await ask(f"{LOOKUP}/{namespace}/t{path}")
        known_boundaries = namespace == "known" and path == "/bundle"
        assert answer.status_code == (200 if known_boundaries else 503), answer.text


async def test_a_bundle_that_is_just_taken_by_another_broker(broker: Broker, ask: Ask) -> None:
    """Its node comes between the look at it and our own: the other one is named."""
    service = broker.service
    bundle = await service.bundles.bundle_of("persistent://public/default/t")

    async def choose(bundle: str) -> Redirect | None:
        await service.store.put(f"{OWNERS_ROOT}/{bundle}", OTHER.encode())
        return None

    service.bundles._choose = choose
    answer = await ask(f"{LOOKUP}/default/t")
    assert (answer.status_code, answer.json()["httpUrl"]) == (200, "http://other:8080")
    assert bundle not in service.bundles.owned_bundles


async def test_a_bundle_whose_new_owner_is_gone_again(broker: Broker, ask: Ask) -> None:
    """The node was there when we wanted to create ours, and isn't when we look who it is."""
    service = broker.service

    async def choose(bundle: str) -> Redirect | None:
        path = f"{OWNERS_ROOT}/{bundle}"
        await service.store.put(path, OTHER.encode())
        read = service.bundles._read

        async def gone(bundle: str) -> tuple[bytes, bool] | None:
            await service.store.delete(path)
            return await read(bundle)

        service.bundles._read = gone  # type: ignore[method-assign]
        return None

    service.bundles._choose = choose
    answer = await ask(f"{LOOKUP}/default/t")
    assert answer.status_code == 503
    assert "owned by another broker" in answer.json()["reason"]


async def test_brokers_ask_also_whose_a_topic_would_be(ask_strictly: Ask) -> None:
    """One that clients can't make is made by a call that has to know where."""
    path = f"{LOOKUP}/default/new"
    assert (await ask_strictly(path)).status_code == 404
    assert (await ask_strictly(f"{path}?placement=false")).status_code == 404
    assert (await ask_strictly(f"{path}?placement=true")).status_code == 200
    assert (await ask_strictly(f"{LOOKUP}/absent/new?placement=true")).status_code == 404
