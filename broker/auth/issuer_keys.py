"""Fetches and keeps the keys of OpenID Connect issuers."""

import asyncio
import http.client
import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from magnetar.bookkeeper.auth.errors import KeyFormatError
from magnetar.broker.auth.openid import KeySet, discovery_url, parse_discovery, parse_key_set

logger = logging.getLogger(__name__)

_ANSWER_BYTES_MAX: Final = 1024 * 1024
_AFTER_FAILURE_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerSettings:
    trust_certificates: Path | None = None  # None: what the system trusts
    timeout_s: float = 10.0
    expire_s: float = 86_400.0  # then they aren't used any more
    refresh_s: float = 64_800.0  # after this, a use of them fetches them again meanwhile
    miss_refresh_s: float = 300.0  # an unknown key id doesn't fetch more often than this
    https_only: bool = True


class IssuerKeys:
    """``known`` is what an ``OpenIdProvider`` reads; ``fetch`` brings what it lacks."""

    def __init__(self, settings: IssuerSettings) -> None:
        self._settings = settings
        self.known: dict[str, KeySet] = {}
        self._fetched_s: dict[str, float] = {}  # by issuer: the last time, also of failures
        self._good_s: dict[str, float] = {}  # by issuer: when its keys were got
        self._fetching: dict[str, asyncio.Task[bool]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    async def fetch(self, issuer: str) -> bool:
        """Fetch an issuer's keys unless that was done just now; whether there are new ones."""
        if issuer not in self._fetching:
            settings = self._settings
            pause_s = settings.miss_refresh_s if issuer in self.known else _AFTER_FAILURE_S
            if time.monotonic() - self._fetched_s.get(issuer, -pause_s) < pause_s:
                return False
        return await asyncio.shield(self._start(issuer))

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in self._fetching.values():
            task.cancel()

    def _start(self, issuer: str) -> asyncio.Task[bool]:
        if (task := self._fetching.get(issuer)) is None:
            task = asyncio.get_running_loop().create_task(self._fetch(issuer))
            self._fetching[issuer] = task
            task.add_done_callback(lambda _: self._fetching.pop(issuer, None))
        return task

    async def _fetch(self, issuer: str) -> bool:
        loop = asyncio.get_running_loop()
        try:
            keys = await loop.run_in_executor(None, self._read, issuer)
        except (OSError, http.client.HTTPException, KeyFormatError) as error:
            logger.warning("the keys of %s could not be fetched: %s", issuer, error)
            self._fetched_s[issuer] = now_s = time.monotonic()
            if now_s - self._good_s.get(issuer, now_s) > self._settings.expire_s:
                self.known.pop(issuer, None)
            self._again(issuer, _AFTER_FAILURE_S if issuer in self.known else None)
            return False
        self.known[issuer] = keys
        self._fetched_s[issuer] = self._good_s[issuer] = time.monotonic()
        self._again(issuer, self._settings.refresh_s)
        logger.info("%s has %d keys", issuer, len(keys))
        return True

    def _again(self, issuer: str, after_s: float | None) -> None:
        """Fetch again after a while; keys that could not be renewed in time are forgotten."""
        if (timer := self._timers.pop(issuer, None)) is not None:
            timer.cancel()
        if after_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[issuer] = loop.call_later(after_s, self._start, issuer)

    def _read(self, issuer: str) -> KeySet:
        """In a thread: this blocks."""
        url = parse_discovery(self._get(discovery_url(issuer)), issuer)
        return parse_key_set(self._get(url), issuer)

    def _get(self, url: str) -> bytes:
        """Raises OSError, HTTPException, KeyFormatError. Redirects are not followed."""
        settings, parts = self._settings, urlsplit(url)
        if not parts.hostname or parts.scheme not in ("https", "http"):
            raise KeyFormatError(f"{url}: not an https URL")
        if parts.scheme == "https":
            trusted = settings.trust_certificates
            context = ssl.create_default_context(cafile=trusted)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=settings.timeout_s, context=context
            )
        elif settings.https_only:
            raise KeyFormatError(f"{url}: not an https URL (openIDRequireIssuersUseHttps)")
        else:
            connection = http.client.HTTPConnection(
                parts.hostname, parts.port, timeout=settings.timeout_s
            )
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            content = answer.read(_ANSWER_BYTES_MAX + 1)
        finally:
            connection.close()
        if answer.status != 200 or len(content) > _ANSWER_BYTES_MAX:
            raise KeyFormatError(f"{url}: status {answer.status}, {len(content)} bytes")
        return content
