"""The processes that compute hashes of passwords: their lives, and logins beside a flood."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pulsar
import pytest

from magnetar.bookkeeper.auth.tokens import Principal
from magnetar.broker.auth import password_checks
from magnetar.broker.auth.authenticator import Authenticator
from magnetar.broker.auth.basic import BasicProvider
from magnetar.broker.auth.errors import TooManyChecksError
from magnetar.broker.auth.password_checks import PasswordChecks
from magnetar.broker.auth.provider_chain import Credentials, ProviderChain
from magnetar.broker.errors import AuthenticationError
from magnetar.broker.http.middleware.authentication import (
    AuthenticationMiddleware,
    RequestAuthentication,
)
from magnetar.broker.protocol import pulsar_api_pb2 as pb
from magnetar.broker.protocol.framing import FrameReader
from tests.official_client import open_client
from tests.raw_client import RawClient, encode_command
from tests.standalone_process import StandaloneProcess
from tests.unit.broker.doubles import Broker
from tests.waiting import eventually

DIGEST = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
BOOT = password_checks._BOOT
LIMIT_S = 120.0


async def ask(
    checks: PasswordChecks,
    password: bytes = b"right",
    *,
    address: str = "a",
    name: str = "joe",
    trusted: bool = False,
    digest: str = DIGEST,
) -> bool:
    async with asyncio.timeout(LIMIT_S):
        return await checks.check(digest, password, address=address, name=name, is_trusted=trusted)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
async def checks() -> AsyncIterator[PasswordChecks]:
    made = PasswordChecks()
    yield made
    made.close()
    assert not made.pids


def of_process(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def gated(gate: Path) -> str:
    """What a process runs that begins its work when a file is there."""
    return f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.005)\n{BOOT}"


async def test_right_and_wrong_of_every_kind(checks: PasswordChecks) -> None:
    assert not checks.pids  # nobody has asked
    assert await ask(checks)
    assert not await ask(checks, b"wrong")
    assert not await ask(checks, b"right\0")
    assert not await ask(checks, digest="")
    assert await ask(checks, b"secret", digest="$apr1$fCeK4YCo$C.bsGUMW/hlwSnULumeqB.")
    assert not await ask(checks, b"Secret", digest="$apr1$fCeK4YCo$C.bsGUMW/hlwSnULumeqB.")
    assert len(checks.pids) == 1


async def test_the_process_is_small_humble_and_knows_no_secrets(
    checks: PasswordChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGNETAR_tokenSecretKey", "of-nobodys-business")
    # On a busy machine it may get no time for long, and a less humble one would take its place.
    monkeypatch.setattr(password_checks, "_SLOW_S", LIMIT_S)
    monkeypatch.setattr(password_checks, "_CHECK_S_MAX", LIMIT_S)
    assert await ask(checks, b"right")
    (pid,) = checks.pids
    seen = [of_process(pid, name) for name in ("cmdline", "environ")]
    for secret in ("of-nobodys-business", "right", DIGEST, "joe"):
        assert not [text for text in seen if secret in text]
    status = of_process(pid, "status")
    assert int(status.split("VmRSS:")[1].split()[0]) < 32 * 1024
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    assert not os.listdir(f"/proc/{pid}/fd")[3:]  # no socket of the broker's


def test_the_process_imports_little_of_the_broker() -> None:
    program = (
        "import sys; from magnetar.broker.auth import password_process;"
        " print(*sorted(name for name in sys.modules if name.split('.')[0] in"
        " ('magnetar', 'asyncio', 'pydantic', 'jwt', 'passlib', 'cryptography')))"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert loaded.stdout.split() == [
        *(
            b"magnetar",
            b"magnetar.broker",
            b"magnetar.broker.auth",
            b"magnetar.broker.auth.password_hashes",
        ),
        *(b"magnetar.broker.auth.password_process", b"magnetar.broker.cpu_scheduling"),
    ]


async def test_one_that_is_killed_is_replaced_and_nobody_notices(checks: PasswordChecks) -> None:
    assert await ask(checks)
    for _ in range(3):
        (pid,) = checks.pids
        os.kill(pid, signal.SIGKILL)
        assert await ask(checks)
        assert checks.pids != [pid]


async def test_one_that_is_killed_at_work_has_its_work_done_by_another(tmp_path: Path) -> None:
    checks = PasswordChecks(boot=gated(tmp_path / "gate"))
    answer = asyncio.create_task(ask(checks))
    await eventually(lambda: len(checks.pids) == 1)
    (pid,) = checks.pids
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "gate").touch()
    assert await answer
    checks.close()


async def test_a_process_that_never_works_lets_nobody_in_and_nobody_wait() -> None:
    checks = PasswordChecks(boot="raise SystemExit(1)")
    answers = await asyncio.gather(
        *(ask(checks, name=str(number)) for number in range(20)), return_exceptions=True
    )
    assert [each for each in answers if not isinstance(each, AuthenticationError)] == []
    with pytest.raises(AuthenticationError, match="now"):
        await ask(checks)
    checks.close()


async def test_one_that_never_gets_a_processor_gets_a_share_of_it(
    checks: PasswordChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_checks, "_SLOW_S", 0.05)
    monkeypatch.setattr(password_checks, "_CHECK_S_MAX", LIMIT_S)
    digest = bcrypt.hashpw(b"right", bcrypt.gensalt(12)).decode()  # as slow as on a busy machine
    assert await ask(checks, digest=digest)
    (pid,) = checks.pids
    assert os.sched_getscheduler(pid) == os.SCHED_BATCH
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19
    assert await ask(checks)
    assert checks.pids == [pid]


async def test_a_hash_that_is_too_dear_ends(
    checks: PasswordChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(password_checks, "_CHECK_S_MAX", 0.2)
    with pytest.raises(AuthenticationError, match="too long"):
        await ask(checks, digest=DIGEST.replace("$04$", "$31$"))
    monkeypatch.undo()
    assert await ask(checks)


async def test_guesses_leave_places_and_turns_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = PasswordChecks(boot=gated(tmp_path / "gate"))
    take, given = checks._queue.take, list[tuple[str, str, bool]]()

    def noted() -> Any:
        if (each := take()) is not None:
            given.append((each.address, each.name, each.is_trusted))
        return each

    monkeypatch.setattr(checks._queue, "take", noted)
    guesses = [asyncio.create_task(ask(checks, b"%d" % number)) for number in range(1000)]
    await eventually(lambda: len([each for each in guesses if each.done()]) > 800)
    assert not checks.has_room("a", "joe", is_trusted=False)
    assert checks.has_room("a", "joe", is_trusted=True)
    assert checks.has_room("a", "eve", is_trusted=False)
    assert checks.has_room("b", "joe", is_trusted=False)
    others = [("b", "joe", False), ("a", "eve", False), ("a", "joe", True)]
    logins = [
        asyncio.create_task(ask(checks, address=address, name=name, trusted=trusted))
        for address, name, trusted in others
    ]
    await asyncio.sleep(0)
    (tmp_path / "gate").touch()
    assert await asyncio.gather(*logins) == [True] * 3
    # Each had its turn after a handful of the guesses, not after all that had come before.
    assert max(map(given.index, others)) < 20
    answers = await asyncio.gather(*guesses, return_exceptions=True)
    refused = [each for each in answers if isinstance(each, TooManyChecksError)]
    # 128 had places, one more was given to each process at once, and one lost his to eve.
    assert 1000 - 131 <= len(refused) <= 1000 - 128 + 1
    assert [each for each in answers if each is True] == []
    checks.close()


async def test_in_a_crowd_guesses_get_a_share_and_those_known_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A rest without an end: whoever is served meanwhile didn't wait for it.
    for name in ("_CROWDED_S", "_REST", "_REST_S_MAX"):
        monkeypatch.setattr(password_checks, name, 1e9)
    checks = PasswordChecks(boot=gated(tmp_path / "gate"))
    guesses = [asyncio.create_task(ask(checks, b"wrong")) for _ in range(140)]
    try:
        await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)
        assert any(
            isinstance(each.exception(), TooManyChecksError) for each in guesses if each.done()
        )
        refused = sum(each.done() for each in guesses)
        (tmp_path / "gate").touch()
        await eventually(lambda: sum(each.done() for each in guesses) > refused)
        for _ in range(3):
            assert await ask(checks, trusted=True)
        # One for each process, and none beside those who are known.
        assert sum(each.done() for each in guesses) <= refused + 2
        monkeypatch.setattr(password_checks, "_REST", 0.0)
        assert await ask(checks, trusted=True)
        await asyncio.wait(guesses, timeout=LIMIT_S)
        assert all(each.done() for each in guesses)
    finally:
        checks.close()
        await asyncio.gather(*guesses, return_exceptions=True)


async def test_a_guess_that_is_shown_again_and_again_waits_in_bounded_numbers(
    tmp_path: Path,
) -> None:
    """It took no place in the queue, so that there could be any number of connections."""
    now_s = [1e9]
    checks = PasswordChecks(boot=gated(tmp_path / "gate"))
    chain = ProviderChain([BasicProvider({"joe": DIGEST, "ann": DIGEST})], "", frozenset())
    authenticator = Authenticator(chain, passwords=checks, clock_s=lambda: now_s[0])
    wrong, right = Credentials("basic", b"joe:wrong"), Credentials("basic", b"ann:right")

    def shown(credentials: Credentials, address: str, count: int) -> list[asyncio.Task[Principal]]:
        login = authenticator.authenticate
        return [asyncio.create_task(login(credentials, address)) for _ in range(count)]

    def refused(logins: list[asyncio.Task[Principal]]) -> int:
        return sum(
            each.done() and isinstance(each.exception(), TooManyChecksError) for each in logins
        )

    def has_room_for(credentials: Credentials, address: str) -> bool:
        try:
            authenticator.authenticate_or_wait(credentials, address)
        except TooManyChecksError:
            return False
        return True

    first = shown(wrong, "a", 200)
    await asyncio.sleep(0)
    assert refused(first) == 200 - 129  # one is checked, half of the places are for one address
    assert not has_room_for(wrong, "a")
    assert has_room_for(wrong, "b")
    second = shown(wrong, "b", 129) + shown(wrong, "c", 1)
    await asyncio.sleep(0)
    assert refused(second) == 2
    assert not has_room_for(wrong, "d")
    # Who comes with something else finds a place all the same, and whoever was good any number.
    assert has_room_for(right, "a")
    (tmp_path / "gate").touch()
    for each in await asyncio.gather(*first, *second, return_exceptions=True):
        assert isinstance(each, AuthenticationError)
    assert has_room_for(wrong, "a")
    assert (await authenticator.authenticate(right, "a")).role == "ann"
    now_s[0] += 3600
    known = shown(right, "a", 500)
    assert {(await each).role for each in known} == {"ann"}
    authenticator.close()


async def test_idle_processes_end() -> None:
    checks = PasswordChecks(idle_s=0.05)
    assert await ask(checks)
    pids = checks.pids
    await eventually(lambda: not checks.pids)
    await eventually(lambda: not any(map(is_alive, pids)))
    assert await ask(checks)
    checks.close()


async def test_who_asks_just_when_a_worker_ends_is_answered() -> None:
    checks = PasswordChecks(idle_s=0.0)
    for turns in range(8):
        assert await ask(checks)
        while checks.pids:  # noqa: ASYNC110  # each turn of the loop counts
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        assert await ask(checks)
    checks.close()


async def test_an_end_is_told_to_who_waits(tmp_path: Path) -> None:
    checks = PasswordChecks(boot=gated(tmp_path / "gate"))
    waiting = [asyncio.create_task(ask(checks, name=str(number))) for number in range(5)]
    await eventually(lambda: bool(checks.pids))
    pids = checks.pids
    checks.close()
    for each in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(each, AuthenticationError)
    assert not any(map(is_alive, pids))
    assert checks.pending == 0
    with pytest.raises(AuthenticationError):
        await ask(checks)


PARENT = """
import asyncio, sys
from magnetar.broker.auth import password_checks

password_checks._SLOW_S = 3600  # a slow one is not replaced by another process

async def main():
    checks = password_checks.PasswordChecks()
    args = {"address": "a", "name": "b", "is_trusted": False}
    await checks.check(sys.argv[1], b"right", **args)
    slow = asyncio.create_task(checks.check(sys.argv[1].replace("$04$", "$31$"), b"x", **args))
    await asyncio.sleep(0)
    print(*checks.pids, flush=True)
    await slow

asyncio.run(main())
"""


async def test_they_die_with_the_broker_whatever_they_are_at() -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, DIGEST), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pids = [int(word) for word in (await parent.stdout.readline()).split()]
    assert pids
    assert all(map(is_alive, pids))
    parent.kill()
    await parent.wait()
    await eventually(lambda: not any(map(is_alive, pids)))


# --- a broker beside guesses


class Guesses:
    """Wrong passwords for one user, over and over, as fast as two threads send them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self.sent = 0
        self.codes: set[int] = set()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(2)]

    def __enter__(self) -> "Guesses":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, thread: int) -> None:
        held: deque[socket.socket] = deque()
        number = 0
        try:
            while not self._stop.is_set():
                number += 1
                guess = socket.create_connection(("127.0.0.1", self._port))
                held.append(guess)
                guess.sendall(connect_frame(f"joe:wrong-{thread}-{number}"))
                self.sent += 1
                if len(held) > 200:  # so that many wait at a time
                    self._hear(held.popleft())
        finally:
            for guess in held:
                guess.close()

    def _hear(self, guess: socket.socket) -> None:
        """Its answer, which may take long, or as long as guesses are wanted."""
        with guess:
            guess.settimeout(0.1)
            reader = FrameReader()
            while not self._stop.is_set():
                try:
                    data = guess.recv(4096)
                except TimeoutError:
                    continue
                except ConnectionResetError:
                    return
                if not data:
                    return
                for command, _ in reader.feed(data):
                    assert command.type == pb.BaseCommand.ERROR
                    self.codes.add(command.error.error)


def connect_frame(credentials: str) -> bytes:
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    command.connect.client_version, command.connect.protocol_version = "test", 19
    command.connect.auth_method_name = "basic"
    command.connect.auth_data = credentials.encode()
    return encode_command(command)


async def a_broker_with_gate(tmp_path: Path, waiting_max: int) -> tuple[Broker, str]:
    """And the address of its binary port."""
    (tmp_path / "passwords").write_text(f"ann:{DIGEST}\njoe:{DIGEST}\n")
    broker = await Broker(
        authentication_enabled=True,
        authentication_providers="basic",
        basic_auth_conf=str(tmp_path / "passwords"),
        max_unauthenticated_connections=waiting_max,
    ).start()
    authenticator = broker.service.authenticator
    assert authenticator is not None
    authenticator.passwords = PasswordChecks(boot=gated(tmp_path / "gate"))
    port = await broker.service.listen("127.0.0.1", 0)
    return broker, f"pulsar://127.0.0.1:{port}"


async def shows(broker: Broker, url: str, credentials: str) -> RawClient:
    """A client that has shown its password, and stands in the room now."""
    limiter = broker.service.unauthenticated_limiter
    before = len(limiter), limiter.cut
    client = RawClient(url, connect=False)
    client.send_bytes(connect_frame(credentials))
    await eventually(lambda: (len(limiter), limiter.cut) != before)
    return client


async def test_whose_password_is_checked_has_no_connection(tmp_path: Path) -> None:
    broker, url = await a_broker_with_gate(tmp_path, 10)
    service, authenticator = broker.service, broker.service.authenticator
    assert authenticator is not None
    shown = [await shows(broker, url, each) for each in ("ann:right", "joe:wrong", "joe:other")]
    await eventually(lambda: authenticator.passwords.pending == 3)
    assert (len(service.unauthenticated_limiter), len(service.connections)) == (3, 0)
    (tmp_path / "gate").touch()
    command, _ = await asyncio.to_thread(shown[0].receive, LIMIT_S)
    assert command.type == pb.BaseCommand.CONNECTED
    for guess in shown[1:]:
        (command,) = await asyncio.to_thread(guess.expect_closed, LIMIT_S)
        assert command.error.error == pb.AuthenticationError
    assert [connection.role for connection in service.connections] == ["ann"]
    assert (len(service.unauthenticated_limiter), authenticator.refused["basic"]) == (0, 2)
    for client in shown:
        client.close()
    await broker.close()


async def test_whose_password_is_checked_is_closed_like_any_unauthenticated_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker, url = await a_broker_with_gate(tmp_path, 2)
    service, authenticator = broker.service, broker.service.authenticator
    assert authenticator is not None
    shown = [await shows(broker, url, each) for each in ("ann:right", "joe:wrong", "joe:other")]
    assert await asyncio.to_thread(shown[0].expect_closed, LIMIT_S) == []
    assert (len(service.unauthenticated_limiter), service.unauthenticated_limiter.cut) == (2, 1)
    (tmp_path / "gate").touch()
    for guess in shown[1:]:
        (command,) = await asyncio.to_thread(guess.expect_closed, LIMIT_S)
        assert command.error.error == pb.AuthenticationError
    await eventually(lambda: not authenticator.passwords.pending)
    await asyncio.sleep(0)
    assert not service.connections  # his password was good, but he is gone
    assert "failed" not in caplog.text
    for client in shown:
        client.close()
    await broker.close()


def test_a_known_user_logs_in_while_others_guess(tmp_path: Path) -> None:
    digest = bcrypt.hashpw(b"right", bcrypt.gensalt(8)).decode()
    (tmp_path / "passwords").write_text(f"joe:{digest}\nann:{digest}\n")
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": "basic",
        "basicAuthConf": str(tmp_path / "passwords"),
    }
    options = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
    with StandaloneProcess(tmp_path / "data", *options) as server:
        with Guesses(server.port) as guesses:
            deadline = time.monotonic() + LIMIT_S
            while len(guesses.codes) < 2:  # the queue is full, and some were checked
                assert time.monotonic() < deadline, guesses.codes
                time.sleep(0.01)
            for _ in range(3):
                client = open_client(
                    server.service_url, authentication=pulsar.AuthenticationBasic("ann", "right")
                )
                producer = client.create_producer("persistent://public/default/known")
                producer.send(b"x")
                client.close()
            answer = httpx.get(
                f"{server.admin_url}/admin/v2/clusters", auth=("ann", "right"), timeout=LIMIT_S
            )
            assert answer.status_code == 200
        assert guesses.codes == {pb.AuthenticationError, pb.ServiceNotReady}
        assert "Traceback" not in server.log


async def test_over_http_who_finds_no_place_is_told_to_come_back() -> None:
    class Full(PasswordChecks):
        async def check(
            self, digest: str, password: bytes, *, address: str, name: str, is_trusted: bool
        ) -> bool:
            raise TooManyChecksError("too many checks at once")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("nobody has proved who he is")

    chain = ProviderChain([BasicProvider({"joe": DIGEST})], "", frozenset())
    authentication = RequestAuthentication(Authenticator(chain, passwords=Full()))
    layer = AuthenticationMiddleware(app, authentication)

    async def with_state(scope: Any, receive: Any, send: Any) -> None:
        await layer({**scope, "state": {}}, receive, send)

    transport = httpx.ASGITransport(with_state)
    async with httpx.AsyncClient(transport=transport, base_url="http://broker") as client:
        answer = await client.get("/admin/v2/clusters", auth=("joe", "right"))
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "www-authenticate" not in answer.headers
