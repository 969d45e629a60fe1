import logging

import pytest

from magnetar.bookkeeper.repeated_warnings import RepeatedWarnings


def test_one_line_a_minute_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    warnings = RepeatedWarnings(logging.getLogger("tests.repeated"))
    for second in range(61):
        warnings.add(f"client {second}", f"a frame of {second * 7} bytes", float(second))
        if second in (5, 6):
            warnings.add("client x", "no TLS", float(second))
    assert caplog.messages == [
        "client 0: a frame of 0 bytes",
        "client x: no TLS",
        "client 60: a frame of 420 bytes (59 more since the last such line)",
    ]
    warnings.add("client y", "a frame of 1 bytes", 120.0)
    assert caplog.messages[3:] == ["client y: a frame of 1 bytes"]
