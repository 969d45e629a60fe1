"""URIs of a BookKeeper cluster's metadata."""

import pytest

from magnetar.bookkeeper.layout.metadata_service_uri import store_url_of


@pytest.mark.parametrize(
    ("uri", "url"),
    [
        ("zk+hierarchical://a:2181/ledgers", "zk:a:2181"),
        ("zk+hierarchical://a:2181;b:2182/bk/ledgers/", "zk:a:2181,b:2182/bk"),
        ("zk+null://a/ledgers", "zk:a"),
        ("zk://a,b/ledgers", "zk:a,b"),
        ("metadata-store:zk:a,b:2182/bk/ledgers", "zk:a,b:2182/bk"),
        ("zk:a:2181/chroot", None),
        ("etcd://a/ledgers", None),
    ],
)
def test_uris(uri: str, url: str | None) -> None:
    assert store_url_of(uri) == url


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("zk+flat://a/ledgers", "flat is not supported"),
        ("zk+hierarchical://a/bk", "a node named ledgers"),
        ("zk+hierarchical://a", "a node named ledgers"),
    ],
)
def test_uris_that_can_t_be_used(uri: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        store_url_of(uri)
