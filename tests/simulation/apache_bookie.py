"""A bookie as Apache BookKeeper's, at its wire: frames in, frames out, by its rules and codes.

It differs from our own bookie (``ModelBookie``) in what docs/formats/bookkeeper-protocol.md tells:

* it knows no creators, and keeps one of two packets of an entry without a word;
* a fence makes the ledger, and then there is no entry; a fence goes with reads as well;
* read-only, it takes adds of high priority only;
* a batch begins with its first entry however large it is, ends anywhere and knows no LAC;
* a bookie before 4.17 closes the connection at a batch read;
* EBADREQ, and codes that nobody has heard of, are said for anything that went wrong;
* a bookie that lost its disk doesn't start again.
"""

import random
from struct import Struct, pack, unpack_from
from typing import Final

from magnetar.bookkeeper import codes
from magnetar.bookkeeper.bookie_protocol import frames_v2 as v2
from magnetar.bookkeeper.bookie_protocol.digests import DIGESTED_BYTES, Digest
from magnetar.bookkeeper.bookie_protocol.result_codes import (
    EBADREQ,
    EFENCED,
    EIO,
    ENOENTRY,
    ENOLEDGER,
    EOK,
    EREADONLY,
    ETOOMANYREQUESTS,
    EUA,
)
from magnetar.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from tests.simulation.model_bookie import ModelBookie, ModelLedger

_REFUSALS: Final = {
    codes.READ_ONLY: EREADONLY,
    codes.TOO_MANY_REQUESTS: ETOOMANYREQUESTS,
    codes.IO_ERROR: EIO,
}
_UNHEARD_OF: Final = 999
_V3: Final = 0x0A
"""First byte of a request of version 3."""
_BATCH: Final = Struct(">qqqiq")
_BATCH_BYTES: Final = 36
_KEY_AT: Final = 20


class ApacheBookie(ModelBookie):
    """
    Attributes:
        gone: its disk was lost: its cookie keeps it from starting.
        confused: share of reads that it answers with a code that proves nothing.
        digest: of the one ledger.
    """

    def __init__(self, bookie_id: str, digest: Digest, rng: random.Random) -> None:
        self.gone = False
        super().__init__(bookie_id)
        self.digest = digest
        self.confused = rng.choice([0.0, 0.1, 0.3])
        self.knows_batches = rng.random() < 0.8
        self._keeps_last = rng.random() < 0.5
        self._rng = rng

    @property
    def up(self) -> bool:
        return self._up and not self.gone

    @up.setter
    def up(self, up: bool) -> None:
        self._up = up

    def lose_disk(self) -> None:
        self.ledgers.clear()
        self.gone = True

    def answer(self, body: bytes) -> bytes | None:
        """The reply's body; None: it closes the connection."""
        if body[0] == _V3:
            return self._answer_v3(pb.Request.FromString(body)).SerializeToString()
        (word,) = unpack_from(">I", body)
        opcode, flags = word >> 16 & 0xFF, word & 0xFFFF
        if opcode == v2.ADD:
            ledger_id, entry_id = unpack_from(">qq", body, 4 + v2.KEY_BYTES)
            code = self._add(flags, body[4 : 4 + v2.KEY_BYTES], body[4 + v2.KEY_BYTES :])
            return pack(">Iiqq", word & ~0xFFFF, code, ledger_id, entry_id)
        if opcode == v2.READ:
            ledger_id, entry_id = unpack_from(">qq", body, 4)
            code, packet = self._read(flags, ledger_id, entry_id, body[_KEY_AT:])
            return pack(">Iiqq", word & ~0xFFFF, code, ledger_id, entry_id) + packet
        if opcode == v2.BATCH_READ and self.knows_batches:
            return self._read_batch(word, flags, body)
        return None

    def _add(self, flags: int, key: bytes, packet: bytes) -> int:
        is_urgent = bool(flags & v2.HIGH_PRIORITY)
        if self.refuse_adds != codes.OK and not (is_urgent and self.refuse_adds == codes.READ_ONLY):
            return _REFUSALS[self.refuse_adds].v2
        ledger_id, entry_id = unpack_from(">qq", packet)
        ledger = self.ledgers.setdefault(ledger_id, ModelLedger(key))
        if ledger.master_key != key:
            return EUA.v2
        if ledger.fenced and not flags & v2.RECOVERY_ADD:
            return EFENCED.v2
        if self._keeps_last or entry_id not in ledger.entries:
            ledger.entries[entry_id] = packet
        return EOK.v2

    def _read(self, flags: int, ledger_id: int, entry_id: int, key: bytes) -> tuple[int, bytes]:
        if self._rng.random() < self.confused:
            return self._rng.choice([EBADREQ.v2, _UNHEARD_OF, EIO.v2]), b""
        if flags & v2.DO_FENCING:
            ledger = self.ledgers.setdefault(ledger_id, ModelLedger(key))
            if ledger.master_key != key:
                return EUA.v2, b""
            ledger.fenced = True
        found = self.ledgers.get(ledger_id)
        if found is None:
            return ENOLEDGER.v2, b""
        if entry_id == v2.LAST_ENTRY:
            entry_id = max(found.entries, default=v2.LAST_ENTRY)
        packet = found.entries.get(entry_id)
        return (ENOENTRY.v2, b"") if packet is None else (EOK.v2, packet)

    def _read_batch(self, word: int, flags: int, body: bytes) -> bytes:
        ledger_id, first, request_id, count_max, bytes_max = _BATCH.unpack_from(body, 4)
        key = body[4 + _BATCH.size :]
        code, packet = self._read(flags, ledger_id, first, key)
        packets, size = [packet], _BATCH_BYTES + 4 + len(packet)
        stored = self.ledgers[ledger_id].entries if code == EOK.v2 else {}
        end = self._rng.choice([first + 2, 1 << 62])  # it may end anywhere
        while len(packets) != count_max and first + len(packets) < end:
            following = stored.get(first + len(packets))
            if following is None or size + 4 + len(following) > bytes_max:
                break
            packets.append(following)
            size += 4 + len(following)
        head = pack(">Iiqqq", word & ~0xFFFF, code, ledger_id, first, request_id)
        if code != EOK.v2:
            return head
        return head + b"".join(pack(">I", len(each)) + each for each in packets)

    def _answer_v3(self, request: pb.Request) -> pb.Response:
        response = pb.Response(header=request.header, status=EOK.v3)
        response.header.ClearField("priority")
        if request.header.operation == pb.READ_LAC:
            ledger_id = request.readLacRequest.ledgerId
            found = self.ledgers.get(ledger_id)
            status = EOK.v3 if found is not None and found.entries else ENOENTRY.v3
            reply = pb.ReadLacResponse(status=status, ledgerId=ledger_id)
            if found is not None and found.entries:
                reply.lastEntryBody = found.entries[max(found.entries)]
            response.status = status
            response.readLacResponse.CopyFrom(reply)
        else:
            response.status = EBADREQ.v3
        return response

    # For the judge

    def lac_claims(self, ledger_id: int) -> dict[int, int]:
        ledger = self.ledgers.get(ledger_id)
        entries = {} if ledger is None else ledger.entries
        return {each: unpack_from(">q", packet, 16)[0] for each, packet in entries.items()}

    def payload(self, ledger_id: int, entry_id: int) -> bytes | None:
        ledger = self.ledgers.get(ledger_id)
        packet = None if ledger is None else ledger.entries.get(entry_id)
        return None if packet is None else packet[DIGESTED_BYTES + self.digest.size :]
