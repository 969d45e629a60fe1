"""What a process never loads is cut off ELF libraries: debugging sections and symbol tables.

    strip_symbols.py FOLDER ...

As binutils' strip does, but without it: the slim base has none, and the result doesn't depend on
its version. These sections stand behind everything that is loaded, in the file and in the table of
sections, so that a cut is enough; a library where they don't is left as it is.
"""

import struct
import sys
from pathlib import Path

_ALLOCATED = 0x2  # SHF_ALLOC: a process has it in its memory
_NO_BITS = 8  # SHT_NOBITS: takes nothing of the file
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")


def stripped(library: bytes) -> bytes:
    """The library without what isn't loaded; itself, if that isn't at its end or isn't there.

    Of ELF only what is here: 64 bits, least byte first.
    """
    if library[:6] != b"\x7fELF\x02\x01" or len(library) < _HEADER.size:
        return library
    head = list(_HEADER.unpack_from(library))
    segments_at, sections_at = head[5], head[6]
    segment_count, section_count, names_index = head[10], head[12], head[13]
    sections = [
        _SECTION.unpack_from(library, sections_at + n * _SECTION.size) for n in range(section_count)
    ]
    kept = [section for n, section in enumerate(sections) if n == 0 or section[2] & _ALLOCATED]
    if len(kept) < 2 or kept != sections[: len(kept)]:
        return library  # numbers of sections would change, which others refer to
    end = segments_at + segment_count * _SEGMENT.size
    for number in range(segment_count):
        segment = _SEGMENT.unpack_from(library, segments_at + number * _SEGMENT.size)
        end = max(end, segment[2] + segment[5])
    end = max(end, *(s[4] + s[5] for s in kept if s[1] != _NO_BITS))

    _, kind, flags, address, at, size, link, info, align, entry = sections[names_index]
    name, names = sections[names_index][0], library[at : at + size]
    table_at = end + size + -(end + size) % 8
    kept.append((name, kind, flags, address, end, size, link, info, align, entry))
    head[6], head[12], head[13] = table_at, len(kept), len(kept) - 1
    shorter = b"".join(
        [
            _HEADER.pack(*head),
            library[_HEADER.size : end],
            names.ljust(table_at - end, b"\0"),
            *(_SECTION.pack(*section) for section in kept),
        ]
    )
    return shorter if len(shorter) < len(library) else library


def strip_folder(folder: Path) -> int:
    """Strip all libraries below; returns how many bytes that were."""
    saved = 0
    for path in sorted(folder.rglob("*.so*")):
        if path.is_symlink() or not path.is_file():
            continue
        library = path.read_bytes()
        if (shorter := stripped(library)) is not library:
            path.write_bytes(shorter)
            saved += len(library) - len(shorter)
    return saved


if __name__ == "__main__":
    print(f"{sum(strip_folder(Path(folder)) for folder in sys.argv[1:]) >> 20} MiB of symbols cut")
