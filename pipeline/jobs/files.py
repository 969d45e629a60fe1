"""Small files and listings on whatever file system Spark writes to: its JVM does the work."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from magnetar.pipeline.errors import ExportBusyError, JobError, OptionsError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COPY_BYTES: Final = 256 * 1024
_HASHES_AT_ONCE: Final = 4
_PATTERN: Final = frozenset("*?[]{}\\,")
"""Of paths that Hadoop takes for patterns."""


class Files:
    """A folder of Spark's default or any other Hadoop file system; paths are relative to it."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """
        Raises:
            OptionsError: not a path that Spark can take.
            JobError: no such file system, or a session without a JVM of its own.
        """
        if not folder or _PATTERN.intersection(folder):
            raise OptionsError(f"{folder!r}: a path without any of {' '.join(sorted(_PATTERN))}")
        if "://" not in folder and not folder.startswith(("file:", "/")):
            folder = os.path.abspath(folder)
        jvm: Any = getattr(spark, "_jvm", None)
        java: Any = getattr(spark, "_jsc", None)
        if jvm is None or java is None:
            raise JobError("jobs need a Spark session with a JVM of its own, not Spark Connect")
        self._jvm = jvm
        with self._errors(folder):
            path = jvm.org.apache.hadoop.fs.Path(folder)
            self._fs = path.getFileSystem(java.hadoopConfiguration())
            self.root: str = self._fs.makeQualified(path).toString().rstrip("/")

    @property
    def local(self) -> Path | None:
        """The folder, if it is one of this machine."""
        parts = urlsplit(self.root)
        return Path(self.root.removeprefix("file:")) if parts.scheme == "file" else None

    def url(self, path: str) -> str:
        """As Spark reads or writes it."""
        return f"{self.root}/{path}"

    def names(self, path: str) -> list[str]:
        """Of what is directly in a folder, sorted; []: there is no such folder."""
        with self._errors(path):
            where = self._path(path)
            if not self._fs.exists(where):
                return []
            return sorted(str(each.getPath().getName()) for each in self._fs.listStatus(where))

    def sizes(self, path: str) -> dict[str, int]:
        """Size by path of all files at any depth below a folder that exists, sorted."""
        start = len(self.root) + 1
        found = {}
        with self._errors(path):
            each_file = self._fs.listFiles(self._path(path), True)
            while each_file.hasNext():
                status = each_file.next()
                found[str(status.getPath().toString())[start:]] = int(status.getLen())
        return dict(sorted(found.items()))

    def exists(self, path: str) -> bool:
        with self._errors(path):
            return bool(self._fs.exists(self._path(path)))

    def read(self, path: str) -> str:
        with self._errors(path):
            stream = self._fs.open(self._path(path))
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write(self, path: str, text: str, *, replace: bool = False) -> None:
        """Durable and whole, or not at all.

        Raises:
            ExportBusyError: the file is there already, and isn't to be replaced.
        """
        if self.local is not None:
            self._write_local(self.local / path, text, replace)
            return
        folder, _, name = path.rpartition("/")
        draft, final = self._path(f"{folder}/.{name}.tmp"), self._path(path)
        with self._errors(path):
            stream = self._fs.create(draft, True)
            try:
                stream.write(bytearray(text.encode()))
                with suppress(Exception):  # object stores can't, and needn't
                    stream.hsync()
            finally:
                stream.close()
            if replace:  # no rename of Hadoop's replaces: a reader may find neither for a moment
                self._fs.delete(final, False)
            if bool(self._fs.exists(final)) or not self._fs.rename(draft, final):
                self._fs.delete(draft, False)
                raise ExportBusyError(f"{self.url(path)} was written meanwhile by somebody else")

    def _write_local(self, path: Path, text: str, replace: bool) -> None:
        draft = path.with_name(f".{path.name}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(text, "utf-8")
            _sync(draft)
            if replace:
                os.replace(draft, path)
            else:
                os.link(draft, path)  # unlike a rename, not over what is there
                draft.unlink()
            _sync(path.parent)
        except FileExistsError as error:
            draft.unlink()
            raise ExportBusyError(f"{path} was written meanwhile by somebody else") from error
        except OSError as error:
            raise JobError(f"{path}: {error.strerror}") from error

    def delete(self, path: str) -> None:
        """A file, or a folder with everything in it; nothing where there is none."""
        with self._errors(path):
            self._fs.delete(self._path(path), True)

    def sync(self, paths: Sequence[str]) -> None:
        """Local files are on disk, with their names, when this returns; others were when their
        writers closed them.
        """
        if self.local is None:
            return
        folders = set()
        for path in paths:
            _sync(self.local / path)
            folder = (self.local / path).parent
            while folder != self.local:
                folders.add(folder)
                folder = folder.parent
        for folder in (*folders, self.local):
            _sync(folder)

    def sha256(self, paths: Sequence[str]) -> list[str]:
        """In hexadecimal digits, of each file; several are read at once, none is ever in memory."""
        with ThreadPoolExecutor(_HASHES_AT_ONCE) as pool:
            return list(pool.map(self._sha256, paths))

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """No second process of this machine has it at the same time; a dead one never does.
        Elsewhere than in local folders nothing is locked.

        Raises:
            ExportBusyError: another one has it.
        """
        if self.local is None:
            yield
            return
        file = self.local / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JobError(f"{file}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ExportBusyError(f"{self.root}: another process works on it") from error
            yield
        finally:
            os.close(descriptor)

    def relative(self, url: str) -> str:
        """Path of a file as ``_metadata.file_path`` of its rows tells it."""
        marker = "/run="
        return marker[1:] + unquote(url).rpartition(marker)[2]

    def _sha256(self, path: str) -> str:
        jvm = self._jvm
        with self._errors(path):
            digest = jvm.java.security.MessageDigest.getInstance("SHA-256")
            source = jvm.java.security.DigestInputStream(self._fs.open(self._path(path)), digest)
            try:
                sink = jvm.java.io.OutputStream.nullOutputStream()
                jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, sink, _COPY_BYTES, False)
            finally:
                source.close()
            return bytes(digest.digest()).hex()

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.url(path) if path else self.root)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            raise JobError(f"{path or self.root}: {error.java_exception}") from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
