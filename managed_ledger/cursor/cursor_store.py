"""The metadata node of a cursor: its value, and the compare-and-set discipline around it.

One cursor object is the only writer of its node. It signs every value with a token of its own, so
that after a lost reply or a refused version it can tell its own earlier write from another owner's.

Another's token alone doesn't end an owner: two processes that open a log at the same time both take
the nodes of its cursors, and the one whose list was taken over meanwhile may be the later one here.
It looks at the list before it serves (`CursorSet`), and yields. So the list decides: its owner
writes over the other's value, any other process is fenced.
"""

import base64
import binascii
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from magnetar.managed_ledger.cursor.cursor_format import decode_node_state
from magnetar.managed_ledger.cursor.cursor_image import CursorImage
from magnetar.managed_ledger.cursor.errors import CursorFencedError, CursorFormatError
from magnetar.managed_ledger.empty_containers import NO_ITEMS
from magnetar.managed_ledger.managed_ledger_view import ManagedLedgerView
from magnetar.managed_ledger.position import Position
from magnetar.metadata.errors import (
    BadVersionError,
    MetadataError,
    MetadataWriteError,
    NotFoundError,
    OutcomeUnknownError,
    ValueTooLargeError,
)
from magnetar.metadata.store import CREATE_ONLY, VALUE_BYTES_MAX, Versioned

NODE_VERSION: Final = 1
NO_LEDGER: Final = -1
STATE_BYTES_MAX: Final = 256 << 10
"""Largest bitmaps and batch sets stored in a node; above, a cursor ledger must hold them."""

NODE_BYTES_MAX: Final = 720_000
"""Most that position, properties and state take in a node; above, the cursor ledger has them alone.
The rest of a value is for the subscription's properties.
"""

_ATTEMPTS_MAX: Final = 4
_JSON_BYTES_MAX: Final = 6  # of a character, escaped
_TOKEN: Final = "x" * 100  # longer than any


@dataclass(frozen=True, slots=True)
class CursorNode:
    """Value of the node. With a ledger, position and state are what it said when it was begun:
    the last resort if the ledger should be lost.
    """

    mark_delete: Position
    ledger_id: int = NO_LEDGER
    properties: Mapping[str, int] = field(default_factory=lambda: NO_ITEMS)
    cursor_properties: Mapping[str, str] = field(default_factory=lambda: NO_ITEMS)
    last_active_ms: int = 0
    state: bytes = b""
    """Bitmaps and batch sets, a record of `cursor_format`; empty when there are none."""

    def image(self, where: str) -> CursorImage:
        """
        Raises:
            CursorFormatError: the state doesn't parse.
        """
        image = decode_node_state(self.state, where) if self.state else CursorImage((-1, -1))
        image.mark_delete, image.properties = self.mark_delete, dict(self.properties)
        return image


def encode_node(node: CursorNode, writer: str) -> bytes:
    value: dict[str, object] = {
        "formatVersion": NODE_VERSION,
        "cursorsLedgerId": node.ledger_id,
        "markDeleteLedgerId": node.mark_delete[0],
        "markDeleteEntryId": node.mark_delete[1],
        "properties": dict(node.properties),
        "cursorProperties": dict(node.cursor_properties),
        "lastActive": node.last_active_ms,
        "writer": writer,
    }
    if node.state:
        value["state"] = base64.b64encode(node.state).decode()
    # A copy: orjson's result keeps a buffer of some 4 KiB alive, and a store may hold on to it.
    return memoryview(orjson.dumps(value)).tobytes()


def fits(node: CursorNode) -> bool:
    """Tells whether a node's value fits, with room for other properties of the subscription.

    O(properties); encodes only a value near the limit.
    """
    names = sum(map(len, node.properties)) + 24 * len(node.properties)
    texts = sum(len(k) + len(v) + 6 for k, v in node.cursor_properties.items())
    state = 4 * len(node.state) // 3
    if names + state > NODE_BYTES_MAX:
        return False
    if _JSON_BYTES_MAX * (names + texts) + state < NODE_BYTES_MAX:
        return True
    own = len(encode_node(replace(node, cursor_properties=NO_ITEMS), _TOKEN))
    whole = len(encode_node(node, _TOKEN))
    return own <= NODE_BYTES_MAX and whole <= VALUE_BYTES_MAX


def decode_node(value: bytes, where: str) -> tuple[CursorNode, str]:
    """Returns the node and the token of its writer.

    Raises:
        CursorFormatError: not a node's value, or an unknown version.
    """
    try:
        fields = orjson.loads(value)
        version = fields["formatVersion"]
        if version != NODE_VERSION:
            raise CursorFormatError(
                f"{where}: node format version {version} is unknown, "
                f"this release reads {NODE_VERSION}"
            )
        node = CursorNode(
            (int(fields["markDeleteLedgerId"]), int(fields["markDeleteEntryId"])),
            int(fields["cursorsLedgerId"]),
            {str(name): int(number) for name, number in fields["properties"].items()} or NO_ITEMS,
            {str(name): str(text) for name, text in fields["cursorProperties"].items()} or NO_ITEMS,
            int(fields["lastActive"]),
            base64.b64decode(fields.get("state", ""), validate=True),
        )
        return node, str(fields["writer"])
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise CursorFormatError(f"{where}: not a cursor node: {error!r}") from error


class CursorStore:
    """Writes one cursor's node.

    Args:
        writer: token of this cursor object, never used by another.
    """

    __slots__ = ("_seen", "_version", "_view", "is_uncertain", "path", "writer")

    def __init__(self, ledger: ManagedLedgerView, path: str, writer: str) -> None:
        self.path = path
        self._view = ledger
        self.writer = writer
        self._seen = writer  # token of the node that ``_version`` is of
        self._version = CREATE_ONLY
        self.is_uncertain = False
        """A write's reply was lost and no later write has settled what became of it."""

    async def read(self) -> CursorNode | None:
        """The node as stored, of any writer; a write after this one is conditional on it."""
        found = await self._view.store.get(self.path)
        if found is None:
            self._version = CREATE_ONLY
            return None
        self._version = found.stat.version
        node, self._seen = decode_node(found.value, self.path)
        return node

    async def claim(self) -> CursorNode | None:
        """Reads the node and writes it back as ours, so that every later write of an earlier owner
        is refused. Its cursor ledger must be recovered after this, not before: what the earlier
        owner appends until then is still read.

        Returns:
            None when there is no node.
        """
        for _ in range(_ATTEMPTS_MAX):
            node = await self.read()
            if node is None:
                return None
            try:
                await self._put(encode_node(node, self.writer))
            except BadVersionError:
                continue  # the earlier owner was faster once more, or deleted it: read again
            return node
        raise CursorFencedError(f"{self.path}: others keep writing this node")

    async def write(self, node: CursorNode) -> None:
        """Create or replace the node; definite when it returns.

        Raises:
            CursorFencedError: another owner wrote or deleted the node, and has the log.
            MetadataError: not written; ``is_uncertain`` tells whether it may still take effect.
        """
        value = encode_node(node, self.writer)
        if not await self._require_known() and self._version != CREATE_ONLY:
            raise CursorFencedError(f"{self.path}: another owner deleted the node")
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._put(value)
                return
            except BadVersionError as error:
                if await self._settle(value, error):
                    return
        self.is_uncertain = True
        raise OutcomeUnknownError(self.path)

    async def _put(self, value: bytes) -> None:
        """One value at the known version. A lost reply is answered by the same put again: whichever
        of the two takes effect, the version then refuses the other for ever.
        """
        was_uncertain = self.is_uncertain
        for _ in range(_ATTEMPTS_MAX):
            self.is_uncertain = True  # also when this task is cancelled while it waits
            try:
                stored = await self._view.store.put(self.path, value, self._version)
            except OutcomeUnknownError:
                was_uncertain = True
                continue
            except (BadVersionError, MetadataWriteError, ValueTooLargeError):
                self.is_uncertain = was_uncertain  # this one had no effect
                raise
            self._version, self._seen = stored.stat.version, self.writer
            self.is_uncertain = False
            return
        raise OutcomeUnknownError(self.path)

    async def _settle(self, value: bytes, cause: BadVersionError) -> bool:
        """After a refused version: True when our own put had worked, False to put again.

        Raises:
            CursorFencedError: the node isn't ours any more.
        """
        found = await self._view.store.get(self.path)
        if found is None:
            if self._version == CREATE_ONLY:
                return False
            raise CursorFencedError(f"{self.path}: another owner deleted the node") from cause
        await self._adopt(found, (self.writer,), cause)
        if found.value != value:
            return False  # an earlier put of ours whose reply was lost: write over it
        self.is_uncertain = False
        return True

    async def _require_known(self) -> bool:
        """Before a conditional write: versions begin at 0 again when a node was deleted and made
        anew, so an equal version doesn't prove that the node is the one we know.

        Returns:
            False: there is no node.
        """
        if (found := await self._view.store.get(self.path)) is None:
            return False
        if self._version != CREATE_ONLY:
            await self._adopt(found, (self.writer, self._seen), None)
        return True

    async def _adopt(
        self, found: Versioned, known: tuple[str, ...], cause: BadVersionError | None
    ) -> None:
        """Takes the version of the node as it is, for the next put.

        Raises:
            CursorFencedError: its token isn't among ``known``, nor is the log ours.
            MetadataError: whose the log is can't be read.
        """
        try:
            token = decode_node(found.value, self.path)[1]
        except CursorFormatError:
            token = ""
        if token not in known and (not token or not await self._view.owns_list()):
            raise CursorFencedError(f"{self.path}: another owner wrote the node") from cause
        self._version, self._seen = found.stat.version, token

    async def delete(self) -> None:
        """Remove the node; a missing one is success.

        Raises:
            CursorFencedError: another owner wrote the node, and has the log.
            MetadataWriteError: it is there, and stays.
            MetadataError: perhaps deleted, now or later.
        """
        try:
            if not await self._require_known():
                return
        except CursorFencedError:
            raise
        except MetadataError as error:
            raise MetadataWriteError(self.path, error) from error
        failure: MetadataError = OutcomeUnknownError(self.path)
        for _ in range(_ATTEMPTS_MAX):
            try:
                await self._view.store.delete(self.path, max(self._version, 0))
                return
            except NotFoundError:
                return
            except MetadataWriteError:
                raise
            except BadVersionError as error:
                # None: this delete had worked and its reply was lost, or another owner deleted it.
                found = await self._view.store.get(self.path)
                if found is None:
                    return
                await self._adopt(found, (self.writer,), error)
            except MetadataError as error:
                failure = error
                if not isinstance(error, OutcomeUnknownError):
                    break
        if await self._keep():
            raise MetadataWriteError(self.path, failure) from failure

    async def _keep(self) -> bool:
        """After a delete that may still take effect: a new version of the node refuses it for ever.

        Returns:
            False: it had taken effect.
        """
        for _ in range(_ATTEMPTS_MAX):
            if (found := await self._view.store.get(self.path)) is None:
                return False
            await self._adopt(found, (self.writer, self._seen), None)
            with contextlib.suppress(BadVersionError):
                await self._put(found.value)
                return True
        raise OutcomeUnknownError(self.path)
