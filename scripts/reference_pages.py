"""Write the generated pages of docs/reference: ``python scripts/reference_pages.py [--check]``.

``settings.md`` comes from the settings classes and ``docs/reference/settings.txt``, ``rest.md``
from the OpenAPI document and the table of permissions, the end of ``cli.md`` from the parsers.
With ``--check`` nothing is written, and pages that would change are named (exit code 1).
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from reference_cli import with_reference
from reference_rest import rest_page
from reference_settings import settings_page

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "reference"


def _cli_page() -> str:
    return with_reference((FOLDER / "cli.md").read_text())


PAGES: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings_page,
    "rest.md": rest_page,
    "cli.md": _cli_page,
}


def outdated() -> list[str]:
    """Names of pages that aren't what the code says."""
    return [name for name, make in PAGES.items() if _read(FOLDER / name) != make()]


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    names = outdated()
    if "--check" in sys.argv:
        sys.exit(f"run scripts/reference_pages.py: {', '.join(names)}" if names else 0)
    for name in names:
        (FOLDER / name).write_text(PAGES[name]())
