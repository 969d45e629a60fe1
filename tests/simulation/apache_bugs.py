"""Bugs of the client of BookKeeper's protocol, which ``rotation.py`` plants.

``defect``: the trap of docs/formats/bookkeeper-protocol.md, in short.
"""

from collections import deque
from dataclasses import replace
from typing import Any, Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol import (
    adds_in_flight,
    digests,
    frames_v2,
    protocol_client,
    read_channel,
    result_codes,
)
from magnetar.bookkeeper.bookie_protocol.add_channel import AddChannel
from magnetar.bookkeeper.bookie_protocol.adds_in_flight import AddsInFlight
from magnetar.bookkeeper.bookie_protocol.digests import CRC32C
from magnetar.bookkeeper.bookie_protocol.read_channel import ReadChannel
from magnetar.bookkeeper.layout.bookkeeper_layout import BookKeeperLayout
from magnetar.bookkeeper.transport import LacReply
from tests.simulation.plant import Bugs, Plant
from tests.simulation.worlds import APACHE, check_seed

BUGS: Final = Bugs(check_seed)


# Codes


@BUGS.of(APACHE, defect="EBADREQ proves nothing")
def a_bad_request_is_a_denial(plant: Plant) -> None:
    plant.set(result_codes, "_FROM_V2", {**result_codes._FROM_V2, 100: codes.NO_ENTRY})


@BUGS.of(APACHE, defect="a code that nobody has heard of proves nothing")
def an_unknown_code_is_a_denial(plant: Plant) -> None:
    def from_v2(code: int) -> int:
        return result_codes._FROM_V2.get(code, codes.NO_ENTRY)

    plant.set(read_channel, "from_v2", from_v2)


@BUGS.of(APACHE, defect="versions 2 and 3 number their codes differently")
def codes_are_those_of_version_3(plant: Plant) -> None:
    plant.set(read_channel, "from_v2", result_codes.from_v3)
    plant.set(protocol_client, "from_v2", result_codes.from_v3)


# Flags


@BUGS.of(APACHE, defect="negative answers of an unfenced bookie")
def recovery_reads_leave_bookies_unfenced(plant: Plant) -> None:
    plant.set(read_channel, "_RECOVERY_READ", frames_v2.HIGH_PRIORITY)


@BUGS.of(APACHE, defect="a read-only bookie takes adds of high priority only")
def recovery_adds_have_no_priority(plant: Plant) -> None:
    plant.set(frames_v2, "_RECOVERY", frames_v2.RECOVERY_ADD)


@BUGS.of(APACHE, defect="a fenced bookie takes recovery adds only")
def recovery_adds_are_plain(plant: Plant) -> None:
    plant.set(frames_v2, "_RECOVERY", frames_v2.HIGH_PRIORITY)


# Answers


@BUGS.of(APACHE, defect="the LAC of the last entry, not its id")
def the_last_entry_is_confirmed(plant: Plant) -> None:
    def lac_reply(self: Any, ledger_id: int, code: int, stored: Any, lac: int) -> LacReply:
        reply: LacReply = old(self, ledger_id, code, stored, lac)
        if reply.last_packet is not None:
            entry_id = int.from_bytes(reply.last_packet[8:16], "big")
            reply.explicit_lac = max(reply.explicit_lac, entry_id)
        return reply

    old = plant.set(protocol_client.ProtocolBookieClient, "_lac_reply", lac_reply)


@BUGS.of(APACHE, defect="a batch knows no LAC")
def batches_are_as_long_as_the_bookie_likes(plant: Plant) -> None:
    def encode(ledger_id: int, first: int, number: int, _count: int, *rest: int, **key: Any) -> Any:
        return old(ledger_id, first, number, 0, *rest, **key)

    old = plant.set(frames_v2, "encode_batch_read", encode)


@BUGS.of(APACHE, defect="a bookie before 4.17 knows no batches")
def batches_are_asked_for_ever(plant: Plant) -> None:
    plant.set(ReadChannel, "_knows_batches", lambda _: True)


@BUGS.of(APACHE, defect="a lost connection fails all that was under way on it")
def adds_of_a_lost_connection_wait(plant: Plant) -> None:
    plant.set(AddChannel, "_fail_all", lambda _: None)


@BUGS.of(APACHE, defect="a lost connection proves nothing")
def adds_of_a_lost_connection_are_written(plant: Plant) -> None:
    def fail_all(self: Any) -> None:
        queue, self._queue = list(self._queue), deque()
        for request in [*self._in_flight.take_all(), *queue]:
            self._done(request, codes.OK)

    plant.set(AddChannel, "_fail_all", fail_all)


@BUGS.of(APACHE, defect="a request is stored once all its entries are")
def the_first_reply_is_of_the_whole_request(plant: Plant) -> None:
    def answered(self: Any, replies: Any) -> Any:
        ledger = self._ledgers.get(replies.ledger_id)
        if ledger is None:
            return [], []
        done = []
        for sent in ledger.sent:
            if sent.left and adds_in_flight._count(
                sent.request.entry_ids, replies.first, replies.first + replies.count
            ):
                self.entries -= sent.left
                sent.left = 0
                done.append((sent.request, replies.code))
        return done, self._after(replies.ledger_id, ledger) if done else []

    plant.set(AddsInFlight, "answered", answered)


@BUGS.of(APACHE, defect="a bookie refuses adds above its limit")
def a_bookie_takes_all_adds(plant: Plant) -> None:
    def made(self: AddChannel, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self._config = replace(self._config, entries_max=2**31)

    make = plant.set(AddChannel, "__init__", made)


# Bytes


@BUGS.of(APACHE, defect="bookies check no digest")
def digests_are_not_checked(plant: Plant) -> None:
    def from_stored(digest: Any, stored: Any) -> bytes:
        begin = digests.DIGESTED_BYTES + digest.size
        head, payload = bytes(stored[: digests.DIGESTED_BYTES]), bytes(stored[begin:])
        return b"".join((head, CRC32C.of(head, payload), payload))

    plant.set(read_channel, "from_stored", from_stored)


@BUGS.of(APACHE, defect="the digest is of the ledger")
def every_ledger_has_our_digest(plant: Plant) -> None:
    plant.set(BookKeeperLayout, "digest_of", lambda _self, _ledger: CRC32C)
