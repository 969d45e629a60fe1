"""Which sockets may have how many of a process's descriptors."""

import pytest

from magnetar.broker.listener import file_limit


@pytest.mark.parametrize(
    ("limit", "http_setting", "http", "binary"),
    [
        (256, 10_000, 64, 128),
        (1_024, 10_000, 256, 512),
        (20_000, 10_000, 5_000, 12_500),
        (20_000, 2_048, 2_048, 15_452),
        (20_000, 0, 5_000, 12_500),
        (1 << 20, 10_000, 10_000, (1 << 20) - (1 << 17) - 10_000),
    ],
)
def test_files_and_both_protocols_share_the_descriptors(
    monkeypatch: pytest.MonkeyPatch, limit: int, http_setting: int, http: int, binary: int
) -> None:
    monkeypatch.setattr(file_limit, "file_limit", lambda: limit)
    assert file_limit.http_sockets_max(http_setting) == http
    assert file_limit.binary_sockets_max(0, http_setting) == binary
    assert file_limit.binary_sockets_max(100, http_setting) == 100
    assert limit - http - binary >= min(256, limit // 4)
