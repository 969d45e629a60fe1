"""How a cluster keeps its facts about ledgers and bookies in the metadata store.

``JsonLayout`` is our own, ``BookKeeperLayout`` (``bookkeeper_layout.py``) Apache BookKeeper's.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Protocol

from magnetar.bookkeeper.errors import LedgerMetadataError
from magnetar.bookkeeper.layout.cookie_format import Cookie, Directories
from magnetar.bookkeeper.layout.under_replication_format import (
    JsonUnderReplication,
    UnderReplicationFormat,
)
from magnetar.bookkeeper.ledger_metadata import DIGEST_CRC32C, LedgerMetadata, decode, encode
from magnetar.bookkeeper.service_info import (
    AVAILABLE_PATH,
    COOKIES_PATH,
    LEDGERS_ROOT,
    READ_ONLY_PATH,
    ServiceInfo,
)
from magnetar.metadata.paths import encode_name
from magnetar.metadata.recipes import IdGenerator
from magnetar.metadata.store import MetadataStore

ID_BLOCK: Final = 1000  # ids reserved by one metadata write; a crash skips the rest of a block


class LedgerIds(Protocol):
    """Gives ids of ledgers, none twice."""

    async def next_id(self, above: int = -1) -> int:
        """A new id, greater than ``above``, which is in use. Raises MetadataError."""

    def skip(self, count: int) -> None:
        """An id was in use, as the counter was set back: give none of the ``count`` next ones."""


class Layout(ABC):
    """Paths are the same in all: ``root``, ``available`` and ``readonly`` below it, ledgers."""

    root: ClassVar[str] = LEDGERS_ROOT

    @property
    @abstractmethod
    def under_replication(self) -> UnderReplicationFormat:
        """Of what auto-recovery keeps."""

    @abstractmethod
    def new_ledger(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """As it is stored the first time."""

    @abstractmethod
    def encode_ledger(self, metadata: LedgerMetadata) -> bytes: ...

    @abstractmethod
    def decode_ledger(self, ledger_id: int, value: bytes) -> LedgerMetadata:
        """Raises LedgerMetadataError."""

    def forget_ledger(self, ledger_id: int) -> None:  # noqa: B027 # only one layout remembers any
        """It was deleted."""

    @abstractmethod
    def ids(self, store: MetadataStore) -> LedgerIds: ...

    async def ids_end(self, store: MetadataStore) -> int | None:
        """Ids from here on were never given, if the store didn't go back; None: not known."""
        return None

    @abstractmethod
    def node_name(self, bookie_id: str) -> str:
        """Of what is a bookie's: ``decode_name`` is the inverse."""

    @abstractmethod
    def encode_bookie(self, info: ServiceInfo) -> bytes:
        """Value of its registration; ``decode_registration`` is the inverse."""

    @abstractmethod
    def encode_cookie(
        self, cookie: Cookie, network_location: str, directories: Directories | None
    ) -> bytes:
        """Value of its stored cookie; ``decode_cookie`` is the inverse."""

    def bookie_path(self, bookie_id: str, *, read_only: bool) -> str:
        """Node of its registration."""
        directory = READ_ONLY_PATH if read_only else AVAILABLE_PATH
        return f"{directory}/{self.node_name(bookie_id)}"

    def cookie_path(self, bookie_id: str) -> str:
        """Node of its cookie."""
        return f"{COOKIES_PATH}/{self.node_name(bookie_id)}"


class JsonLayout(Layout):
    """Values are JSON, names are encoded (docs/formats/ledger-metadata.md)."""

    @property
    def under_replication(self) -> UnderReplicationFormat:
        return JsonUnderReplication()

    def new_ledger(self, metadata: LedgerMetadata) -> LedgerMetadata:
        if metadata.digest_type != DIGEST_CRC32C:
            raise ValueError(f"our bookies protect entries by CRC32C, not {metadata.digest_type}")
        return metadata

    def encode_ledger(self, metadata: LedgerMetadata) -> bytes:
        return encode(metadata)

    def decode_ledger(self, ledger_id: int, value: bytes) -> LedgerMetadata:
        metadata = decode(value)
        if metadata.ledger_id != ledger_id:
            raise LedgerMetadataError(
                f"the node of ledger {ledger_id} holds the metadata of {metadata.ledger_id}"
            )
        return metadata

    def ids(self, store: MetadataStore) -> LedgerIds:
        return IdGenerator(store, f"{self.root}/idgen", block=ID_BLOCK)

    async def ids_end(self, store: MetadataStore) -> int | None:
        found = await store.get(f"{self.root}/idgen")
        return int(found.value) if found is not None and found.value.isdigit() else None

    def node_name(self, bookie_id: str) -> str:
        return encode_name(bookie_id)

    def encode_bookie(self, info: ServiceInfo) -> bytes:
        return info.encode()

    def encode_cookie(
        self, cookie: Cookie, network_location: str, directories: Directories | None
    ) -> bytes:
        return cookie.encode(network_location)
