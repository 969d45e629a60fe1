"""Libraries lose what isn't loaded, and nothing else."""

import ctypes
import struct
from pathlib import Path

import pytest
import uvloop.loop

from deploy.strip_symbols import strip_folder, stripped

LIBRARY = Path(uvloop.loop.__file__)  # its wheel comes with debugging sections
ELF_HEADER, SEGMENT, SECTION = struct.Struct("<16sHHIQQQIHHHHHH"), 56, struct.Struct("<IIQQQQIIQQ")


def sections(library: bytes) -> dict[bytes, tuple[int, ...]]:
    """By name: type, flags, address, offset, size, ..."""
    head = ELF_HEADER.unpack_from(library)
    assert head[6] % 8 == 0
    table = [
        SECTION.unpack_from(library, head[6] + number * SECTION.size) for number in range(head[12])
    ]
    names_at, names_size = table[head[13]][4:6]
    names = library[names_at : names_at + names_size]
    return {names[entry[0] :].split(b"\0", 1)[0]: entry[1:] for entry in table}


def in_memory(library: bytes) -> list[tuple[bytes, bytes]]:
    """Each segment's header and what it has in the file."""
    head = ELF_HEADER.unpack_from(library)
    found = []
    for number in range(head[10]):
        entry = library[head[5] + number * SEGMENT :][:SEGMENT]
        offset, size = struct.unpack_from("<Q", entry, 8)[0], struct.unpack_from("<Q", entry, 32)[0]
        content = bytearray(library[offset : offset + size])
        if offset == 0:  # the file's header is in it, which says where the sections are
            content[40:48], content[60:64] = bytes(8), bytes(4)  # and how many
        found.append((entry, bytes(content)))
    return found


def test_what_is_loaded_stays_and_the_rest_goes() -> None:
    library = LIBRARY.read_bytes()
    shorter = stripped(library)
    assert len(shorter) < len(library) / 4
    assert in_memory(shorter) == in_memory(library)
    before, after = sections(library), sections(shorter)
    assert b".debug_info" in before
    assert not {name for name in after if name.startswith(b".debug")}
    assert {b".dynsym", b".text", b".shstrtab"} <= after.keys()
    assert b".symtab" not in after
    assert all(after[name] == before[name] for name in after.keys() - {b".shstrtab"})
    assert stripped(shorter) is shorter


def test_a_folder_s_libraries_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "inner" / LIBRARY.name
    path.parent.mkdir()
    path.write_bytes(LIBRARY.read_bytes())
    (tmp_path / "link.so").symlink_to(path)
    (tmp_path / "linker.so").write_text("INPUT ( libother.so )\n")
    saved = strip_folder(tmp_path)
    assert saved == LIBRARY.stat().st_size - path.stat().st_size > 0
    assert strip_folder(tmp_path) == 0
    assert (tmp_path / "link.so").is_symlink()
    assert ctypes.CDLL(str(path)).PyInit_loop


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda library: b"", id="empty"),
        pytest.param(lambda library: library[:4] + b"\x01" + library[5:], id="32 bits"),
        pytest.param(lambda library: library[:5] + b"\x02" + library[6:], id="most byte first"),
        pytest.param(lambda library: library[:40], id="cut off"),
        pytest.param(lambda library: library[:60] + b"\0\0" + library[62:], id="no sections"),
    ],
)
def test_others_are_left_as_they_are(change: object) -> None:
    assert callable(change)
    library = change(LIBRARY.read_bytes())
    assert stripped(library) is library


def test_a_library_whose_numbers_would_change_is_left_as_it_is() -> None:
    """As patchelf leaves them: what is loaded stands behind what isn't."""
    library = bytearray(LIBRARY.read_bytes())
    head = ELF_HEADER.unpack_from(library)
    first, last = head[6] + SECTION.size, head[6] + (head[12] - 2) * SECTION.size
    one, other = (slice(at, at + SECTION.size) for at in (first, last))
    library[one], library[other] = library[other], library[one]
    whole = bytes(library)
    assert stripped(whole) is whole
