"""Tokens and certificates at the ports of bookies: every call, and connections that live on."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import jwt
import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.auth import bookie_authenticator as gates
from magnetar.bookkeeper.auth import token_source
from magnetar.bookkeeper.auth.bookie_authenticator import AuthSettings, BookieAuthenticator
from magnetar.bookkeeper.bookie_protocol.own_login import AdmittedClient, OwnLogins
from magnetar.bookkeeper.client.config import LedgerConfig
from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.tls import TlsFiles
from magnetar.bookkeeper.transport import ReadRequest
from magnetar.bookkeeper.transport_grpc import config
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.config import BOOKIE_ID_HEADER, SERVICE, TransportConfig
from tests.certificates import Authority
from tests.child_process import READY_S_MAX
from tests.integration.bookkeeper_network import Network, eventually, read_all, write
from tests.integration.test_bookkeeper_network import add

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
SECRET = b"0123456789abcdef0123456789abcdef"
OTHER = b"fedcba9876543210fedcba9876543210"
CALLS = (
    *("ReadLac", "WaitLac", "WriteLac", "Force", "ListEntries", "ListLedgers"),
    *("Info", "ReportCorrupt", "CheckData", "NoSuchCall"),
)


def token(role: str = "broker", secret: bytes = SECRET, **claims: object) -> str:
    return jwt.encode({"sub": role, **claims}, secret, "HS256")


def replace(path: Path, text: str) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.replace(path)


def authenticator(
    *providers: str,
    secret: str = "data:," + SECRET.decode(),
    clock_s: Callable[[], float] = time.time,
) -> BookieAuthenticator:
    return BookieAuthenticator(
        AuthSettings(
            providers=providers or ("token",),
            secret_keys=(secret,),
            allowed_roles=frozenset({"broker"}),
        ),
        clock_s=clock_s,
    )


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    (tmp_path / "token").write_text(token())
    network = Network(
        tmp_path, authenticator=authenticator(), client_token=f"file://{tmp_path / 'token'}"
    )
    for number in range(3):
        await network.start(f"b{number}")
    await network.pool.start()
    yield network
    await network.close()


async def code_of(
    port: int,
    call: str,
    authorization: str | None,
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.StatusCode:
    """How a call without a message ends: nothing of it may be waited for."""
    metadata = [(BOOKIE_ID_HEADER, b"b0")]
    if authorization is not None:
        metadata.append(("authorization", authorization))  # type: ignore[arg-type]
    target = f"127.0.0.1:{port}"
    channel = (
        grpc.aio.insecure_channel(target)
        if credentials is None
        else grpc.aio.secure_channel(target, credentials)
    )
    async with channel:
        stream = channel.stream_stream(f"/{SERVICE}/{call}")(metadata=metadata, timeout=30)
        return await stream.code()


async def test_ledgers_with_a_token(network: Network) -> None:
    sent = [b"%d" % number for number in range(200)]
    ledger = await write(network.client, LedgerConfig(3, 3, 2), sent)
    await ledger.close()
    assert await read_all(network.client, ledger.ledger_id, recover=True) == sent
    assert (await network.remote("b0").info()).bookie_id == "b0"
    assert await network.remote("b0").list_ledgers(0, 10) == [ledger.ledger_id]


@pytest.mark.parametrize("call", CALLS)
async def test_every_call_asks_before_it_reads_a_word(network: Network, call: str) -> None:
    """Also those that don't exist, and those that somebody adds."""
    port = network.served["b0"].port
    for shown in (
        None,
        "",
        "Bearer ",
        "Bearer x.y.z",
        f"Bearer {token(secret=OTHER)}",
        "Basic eDp5",
    ):
        assert await code_of(port, call, shown) is UNAUTHENTICATED
    other_role = f"Bearer {token('orders')}"
    assert await code_of(port, call, other_role) is grpc.StatusCode.PERMISSION_DENIED


async def test_refusals_are_in_the_audit_log_and_secrets_are_not(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    bad = token("orders")
    with caplog.at_level(logging.WARNING, "magnetar.bookkeeper.audit"):
        for _ in range(100):
            await code_of(network.served["b0"].port, "Info", f"Bearer {bad}")
    assert 1 <= len(caplog.records) < 100
    assert "listener=bookie" in caplog.text
    assert "role orders is none of bookieAllowedRoles" in caplog.text
    assert bad not in caplog.text


async def test_a_refusal_never_means_that_there_is_no_entry(tmp_path: Path) -> None:
    network = Network(tmp_path, authenticator=authenticator(), client_token=token(secret=OTHER))
    await network.start("b0")
    client = network.remote("b0")
    assert (await client.read_entries(ReadRequest(1, 0, 1, 1000))).code == codes.UNAVAILABLE
    assert (await client.read_lac(1, fence=True)).code == codes.UNAVAILABLE
    assert await client.write_lac(1, 0, master_key=b"") == codes.UNAVAILABLE
    assert await add(client, 1, 0) == codes.UNAVAILABLE
    with pytest.raises(BookieUnavailableError, match="refuses us: UNAUTHENTICATED"):
        await client.info()
    await network.close()


async def test_a_live_connection_goes_on_with_a_renewed_token_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens are renewed in their file before they end: not one append fails, on no bookie."""
    monkeypatch.setattr(token_source, "_LOOK_S", 0.0)
    file, clock = tmp_path / "token", [1_000_000.0]
    file.write_text(token(exp=clock[0] + 6))
    network = Network(
        tmp_path, authenticator=authenticator(clock_s=lambda: clock[0]), client_token=str(file)
    )
    for number in range(3):
        await network.start(f"b{number}")
    await network.pool.start()
    shown: Counter[OwnLogins] = Counter()
    admit = OwnLogins.admit

    def counted(logins: OwnLogins, payload: bytes, transport: asyncio.Transport) -> AdmittedClient:
        shown[logins] += 1
        return admit(logins, payload, transport)

    monkeypatch.setattr(OwnLogins, "admit", counted)
    ledger = await network.client.create_ledger(LedgerConfig(3, 3, 3))
    count = 0
    for tokens in range(1, 6):
        async with asyncio.timeout(READY_S_MAX):
            while len(shown) < 3 or min(shown.values()) < tokens:
                ledger.append([b"head"] * 5, [b"%d" % (count + place) for place in range(5)])
                count += 5
                await asyncio.sleep(0.01)
        replace(file, token(exp=clock[0] + 11, jti=str(tokens)))
        clock[0] += 5  # one more such step, and the token that was shown last has ended
    await eventually(lambda: ledger.last_confirmed == count - 1 or ledger.error is not None)
    assert ledger.error is None
    await ledger.close()
    metadata = await network.client.read_ledger_metadata(ledger.ledger_id)
    assert metadata is not None
    assert len(metadata.segments) == 1, "a bookie was replaced"
    assert await read_all(network.client, ledger.ledger_id, recover=False) == [
        b"%d" % number for number in range(count)
    ]
    await network.close()


async def test_an_expired_connection_is_ended_and_the_next_one_works(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token())
    network = Network(tmp_path, authenticator=authenticator(), client_token=str(file))
    await network.start("b0")
    client = network.remote("b0")
    assert client._token is not None
    for life_s in (3, 10, 25):  # longer than the machine stands still
        replace(file, token(exp=time.time() + life_s))
        client._token.token(at_once=True)
        if (code := await add(client, 1, 0)) == codes.OK:
            break
    assert code == codes.OK
    await eventually(lambda: not client._adds.is_connected)  # idle, and ended by the bookie
    assert await add(client, 1, 1) == codes.UNAVAILABLE, "the same token once more"
    replace(file, token())
    await eventually(lambda: client._token is not None and client._token.token() == token())
    answers: list[int] = []

    async def succeeds() -> bool:
        answers.append(await add(client, 1, 1 + len(answers)))
        return answers[-1] == codes.OK

    deadline = time.monotonic() + 30
    while not await succeeds():
        assert time.monotonic() < deadline, answers
        await asyncio.sleep(0.02)
    assert (await client.info()).bookie_id == "b0"
    await network.close()


async def test_a_call_with_an_old_token_is_made_again_with_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(token(exp=time.time() - 1))
    network = Network(tmp_path, authenticator=authenticator(), client_token=str(file))
    await network.start("b0")
    client = network.remote("b0")
    with pytest.raises(BookieUnavailableError):
        await client.info()
    replace(file, token())
    assert (await client.info()).bookie_id == "b0"  # within the second in which it isn't looked at
    await network.close()


async def test_a_connection_ends_when_its_key_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates, "_REMEMBERED_S", 0.1)
    key = tmp_path / "key"
    key.write_bytes(SECRET)
    network = Network(tmp_path, authenticator=authenticator(secret=str(key)), client_token=token())
    await network.start("b0")
    client = network.remote("b0")
    assert await add(client, 1, 0) == codes.OK
    for _ in range(5):  # judged again and again, and still good
        await asyncio.sleep(0.1)
        assert await add(client, 1, 1) == codes.OK
    replace(key, OTHER.decode())
    await eventually(lambda: not client._adds.is_connected)
    assert await add(client, 1, 2) == codes.UNAVAILABLE
    await network.close()


@pytest.mark.parametrize("name", ["broker", "orders"])
async def test_certificates_name_a_role(tmp_path: Path, name: str) -> None:
    authority = Authority(tmp_path)
    trust = str(authority.certificate)
    pair = authority.sign("bookie")
    own = authority.sign(name)
    network = Network(
        tmp_path,
        server_tls=TlsFiles(str(pair.certificate), str(pair.key), trust, True),
        client_tls=TlsFiles(str(own.certificate), str(own.key), trust),
        authenticator=authenticator("token", "tls"),
    )
    await network.start("b0")
    client = network.remote("b0")
    if name == "broker":
        assert await add(client, 1, 0) == codes.OK
        assert (await client.read_entries(ReadRequest(1, 0, 1, 1000))).code == codes.OK
        assert (await client.info()).bookie_id == "b0"
    else:
        assert await add(client, 1, 0) == codes.UNAVAILABLE
        with pytest.raises(BookieUnavailableError, match="PERMISSION_DENIED"):
            await client.info()
    await network.close()


async def test_a_long_poll_ends_when_its_token_does(tmp_path: Path) -> None:
    """Who may not read any more is not told what was written later."""
    ends_s, skipped_s = time.time() + 100_000, 0.0
    network = Network(
        tmp_path,
        authenticator=authenticator(clock_s=lambda: time.time() + skipped_s),
        client_token=token(exp=ends_s),
    )
    await network.start("b0")
    client = network.remote("b0")
    assert await add(client, 1, 0) == codes.OK
    for left_s in (1.0, 10.0, 100.0):  # a slow machine may need more to ask while it may
        skipped_s = ends_s - time.time() - left_s
        reply = await client.wait_lac(1, 5, 600.0)
        if reply.code == codes.OK:
            break
    assert reply.code == codes.OK
    assert time.time() + skipped_s < ends_s + 300  # long before the poll's own end
    assert (await client.wait_lac(1, 5, 600.0)).code == codes.UNAVAILABLE
    await network.close()


async def test_a_good_certificate_saves_no_bad_token(tmp_path: Path) -> None:
    """What a call shows is judged; what its connection shows is for calls that show nothing."""
    authority = Authority(tmp_path)
    trust = str(authority.certificate)
    pair, own = authority.sign("bookie"), authority.sign("broker")
    network = Network(
        tmp_path,
        server_tls=TlsFiles(str(pair.certificate), str(pair.key), trust, True),
        client_tls=TlsFiles(str(own.certificate), str(own.key), trust),
        authenticator=authenticator("token", "tls"),
    )
    served = await network.start("b0")
    client = network.remote("b0")
    assert (await client.wait_lac(1, 5, 0.05)).code == codes.NO_LEDGER
    credentials = grpc.ssl_channel_credentials(
        authority.certificate.read_bytes(), own.key.read_bytes(), own.certificate.read_bytes()
    )
    for shown in ("", f"Bearer {token(secret=OTHER)}", f"Bearer {token(exp=1)}"):
        for call in ("Info", "NoSuchCall"):
            assert await code_of(served.port, call, shown, credentials) is UNAUTHENTICATED
    await network.close()


async def test_connections_are_bounded_and_who_says_nothing_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config, "_HANDSHAKE_MS", 3000)
    server = BookieServer("b0", TransportConfig(connections_max=3))
    port = await server.listen("127.0.0.1", 0)

    async def connect() -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        return reader

    writers: list[asyncio.StreamWriter] = []
    async with asyncio.timeout(30):
        silent = [await connect() for _ in range(3)]
        for reader in silent:
            assert await reader.read(9)  # the server's own words: it is let in
        for _ in range(3):
            assert await (await connect()).read() == b""  # one too many
        for reader in silent:
            await reader.read()  # until the deadline of the first words
        assert await (await connect()).read(9)
    for writer in writers:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    await server.close()
