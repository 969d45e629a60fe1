"""What ``magnetar bookie-shell`` shows to the metadata store of its cluster."""

from pathlib import Path

import pytest

from magnetar.broker.cli.errors import CliError
from magnetar.broker.cli.shell import cluster as shell
from magnetar.broker.config import BrokerConfig
from magnetar.metadata.errors import MetadataError


def config_of(**settings: str) -> BrokerConfig:
    return BrokerConfig.load(None, None, settings, {})


async def test_the_shell_logs_in_as_its_brokers_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came without login and TLS, so that what it wrote was open to everybody."""
    seen: list[tuple[object, ...]] = []

    async def connect(*arguments: object, **times: object) -> None:
        seen.append((*arguments, times["session_timeout_s"]))
        raise MetadataError("seen enough")

    monkeypatch.setattr(shell, "connect_store", connect)
    path = tmp_path / "zookeeper.properties"
    config = config_of(
        metadataStoreUrl="zk:host:2181/a",
        metadataStoreConfigPath=str(path),
        metadataStoreSessionTimeoutMillis="4000",
    )
    with pytest.raises(MetadataError):
        async with shell.open_cluster(config):
            pass
    assert seen == [("zk:host:2181/a", path, 4.0)]


async def test_a_store_that_cannot_be_meant_is_told() -> None:
    with pytest.raises(CliError, match="metadataStoreUrl"):
        async with shell.open_cluster(config_of(metadataStoreUrl="etcd:http://host:2379")):
            pass


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"metadataStoreUrl": "zk+hierarchical://a:1;b:2/x/ledgers"}, "zk:a:1,b:2/x"),
        (
            {
                "metadataStoreUrl": "zk:host:2181/own",
                "bookkeeperMetadataServiceUri": "zk+null://host:2181/ledgers",
            },
            "zk:host:2181",
        ),
    ],
)
async def test_the_shell_goes_where_the_ledgers_are(
    settings: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file of a broker on Apache's bookies it showed another cluster's ledgers."""
    seen: list[object] = []

    async def connect(*arguments: object, **_: object) -> None:
        seen.append(arguments[0])
        raise MetadataError("seen enough")

    monkeypatch.setattr(shell, "connect_store", connect)
    with pytest.raises(MetadataError):
        async with shell.open_cluster(config_of(**settings)):
            pass
    assert seen == [url]
