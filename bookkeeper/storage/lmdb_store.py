"""Ordered store on LMDB: copy-on-write pages, one writer, readers never wait."""

import errno
from pathlib import Path
from types import TracebackType

import lmdb

from magnetar.bookkeeper.errors import CorruptFileError
from magnetar.bookkeeper.storage.ordered_store import OrderedStore, StoreTransaction
from magnetar.bookkeeper.storage.os_file_system import sync_directory

_DEFAULT_MAP_BYTES = 64 << 30
_FILE = "index/data.mdb"


class _Readable:
    """Turns LMDB's errors while opening and reading into ours.

    LMDB has no checksums of its own: values carry theirs (``index_format``), and this is for
    damage that LMDB notices itself. Where it lies in the file, LMDB doesn't tell. A class, not a
    generator: this is on the way of every cold read.
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, lmdb.DiskError):
            raise OSError(errno.ENOSPC, f"{_FILE}: {error}") from error
        if isinstance(error, lmdb.Error):
            raise CorruptFileError(_FILE, 0, f"unreadable ({error})") from error


_READABLE = _Readable()


class LmdbStore(OrderedStore):
    """One LMDB environment in a directory."""

    def __init__(self, path: Path, *, map_bytes: int = _DEFAULT_MAP_BYTES) -> None:
        path.mkdir(parents=True, exist_ok=True)
        # The map is address space, not memory or disk: the file grows with its contents. It can't
        # grow while other threads read, so it starts far above any index and doubles at a start.
        data = path / "data.mdb"
        if data.exists():
            map_bytes = max(map_bytes, 4 * data.stat().st_size)
        # Sync on: a commit writes its pages, syncs, then writes and syncs the meta page.
        with _READABLE:
            self._environment = lmdb.open(
                str(path),
                map_size=map_bytes,
                max_readers=512,
                readahead=False,
                writemap=False,
                metasync=True,
                sync=True,
            )
        # LMDB syncs contents. Without its files' names an index is new and empty after a power cut,
        # beside a journal that was trimmed because of it.
        sync_directory(path)

    def get(self, key: bytes) -> bytes | None:
        with _READABLE, self._environment.begin() as transaction:
            value: bytes | None = transaction.get(key)
            return value

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        with (
            _READABLE,
            self._environment.begin() as transaction,
            transaction.cursor() as cursor,
        ):
            if cursor.set_range(key):
                if cursor.key() == key:
                    return bytes(cursor.key()), bytes(cursor.value())
                found = cursor.prev()
            else:
                found = cursor.last()
            return (bytes(cursor.key()), bytes(cursor.value())) if found else None

    def range(
        self, first: bytes, end: bytes, items_max: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        items: list[tuple[bytes, bytes]] = []
        with (
            _READABLE,
            self._environment.begin() as transaction,
            transaction.cursor() as cursor,
        ):
            if not cursor.set_range(first):
                return items
            for key, value in cursor:
                if key >= end or (items_max is not None and len(items) >= items_max):
                    break
                items.append((key, value))
        return items

    def commit(self, changes: StoreTransaction, sync_point: str | None) -> None:
        try:
            self._commit(changes)
        except lmdb.MapFullError as error:
            size = self._environment.info()["map_size"]
            text = f"index: its map of {size} bytes is full; a restart makes it larger"
            raise OSError(errno.ENOSPC, text) from error
        except lmdb.DiskError as error:
            raise OSError(errno.ENOSPC, f"index: {error}") from error
        except lmdb.Error as error:
            code = errno.ENOSPC if "No space" in str(error) else errno.EIO
            raise OSError(code, f"index: {error}") from error

    def _commit(self, changes: StoreTransaction) -> None:
        with self._environment.begin(write=True) as transaction:
            with transaction.cursor() as cursor:
                for first, end in changes.delete_ranges:
                    found = cursor.set_range(first)
                    while found and cursor.key() < end:
                        found = cursor.delete() and bool(cursor.key())
            for key in changes.deletes:
                transaction.delete(key)
            for key, value in changes.puts:
                transaction.put(key, value)

    def close(self) -> None:
        self._environment.close()
