"""``magnetar migrate in-place`` as an operator gives it."""

import subprocess
import sys


def migrate_in_place(store_url: str, *words: str) -> tuple[int, str]:
    """Exit code, and what it told."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "magnetar.broker.cli.main", "migrate", "in-place"),
            *("--metadata", store_url, *words),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
