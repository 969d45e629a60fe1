"""Numbers of both versions, and what they mean here."""

import pytest

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol.result_codes import from_v2, from_v3, to_v2, to_v3


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


def test_a_bookie_says_nothing_but_codes_that_apaches_client_knows() -> None:
    """Its version 2 has no case for 107."""
    ours = [*range(len(codes.CODE_NAMES)), -11, 99]
    assert {to_v2(code) for code in ours} == {0, 1, 2, *range(100, 107)} - {103}
    assert {to_v3(code) for code in ours} == {0, 402, 403, 404, *range(501, 508)} - {503}
