"""A broker on a thread of this process, with its own event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from magnetar.broker.config import BrokerConfig
from magnetar.errors import EmbeddedError
from magnetar.host import Addresses, ClockKind, Host

if TYPE_CHECKING:
    from magnetar.broker.server.standalone import Standalone
    from magnetar.controls import ControlledBroker


class ThreadHost(Host):
    """See `Host`. Changes nothing else in the process: no signal handler, no logging set-up."""

    def __init__(self, config: BrokerConfig, clock: ClockKind, ahead_ms: int) -> None:
        super().__init__(config, clock, ahead_ms)
        self._lock = threading.Lock()  # guards _asked and those below: asked before the loop is
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._broker: ControlledBroker | None = None

    def ask_to_stop(self) -> None:
        with self._lock:
            self._asked = True
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop.set)

    def give_up(self) -> None:
        """Nothing: a thread can't be ended from outside."""

    def perform(self, order: str, *arguments: Any) -> Future[Any]:
        with self._lock:
            if self._loop is None or self._broker is None:
                raise EmbeddedError("the broker has ended")
            work = self._broker.perform(order, list(arguments))
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _run(self) -> None:
        try:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                error = runner.run(self._serve())
        except BaseException as caught:  # the caller's to handle, whatever it is
            error = caught
        if not self.ready.done():
            self.ready.set_exception(error or EmbeddedError("stopped before it was ready"))
            error = None
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    async def _serve(self) -> BaseException | None:
        """Serve until asked to stop; the error that ended it earlier."""
        # Imported here: it takes longer than to start, and the caller waits with a deadline.
        from magnetar.controls import ControlledBroker

        stop = asyncio.Event()
        with self._lock:
            if self._asked:
                return None
            self._loop, self._stop = asyncio.get_running_loop(), stop
        try:
            broker = ControlledBroker(self._config, self._clock, self._ahead_ms)
            standalone = broker.standalone
            await standalone.start()
            standalone.watch_loop()
            standalone.failed.add_done_callback(lambda _: stop.set())
            with self._lock:
                self._broker = broker
            self.ready.set_result(
                Addresses(
                    standalone.service_url,
                    standalone.web_url,
                    standalone.service_url_tls,
                    standalone.web_url_tls,
                )
            )
            await stop.wait()
            standalone.bookie.give_up_waiting()
            return await self._close(standalone)
        finally:
            with self._lock:
                self._loop = self._broker = None

    async def _close(self, standalone: Standalone) -> BaseException | None:
        limit_s = self._config.broker_shutdown_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                await standalone.close()
        except TimeoutError:
            return EmbeddedError(f"no orderly end within {limit_s:g} s")
        except Exception:
            # Expected after a failure; sockets and files are gone all the same.
            if not standalone.failed.done():
                raise
        return standalone.failed.result() if standalone.failed.done() else None
