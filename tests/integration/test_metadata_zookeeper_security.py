"""TLS with certificates on both sides, and digest logins, on a real ZooKeeper."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from magnetar.metadata.errors import AccessDeniedError, StoreUnreachableError
from magnetar.metadata.factory import connect_store
from magnetar.metadata.store import MetadataStore
from tests.certificates import Authority, Pair
from tests.zookeeper_process import ZooKeeperProcess


@dataclass
class Secured:
    """A server that demands certificates of ``authority``, and what its clients have."""

    process: ZooKeeperProcess
    authority: Authority
    client: Pair
    untrusted: Pair
    strange_authority: Authority


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority, strange = Authority(folder), Authority(folder, "strange")
    server = authority.sign("server", hosts=("127.0.0.1",))
    both = folder / "server-with-key.pem"
    both.write_bytes(server.key.read_bytes() + server.certificate.read_bytes())
    properties = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": str(both),
        "ssl.trustStore.location": str(authority.certificate),
        "ssl.clientAuth": "need",
    }
    with ZooKeeperProcess(folder / "zookeeper", properties=properties, secure=True) as process:
        yield Secured(
            process, authority, authority.sign("client"), strange.sign("stranger"), strange
        )


def _config(folder: Path, **properties: object) -> Path:
    path = folder / "metadata.properties"
    lines = ["# of the metadata store", *(f"{key} = {value}" for key, value in properties.items())]
    path.write_text("\n".join(lines).replace("__", "."))
    return path


async def _connect(
    secured: Secured, config: Path, host: str = "127.0.0.1", within_s: float = 30.0
) -> MetadataStore:
    url = secured.process.url("/secured", host)
    return await connect_store(url, config, operation_timeout_s=within_s)


async def test_pulsars_names(secured: Secured, tmp_path: Path) -> None:
    config = _config(
        tmp_path,
        useTls="true",
        tlsTrustCertsFilePath=secured.authority.certificate,
        tlsCertificateFilePath=secured.client.certificate,
        tlsKeyFilePath=secured.client.key,
    )
    store = await _connect(secured, config)
    await store.put("/a", b"over TLS")
    found = await store.get("/a")
    assert found is not None
    assert found.value == b"over TLS"
    await store.close()


async def test_zookeepers_names_and_a_key_with_a_password(secured: Secured, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(secured.client.key.read_bytes(), None)
    both, password = tmp_path / "client.pem", tmp_path / "password"
    both.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
        + secured.client.certificate.read_bytes()
    )
    password.write_text("secret\n")
    config = _config(
        tmp_path,
        zookeeper__client__secure="true",
        zookeeper__ssl__trustStore__location=secured.authority.certificate,
        zookeeper__ssl__keyStore__location=both,
        zookeeper__ssl__keyStore__type="PEM",
        zookeeper__ssl__keyStore__passwordPath=password,
    )
    store = await _connect(secured, config)
    assert await store.exists("/")
    await store.close()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("plain", None),
        ("no certificate", None),
        ("a stranger's certificate", None),
        ("an authority that we do not trust", "CERTIFICATE_VERIFY_FAILED"),
        ("another host's certificate", "CERTIFICATE_VERIFY_FAILED"),
    ],
)
async def test_refusals(secured: Secured, tmp_path: Path, fault: str, reason: str | None) -> None:
    properties: dict[str, object] = {
        "useTls": "true",
        "tlsTrustCertsFilePath": secured.authority.certificate,
        "tlsCertificateFilePath": secured.client.certificate,
        "tlsKeyFilePath": secured.client.key,
    }
    host = "127.0.0.1"
    if fault == "plain":
        properties = {}
    elif fault == "no certificate":
        del properties["tlsCertificateFilePath"]
    elif fault == "a stranger's certificate":
        properties["tlsCertificateFilePath"] = secured.untrusted.certificate
        properties["tlsKeyFilePath"] = secured.untrusted.key
    elif fault == "another host's certificate":
        host = "localhost"
    else:
        properties["tlsTrustCertsFilePath"] = secured.strange_authority.certificate
    # Wrong certificates of the server end it at once, others only show as closed connections.
    within_s = 30.0 if reason else 1.5
    with pytest.raises(StoreUnreachableError, match=reason):
        await _connect(secured, _config(tmp_path, **properties), host, within_s)
    if host == "localhost":
        properties["tlsHostnameVerificationEnabled"] = "false"
        store = await _connect(secured, _config(tmp_path, **properties), host)
        await store.close()


async def test_what_a_user_creates_is_closed_to_others(
    zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    url = zookeeper.url("/digest")
    mine = await connect_store(url, _config(tmp_path, zookeeper__auth__digest="me:secret"))
    await mine.put("/a/b", b"1")
    other = await connect_store(
        zookeeper.url(), _config(tmp_path, zookeeper__auth__digest="other:secret")
    )
    nobody = await connect_store(zookeeper.url())
    for store in (other, nobody):
        with pytest.raises(AccessDeniedError):
            await store.get("/digest/a/b")
        with pytest.raises(AccessDeniedError):
            await store.put("/digest/a/b", b"2", 0)
        with pytest.raises(AccessDeniedError):
            await store.put("/digest/a/c", b"2", -1)
        with pytest.raises(AccessDeniedError):
            await store.delete("/digest/a/b")
        with pytest.raises(AccessDeniedError):
            await store.delete_recursive("/digest/a")
    again = await connect_store(url, _config(tmp_path, zookeeper__auth__digest="me:secret"))
    found = await again.get("/a/b")
    assert found is not None
    assert (found.value, found.stat.version) == (b"1", 0)
    for store in (mine, other, nobody, again):
        await store.close()
