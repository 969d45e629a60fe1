"""Fixtures of integration and interop tests: a real standalone process, or a server by URL.

    pytest tests/interop --service-url pulsar://127.0.0.1:6650 --admin-url http://127.0.0.1:8080

runs the same tests against Apache Pulsar, the oracle.
"""

import functools
import gc
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from magnetar import embedding
from magnetar.broker.config import BrokerConfig
from magnetar.process_host import ProcessHost
from tests import stalls
from tests.standalone_process import StandaloneProcess
from tests.zookeeper_process import ZooKeeperProcess

# What takes long on a busy machine isn't wrong.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


# Collection allocates millions of objects that live until the end: no garbage is among them, and no
# collection during the tests needs to look at them again.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


os.environ[stalls.VARIABLE] = str(stalls.STALL_MS)  # of all processes of tests
# JVMs of tests live for seconds: half of what one costs is the second compiler, for code that is
# run for minutes, and one collector is enough.
os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Each ``httpx.get``, to http: as well, reads all authorities that it trusts: 40 ms of CPU for those
# of the machine. No test goes to a server that one of them has signed.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))


@pytest.fixture(scope="session", autouse=True)
def no_long_turns_at_all() -> Iterator[None]:
    """Embedded brokers look at their loops, too; see stalls.py."""
    settings_of, join = embedding._settings, ProcessHost.join

    def watched(config: BrokerConfig | None, given: Mapping[str, object]) -> BrokerConfig:
        return settings_of(config, {stalls.SETTING: stalls.STALL_MS, **given})

    def note_and_join(host: ProcessHost) -> None:
        stalls.note(host.log())
        join(host)

    handler, logger = stalls.Handler(), logging.getLogger("magnetar.bookkeeper.loop_stalls")
    logger.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedding, "_settings", watched)
        patch.setattr(ProcessHost, "join", note_and_join)
        yield
    logger.removeHandler(handler)
    stalls.check()


@pytest.fixture(scope="module", autouse=True)
def no_long_turns_of_a_module() -> Iterator[None]:
    """Until the processes of its tests have ended."""
    yield
    stalls.check()


@pytest.fixture(autouse=True)
def no_long_turns() -> Iterator[None]:
    """In any process or thread with a loop that serves."""
    yield
    stalls.check()


# Files that take minutes come first and those of milliseconds last, so that no worker of a run in
# parallel is alone at its end: these files, longest first, then these folders, then the others.
_FIRST = (
    *("pipeline/", "integration/test_cluster_shedding.py", "integration/test_cluster_local.py"),
    *("integration/test_bookkeeper_autorecovery.py", "integration/test_cluster_probes.py"),
    *("integration/test_cluster_placement.py", "integration/test_deploy_install.py"),
    *("simulation/test_managed_ledger_offload.py", "integration/test_cluster_chaos.py"),
    *("integration/test_http_fuzz.py", "integration/test_cluster_", "simulation/test_naive_"),
    *("simulation/test_rotation.py", "integration/", "interop/", "charts/", "simulation/", ""),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent

    @functools.cache
    def place(file: Path) -> int:
        path = str(file.relative_to(here)) if file.is_relative_to(here) else file.name
        return next(number for number, first in enumerate(_FIRST) if path.startswith(first))

    items.sort(key=lambda item: place(item.path))


@functools.cache
def _scope(path: str) -> str:
    """What stays on one worker: a file, and all files that share Spark, whose start takes long."""
    return "spark" if "spark: SparkSession" in Path(path).read_text() else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For ``--dist loadfile``. (``xdist_group`` does nothing with pytest 9.2 and xdist 3.8.)"""
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByScope(LoadScopeScheduling):  # type: ignore[misc]  # the library has no types
        def _split_scope(self, nodeid: str) -> str:
            return _scope(str(config.rootpath / nodeid.partition("::")[0]))

    return ByScope(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--service-url", help="pulsar://host:port of a running server to test")
    parser.addoption("--admin-url", help="http://host:port of the same server")
    parser.addoption("--service-url-tls", help="pulsar+ssl://host:port of the same server")
    parser.addoption("--admin-url-tls", help="https://host:port of the same server")
    parser.addoption("--auth-folder", help="what that server trusts (interop/auth_material.py)")


@pytest.fixture(scope="session")
def external_server(request: pytest.FixtureRequest) -> tuple[str, str] | None:
    """(service URL, admin URL) when the tests run against a server that is already there."""
    service_url = request.config.getoption("--service-url")
    admin_url = request.config.getoption("--admin-url")
    if service_url is None and admin_url is None:
        return None
    if service_url is None or admin_url is None:
        raise pytest.UsageError("--service-url and --admin-url belong together")
    return service_url, admin_url


@pytest.fixture(scope="session")
def standalone(
    external_server: tuple[str, str] | None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandaloneProcess | None]:
    """One Magnetar process for all tests of a worker; None when an external server is tested."""
    if external_server is not None:
        yield None
        return
    with StandaloneProcess(tmp_path_factory.mktemp("standalone")) as process:
        yield process


@pytest.fixture(scope="session")
def service_url(
    external_server: tuple[str, str] | None, standalone: StandaloneProcess | None
) -> str:
    if external_server is not None:
        return external_server[0]
    assert standalone is not None
    return standalone.service_url


@pytest.fixture(scope="session")
def admin_url(external_server: tuple[str, str] | None, standalone: StandaloneProcess | None) -> str:
    if external_server is not None:
        return external_server[1]
    assert standalone is not None
    return standalone.admin_url


@pytest.fixture
def fresh_standalone(tmp_path: Path) -> Iterator[StandaloneProcess]:
    """A Magnetar process of this test's own: to be killed, restarted, filled."""
    with StandaloneProcess(tmp_path / "data") as process:
        yield process


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """One ZooKeeper for all tests of a worker, each under a chroot of its own."""
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process
