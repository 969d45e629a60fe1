"""A bookie's cookie: in its data directory (JSON), and in the metadata store (JSON, or as Apache
BookKeeper stores it).

BookKeeper's is ``5``, a line feed, and a ``CookieFormat`` in protobuf's text form. Its parser takes
no field that it doesn't know, so what only we have is a comment, which it skips.
"""

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import text_format

from magnetar.bookkeeper.errors import CookieMismatchError
from magnetar.bookkeeper.proto.data_formats_pb2 import CookieFormat

LAYOUT_VERSION: Final = 1
_BOOKKEEPER_VERSION: Final = b"5"
_COMMENT: Final = b"# magnetar "


class DirectoryState(enum.Enum):
    """Where a data directory is in its life."""

    COMPLETE = "complete"
    NEW = "new"  # the first start of a new bookie is under way
    REPLACING = "replacing"  # an empty directory takes the place of a lost one
    ROLLED_BACK = "rolled-back"  # an old copy; never stored: the generations tell


@dataclass(frozen=True, slots=True)
class Directories:
    """Paths as BookKeeper's cookie names them; they aren't compared."""

    journals: tuple[str, ...] = ()
    ledgers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Cookie:
    """``instance_id`` names the cluster; ``directory_id`` this data directory, for ever.

    ``generation`` counts starts, and says nothing about whose directory it is.
    """

    bookie_id: str
    instance_id: str
    directory_id: str
    layout_version: int = LAYOUT_VERSION
    generation: int = field(default=0, compare=False)

    def encode(
        self, network_location: str = "", state: DirectoryState = DirectoryState.COMPLETE
    ) -> bytes:
        fields = {
            "bookieId": self.bookie_id,
            "directoryId": self.directory_id,
            "generation": self.generation,
            "instanceId": self.instance_id,
            "layoutVersion": self.layout_version,
            "networkLocation": network_location,
            "state": state.value,
        }
        return json.dumps(fields, indent=1, sort_keys=True).encode()

    def encode_text(self, network_location: str, directories: Directories | None) -> bytes:
        """As BookKeeper stores it."""
        journals, ledgers = (directories.journals, directories.ledgers) if directories else ((), ())
        message = CookieFormat(
            bookieHost=self.bookie_id,
            journalDir=",".join(journals),
            ledgerDirs="\t".join((str(len(ledgers)), *ledgers)),
            instanceId=self.instance_id,
        )
        fields = {
            "directoryId": self.directory_id,
            "generation": self.generation,
            "networkLocation": network_location,
        }
        comment = _COMMENT + json.dumps(fields, sort_keys=True).encode()
        text = text_format.MessageToString(message).encode()
        return b"".join((_BOOKKEEPER_VERSION, b"\n", text, comment, b"\n"))


@dataclass(frozen=True, slots=True)
class CheckedCookie:
    """Result of the check; ``complete_cookie`` must follow.

    If it ``has_lost_data``, every ledger that may have lived here is put into limbo before that.
    """

    cookie: Cookie
    state: DirectoryState

    @property
    def has_lost_data(self) -> bool:
        return self.state in (DirectoryState.REPLACING, DirectoryState.ROLLED_BACK)


def decode_cookie(data: bytes, where: str) -> CheckedCookie:
    """Of either form; a bookie of Apache BookKeeper has the directory "".

    Raises:
        CookieMismatchError: it can't be read.
    """
    try:
        if data.startswith(b"{"):
            fields = json.loads(data)
            cookie = Cookie(
                str(fields["bookieId"]),
                str(fields["instanceId"]),
                str(fields["directoryId"]),
                int(fields["layoutVersion"]),
                int(fields.get("generation", 0)),
            )
            return CheckedCookie(cookie, DirectoryState(fields["state"]))
        message, ours = _parse_text(data)
        cookie = Cookie(
            message.bookieHost,
            message.instanceId,
            str(ours.get("directoryId", "")),
            generation=int(ours.get("generation", 0)),
        )
        return CheckedCookie(cookie, DirectoryState.COMPLETE)
    except (ValueError, KeyError, TypeError, text_format.ParseError) as error:
        raise CookieMismatchError(f"{where}: unreadable cookie: {error}") from error


def location_of(data: bytes) -> str:
    """Network location in a stored cookie.

    Raises:
        ValueError: it says none.
    """
    try:
        return str(cookie_fields(data)["networkLocation"])
    except KeyError as error:
        raise ValueError(f"a cookie without {error}") from error


def cookie_fields(data: bytes) -> dict[str, Any]:
    """All that a stored cookie says, by names of its form.

    Raises:
        ValueError: it can't be read.
    """
    try:
        if data.startswith(b"{"):
            fields: dict[str, Any] = json.loads(data)
            return fields
        message, ours = _parse_text(data)
        return {field.name: value for field, value in message.ListFields()} | ours
    except text_format.ParseError as error:
        raise ValueError(f"unreadable cookie: {error}") from error


def _parse_text(data: bytes) -> tuple[CookieFormat, dict[str, Any]]:
    """And what is in our comment."""
    version, _, text = data.partition(b"\n")
    if version.strip() not in (b"4", _BOOKKEEPER_VERSION):
        raise ValueError(f"version {version[:20]!r} of a cookie")
    message = text_format.Parse(text.decode(), CookieFormat())
    if not message.IsInitialized():
        raise ValueError("it lacks what every cookie has")
    comments = [line for line in text.splitlines() if line.startswith(_COMMENT)]
    ours = json.loads(comments[-1].removeprefix(_COMMENT)) if comments else {}
    return message, ours
