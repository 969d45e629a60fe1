"""Wheels out of the packages of an environment: what pip would otherwise have to download.

An installed package keeps the list of its files; zipped again at their places they are the wheel
that it came from, but for scripts, which pip makes of entry points.
"""

import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_MADE_BY_PIP = frozenset({"INSTALLER", "RECORD", "REQUESTED", "direct_url.json"})


def requirements_of(names: Iterable[str]) -> set[str]:
    """Normal names of the installed packages that these need, themselves included."""
    found: set[str] = set()
    left = [canonicalize_name(name) for name in names]
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for text in metadata.distribution(name).requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                left.append(canonicalize_name(needed.name))
    return found


def write_wheel(name: str, folder: Path) -> Path:
    """One package's wheel; its name tells for which systems it is, as the first one's did."""
    found = metadata.distribution(name)
    files = found.files
    assert files is not None, f"{name} keeps no list of its files"
    root = Path(str(found.locate_file("")))
    info = next(file.parent for file in files if file.name == "METADATA")
    stem = info.name.removesuffix(".dist-info")
    tags = [
        line.removeprefix("Tag: ").strip()
        for line in (found.read_text("WHEEL") or "").splitlines()
        if line.startswith("Tag: ")
    ]
    parts = [sorted({tag.split("-")[i] for tag in tags}) for i in range(3)]
    wheel = folder / f"{stem}-{'-'.join('.'.join(part) for part in parts)}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:  # not compressed: it is read once
        kept = [file for file in files if _belongs(file)]
        for file in kept:
            archive.write(root / file, str(file))
        record = "".join(f"{file},,\n" for file in kept) + f"{info}/RECORD,,\n"
        archive.writestr(f"{info}/RECORD", record)
    return wheel


def _belongs(file: PurePosixPath) -> bool:
    if file.suffix == ".pyc" or file.parts[0] == "..":
        return False
    return not (file.parent.name.endswith(".dist-info") and file.name in _MADE_BY_PIP)
