"""What the live tests need: to be asked for, root, namespaces of their own, tools."""

import os
import shutil
from typing import Final

import pytest

from tests.charts.control_plane import missing_tools

_TOOLS: Final = ("ip", "unshare", "nsenter", "setpriv", "chroot", "mount", "java", "openssl")


def _missing() -> str:
    """Why nothing can run here; "": it can."""
    is_asked = os.environ.get("MAGNETAR_LIVE") == "1"
    if is_asked and os.geteuid() != 0:
        return "only root makes namespaces"
    if not is_asked or os.getpid() != 1:  # outside of namespaces it would change this machine's
        return "make test-chart-live KUBE=kube.sh runs it (docs/internals/chart-tests.md)"
    absent = [tool for tool in _TOOLS if shutil.which(tool) is None]
    return f"missing: {', '.join(absent)}" if absent else missing_tools()


NEEDS_LIVE: Final = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(_missing()), reason=_missing() or "it is there"),
]
"""The ``pytestmark`` of each module."""
