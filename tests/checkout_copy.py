"""Wheels from a copy of this checkout, as a build writes beside its sources; without a network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = (
    *("broker", "bookkeeper", "bundles", "loadbalance"),
    *("managed_ledger", "metadata", "pipeline"),
)
"""Those that magnetar/ links to."""
WAIT_S: Final = 600.0  # it takes some seconds; a machine may have much else to do


def copy_sources(target: Path) -> None:
    for name in (*FOLDERS, "magnetar"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignored)


def pip(*words: str) -> None:
    """Nothing is fetched."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--no-deps", "--quiet", "--no-index"],
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
