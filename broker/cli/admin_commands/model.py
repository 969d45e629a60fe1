"""What a word is: the HTTP call behind it, its arguments, and where each of them goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS: dict[str, str] = {
    "text": "TEXT",
    "upper": "NAME",
    "old-strategy": "NAME",
    "int": "NUMBER",
    "float": "NUMBER",
    "true": "",
    "false": "",
    "list": "A,B,...",
    "map": "KEY=VALUE,...",
    "bytes": "SIZE",
    "megabytes": "SIZE",
    "seconds": "DURATION",
    "minutes": "DURATION",
    "minutes-of-seconds": "DURATION",
    "millis": "DURATION",
    "ago": "DURATION",
    "message-id": "ID",
    "json": "JSON",
    "json-file": "FILE",
    "file": "FILE",
}
"""Kind of a value -> how help shows it. `magnetar.broker.cli.argument_values` reads them."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a word.

    ``to`` says where its value goes: ``query:NAME``, ``path:NAME``, ``field:NAME`` (of a JSON
    object; dots go deeper), ``body`` (the value is it), or ``step:NAME`` (for the word's own step).
    """

    flags: tuple[str, ...]
    to: str
    help: str = ""
    kind: str = "text"
    required: bool = False
    default: Any = None
    """Sent when the option isn't given; None: nothing is."""
    choices: tuple[str, ...] = ()
    const: Any = None
    """What an option of kind ``true`` sends instead of true."""
    group: str = ""
    """Options of one group exclude each other; one is needed if one is ``required``."""


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """One word: ``{topic}`` in a path becomes domain/tenant/namespace/name, ``{namespace}``
    tenant/name, everything else one segment.
    """

    method: str
    path: str
    help: str
    positionals: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are always sent."""
    many: bool = False
    """The last positional may be repeated: one call each."""
    update: bool = False
    """Fields that aren't given keep what GET on the path answers."""
    step: str = ""
    """Name of the function in `magnetar.broker.cli.multi_call` for what isn't one plain call."""


def either(to: str, what: str, *, required: bool = True) -> tuple[Option, Option]:
    """The pair ``-e/--enable`` and ``-d/--disable``."""
    return (
        Option(("-e", "--enable"), to, f"switch {what} on", "true", required, group="switch"),
        Option(("-d", "--disable"), to, f"switch {what} off", "false", required, group="switch"),
    )
