"""Secrets made by the commands of docs/guides/kubernetes.md."""

import os
import re
import ssl
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pulsar

from tests.charts.control_plane import ControlPlane
from tests.charts.renderings import ROOT

RELEASE = NAMESPACE = "demo"  # of the page's examples
_PAGE: Final = ROOT / "docs" / "guides" / "kubernetes.md"
_BLOCK: Final = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands_of(section: str) -> list[str]:
    """The blocks of shell commands between this heading of the page and the next one."""
    _, found, rest = _PAGE.read_text("utf-8").partition(f"\n### {section}\n")
    assert found, section
    return _BLOCK.findall(re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0])


@dataclass(frozen=True, slots=True)
class Secrets:
    """``folder`` is where the user who makes them keeps keys, tokens and the authority."""

    plane: ControlPlane
    folder: Path

    def run(self, script: str) -> str:
        path = f"PATH={sys.prefix}/bin:{os.environ['PATH']}"
        words = ["env", "-C", str(self.folder), path, "sh", "-ec", script]
        done = self.plane.run(words)
        assert done.returncode == 0, f"{script}\n{done.stderr}"
        return done.stdout

    def make_authority(self) -> None:
        self.run(commands_of("TLS")[0])

    def make_certificates(self) -> None:
        """New ones, also in place of those that are there."""
        self.run(commands_of("TLS")[1])

    def make_tokens(self) -> None:
        """A new key pair, and tokens of the roles that the cluster itself needs."""
        self.run(commands_of("Tokens")[0])

    def make_token(self, role: str) -> None:
        """For a client: the cluster knows nothing of it."""
        words = f"magnetar tokens create --private-key private.der --subject {role}"
        self.run(f"{words} > {role}.token")

    def token(self, role: str) -> str:
        return (self.folder / f"{role}.token").read_text("ascii").strip()

    @property
    def authority(self) -> Path:
        return self.folder / "ca.crt"

    def options(self, role: str) -> dict[str, Any]:
        """Of the official client."""
        return {
            "authentication": pulsar.AuthenticationToken(partial(self.token, role)),
            "tls_trust_certs_file_path": str(self.authority),
            "tls_validate_hostname": True,
        }

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    def mutual(self) -> ssl.SSLContext:
        """With the certificate that was made last: the toolset's."""
        context = self.trust()
        context.load_cert_chain(self.folder / "tls-combined.pem")
        return context
