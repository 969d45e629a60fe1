"""Between our own client and bookie: what each end makes of the other's bytes, and silence."""

import asyncio
import json
from itertools import pairwise
from struct import pack, unpack_from
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.auth.token_source import TokenSource
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol import requests_v2 as bookie
from magnetar.bookkeeper.bookie_protocol.add_channel import EncodedAdds
from magnetar.bookkeeper.bookie_protocol.config import ProtocolConfig
from magnetar.bookkeeper.bookie_protocol.heads import decode_heads, encode_heads
from magnetar.bookkeeper.bookie_protocol.own_client import OwnBookieClient
from magnetar.bookkeeper.bookie_protocol.own_login import (
    MAGNETAR,
    OwnLogin,
    OwnLogins,
    RefusedLoginError,
)
from magnetar.bookkeeper.errors import BookieUnavailableError, FrameError
from magnetar.bookkeeper.packet import encode_head
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from magnetar.bookkeeper.transport import AddRequest, ReadRequest, Stripe, TruncatedReply
from magnetar.bookkeeper.wrapped_packet import wrap_packet
from tests.waiting import eventually

KEY = bytes(range(20))
LIMIT = 1 << 20
IDS = st.integers(0, 2**63 - 1)


def decoded(data: bytes, cuts: list[int] | None = None) -> list[bookie.ClientRequest]:
    decoder = bookie.RequestDecoder(LIMIT)
    decoder.take_own()
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})
    pieces = [data[a:b] for a, b in pairwise(places)]
    return [request for piece in pieces for request in decoder.feed(piece)]


@given(
    st.lists(
        st.tuples(
            *(st.booleans(), st.booleans(), st.sampled_from([0, 5, 2**64 - 1])),
            *(st.integers(1, 2), st.integers(0, 3), st.sampled_from([0, 10, 5000]), st.booleans()),
        ),
        min_size=1,
        max_size=12,
    ),
    st.lists(st.integers(0, 100_000), max_size=6),
)
def test_adds_arrive_as_they_were_meant(
    adds: list[tuple[bool, bool, int, int, int, int, bool]], cuts: list[int]
) -> None:
    """Whatever they are joined with on the way; packets with another digest within ours, too."""
    data, sent = b"", []
    for recovery, deferred, creator, ledger_id, entry_id, size, wrapped in adds:
        packet = encode_head(ledger_id, entry_id, -1, 9, b"", bytes(size)) + bytes(size)
        if wrapped:
            packet = wrap_packet(packet)
        data += b"".join(
            v2.encode_adds(
                KEY, [packet], [b""], recovery=recovery, creator=creator, deferred=deferred
            )
        )
        sent.append((recovery, deferred, creator, ledger_id, entry_id, packet))
    found = []
    for request in decoded(data, cuts):
        assert isinstance(request, bookie.AddsV2)
        assert request.master_key == KEY
        for number, pair in enumerate(zip(request.heads, request.bodies, strict=True)):
            found.append(
                (
                    *(request.is_recovery, request.is_deferred, request.creator),
                    *(request.ledger_id, request.first + number, b"".join(pair)),
                )
            )
    assert found == sent


@given(
    *(IDS, IDS, st.integers(1, 2**31 - 1), st.integers(0, 2**32 - 1)),
    *(st.booleans(), st.none() | st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)),
    st.integers(1, 9).flatmap(lambda c: st.tuples(st.just(c), st.integers(1, c))),
)
def test_reads_arrive_as_they_were_meant(
    ledger_id: int,
    first: int,
    count: int,
    size: int,
    fence: bool,
    head_bytes: int | None,
    creator: int,
    stripe: tuple[int, int],
) -> None:
    cycle, width = stripe
    request = ReadRequest(
        *(ledger_id, first, count, size, fence, KEY if fence else b""),
        *(Stripe(cycle, first % cycle, width), head_bytes, creator),
    )
    (found,) = decoded(v2.encode_own_read(request, 4711))
    assert isinstance(found, bookie.OwnReadV2)
    assert (found.request_id, found.request) == (4711, request)


@pytest.mark.parametrize("cut", [1, 40, 60, 70])
def test_cut_requests_end_the_connection(cut: int) -> None:
    packet = encode_head(1, 0, -1, 9, b"", b"")
    (add,) = v2.encode_adds(KEY, [packet], [b""], recovery=False, creator=7)
    read = v2.encode_own_read(ReadRequest(1, 1, 9, stripe=Stripe(3, 1, 1), head_bytes=4), 1)
    for frame in (bytes(add), read):
        if cut < len(frame) - 4:
            with pytest.raises(FrameError):
                decoded(pack(">I", len(frame) - 4 - cut) + frame[4 : len(frame) - cut])


def test_a_corrupt_entry_is_refused_alone() -> None:
    packets = [encode_head(1, n, -1, 9, b"", b"x") + b"x" for n in range(3)]
    packets[1] = packets[1][:-1] + b"y"
    found = decoded(b"".join(v2.encode_adds(KEY, packets, [b""] * 3, recovery=False, creator=7)))
    assert [type(each) for each in found] == [bookie.AddsV2, bookie.RefusedV2, bookie.AddsV2]
    refused = cast("bookie.RefusedV2", found[1])
    assert unpack_from(">iqq", refused.reply, 8) == (codes.IO_ERROR, 1, 1)
    assert "entry 1 of ledger 1" in refused.fault


def test_one_reply_is_of_all_entries_of_a_run() -> None:
    reply = bookie.encode_run_reply(0x02010000, codes.FENCED, 7, 5, 300)
    single = bookie.encode_entry_reply(0x02010000, codes.OK, 7, 4)
    found = list(v2.ReplyDecoder(LIMIT).feed(single + reply))
    assert found == [v2.AddReplies(7, 4, 1, codes.OK), v2.AddReplies(7, 5, 300, codes.FENCED)]


def test_heads_that_changed_on_their_way_are_not_believed() -> None:
    packets = [encode_head(1, n, -1, 9, b"head", bytes(100)) + bytes(n) for n in range(3)]
    reply = TruncatedReply(codes.OK, 0, packets, [40, 41, 42])
    frame = encode_heads(reply)
    assert decode_heads(frame, 0, 100) == reply
    for place in range(len(frame)):
        changed = frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]
        with pytest.raises(FrameError):
            decode_heads(changed, 0, 100)
    for end in range(len(frame)):
        with pytest.raises(FrameError):
            decode_heads(frame[:end], 0, 100)


# --- the login


class Place(asyncio.BaseTransport):
    """Of a client without TLS."""


@pytest.mark.parametrize(
    ("shown", "refusal"),
    [
        ({"bookieId": "b1", "instanceId": "c"}, ""),
        ({"bookieId": "b1", "instanceId": ""}, ""),
        ({"bookieId": "b2", "instanceId": "c"}, "bookie b2 is meant, this is b1"),
        ({"bookieId": "b1", "instanceId": "d"}, "cluster d is meant, this bookie is of c"),
    ],
)
def test_a_login_says_whom_it_means(shown: dict[str, str], refusal: str) -> None:
    logins = OwnLogins(None, "b1", "c")
    if not refusal:
        assert logins.admit(json.dumps(shown).encode(), Place()).left_s() is None
        return
    with pytest.raises(RefusedLoginError) as raised:
        logins.admit(json.dumps(shown).encode(), Place())
    assert raised.value.told == refusal


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"{}", b"[]", b"\xff", b'{"bookieId": "b1"}', b"[" * 100_000, b"null"),
        b'{"bookieId": "b1", "instanceId": "c", "token": 5}',
    ],
)
def test_what_is_no_login_ends_the_connection(payload: bytes) -> None:
    with pytest.raises(FrameError):
        OwnLogins(None, "b1", "c").admit(payload, Place())


def test_a_renewed_token_is_shown_once() -> None:
    token = TokenSource("token:a.b.c")
    session = OwnLogin(lambda: "c", token).begin("b1")
    assert session.renew() != b"", "it wasn't shown yet"
    assert session.renew() == b""
    token.replace("d.e.f")
    message = pb.AuthMessage.FromString(session.renew()[8:])
    assert (message.authPluginName, json.loads(message.payload)["token"]) == (MAGNETAR, "d.e.f")
    assert session.renew() == b""


# --- silence


class Silent(asyncio.Protocol):
    """Lets everybody in, and answers nothing."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._is_known = cast("asyncio.Transport", transport), False

    def data_received(self, data: bytes) -> None:
        if not self._is_known:
            self._is_known = True
            message = pb.AuthMessage(authPluginName=MAGNETAR, payload=b"")
            self._transport.write(v2.encode_auth(message.SerializeToString()))


async def test_a_bookie_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookkeeper.bookie_protocol.add_channel._CHECK_S", 0.01)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Silent, "127.0.0.1", 0)
    place = server.sockets[0].getsockname()

    async def resolve(_: str) -> tuple[str, int]:
        return place[0], place[1]

    config = ProtocolConfig(
        add_timeout_s=0.05, read_timeout_s=0.05, login=OwnLogin(lambda: "", None)
    )
    client = OwnBookieClient("b1", resolve, config, EncodedAdds())
    answers: list[int] = []
    heads = [encode_head(1, n, -1, 9, b"", b"x") for n in range(2)]
    for number, head in enumerate(heads):
        request = AddRequest(
            *(1, KEY, range(number, number + 1), [head], [b"x"], 37, False),
            lambda _, code: answers.append(code),
        )
        client.add_entries(request)
    assert (await client.read_entries(ReadRequest(1, 0, 1))).code == codes.UNAVAILABLE
    await eventually(lambda: len(answers) == 2)
    assert answers == [codes.UNAVAILABLE] * 2
    assert client.pending_requests == client.pending_bytes == 0
    await client.close()
    server.close()


async def test_a_bookie_of_apaches_is_none_of_ours() -> None:
    session = OwnLogin(lambda: "", None).begin("b1")

    class Asking:
        def send(self, _payload: bytes) -> None: ...

        async def receive(self) -> pb.AuthMessage:
            return pb.AuthMessage(authPluginName="AuthDisabledPlugin", payload=b"")

    with pytest.raises(BookieUnavailableError, match="isn't one of ours"):
        await session.run(cast("object", Asking()))  # type: ignore[arg-type]  # two of its methods
