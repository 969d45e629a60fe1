"""``docs/reference/settings.md``: types and defaults of the settings classes, with meanings."""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_type_hints

from magnetar.bookkeeper.bookie.settings import BookieSettings
from magnetar.bookkeeper.environment import normalize_key
from magnetar.bookkeeper.replication.settings import AutoRecoverySettings
from magnetar.broker.config import BrokerConfig
from magnetar.broker.pulsar_settings import BOOKKEEPER, FEATURES, LACKING, TUNING
from magnetar.broker.service.dynamic_configuration import DYNAMIC_FIELDS

TEXTS: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "settings.txt"
CLASSES: Final[dict[str, type]] = {
    "broker": BrokerConfig,
    "bookie": BookieSettings,
    "autorecovery": AutoRecoverySettings,
}
_TITLES: Final = {"broker": "Broker", "bookie": "Bookie", "autorecovery": "Auto-recovery"}
_LINE: Final = re.compile(r"(\w+)(\*?)(?: \(([^)]+)\))?: (.+)")
_UNITS: Final = (
    (r"(millis|mills|ms)$", "ms"),
    (r"(seconds|second)$", "s"),
    (r"minutes?$", "min"),
    (r"bytes$", "bytes"),
    (r"(mb|mbytes)$", "MB"),
    (r"gb$", "GB"),
    (r"percentage$", "percent"),
)
_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "text"}
_HEAD: Final = """\
# Settings

<!-- written by scripts/reference_pages.py from the settings classes and settings.txt -->

A process reads `--config FILE` (`key=value` lines), then the environment, then `--set KEY=VALUE`;
the later one wins. Environment variables are `MAGNETAR_key` and `PULSAR_PREFIX_key`, for bookies
also `BOOKIE_key`, for auto-recovery `AUTORECOVERY_key`. Case and punctuation of keys don't matter.
Keys mean what they mean in Apache Pulsar and Apache BookKeeper; where the meaning or the default
differs, the text says so. "Own" keys exist in Magnetar only.

"Dynamic" settings of brokers can be changed while they run:
`magnetar admin brokers update-dynamic-config -c KEY -v VALUE`. Other changes need a restart.
"""


@dataclass(slots=True)
class SettingText:
    key: str
    is_own: bool
    unit: str
    text: str


def sections() -> Iterator[tuple[str, str, list[SettingText]]]:
    """Process, title and settings of each part of ``settings.txt``."""
    for part in TEXTS.read_text().split("\n== ")[1:]:
        title, *lines = part.strip().splitlines()
        process, _, name = title.partition(": ")
        yield process, name, [_parsed(line) for line in lines if line]


def _parsed(line: str) -> SettingText:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"settings.txt: {line}")
    return SettingText(match[1], bool(match[2]), match[3] or "", match[4])


def lacking() -> list[str]:
    """Settings without a text, and texts without a setting."""
    told = {(process, normalize_key(x.key)) for process, _, texts in sections() for x in texts}
    known = {(process, name) for process in CLASSES for name in _fields(process)}
    return sorted(f"{process}: {name}" for process, name in told ^ known)


def _fields(process: str) -> dict[str, Any]:
    fields: tuple[Any, ...] = dataclasses.fields(CLASSES[process])
    return {normalize_key(each.name): each for each in fields}


def default_of(key: str) -> str:
    """Of a broker's setting, as the page has it."""
    return _default(_fields("broker")[normalize_key(key)].default).strip("`")


def settings_page() -> str:
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    yield _HEAD.rstrip("\n")
    process_before = ""
    for process, title, texts in sections():
        if process != process_before:
            yield f"\n## {_TITLES[process]}"
        process_before = process
        dynamic = process == "broker"
        yield f"\n### {_TITLES[process]}: {title}\n"
        yield "| key | type | default | unit |" + (" dynamic |" if dynamic else "") + " meaning |"
        yield "|---|---|---|---|" + ("---|" if dynamic else "") + "---|"
        fields, types = _fields(process), get_type_hints(CLASSES[process])
        for each in texts:
            field = fields[normalize_key(each.key)]
            cells = [f"`{each.key}`", _type(types[field.name]), _default(field.default)]
            cells.append(each.unit or _unit(each.key, types[field.name]))
            if dynamic:
                cells.append("yes" if field.name in DYNAMIC_FIELDS else "")
            cells.append(f"{'Own. ' if each.is_own else ''}{each.text}")
            yield f"| {' | '.join(cells)} |"
    yield from _pulsars()


def _type(kind: Any) -> str:
    return _TYPES.get(kind, "list")


def _default(value: Any) -> str:
    if isinstance(value, frozenset):
        value = ",".join(sorted(value))
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


def _unit(key: str, kind: Any) -> str:
    if kind not in (int, float):
        return ""
    found = (unit for pattern, unit in _UNITS if re.search(pattern, key.lower()))
    return next(found, "")


def _pulsars() -> Iterator[str]:
    yield "\n## Settings of Pulsar that are refused\n"
    yield "They promise what isn't kept here. Only Pulsar's default lets the process start.\n"
    yield "| key | only value | instead |"
    yield "|---|---|---|"
    for key, row in sorted({**LACKING, **BOOKKEEPER}.items()):
        value = f"`{row.default}`" if len(row.default) < 40 else "the default"
        yield f"| `{key}` | {value if row.default else 'empty'} | {row.instead} |"
    yield "\n## Settings of features that aren't here\n"
    yield "Another value than the default has no effect; one warning at the start names it.\n"
    yield _names(FEATURES)
    yield "\n## Settings without a meaning here\n"
    yield "They tune threads, buffers and caches of Pulsar's Java processes. They are ignored.\n"
    yield _names(TUNING)


def _names(keys: Any) -> str:
    return ", ".join(f"`{key}`" for key in sorted(keys)) + "."
