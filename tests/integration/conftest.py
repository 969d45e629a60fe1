"""Fixtures of integration tests. What a module needs otherwise, it says in constants.

| constant | of which fixture | else |
|---|---|---|
| ``BOOKIES`` | ``bookies``, ``network``: how many | 3 |
| ``SESSION`` | ``bookies``: options of each | none |
| ``SETTINGS`` | ``server``: keys and values | none |
"""

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pulsar
import pytest

from magnetar.metadata.embedded import EmbeddedMetadataStore
from tests.bookie_process import BookieProcess, running_bookies
from tests.integration.bookkeeper_network import Network
from tests.official_client import client_of
from tests.standalone_process import StandaloneProcess
from tests.zookeeper_process import ZooKeeperProcess


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneProcess]:
    """A process of this module's own: its log and its memory may be judged."""
    settings = getattr(request.module, "SETTINGS", {})
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with StandaloneProcess(tmp_path_factory.mktemp("server") / "data", *options) as process:
        yield process


@pytest.fixture
def client(service_url: str) -> Iterator[pulsar.Client]:
    with client_of(service_url) as client:
        yield client


@pytest.fixture
def http(admin_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=admin_url, timeout=60) as client:
        yield client


@pytest.fixture
def admin(admin_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{admin_url}/admin/v2", timeout=60) as client:
        yield client


@pytest.fixture
def url(zookeeper: ZooKeeperProcess, request: pytest.FixtureRequest) -> str:
    """Metadata of a cluster of its own for each test."""
    name = re.sub(r"\W", "-", request.node.name)
    return zookeeper.url(f"/{request.node.path.stem}/{name}")


@pytest.fixture
def bookies(
    request: pytest.FixtureRequest, tmp_path: Path, url: str
) -> Iterator[list[BookieProcess]]:
    session = getattr(request.module, "SESSION", ())
    count = getattr(request.module, "BOOKIES", 3)
    names = [tmp_path / f"bookie-{number}" for number in range(count)]
    with running_bookies(BookieProcess(name, url, *session) for name in names) as running:
        yield running


@pytest.fixture
async def store() -> AsyncIterator[EmbeddedMetadataStore]:
    opened = EmbeddedMetadataStore.open(None)
    yield opened
    await opened.close()


@pytest.fixture
async def network(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Network]:
    network = Network(tmp_path)
    for number in range(getattr(request.module, "BOOKIES", 3)):
        await network.start(f"b{number}")
    await network.pool.start()
    yield network
    await network.close()
