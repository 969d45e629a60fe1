"""Numbers of both versions, and what they mean here."""

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol.result_codes import from_v2, from_v3


@pytest.mark.parametrize(
    ("v2", "v3", "ours"),
    [
        (0, 0, codes.OK),
        (1, 402, codes.NO_LEDGER),
        (2, 403, codes.NO_ENTRY),
        (100, 404, codes.UNAVAILABLE),
        (101, 501, codes.IO_ERROR),
        (102, 502, codes.UNAUTHORIZED),
        (103, 503, codes.UNAVAILABLE),
        (104, 504, codes.FENCED),
        (105, 505, codes.READ_ONLY),
        (106, 506, codes.TOO_MANY_REQUESTS),
        (107, 507, codes.UNKNOWN_LEDGER_STATE),
        (999, 999, codes.UNAVAILABLE),
    ],
)
def test_codes(v2: int, v3: int, ours: int) -> None:
    assert from_v2(v2) == from_v3(v3) == ours


def test_only_these_prove_that_something_is_not_there() -> None:
    negatives = [code for code in range(600) if codes.is_explicit_negative(from_v3(code))]
    assert negatives == [402, 403]
