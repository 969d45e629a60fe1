"""URLs and properties of a ZooKeeper."""

from pathlib import Path

import pytest

from magnetar.metadata.factory import connect_store
from magnetar.metadata.zookeeper.settings import ZooKeeperSettings


@pytest.mark.parametrize(
    ("url", "servers", "chroot", "text"),
    [
        ("zk:a:1", [("a", 1)], "", "zk:a:1"),
        ("zk:a", [("a", 2181)], "", "zk:a:2181"),
        ("a:1,b:2/c/d", [("a", 1), ("b", 2)], "/c/d", "zk:a:1,b:2/c/d"),
        ("zk:a:1, b/", [("a", 1), ("b", 2181)], "", "zk:a:1,b:2181"),
        ("zk:[::1]:7,[::2]/x", [("::1", 7), ("::2", 2181)], "/x", "zk:[::1]:7,[::2]:2181/x"),
    ],
)
def test_urls(url: str, servers: list[tuple[str, int]], chroot: str, text: str) -> None:
    settings = ZooKeeperSettings.parse(url)
    assert (list(settings.servers), settings.chroot) == (servers, chroot)
    assert str(settings) == text


@pytest.mark.parametrize(
    "url",
    ["", "zk:", "zk:a:0", "zk:a:65536", "zk:a:b", "zk:a:1:2", "zk:a,,b", "zk:a//b", "zk:[::1"],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|path"):
        ZooKeeperSettings.parse(url)


@pytest.mark.parametrize("url", ["etcd:http://a:1", "rocksdb:///a", "memory:local", "oxia://a:1"])
async def test_other_stores_are_named(url: str) -> None:
    with pytest.raises(ValueError, match=url.partition(":")[0]):
        await connect_store(url)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("tlsKeyFile=/x", "tlsKeyFile is not a known property"),
        ("useTls=maybe", "neither true nor false"),
        ("useTls=true\nzookeeper.ssl.keyStore.type=JKS", "only PEM"),
        ("zookeeper.auth.digest=user", "user:password"),
    ],
)
def test_bad_properties(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "properties"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        ZooKeeperSettings.parse("zk:a", path)


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "properties"
    path.write_text(
        "zookeeper.auth.digest=user:geheim\nuseTls=true\nzookeeper.ssl.keyStore.password=geheim\n"
    )
    settings = ZooKeeperSettings.parse("zk:a", path)
    assert settings.digest == "user:geheim"
    assert "geheim" not in f"{settings!r} {settings}"
