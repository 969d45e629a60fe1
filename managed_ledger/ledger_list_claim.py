"""Opening a managed ledger: end what an earlier owner left open, then take the list over.

Rules: docs/spec/storage.md, "Owners of a log". Every ledger that isn't known to be closed is
recovered, which fences it, oldest first; then one compare-and-set of the whole list makes this
process the owner. Only after that may anything be appended.

A compare-and-set that is refused is settled by reading the list again:

- its owner is the one of the first read: that one wrote once more, and perhaps listed a ledger that
  isn't fenced yet. Recover again, then claim again. It can't go on like this: it is fenced by now.
- its owner is this open: the answer to the claim was lost.
- its owner is another: a process that opened the log at the same time was faster. It keeps the
  log, and this open yields. Two that went on would fence each other in turns.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from magnetar.bookkeeper.client.client import BookKeeperClient
from magnetar.bookkeeper.errors import LedgerError, NoSuchLedgerError
from magnetar.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.errors import ManagedLedgerNotFoundError, OpenFailedError
from magnetar.managed_ledger.ledger_info_chunks import LedgerInfoChunks, read_list
from magnetar.managed_ledger.ledger_info_store import LedgerInfoStore
from magnetar.managed_ledger.managed_ledger_info import ManagedLedgerInfo
from magnetar.metadata.errors import BadVersionError, MetadataError
from magnetar.metadata.store import CREATE_ONLY, MetadataStore

CLAIM_FAILURES_MAX = 5
CLAIM_REFUSALS_MAX = 30
"""An owner that doesn't know yet that it is fenced may go on trimming its list for a while."""
NOBODY = "nobody"
"""Stands for a token: there was no list, or no process has ever opened it."""

Ends: TypeAlias = dict[int, LedgerMetadata]
"""Ledgers that were found closed, which is for ever; by id."""


async def claim_list(
    client: BookKeeperClient,
    store: MetadataStore,
    path: str,
    token: str,
    config: ManagedLedgerConfig,
    now_ms: Callable[[], int],
    chunks_are_read: Callable[[], bool],
) -> LedgerInfoStore:
    """Makes the caller the owner of the log at ``path``; every listed ledger is closed after it.

    Args:
        token: unique among all opens of all processes.
        chunks_are_read: see `LedgerInfoChunks`.

    Raises:
        ManagedLedgerNotFoundError: there is no such log and the config doesn't create it.
        OpenFailedError: bookies or metadata don't answer as needed, or another open of the same
            time was faster; retry later.
        ManagedLedgerFormatError: the stored list is damaged.
    """
    earlier: str | None = None  # token of the owner that this open replaces
    ends: Ends = {}
    failures = refusals = 0
    chunks = LedgerInfoChunks(store, path, token, chunks_are_read)
    while True:
        try:
            found = await read_list(store, path, chunks)
            if found is None:
                if not config.create_if_missing:
                    raise ManagedLedgerNotFoundError(path)
                info, version = ManagedLedgerInfo(), CREATE_ONLY
                earlier = earlier or NOBODY
            else:
                info, stat, is_chunked = found
                version = stat.version
                if info.owner == token:  # an earlier attempt got through, only its answer did not
                    return LedgerInfoStore(
                        store, path, token, info, version, stat.created_ms, chunks
                    )
                owner = info.owner or NOBODY  # "": created and never opened
                if owner != (earlier := earlier or owner):
                    raise OpenFailedError(f"{path}: another owner opened it meanwhile")
                if is_chunked:
                    await chunks.find_unnamed(info, version)
                info = await recover_ledgers(client, info, config, now_ms, ends)
            info, value = await chunks.write(replace(info, owner=token), version)
            written = await store.put(path, value, version)
        except BadVersionError as error:
            refusals += 1
            if refusals == CLAIM_REFUSALS_MAX:
                raise OpenFailedError(f"{path}: its owner goes on writing it: {error}") from error
        except MetadataError as error:
            failures += 1
            if failures == CLAIM_FAILURES_MAX:
                raise OpenFailedError(f"{path}: can't be claimed: {error}") from error
        else:
            stat = written.stat
            await chunks.settle(info, stat.version)
            return LedgerInfoStore(store, path, token, info, stat.version, stat.created_ms, chunks)


async def recover_ledgers(
    client: BookKeeperClient,
    info: ManagedLedgerInfo,
    config: ManagedLedgerConfig,
    now_ms: Callable[[], int],
    ends: Ends,
) -> ManagedLedgerInfo:
    """The list with the definite end of every ledger.

    Args:
        ends: those known by an earlier attempt; grows.

    Raises:
        OpenFailedError: a ledger can't be recovered now. It stays listed.
    """
    for ledger in info.ledgers.tail:  # no ledger is put into a chunk before it is closed
        if ledger.closed_ms:
            continue  # recorded only after its metadata said CLOSED, which is for ever
        ledger_id = ledger.ledger_id
        if ledger_id not in ends:
            try:
                reader = await client.open_ledger(ledger_id, config.password, recover=True)
            except LedgerError as error:
                # "No such ledger" may also be a bookie's word; only the metadata settles it.
                if (
                    isinstance(error, NoSuchLedgerError)
                    and await client.read_ledger_metadata(ledger_id) is None
                ):
                    info = info.forget([ledger_id])
                    continue
                raise OpenFailedError(f"ledger {ledger_id} can't be recovered: {error}") from error
            ends[ledger_id] = reader.metadata
        end = ends[ledger_id]
        info = info.with_closed(ledger_id, end.last_entry + 1, end.length, max(1, now_ms()))
    return info.without_empty()
