"""A bookie of ours for clients that don't ask which digest a ledger has.

The bookie keeps a ledger's packets as Apache BookKeeper's clients send and want them
(``wrapped_packet.py``). Ours know one form, with CRC32C. So packets of ledgers with another digest
are turned here; those of the others pass as they are.
"""

from dataclasses import replace

from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.bookie_protocol.digests import CRC32C, DigestOf, from_kept, to_kept
from magnetar.bookkeeper.transport import (
    AddRequest,
    BookieStatus,
    EntryPrefixesReply,
    LacReply,
    ReadReply,
    ReadRequest,
)


class DigestBookieClient(BookieClient):
    """Another client of the bookie, with packets in our form.

    Args:
        digest_of: which digest a ledger's packets have.
    """

    def __init__(self, client: BookieClient, digest_of: DigestOf) -> None:
        self._client = client
        self._digest_of = digest_of

    @property
    def bookie_id(self) -> str:
        return self._client.bookie_id

    @property
    def is_backlogged(self) -> bool:
        return self._client.is_backlogged

    @property
    def pending_requests(self) -> int:
        return self._client.pending_requests

    def add_entries(self, request: AddRequest) -> None:
        digest = self._digest_of(request.ledger_id)
        if digest is CRC32C:
            self._client.add_entries(request)
            return
        pairs = zip(request.heads, request.bodies, strict=True)
        heads = [to_kept(digest, head, body) for head, body in pairs]
        self._client.add_entries(
            replace(
                request,
                heads=heads,
                bodies=[b""] * len(heads),
                body_bytes=sum(map(len, heads)),
                done=lambda _, code: request.done(request, code),
            )
        )

    async def read_entries(self, request: ReadRequest) -> ReadReply:
        reply = await self._client.read_entries(request)
        digest = self._digest_of(request.ledger_id)
        if digest is CRC32C or not reply.packets:
            return reply
        packets = [from_kept(digest, each) for each in reply.packets]
        return ReadReply(reply.code, reply.first, list[bytes | memoryview](packets))

    async def read_heads(self, request: ReadRequest) -> EntryPrefixesReply:
        if self._digest_of(request.ledger_id) is CRC32C:
            return await self._client.read_heads(request)
        return await super().read_heads(request)

    async def read_lac(
        self, ledger_id: int, *, fence: bool, master_key: bytes = b"", creator: int = 0
    ) -> LacReply:
        reply = await self._client.read_lac(
            ledger_id, fence=fence, master_key=master_key, creator=creator
        )
        return self._lac_reply(ledger_id, reply)

    async def wait_lac(
        self, ledger_id: int, above: int, wait_s: float, *, creator: int = 0
    ) -> LacReply:
        reply = await self._client.wait_lac(ledger_id, above, wait_s, creator=creator)
        return self._lac_reply(ledger_id, reply)

    def _lac_reply(self, ledger_id: int, reply: LacReply) -> LacReply:
        digest = self._digest_of(ledger_id)
        if digest is CRC32C:
            return reply
        last, following = (
            None if packet is None else from_kept(digest, packet)
            for packet in (reply.last_packet, reply.next_packet)
        )
        return LacReply(reply.code, last, reply.explicit_lac, following)

    async def force(self, ledger_id: int, first: int, *, master_key: bytes) -> int:
        return await self._client.force(ledger_id, first, master_key=master_key)

    async def write_lac(
        self, ledger_id: int, lac: int, *, master_key: bytes, creator: int = 0
    ) -> int:
        return await self._client.write_lac(ledger_id, lac, master_key=master_key, creator=creator)

    async def list_entries(self, ledger_id: int, *, creator: int = 0) -> list[tuple[int, int]]:
        return await self._client.list_entries(ledger_id, creator=creator)

    async def list_ledgers(self, first: int, count_max: int) -> list[int]:
        return await self._client.list_ledgers(first, count_max)

    async def info(self) -> BookieStatus:
        return await self._client.info()

    async def report_corrupt(self, ledger_id: int, entry_id: int) -> int:
        return await self._client.report_corrupt(ledger_id, entry_id)

    async def check_data(self, *, scrub: bool = False, integrity: bool = False) -> str:
        return await self._client.check_data(scrub=scrub, integrity=integrity)
