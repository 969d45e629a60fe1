"""Keys and password files that change while the broker runs, and who is asked again then."""

import asyncio
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.auth.authenticator import Authenticator
from magnetar.broker.auth.basic import BasicProvider
from magnetar.broker.auth.file_renewal import FileRenewal, KeyFile, complaint
from magnetar.broker.auth.password_checks import PasswordChecks
from magnetar.broker.auth.provider import KeysNeededError
from magnetar.broker.auth.provider_chain import Credentials, ProviderChain
from magnetar.broker.config import BrokerConfig
from magnetar.broker.errors import AuthenticationError

OLD, NEW = bytes(range(32)), bytes(range(50, 82))


def token(key: bytes, role: str = "alice") -> Credentials:
    return Credentials("token", jwt.encode({"sub": role}, key, "HS256").encode())


def password(text: str) -> Credentials:
    return Credentials("basic", text.encode())


def line(user: str, word: str) -> bytes:
    return f"{user}:{bcrypt.hashpw(word.encode(), bcrypt.gensalt(4)).decode()}\n".encode()


@dataclass(eq=False)
class Session:
    """Somebody who is in."""

    proofs: list[tuple[Credentials, str]]
    doubted: list[Credentials] = field(default_factory=list)

    def on_key_revoked(self, credentials: Credentials) -> None:
        self.doubted.append(credentials)


def renewal_of(authenticator: Authenticator) -> FileRenewal[ProviderChain]:
    renewal = authenticator.renewal
    assert renewal is not None
    renewal.settle_s = 0
    return renewal


class Setup:
    """Files in a folder, and the authenticator that reads them."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.key, self.passwords = folder / "secret.key", folder / "passwords"
        write(self.key, OLD)
        write(self.passwords, line("alice", "one"))
        self.config = BrokerConfig(
            authentication_enabled=True,
            authentication_providers="token,basic",
            token_secret_key=f"file://{self.key}",
            basic_auth_conf=str(self.passwords),
            **settings,
        )
        made = Authenticator.of_config(self.config)
        assert made is not None
        self.authenticator = made
        self.renewal = renewal_of(made)

    async def role(self, credentials: Credentials) -> str | None:
        try:
            return (await self.authenticator.authenticate(credentials)).role
        except AuthenticationError:
            return None


async def everybody_asked(authenticator: Authenticator) -> None:
    if authenticator._asking is not None:
        await asyncio.wait_for(authenticator._asking, 30)


def write(path: Path, content: bytes) -> None:
    """As careful tools do: another file takes its place."""
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    draft.chmod(0o600)
    draft.replace(path)


@pytest.fixture
async def setup(tmp_path: Path) -> Any:
    made = Setup(tmp_path)
    yield made
    made.authenticator.close()


async def test_a_token_of_a_revoked_key_is_refused_though_it_was_remembered(setup: Setup) -> None:
    assert await setup.role(token(OLD)) == "alice"
    assert not await setup.renewal.check()
    write(setup.key, NEW)
    assert await setup.role(token(OLD)) == "alice"  # nobody has looked yet
    assert await setup.renewal.check()
    assert await setup.role(token(OLD)) is None
    assert await setup.role(token(NEW)) == "alice"
    assert not await setup.renewal.check()


async def test_passwords_that_are_changed_or_taken_away(setup: Setup) -> None:
    write(setup.passwords, line("alice", "one") + line("bob", "two"))
    assert await setup.renewal.check()
    assert await setup.role(password("bob:two")) == "bob"
    write(setup.passwords, line("bob", "three"))
    assert await setup.renewal.check()
    for text in ("alice:one", "bob:two", "alice:three"):
        assert await setup.role(password(text)) is None
    assert await setup.role(password("bob:three")) == "bob"


@pytest.mark.parametrize("content", [b"", b"short", b"-----BEGIN PUBLIC KEY-----" + OLD])
async def test_a_broken_key_changes_nothing_and_is_told_each_time(
    setup: Setup, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    session = Session([(token(OLD), "alice")])
    setup.authenticator.sessions.add(session)
    write(setup.key, content)
    write(setup.passwords, b"# nobody\n")  # not even what is good of it
    for count in (1, 2):
        assert not await setup.renewal.check()
        told = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
        assert len(told) == count
        assert "tokenSecretKey" in told[-1]
        assert "can't be used" in told[-1]
    assert await setup.role(token(OLD)) == "alice"
    assert await setup.role(password("alice:one")) == "alice"
    assert session.doubted == []
    write(setup.key, NEW)
    assert await setup.renewal.check()
    assert await setup.role(token(NEW)) == "alice"
    assert await setup.role(password("alice:one")) is None


async def test_a_file_that_is_gone_changes_nothing(setup: Setup) -> None:
    setup.key.unlink()
    assert not await setup.renewal.check()
    assert await setup.role(token(OLD)) == "alice"


async def test_a_file_that_is_being_written_is_left_alone(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = setup.renewal._look
    write(setup.key, NEW)

    def look() -> Any:  # a byte more each time that somebody looks
        with setup.key.open("ab") as file:
            file.write(b"x")
        return real()

    monkeypatch.setattr(setup.renewal, "_look", look)
    assert not await setup.renewal.check()
    assert await setup.role(token(OLD)) == "alice"
    monkeypatch.undo()
    assert await setup.renewal.check()
    assert await setup.role(token(OLD)) is None


async def test_same_size_and_time_do_not_hide_a_change(setup: Setup) -> None:
    before = setup.key.stat()
    setup.key.write_bytes(NEW)
    os.utime(setup.key, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await setup.renewal.check()
    assert await setup.role(token(NEW)) == "alice"


async def test_a_symbolic_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    """How orchestrators renew what they have mounted."""
    for name, key in (("one", OLD), ("two", NEW)):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "public.der", ec_public(key))
    link = tmp_path / "current"
    link.symlink_to("one")
    config = BrokerConfig(
        authentication_enabled=True,
        authentication_providers="token",
        token_public_key=str(link / "public.der"),
    )
    authenticator = Authenticator.of_config(config)
    assert authenticator is not None
    renewal = renewal_of(authenticator)
    signed = jwt.encode({"sub": "alice"}, ec_key(NEW), "ES256").encode()
    with pytest.raises(AuthenticationError):
        authenticator.authenticate_nowait(Credentials("token", signed))
    other = tmp_path / "other"
    other.symlink_to("two")
    other.replace(link)
    assert await renewal.check()
    assert authenticator.authenticate_nowait(Credentials("token", signed)) == Principal("alice")


def ec_key(seed: bytes) -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(int.from_bytes(seed, "big") >> 8, ec.SECP256R1())


def ec_public(seed: bytes) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return ec_key(seed).public_key().public_bytes(serialization.Encoding.DER, form)


async def test_those_who_are_in_are_asked_again(setup: Setup) -> None:
    stays = Session([(password("alice:one"), "alice")])
    goes = Session([(token(OLD), "alice")])
    both = Session([(password("alice:one"), "alice"), (token(OLD, "bob"), "bob")])
    other = Session([(password("alice:one"), "somebody else")])
    left = Session([(token(OLD), "alice")])
    for each in (stays, goes, both, other, left):
        setup.authenticator.sessions.add(each)
    setup.authenticator.sessions.discard(left)
    write(setup.key, NEW)
    assert await setup.renewal.check()
    await everybody_asked(setup.authenticator)
    assert stays.doubted == left.doubted == []
    assert goes.doubted == [goes.proofs[0][0]]
    assert both.doubted == [both.proofs[1][0]]
    assert other.doubted == [other.proofs[0][0]]


class GatedChecks(PasswordChecks):
    """No processes: a hash is its password, and answers come when they may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def check(
        self, digest: str, password: bytes, *, address: str, name: str, is_trusted: bool
    ) -> bool:
        self.asked.set()
        await self.go.wait()
        return password == digest.encode()


async def test_a_check_under_way_when_keys_change_is_made_again() -> None:
    """Else a login with the old password would be good for the rest of a connection's life."""
    checks = GatedChecks()
    old, new = (
        ProviderChain([BasicProvider({"alice": word})], "", frozenset()) for word in ("old", "new")
    )
    authenticator = Authenticator(old, passwords=checks)
    good, bad = Credentials("basic", b"alice:new"), Credentials("basic", b"alice:old")
    tasks = [asyncio.ensure_future(authenticator.authenticate(each)) for each in (good, bad)]
    await asyncio.wait_for(checks.asked.wait(), 30)
    authenticator.use(new)
    checks.go.set()
    assert await tasks[0] == Principal("alice")
    with pytest.raises(AuthenticationError):
        await tasks[1]
    with pytest.raises(AuthenticationError):
        await authenticator.authenticate(bad)  # not remembered either
    authenticator.close()


class Unreachable:
    """An issuer whose keys can't be fetched now."""

    method, is_slow = "token", False

    def authenticate(
        self, method: str, data: bytes, certificate: bytes | None, now_s: float
    ) -> Principal:
        raise KeysNeededError("https://issuer.test")


async def test_an_issuer_that_does_not_answer_takes_nothing_back() -> None:
    authenticator = Authenticator(ProviderChain([], "", frozenset()))
    session = Session([(Credentials("token", b"x"), "alice")])
    authenticator.sessions.add(session)
    authenticator.use(ProviderChain([Unreachable()], "", frozenset()))
    await everybody_asked(authenticator)
    assert session.doubted == []


async def test_one_session_that_fails_to_end_spares_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Session):
        def on_key_revoked(self, credentials: Credentials) -> None:
            super().on_key_revoked(credentials)
            raise RuntimeError("on purpose")

    authenticator = Authenticator(ProviderChain([], "", frozenset()))
    sessions = [Broken([(Credentials("token", b"x"), "alice")]) for _ in range(3)]
    for each in sessions:
        authenticator.sessions.add(each)
    authenticator.use(ProviderChain([], "", frozenset()))
    await everybody_asked(authenticator)
    assert [len(each.doubted) for each in sessions] == [1, 1, 1]
    assert caplog.text.count("RuntimeError: on purpose") == 3


@pytest.mark.parametrize(
    ("mode", "is_secret", "word"),
    [
        (0o600, True, ""),
        (0o640, True, ""),
        (0o644, True, "read"),
        (0o644, False, ""),
        (0o646, False, "change"),
        (0o602, True, "change"),
    ],
)
def test_files_that_others_may_touch_are_told_of(
    tmp_path: Path, mode: int, is_secret: bool, word: str
) -> None:
    path = tmp_path / "key"
    path.write_bytes(OLD)
    path.chmod(mode)
    text = complaint(KeyFile("tokenSecretKey", path, is_secret))
    assert (text is None) == (word == "")
    assert text is None or (f"may {word}" in text and str(path) in text)


async def test_permissions_are_told_of_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup(tmp_path)
    setup.key.chmod(0o644)
    setup.authenticator.start()
    assert "everybody on this machine may read" in caplog.text
    assert OLD.decode("latin-1") not in caplog.text
    setup.authenticator.close()
