"""Registrations of bookies of both kinds."""

import pytest

from magnetar.bookkeeper.errors import BookieUnavailableError
from magnetar.bookkeeper.layout.service_info_format import decode_registration, encode
from magnetar.bookkeeper.service_info import DEFAULT_LOCATION, ServiceInfo

OF_BOOKKEEPER = bytes.fromhex(
    "321f0a0a687474707365727665721095"
    "84021a07302e302e302e302204687474703223 0a06626f6f6b6965"
    "10b183021a093132372e302e302e31220a626f6f6b69652d727063"
)


def test_a_bookie_of_bookkeeper() -> None:
    found = decode_registration("b1", OF_BOOKKEEPER)
    assert found == ServiceInfo("b1", DEFAULT_LOCATION, rpc_address=("127.0.0.1", 33201))
    assert found.web_address == ("0.0.0.0", 33301)
    assert (found.address, found.any_address) == (None, ("127.0.0.1", 33201))


@pytest.mark.parametrize("rpc", [None, ("host", 3181)])
def test_a_bookie_of_ours(rpc: tuple[str, int] | None) -> None:
    info = ServiceInfo("b1", "/z/u", ("host", 1), 17, rpc_address=rpc, web_address=("host", 3))
    found = decode_registration("b1", encode(info))
    assert (found, found.incarnation, found.web_address) == (info, 17, ("host", 3))
    assert decode_registration("b1", info.encode()).address == ("host", 1)  # our own form


def test_before_bookkeeper_4_11_the_id_is_the_address() -> None:
    assert decode_registration("h:1", b"").rpc_address == ("h", 1)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        b"\xff\xff",
        bytes.fromhex("321f0a0a68747470736572766572109584021a07302e302e302e30220468747470"),
        encode(ServiceInfo("b1", "/z/u")),
        encode(ServiceInfo("b1", "/z/u", ("h", 1), 1)).replace(b"\x12\x011", b"\x12\x01x"),
    ],
    ids=["empty", "json", "bytes", "only HTTP", "nothing", "no incarnation"],
)
def test_registrations_that_can_t_be_read(value: bytes) -> None:
    with pytest.raises(BookieUnavailableError):
        decode_registration("b1", value)
