"""The broker's clock, as the headers of its answers show it."""

import asyncio
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Self

import pytest

from magnetar.broker.cli.admin_client import AdminResponse
from magnetar.broker.cli.errors import RefusedError
from magnetar.broker.cli.profiles import DEFAULT, ClusterTarget
from magnetar.broker.cli.verify.cluster_admin import ClusterAdmin


class Broker:
    """Its clock is ahead by that many seconds; None: it shows none."""

    def __init__(self, ahead_s: float | None) -> None:
        self.ahead_s = ahead_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """It has no connection."""

    def call(self, *_: Any) -> AdminResponse:
        if self.ahead_s is None:
            return AdminResponse(200, b"ok")
        date = formatdate(time.time() + self.ahead_s, usegmt=True)
        return AdminResponse(200, b"ok", {"date": date})


class Asked:
    """What its routes answer."""

    def __init__(self, status: int) -> None:
        self.status = status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """It has no connection."""

    def json(self, method: str, path: str, body: object) -> Any:
        assert (method, path, body) == ("GET", "/admin/v2/whoami", None)
        if self.status != HTTPStatus.OK:
            raise RefusedError("no", self.status)
        return {"authenticationEnabled": False}


@pytest.mark.parametrize(("status", "is_apache"), [(200, False), (404, True)])
def test_who_knows_nothing_of_who_asks_is_apache_pulsar(
    monkeypatch: pytest.MonkeyPatch, status: int, is_apache: bool
) -> None:
    monkeypatch.setattr(ClusterTarget, "admin_client", lambda *_: Asked(status))
    assert asyncio.run(ClusterAdmin(DEFAULT, 1.0).is_apache_pulsar()) is is_apache


def test_who_lets_nobody_ask_is_not_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterTarget, "admin_client", lambda *_: Asked(401))
    with pytest.raises(RefusedError):
        asyncio.run(ClusterAdmin(DEFAULT, 1.0).is_apache_pulsar())


def clock_ahead_s(monkeypatch: pytest.MonkeyPatch, ahead_s: float | None) -> float:
    monkeypatch.setattr(ClusterTarget, "admin_client", lambda *_: Broker(ahead_s))
    return asyncio.run(ClusterAdmin(DEFAULT, 1.0).clock_ahead_s())


@pytest.mark.parametrize("ahead_s", [None, -30.0, 0.0])
def test_a_clock_that_may_be_right_needs_no_allowance(
    monkeypatch: pytest.MonkeyPatch, ahead_s: float | None
) -> None:
    assert clock_ahead_s(monkeypatch, ahead_s) == 0.0


def test_a_clock_that_is_ahead_is_allowed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clock_ahead_s(monkeypatch, 3600.0) >= 3600.0
