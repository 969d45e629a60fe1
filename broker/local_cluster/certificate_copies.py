"""Certificates that a running ZooKeeper reads anew when they are renewed.

ZooKeeper is told by the system of files of a folder that change, and looks for the names that it
was given. Files of a Kubernetes Secret change by a link beside them, of which no event names any of
them. So the server gets copies, and a process beside it renews these.
"""

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

_OWN: Final = "tls-combined.pem"
_TRUSTED: Final = "ca.crt"
_LOOK_S: Final = 2.0


def tls_settings(folder: Path) -> dict[str, str]:
    """Lines of zoo.cfg: who the server is and whom it trusts, to clients and to other servers."""
    files = {"keyStore": str(folder / _OWN), "trustStore": str(folder / _TRUSTED)}
    lines = {"client.certReload": "true", "sslQuorumReloadCertFiles": "true"}
    for kind in ("ssl", "ssl.quorum"):
        for store, path in files.items():
            lines[f"{kind}.{store}.location"] = path
            lines[f"{kind}.{store}.type"] = "PEM"
    return lines


def copy_certificates(source: Path, target: Path) -> bool:
    """Make the files of ``target`` those of ``source``; whether one of them was another.

    Raises:
        OSError: one can't be read or written.
    """
    is_changed = False
    for name in (_TRUSTED, _OWN):  # what is signed by a new authority needs it to be trusted
        content, copy = (source / name).read_bytes(), target / name
        if not copy.exists() or copy.read_bytes() != content:
            descriptor, path = tempfile.mkstemp(dir=target)  # readable by us alone
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(path, copy)
            is_changed = True
    return is_changed


def follow_certificates(source: Path, target: Path) -> None:
    """Returns at once: a child copies what changes until this process, or what it becomes, ends.

    REQUIRES: no threads.
    """
    server = os.getpid()
    if os.fork():
        return
    failure = ""
    try:
        while os.getppid() == server:
            time.sleep(_LOOK_S)
            try:
                copy_certificates(source, target)
                failure = ""
            except OSError as error:
                if str(error) != failure:
                    failure = str(error)
                    print(f"the old certificates stay: {failure}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(target, ignore_errors=True)
        os._exit(0)  # nothing of the parent's is ended here
