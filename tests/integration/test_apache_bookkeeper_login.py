"""SASL DIGEST-MD5 as Apache's bookies and ZooKeeper's servers want it."""

import asyncio
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pulsar import InitialPosition

from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.login import PLUGINS, SaslLogin
from magnetar.bookkeeper.bookie_protocol.login_server import PROVIDER
from magnetar.bookkeeper.errors import LedgerError, UnauthorizedAccessError
from magnetar.bookkeeper.ledgers import Ledgers, connect_ledgers
from magnetar.bookkeeper.tls import TlsFiles
from magnetar.metadata.errors import AccessDeniedError, MetadataError
from magnetar.metadata.factory import connect_store
from magnetar.metadata.sasl.digest_md5 import SaslCredentials
from magnetar.pipeline.admin import parse_access
from tests.apache_bookies import ApacheBookie, needs_bookkeeper
from tests.bookie_process import BookieProcess
from tests.broker_process import BrokerProcess
from tests.certificates import Authority
from tests.integration.test_apache_bookkeeper import counted_past_the_broker
from tests.integration.test_bookkeeper_access_processes import SECRET, options
from tests.nightly import NIGHTLY
from tests.official_client import client_of
from tests.waiting import eventually
from tests.zookeeper_process import ZooKeeperProcess

PASSWORD = 's3 "cret \\ \u00e9'
GOOD = SaslCredentials("bookkeeper", PASSWORD)
MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule required"


def jaas_text(password: str = PASSWORD) -> str:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    server, client = f'user_bookkeeper="{quoted}"', f'username="bookkeeper" password="{quoted}"'
    sections = {
        **dict.fromkeys(("Server", "Bookie"), f'{server} user_outsider="pw"'),
        **dict.fromkeys(("Client", "BookKeeper"), client),
        "Outsider": 'username="outsider" password="pw"',
        "Kerberos": "",
    }
    modules = {"Kerberos": "com.sun.security.auth.module.Krb5LoginModule required"}
    return "".join(
        f"{name} {{\n  {modules.get(name, MODULE)} {options};\n}};\n"
        for name, options in sections.items()
    )


@dataclass
class Guarded:
    """ZooKeeper and a bookie that want a login, and files for their clients."""

    zookeeper: ZooKeeperProcess
    bookie: ApacheBookie
    folder: Path
    authority: Authority

    @property
    def jaas(self) -> Path:
        return self.folder / "jaas.conf"

    def metadata_config(self, **properties: object) -> Path:
        """For ZooKeeper; with ``__`` for dots."""
        path = self.folder / f"metadata-{abs(hash(str(properties)))}.properties"
        given = {"java__security__auth__login__config": self.jaas, **properties}
        path.write_text("".join(f"{k.replace('__', '.')}={v}\n" for k, v in given.items()))
        return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    jaas, authority = folder / "jaas.conf", Authority(folder)
    jaas.write_text(jaas_text(), "utf-8")
    flags = (f"-Djava.security.auth.login.config={jaas}", "-Dfile.encoding=UTF-8")
    wants_login = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "enforce.auth.enabled": "true",
        "enforce.auth.schemes": "sasl",
    }
    pair = authority.sign("bookie")
    settings = {
        "bookieAuthProviderFactoryClass": (
            "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory"
        ),
        "tlsProviderFactoryClass": "org.apache.bookkeeper.tls.TLSContextFactory",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": str(pair.key),
        "tlsCertificatePath": str(pair.certificate),
    }
    with ZooKeeperProcess(folder / "zk", properties=wants_login, flags=flags) as zookeeper:
        uri = f"zk+hierarchical://127.0.0.1:{zookeeper.port}/ledgers"
        bookie = ApacheBookie(folder / "bookie", uri, settings, flags)
        bookie.shell("initnewcluster")
        bookie.start()
        try:
            yield Guarded(zookeeper, bookie, folder, authority)
        finally:
            bookie.stop()


def protocol(credentials: SaslCredentials | None) -> ProtocolConfig:
    return ProtocolConfig(login=None if credentials is None else SaslLogin(lambda: credentials))


async def write_and_read(ledgers: Ledgers) -> list[bytes]:
    ledger = await ledgers.create(1, 1, 1)
    await ledger.append_all([b"x", b"y"])
    await ledger.close()
    return await (await ledgers.open(ledger.ledger_id)).read(0, 1)


@needs_bookkeeper
async def test_who_knows_the_password_uses_ledgers(guarded: Guarded) -> None:
    """By version 2 and 3, and within TLS."""
    trusted = TlsFiles("", "", str(guarded.authority.certificate))
    for tls in (None, trusted):
        async with connect_ledgers(
            guarded.bookie.metadata_uri,
            metadata_config=guarded.metadata_config(),
            protocol=protocol(GOOD),
            tls=tls,
        ) as ledgers:
            await eventually(lambda pool=ledgers.client.bookies: pool.writable)
            assert await write_and_read(ledgers) == [b"x", b"y"]
            client = ledgers.client.bookies.client(guarded.bookie.bookie_id)
            assert (await client.info()).total_bytes


@needs_bookkeeper
@pytest.mark.parametrize(
    "credentials",
    [
        SaslCredentials("bookkeeper", "wrong"),
        SaslCredentials("nobody", PASSWORD),
        SaslCredentials("outsider", "pw"),  # not among saslJaasClientAllowedIds
        None,
    ],
    ids=str,
)
async def test_others_are_refused(guarded: Guarded, credentials: SaslCredentials | None) -> None:
    async with connect_ledgers(
        guarded.bookie.metadata_uri,
        metadata_config=guarded.metadata_config(),
        protocol=protocol(credentials),
    ) as ledgers:
        await eventually(lambda: ledgers.client.bookies.writable)
        ledger = await ledgers.create(1, 1, 1)
        with pytest.raises(UnauthorizedAccessError):
            await ledger.append(b"x")
        with pytest.raises(UnauthorizedAccessError, match="user" if credentials else None):
            await ledgers.client.bookies.client(guarded.bookie.bookie_id).info()


@needs_bookkeeper
async def test_a_bookie_without_authentication_is_used(guarded: Guarded, tmp_path: Path) -> None:
    """As Apache's client does; a bookie that is killed is no refusal."""
    flags = (f"-Djava.security.auth.login.config={guarded.jaas}", "-Dfile.encoding=UTF-8")
    bookie = ApacheBookie(tmp_path / "open", guarded.bookie.metadata_uri, flags=flags)
    await asyncio.to_thread(bookie.start)
    async with connect_ledgers(
        bookie.metadata_uri, metadata_config=guarded.metadata_config(), protocol=protocol(GOOD)
    ) as ledgers:
        pool = ledgers.client.bookies
        await eventually(lambda: bookie.bookie_id in pool.writable)
        assert (await pool.client(bookie.bookie_id).info()).total_bytes
        bookie.stop()
        with pytest.raises(LedgerError) as caught:
            await pool.client(bookie.bookie_id).info()
        assert not isinstance(caught.value, UnauthorizedAccessError)
        await eventually(lambda: bookie.bookie_id not in pool.writable)


@needs_bookkeeper
def test_a_broker_that_logs_in(guarded: Guarded, tmp_path: Path) -> None:
    """With Pulsar's keys: messages are there after it was killed."""
    settings = {
        "bookkeeperMetadataServiceUri": guarded.bookie.metadata_uri,
        "bookkeeperClientAuthenticationPlugin": (
            "org.apache.bookkeeper.sasl.SASLClientProviderFactory"
        ),
        "bookkeeperClientAuthenticationParametersName": "saslJaasClientSectionName",
        "bookkeeperClientAuthenticationParameters": "BookKeeper",
        "bookkeeperClientLoginConfigPath": str(guarded.jaas),
        "metadataStoreConfigPath": str(guarded.metadata_config()),
        "metadataStoreSessionTimeoutMillis": "3000",
        **{f"managedLedgerDefault{n}": "1" for n in ("EnsembleSize", "WriteQuorum", "AckQuorum")},
    }
    options = [word for pair in settings.items() for word in ("--set", "=".join(pair))]
    url, topic = guarded.zookeeper.url("/brokers"), "persistent://public/default/guarded"
    with BrokerProcess(tmp_path / "broker", url, *options) as broker:
        with client_of(broker.service_url) as client:
            client.subscribe(topic, "s", initial_position=InitialPosition.Earliest).close()
            client.create_producer(topic).send(b"kept")
        broker.kill()
    again = BrokerProcess(tmp_path / "again", url, *options)
    with again, client_of(again.service_url) as client:
        assert client.subscribe(topic, "s").receive(60_000).data() == b"kept"
        # Tasks of Spark log in to the bookies themselves.
        access = {"bookieUsername": "bookkeeper", "bookiePassword": PASSWORD}
        cluster = parse_access({"adminUrl": again.admin_url, **access})
        assert counted_past_the_broker(pickle.loads(pickle.dumps(cluster)), topic) == 1


async def test_zookeepers_login(tmp_path: Path) -> None:
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(jaas_text(), "utf-8")
    flags = (f"-Djava.security.auth.login.config={jaas}", "-Dfile.encoding=UTF-8")
    provider = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    config = tmp_path / "metadata.properties"

    def properties(section: str = "Client", **more: str) -> Path:
        lines = {"java.security.auth.login.config": jaas, "zookeeper.sasl.clientconfig": section}
        config.write_text("".join(f"{k}={v}\n" for k, v in {**lines, **more}.items()))
        return config

    with ZooKeeperProcess(tmp_path / "zk", properties=provider, flags=flags) as zookeeper:
        store = await connect_store(zookeeper.url("/a"), properties(zkEnableSecurity="true"))
        await store.put("/ours", b"1")
        # The session goes on over another connection, which logs in, too.
        zookeeper.kill()
        await asyncio.to_thread(zookeeper.start)
        found = await store.get("/ours")
        assert found is not None
        assert found.value == b"1"
        outsider = await connect_store(zookeeper.url("/a"), properties("Outsider"))
        with pytest.raises(MetadataError):
            await outsider.get("/ours")
        await outsider.close()
        await store.close()
        jaas.write_text(jaas_text("wrong"), "utf-8")
        with pytest.raises(AccessDeniedError, match="refuses the login"):
            await connect_store(zookeeper.url("/a"), properties())
        with pytest.raises(ValueError, match="GSSAPI"):
            await connect_store(zookeeper.url("/a"), properties("Kerberos"))


@needs_bookkeeper
@pytest.mark.skipif(not NIGHTLY, reason="make nightly: JVMs that log in at a bookie of ours")
@pytest.mark.parametrize("v2", [False, True])
def test_apaches_client_logs_in_at_a_bookie_of_ours(tmp_path: Path, v2: bool) -> None:
    """With the JAAS file and the keys that it would have for Apache's; ours has tokens beside."""
    jaas, key, plain = tmp_path / "jaas.conf", tmp_path / "key", tmp_path / "plain.conf"
    jaas.write_text(jaas_text(), "utf-8")
    plain.write_text(jaas_text("wrong"), "utf-8")
    key.write_bytes(SECRET)
    settings = options(
        authenticationEnabled="true",
        authenticationProviders="token",
        tokenSecretKey=f"file://{key}",
        bookieAllowedRoles="broker",
        bookieAuthProviderFactoryClass=PROVIDER,
        bookieLoginConfigPath=str(jaas),
    )
    with (
        ZooKeeperProcess(tmp_path / "zk") as zookeeper,
        BookieProcess(tmp_path / "bookie", zookeeper.url(), *settings) as bookie,
    ):
        uri = f"zk+hierarchical://127.0.0.1:{zookeeper.port}/ledgers"
        words = ("simpletest", "-ensemble", "1", "-writeQuorum", "1", "-ackQuorum", "1")
        for file, section in ((jaas, "BookKeeper"), (plain, "BookKeeper"), (jaas, "Outsider")):
            shell = ApacheBookie(
                tmp_path / f"shell-{file.stem}-{section}",
                uri,
                {
                    "clientAuthProviderFactoryClass": PLUGINS[1],
                    "saslJaasClientSectionName": section,
                    "useV2WireProtocol": str(v2).lower(),
                },
                (
                    f"-Djava.security.auth.login.config={file}",
                    *("-Dfile.encoding=UTF-8", "-Dzookeeper.sasl.client=false"),
                ),
            )
            told = shell.shell(*words, "-numEntries", "20")
            is_known = (file, section) == (jaas, "BookKeeper")
            assert ("20 entries written" in told) == is_known, told
            # Version 2 has no answer to a login that fails: its connection is closed.
            error = "NotEnoughBookies" if v2 else "UnauthorizedAccessException"
            assert is_known or error in told, told
        assert bookie.log.count("user 'bookkeeper' is not known, or the password") == 1
        assert "user 'outsider' isn't among saslJaasClientAllowedIds" in bookie.log
