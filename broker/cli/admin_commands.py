"""The commands of ``magnetar admin`` as data: their calls, help, completion and reference page.

scripts/admin_commands.py writes admin_commands.json from the HTTP routes' own descriptions and from
pulsar-admin's names for them (scripts/admin_commands.txt).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a command.

    ``to`` says where its value goes: ``query:NAME``, ``path:NAME``, ``field:NAME`` (of a JSON
    object; dots go deeper), ``body`` (the value is it), or ``step:NAME`` (for the command's step).
    """

    flags: Sequence[str]
    to: str
    help: str
    kind: str = "text"
    required: bool = False
    default: Any = None
    """Sent when the option isn't given; None: nothing is."""
    choices: Sequence[str] = ()
    const: Any = None
    """An option of kind ``true`` sends this instead of true."""
    group: str = ""
    """Options of one group exclude each other; one is needed if one is ``required``."""


@dataclass(frozen=True, slots=True)
class AdminCommand:
    """One command: ``{topic}`` in a path becomes domain/tenant/namespace/name, ``{namespace}``
    tenant/name, everything else one segment.
    """

    method: str
    paths: Sequence[str]
    """The first one is called for which all is given."""
    help: str
    positionals: Sequence[str] = ()
    options: Sequence[Option] = ()
    many: bool = False
    """The last positional may be repeated: one call each."""
    update: bool = False
    """Fields that aren't given keep what GET on the path answers."""
    step: str = ""
    """Name of the function in `magnetar.broker.cli.multi_call` for what isn't one plain call."""

    @property
    def path(self) -> str:
        """Without what may be left out."""
        return self.paths[-1]


_TABLE: Final[Mapping[str, Any]] = MappingProxyType(
    json.loads(Path(__file__).with_suffix(".json").read_bytes())
)
GROUPS: Final[dict[str, str]] = {name: group["help"] for name, group in _TABLE.items()}
"""Group -> what it is about."""


def commands_of(group: str) -> dict[str, AdminCommand]:
    """Every command of one group.

    REQUIRES: ``group`` in GROUPS.
    """
    return {name: _command(row) for name, row in _TABLE[group]["commands"].items()}


def groups_with(name: str) -> list[str]:
    """The groups that have a command of this name."""
    return [group for group, row in _TABLE.items() if name in row["commands"]]


def _command(row: dict[str, Any]) -> AdminCommand:
    return AdminCommand(**{**row, "options": [Option(**each) for each in row.get("options", ())]})
