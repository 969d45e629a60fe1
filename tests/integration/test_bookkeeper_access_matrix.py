"""Every call and every route of a bookie's and of auto-recovery's ports, asked by everybody.

What there is comes from the servers and from the descriptor of the service, what is right from
``bookkeeper_access_answers.txt``: a call or a route that is added without a line there fails.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from magnetar.bookkeeper.auth.bookie_authenticator import BookieAuthenticator
from magnetar.bookkeeper.bookie import process as bookies
from magnetar.bookkeeper.bookie.http.admin_access import AdminAccess
from magnetar.bookkeeper.bookie.http.admin_server import AdminServer, BodyPage, Page
from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.proto import bookie_pb2 as pb
from magnetar.bookkeeper.replication import process as recoveries
from magnetar.bookkeeper.replication.process import AutoRecoveryPart
from magnetar.bookkeeper.replication.settings import AutoRecoverySettings
from magnetar.bookkeeper.transport_grpc.bookie_server import BookieServer
from magnetar.bookkeeper.transport_grpc.config import BOOKIE_ID_HEADER, SERVICE, TransportConfig
from tests.certificates import Authority, Pair
from tests.integration.bookkeeper_network import eventually

ANSWERS = Path(__file__).with_name("bookkeeper_access_answers.txt")
SECRET = b"0123456789abcdef0123456789abcdef"
WHO = ("nobody", "wrong", "another role", "allowed")
NO_SUCH_CALL = "NoSuchCall"


def token(role: str = "broker", secret: bytes = SECRET, **claims: object) -> str:
    return jwt.encode({"sub": role, **claims}, secret, "HS256")


def shown() -> dict[str, list[str | None]]:
    """Values of an Authorization header, by who shows them; None: there is none."""
    head, body, _ = token().split(".")
    return {
        "nobody": [None],
        "wrong": [
            *("", "Bearer", "Bearer ", "Bearer x.y.z", "Basic eDp5", f"Basic {token()}"),
            f"Bearer {token(secret=bytes(32))}",
            f"Bearer {token(exp=time.time() - 1)}",
            f"Bearer {token(nbf=time.time() + 3600)}",
            f"Bearer {head}.{body}.",
            "Bearer " + jwt.encode({"sub": "broker"}, "", "none"),
            f"Bearer {token('')}",
        ],
        "another role": [f"Bearer {token('orders')}"],
        "allowed": [f"Bearer {token()}"],
    }


def expected(listener: str) -> dict[str, dict[str, str]]:
    """What is asked at a listener -> who -> the answer."""
    found: dict[str, dict[str, str]] = {}
    for line in ANSWERS.read_text().splitlines():
        words = line.split()
        if line.startswith("#") or words[0] != listener:
            continue
        asked, answers = " ".join(words[1 : -len(WHO)]), words[-len(WHO) :]
        assert asked not in found, f"{asked} twice"
        found[asked] = dict(zip(WHO, answers, strict=True))
    return found


# --- what there is


def served_calls() -> set[str]:
    """Names of the calls that a bookie's server has handlers for."""
    handlers = BookieServer("b0", TransportConfig())._handlers()
    return {path.rpartition("/")[2] for path in handlers._method_handlers}


def requests() -> dict[str, bytes]:
    """A good request of each call."""
    service = pb.DESCRIPTOR.services_by_name["Bookie"]
    found = {
        method.name: getattr(pb, method.input_type.name)().SerializeToString()
        for method in service.methods
    }
    return found


async def test_every_call_has_an_expected_answer() -> None:
    calls = served_calls()
    assert calls == set(requests()), "the service's descriptor and its server differ"
    assert set(expected("grpc")) == calls | {NO_SUCH_CALL}


class Seen(AdminServer):
    """Tells what it serves."""

    routes: set[str]

    def __init__(
        self,
        pages: Mapping[str, Page | BodyPage],
        access: AdminAccess | None = None,
        **options: Any,
    ) -> None:
        super().__init__(pages, access, **options)
        Seen.routes = {key if " " in key else f"GET {key}" for key in pages}


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bookies, recoveries):
        monkeypatch.setattr(module, "AdminServer", Seen)


# --- the processes, on this test's loop


def settings_of(url: str, providers: str) -> dict[str, str]:
    found = {
        "metadataServiceUri": url,
        "httpServerEnabled": "true",
        "httpServerPort": "0",
        "clusterName": "c",
    }
    if providers:
        found |= {
            "authenticationEnabled": "true",
            "authenticationProviders": providers,
            "tokenSecretKey": "data:," + SECRET.decode(),
            "bookieAllowedRoles": "broker,bookie",
        }
    return found


async def no_metrics(_: object) -> bytes:
    return b""


@contextlib.asynccontextmanager
async def bookie(
    folder: Path, url: str, providers: str, **more: str
) -> AsyncIterator[bookies.BookieProcess]:
    settings = settings_of(url, providers) | {
        "bookieId": "b0",
        "bookiePort": "0",
        "ledgerDirectories": str(folder / "bookie"),
        **more,
    }
    part = AutoRecoveryPart(AutoRecoverySettings.load(settings, is_part=True), no_metrics)
    process = bookies.BookieProcess(
        BookieSettings.load(settings, others=lambda key: True), no_metrics, part
    )
    await process.start()
    try:
        await audits(part)
        yield process
    finally:
        await process.close()


@contextlib.asynccontextmanager
async def recovery(url: str, providers: str) -> AsyncIterator[recoveries.AutoRecoveryProcess]:
    settings = AutoRecoverySettings.load(settings_of(url, providers))
    process = recoveries.AutoRecoveryProcess(settings, url, no_metrics)
    await process.start()
    try:
        await audits(process._part)
        yield process
    finally:
        await process.close()


async def audits(part: AutoRecoveryPart) -> None:
    """Until there is an auditor to be named."""
    recovery = part.recovery
    assert recovery is not None
    await eventually(lambda: recovery.metrics.is_auditor)


# --- gRPC


async def call_status(
    port: int,
    call: str,
    authorization: str | None,
    credentials: grpc.ChannelCredentials | None = None,
) -> str:
    # Not grpc.aio: a write to a call that has been refused meanwhile makes INTERNAL of its status.
    return await asyncio.to_thread(_call_status, port, call, authorization, credentials)


def _call_status(
    port: int, call: str, authorization: str | None, credentials: grpc.ChannelCredentials | None
) -> str:
    metadata: list[tuple[str, str | bytes]] = [(BOOKIE_ID_HEADER, b"b0")]
    if authorization is not None:
        metadata.append(("authorization", authorization))
    target = f"localhost:{port}"
    sent = [] if call == NO_SUCH_CALL else [requests()[call]]
    with (
        grpc.insecure_channel(target)
        if credentials is None
        else grpc.secure_channel(target, credentials)
    ) as channel:
        answers = channel.stream_stream(f"/{SERVICE}/{call}")(
            iter(sent), metadata=metadata, timeout=60
        )
        with contextlib.suppress(grpc.RpcError):
            list(answers)
        return str(answers.code().name)


async def test_every_call_is_answered_as_expected(tmp_path: Path, url: str) -> None:
    wrong = []
    async with bookie(tmp_path, url, "token") as process:
        port = process.address[1]
        for call, answers in expected("grpc").items():
            for who, values in shown().items():
                for value in values:
                    found = await call_status(port, call, value)
                    if found != answers[who]:
                        wrong.append((call, who, value, found))
    assert wrong == []


async def test_every_call_is_answered_by_certificate_as_expected(tmp_path: Path, url: str) -> None:
    """Whoever shows none has no connection; a bad token is worth no good certificate."""
    authority, wrong = Authority(tmp_path), []
    server = authority.sign("b0")
    names = {"another role": authority.sign("orders"), "allowed": authority.sign("broker")}
    files = {
        "tlsCertificatePath": str(server.certificate),
        "tlsKeyPath": str(server.key),
        "tlsTrustPath": str(authority.certificate),
        "tlsClientAuthentication": "true",
    }

    def credentials(pair: Pair | None) -> grpc.ChannelCredentials:
        own = (None, None) if pair is None else (pair.key, pair.certificate)
        return grpc.ssl_channel_credentials(
            authority.certificate.read_bytes(),
            *(None if each is None else each.read_bytes() for each in own),
        )

    async with bookie(tmp_path, url, "token,tls", **files) as process:
        port = process.address[1]
        assert await call_status(port, "Info", None, credentials(None)) == "UNAVAILABLE"
        for call, answers in expected("grpc").items():
            for who, value, pair in (
                ("another role", None, names["another role"]),
                ("allowed", None, names["allowed"]),
                ("wrong", f"Bearer {token(secret=bytes(32))}", names["allowed"]),
            ):
                found = await call_status(port, call, value, credentials(pair))
                if found != answers[who]:
                    wrong.append((call, who, found))
    assert wrong == []


# --- HTTP


async def http_answer(url: str, asked: str, *authorizations: str) -> tuple[int, bool]:
    """Status, and whether credentials are asked for. Byte for byte, as no library would send it."""
    host, port = url.removeprefix("http://").rsplit(":", 1)
    lines = [f"{asked} HTTP/1.1", f"Host: {host}", *(f"Authorization: {a}" for a in authorizations)]
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write("\r\n".join([*lines, "", ""]).encode())
            head = (await reader.read()).partition(b"\r\n\r\n")[0]
        finally:
            writer.close()
            await writer.wait_closed()
    return int(head.split(b" ")[1]), b"\r\nWWW-Authenticate: Bearer" in head


async def http_answers(base: str, listener: str, *, asks: bool) -> list[object]:
    """Answers that aren't the expected ones."""
    wrong: list[object] = []
    for asked, answers in expected(listener).items():
        for who, values in shown().items():
            if not asks and who != "nobody":  # then he is as good as anybody
                continue
            right = answers[who if asks else "allowed"]
            for value in values:
                given = () if value is None else (value,)
                status, challenge = await http_answer(base, asked, *given)
                if str(status) != right or challenge != (right == "401"):
                    wrong.append((asked, who, value, status))
    return wrong


@pytest.mark.parametrize("providers", ["token", ""])
async def test_every_route_of_a_bookie_is_answered_as_expected(
    tmp_path: Path, url: str, providers: str
) -> None:
    async with bookie(tmp_path, url, providers) as process:
        assert Seen.routes <= set(expected("bookie")), "a route without an expected answer"
        assert await http_answers(process.web_url, "bookie", asks=bool(providers)) == []


@pytest.mark.parametrize("providers", ["token", ""])
async def test_every_route_of_auto_recovery_is_answered_as_expected(
    url: str, providers: str
) -> None:
    async with recovery(url, providers) as process:
        assert Seen.routes <= set(expected("autorecovery")), "a route without an expected answer"
        assert await http_answers(process.web_url, "autorecovery", asks=bool(providers)) == []


async def test_what_changes_something_is_open_to_nobody() -> None:
    for listener in ("bookie", "autorecovery"):
        for asked, answers in expected(listener).items():
            if not asked.startswith(("GET ", "HEAD ")):
                assert (answers["nobody"], answers["wrong"]) == ("401", "401"), asked
                assert answers["another role"] == "403", asked


async def test_two_headers_are_none(tmp_path: Path, url: str) -> None:
    """Whoever stands in front of the port may have looked at the other one."""
    good, asked = f"Bearer {token()}", "PUT /api/v1/bookie/gc"
    async with bookie(tmp_path, url, "token") as process:
        for other in (good, "Bearer x.y.z"):
            for both in ((good, other), (other, good)):
                assert await http_answer(process.web_url, asked, *both) == (401, True)
        assert await http_answer(process.web_url, asked, good) == (200, False)


async def test_certificates_alone_open_no_plain_http(tmp_path: Path) -> None:
    settings = settings_of("zk:localhost:1", "tls")
    authenticator = AutoRecoverySettings.load(settings).authenticator()
    assert isinstance(authenticator, BookieAuthenticator)
    headers = [(b"authorization", f"Bearer {token()}".encode())]
    assert AdminAccess(authenticator).refusal("PUT", "/x", headers, "here") == 401
