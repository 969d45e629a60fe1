"""A broker for other people's tests: one ``with`` block, one running broker."""

import asyncio
import atexit
import dataclasses
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent import futures
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from magnetar.broker.config import BrokerConfig, ConfigError
from magnetar.broker.errors import BrokerError
from magnetar.duration import Duration, milliseconds
from magnetar.errors import EmbeddedError
from magnetar.faults import Faults
from magnetar.host import ClockKind, Host
from magnetar.process_host import ProcessHost
from magnetar.thread_host import ThreadHost

_STOP_S_EXTRA = 5.0
"""Time an end may take beyond the broker's own limit, before its process is killed."""
_STOP_MS_DEFAULT = 10_000


class EmbeddedBroker:
    """Runs a broker from ``with`` (or ``async with``) to the end of the block.

    May be entered again afterwards: with a ``path`` of its own it then serves the same data. The
    URLs are those of the current run, or of the last one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        mode: Literal["thread", "process"],
        config: BrokerConfig | None,
        start_timeout_s: float,
        settings: Mapping[str, object],
        clock: ClockKind,
    ) -> None:
        """`magnetar.embedded` tells the arguments. Raises ConfigError, ValueError."""
        if mode not in ("thread", "process"):
            raise ValueError(f'mode={mode!r}: "thread" or "process" is possible')
        if clock not in ("real", "virtual"):
            raise ValueError(f'clock={clock!r}: "real" or "virtual" is possible')
        self.mode, self.clock = mode, clock
        self.faults = Faults(self)
        self._ahead_ms = 0  # of the virtual clock
        self._advancing = threading.Lock()
        self.service_url = self.web_url = ""
        self.service_url_tls = self.web_url_tls = ""  # with brokerServicePortTls, webServicePortTls
        self._given_path = None if path is None else Path(path).absolute()
        self._start_timeout_s = start_timeout_s
        if clock == "virtual":
            # Else a message may be due up to an eighth of a tick later than its clock says.
            settings = {"isDelayedDeliveryDeliverAtTimeStrict": True, **settings}
        self._config = _settings(config, settings)
        self._temporary: Path | None = None
        self._host: Host | None = None

    @property
    def path(self) -> Path:
        """Directory of the broker's data; a temporary one exists within the block only."""
        return self._config.data_path

    @property
    def config(self) -> BrokerConfig:
        """The settings in force."""
        return self._config

    @property
    def pid(self) -> int:
        """The process it runs in, for tests that kill it; this one in thread mode."""
        return os.getpid() if self._host is None else self._host.pid

    @property
    def log(self) -> str:
        """The output of the child process so far; in thread mode it logs into this process."""
        return "" if self._host is None else self._host.log()

    @property
    def error(self) -> BaseException | None:
        """Why the broker ended by itself; None while it serves."""
        if self._host is None or not self._host.ended.done():
            return None
        return self._host.ended.exception()

    def token(self, role: str, expires_after_s: float | None = None) -> str:
        """A token that proves ``role``, made with the key of ``tokenSecretKey``.

        Args:
            expires_after_s: seconds from now; negative: it has expired; None: it never does.
        Raises:
            EmbeddedError: the settings have no such key.
        """
        import time

        import jwt

        from magnetar.bookkeeper.auth.keys import load_secret_key, read_source

        if not self._config.token_secret_key:
            raise EmbeddedError("a token needs tokenSecretKey among the settings")
        content = read_source(self._config.token_secret_key, "tokenSecretKey")
        key = load_secret_key(content, "tokenSecretKey")
        claims: dict[str, Any] = {self._config.token_auth_claim or "sub": role}
        if expires_after_s is not None:
            claims["exp"] = time.time() + expires_after_s
        return jwt.encode(claims, content, key.algorithms[0])

    def advance(self, span: Duration) -> None:
        """Set the broker's clock ahead; return when what fell due has been sent or done.

        Args:
            span: ``"2h"``, ``"1d 12h"``, seconds, or a timedelta.
        Raises:
            EmbeddedError: it runs by the real clock, or it ended. ValueError: no duration.
        """
        if self.clock == "real":
            raise EmbeddedError('it runs by the real clock: start it with clock="virtual"')
        span_ms = milliseconds(span)
        with self._advancing:
            self.perform("advance_to", self._ahead_ms + span_ms)
            self._ahead_ms += span_ms

    def perform(self, order: str, *arguments: Any) -> Any:
        """Have the running broker do something, for `Faults`; what it answers.

        Raises:
            EmbeddedError: it refused, or it isn't running.
        """
        if self._host is None:
            raise EmbeddedError("the broker isn't running")
        try:
            return self._host.perform(order, *arguments).result()
        except futures.CancelledError:
            raise EmbeddedError("the broker ended meanwhile") from None
        except (BrokerError, ValueError) as error:
            raise EmbeddedError(str(error)) from error

    def kill(self) -> None:
        """See `Faults.kill`."""
        if not isinstance(self._host, ProcessHost):
            raise EmbeddedError('a running broker with mode="process" can be killed')
        self._host.kill(self._start_timeout_s)

    # --- from plain code

    def __enter__(self) -> Self:
        host = self._launch()
        try:
            futures.wait([host.ready], self._start_timeout_s)
            self._take_addresses(host)
        except BaseException:
            self._stop(host)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop it, also when the block raised.

        Raises:
            EmbeddedError: it had ended before; a note at the block's own error if there is one.
        """
        if self._host is not None:
            _report(self._stop(self._host), error)

    # --- from asyncio code: the same, and the loop runs on meanwhile

    async def __aenter__(self) -> Self:
        host = self._launch()
        try:
            ready = asyncio.wrap_future(host.ready)
            await asyncio.wait({ready}, timeout=self._start_timeout_s)
            self._take_addresses(host)
        except BaseException:
            await asyncio.to_thread(self._stop, host)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._host is not None:
            _report(await asyncio.to_thread(self._stop, self._host), error)

    # --- steps

    def _launch(self) -> Host:
        if self._host is not None:
            raise EmbeddedError("this broker is running already")
        path = self._given_path
        if path is None:
            path = self._temporary = Path(tempfile.mkdtemp(prefix="magnetar-"))
        self._config = self._config.with_keys({"dataDir": path})
        self._ahead_ms = 0
        kind = ThreadHost if self.mode == "thread" else ProcessHost
        host: Host = kind(self._config, self.clock, self._ahead_ms)
        self._host = host
        atexit.register(self._at_exit, os.getpid())
        try:
            host.start()
        except BaseException:
            self._forget()
            raise
        return host

    def _take_addresses(self, host: Host) -> None:
        """Raises EmbeddedError: it isn't ready."""
        if not host.ready.done():
            raise EmbeddedError(f"the broker was not ready within {self._start_timeout_s:g} s")
        if (error := host.ready.exception()) is not None:
            raise EmbeddedError(f"the broker did not start: {error}") from error
        addresses = host.ready.result()
        self.service_url, self.web_url = addresses.service_url, addresses.web_url
        self.service_url_tls, self.web_url_tls = addresses.service_url_tls, addresses.web_url_tls

    @property
    def _stop_timeout_s(self) -> float:
        return self._config.broker_shutdown_timeout_ms / 1000 + _STOP_S_EXTRA

    def _stop(self, host: Host) -> BaseException | None:
        """Bring it to an end; the error that ended it before, or that kept it from ending."""
        host.ask_to_stop()
        try:
            futures.wait([host.ended], self._stop_timeout_s)
            if not host.ended.done():
                host.give_up()
                futures.wait([host.ended], _STOP_S_EXTRA)
            return _outcome(host)
        finally:
            self._forget()

    def _forget(self) -> None:
        atexit.unregister(self._at_exit)
        self._host = None
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    def _at_exit(self, pid: int) -> None:
        """A program that ends within the block leaves nothing; its forked children harm nothing."""
        if (host := self._host) is None or os.getpid() != pid:
            return
        if host.pid != pid:
            host.give_up()
            futures.wait([host.ended], _STOP_S_EXTRA)
        self._forget()


def _outcome(host: Host) -> BaseException | None:
    if not host.ended.done():
        return EmbeddedError("the broker does not end")
    host.join()
    return host.ended.exception()


def _report(ended: BaseException | None, error: BaseException | None) -> None:
    """Tell that the broker ended by itself: with the block's error when there is one."""
    if ended is None:
        return
    text = f"the embedded broker ended before it was asked to: {ended}"
    if error is None:
        raise EmbeddedError(text) from ended
    error.add_note(text)


def _settings(config: BrokerConfig | None, settings: Mapping[str, object]) -> BrokerConfig:
    base = BrokerConfig(broker_shutdown_timeout_ms=_STOP_MS_DEFAULT) if config is None else config
    base = dataclasses.replace(
        base, broker_service_port=0, web_service_port=0, bind_address="127.0.0.1"
    )
    changed = base.with_keys(settings)
    if changed.data_dir != base.data_dir:
        raise ConfigError("dataDir: give it as path")
    return changed
