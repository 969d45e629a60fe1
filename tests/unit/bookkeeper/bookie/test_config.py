"""Settings are checked once, when they are made."""

from pathlib import Path
from typing import Any

import pytest

from magnetar.bookkeeper.bookie.config import BookieConfig, StorageConfig


@pytest.mark.parametrize(
    "changes",
    [
        {"journal_alignment_bytes": 1000},
        {"journal_alignment_bytes": 256},
        {"journal_segment_bytes": 4096},
        {"entry_bytes_max": 1 << 28},
    ],
)
def test_bad_storage_settings(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        StorageConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"bookie_id": ""}, {"bookie_id": "a/b"}, {"disk_usage_max": 1.5}, {"disk_usage_low": 0.99}],
)
def test_bad_bookie_settings(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes)).removesuffix("_max")):
        BookieConfig(**{"bookie_id": "b", "data_dir": Path("x"), **changes})


@pytest.mark.parametrize("usage_max", [0.95, 0.5, 0.01, 1.0])
def test_the_lower_threshold_follows_the_upper_one(usage_max: float) -> None:
    config = BookieConfig("b", Path("x"), disk_usage_max=usage_max)
    assert 0 < config.writable_below < usage_max
