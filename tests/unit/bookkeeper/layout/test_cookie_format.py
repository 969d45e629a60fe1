"""Cookies as Apache BookKeeper stores them."""

import pytest

from magnetar.bookkeeper.errors import CookieMismatchError
from magnetar.bookkeeper.layout.cookie_format import (
    Cookie,
    Directories,
    cookie_fields,
    decode_cookie,
    location_of,
)

OF_BOOKKEEPER = (
    b'5\nbookieHost: "127.0.0.1:33201"\njournalDir: "/data/journal"\n'
    b'ledgerDirs: "1\\t/data/ledgers"\ninstanceId: "4219b957-9afb-4fab-9df1-962109e72d4c"\n'
)
INSTANCE_ID = "4219b957-9afb-4fab-9df1-962109e72d4c"
COOKIE = Cookie("127.0.0.1:33201", INSTANCE_ID, "the-directory", generation=7)


def test_our_cookie_is_bookkeepers_and_a_comment() -> None:
    directories = Directories(("/data/journal",), ("/data/ledgers",))
    text = COOKIE.encode_text("/zone/domain", directories)
    begin, comment, rest = text.rpartition(b"# magnetar ")
    assert (begin, comment) == (OF_BOOKKEEPER, b"# magnetar ")
    assert rest.endswith(b"}\n")
    found = decode_cookie(text, "here").cookie
    assert (found, found.generation) == (COOKIE, 7)
    assert location_of(text) == "/zone/domain"
    assert cookie_fields(text)["ledgerDirs"] == "1\t/data/ledgers"


def test_a_bookie_of_bookkeeper_has_no_directory_of_ours() -> None:
    found = decode_cookie(OF_BOOKKEEPER, "here").cookie
    assert (found.bookie_id, found.instance_id) == ("127.0.0.1:33201", INSTANCE_ID)
    assert found != COOKIE
    with pytest.raises(ValueError, match="networkLocation"):
        location_of(OF_BOOKKEEPER)


def test_our_own_form() -> None:
    found = decode_cookie(COOKIE.encode("/zone/domain"), "here").cookie
    assert (found, found.generation) == (COOKIE, 7)
    assert location_of(COOKIE.encode("/zone/domain")) == "/zone/domain"


@pytest.mark.parametrize(
    "data", [b"", b"3\na\nb\nc\n", b"5\nbookieHost: 1\n", b"5\n", b"{}", b"5\n\xff", b"6\n"]
)
def test_what_is_no_cookie(data: bytes) -> None:
    with pytest.raises(CookieMismatchError, match="there: unreadable"):
        decode_cookie(data, "there")
    with pytest.raises(ValueError, match=r"cookie|codec|Cookie|version|lacks"):
        location_of(data)
