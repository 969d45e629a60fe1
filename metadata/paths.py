"""Paths of the metadata tree: ``/a/b/c``, no trailing slash, names encoded as Pulsar encodes them.

A path may contain the characters that ZooKeeper accepts, so a tree can move between backends.
"""

import re
from urllib.parse import quote_plus, unquote_plus

ROOT = "/"
SEQUENCE_DIGITS = 10

# A name: not "." or "..", no control characters, surrogates, private use or specials.
_NAME = r"/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+"
_PATH = re.compile(rf"(?:{_NAME})+")


def check_path(path: str) -> None:
    """Raises ValueError unless ``path`` is the root or a well-formed path."""
    if path != ROOT and _PATH.fullmatch(path) is None:
        raise ValueError(f"not a metadata path: {path!r}")


def parent_of(path: str) -> str:
    """REQUIRES: a well-formed path that isn't the root."""
    return path[: path.rfind("/")] or ROOT


def name_of(path: str) -> str:
    return path[path.rfind("/") + 1 :]


def join(parent: str, name: str) -> str:
    return f"/{name}" if parent == ROOT else f"{parent}/{name}"


def sequential_path(path: str, number: int) -> str:
    return f"{path}{number:0{SEQUENCE_DIGITS}d}"


def encode_name(name: str) -> str:
    """Any text as one name of a path; ``decode_name`` gives it back.

    Same result as java.net.URLEncoder with UTF-8, which Pulsar uses for topic and cursor names,
    except for "." and "..", which aren't legal names in a path.
    """
    if name in {".", ".."}:
        return name.replace(".", "%2E")
    # quote_plus never encodes "~", URLEncoder always does; "*" is the other way round.
    return quote_plus(name, safe="*").replace("~", "%7E")


def decode_name(name: str) -> str:
    if "%" in name or "+" in name:
        return unquote_plus(name, errors="strict")
    return name  # most are; a list may have 100,000
