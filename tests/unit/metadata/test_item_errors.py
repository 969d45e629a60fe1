"""Rounds in which single items fail."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

from magnetar.metadata.errors import MetadataError
from magnetar.metadata.item_errors import ItemErrors

LOGGER = logging.getLogger("rounds")


def run(each: ItemErrors, failing: Mapping[str, Exception]) -> list[str]:
    done = []
    with each.round() as current:
        for name in ("a", "b", "c"):
            with current.item(name):
                if name in failing:
                    raise failing[name]
                done.append(name)
    return done


def test_one_that_fails_keeps_no_other_from_its_turn_and_is_told_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    each = ItemErrors("expiry", LOGGER, (MetadataError,))
    assert run(each, {}) == ["a", "b", "c"]
    assert caplog.messages == []
    away = {"a": MetadataError("connection loss")}
    for _ in range(3):
        assert run(each, away) == ["b", "c"]
    (line,) = caplog.messages
    assert "expiry: failed for 1" in line
    assert "a: connection loss" in line
    run(each, {**away, "c": MetadataError("c too")})
    assert "c: c too" in caplog.messages[1]
    run(each, {})
    assert caplog.messages[2:] == ["expiry: fails no longer for 2; a c"]


def test_a_bug_is_told_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    each = ItemErrors("expiry", LOGGER, (MetadataError,))
    assert run(each, {"b": KeyError("x")}) == ["a", "c"]
    (record,) = caplog.records
    assert record.exc_info


def test_an_error_without_a_text_is_named(caplog: pytest.LogCaptureFixture) -> None:
    run(ItemErrors("expiry", LOGGER, (TimeoutError,)), {"a": TimeoutError()})
    assert caplog.messages[0].endswith("a: TimeoutError")


def test_a_cancellation_ends_the_round() -> None:
    each = ItemErrors("expiry", LOGGER, ())
    with pytest.raises(asyncio.CancelledError), each.round() as current, current.item("a"):
        raise asyncio.CancelledError
