"""Keys, certificates, passwords and settings of a server that trusts nobody, for both servers.

    python -m tests.interop.auth_material FOLDER [no-authorization] [no-openid] >settings
    python -m tests.interop.auth_material FOLDER issuer

The first makes them unless the folder is there, and prints ``KEY=VALUE`` lines for Pulsar or
Magnetar; tests that get ``--auth-folder FOLDER`` use them. Pulsar's OpenID provider is no part of
the artifacts it is started from: without it, tests that need an issuer are skipped. The second
serves the issuer until it is killed, for tests that aren't Python's.
"""

import base64
import json
import secrets
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.certificates import Authority, Pair
from tests.open_id_issuer import Issuer

AUDIENCE = "us"
PASSWORDS = {"alice": "alice-password", "admin": "admin-password"}
# `openssl passwd -apr1`: what Pulsar understands as well (it knows no bcrypt)
_HTPASSWD = """\
alice:$apr1$magnetar$ybTqGCrHXa3rTGjBQvVEY0
admin:$apr1$magnetar$ZmTFbsNhY4a.n3nhf2qHu/
"""
_KEY_ID = "one"
_PACKAGE = "org.apache.pulsar.broker.authentication."


class Material:
    """What is in a folder that ``create`` made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = (folder / "secret.key").read_bytes()
        self.authority = folder / "authority.pem"
        self.foreign_authority = folder / "foreign" / "foreign.pem"

    @classmethod
    def create(cls, folder: Path) -> "Material":
        foreign = folder / "foreign"
        foreign.mkdir(parents=True)
        (folder / "secret.key").write_bytes(secrets.token_bytes(32))
        (folder / "passwords").write_text(_HTPASSWD)
        authority = Authority(folder)
        # Not good for 127.0.0.1: that is how tests reach it under a wrong name
        authority.sign("broker", hosts=["localhost"])
        for role in ("alice", "admin", "bob"):
            authority.sign(role)
        Authority(foreign, "foreign").sign("alice")
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "issuer.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        with socket.create_server(("127.0.0.1", 0)) as free:
            (folder / "issuer.port").write_text(str(free.getsockname()[1]))
        # For clients of other languages
        material = cls(folder)
        (folder / "admin.token").write_text(material.token("admin"))
        (folder / "alice.json").write_text(json.dumps(material._key_file("alice", None)))
        return material

    def pair(self, name: str) -> Pair:
        """Certificate and key; ``foreign/alice`` is signed by who isn't trusted."""
        return Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key", b"")

    def token(self, role: str, *, expires_after_s: float | None = None, **claims: Any) -> str:
        key = claims.pop("key", self.secret)
        if expires_after_s is not None:
            # Whole seconds, upwards: Pulsar's library reads no fractions
            claims["exp"] = int(time.time() + expires_after_s + 0.999)
        return jwt.encode({"sub": role, **claims}, key, "HS256")

    def issuer(self) -> Issuer:
        """The issuer that the server trusts, not started yet; it knows all clients' secrets."""
        issuer = Issuer(int((self.folder / "issuer.port").read_text()))
        content = (self.folder / "issuer.pem").read_bytes()
        key = serialization.load_pem_private_key(content, None)
        assert isinstance(key, rsa.RSAPrivateKey)
        issuer.add_key(_KEY_ID, key)
        issuer.secrets = PASSWORDS
        return issuer

    def client_credentials(self, client: str, secret: str | None = None) -> str:
        """Parameters of the official clients' OAuth2 plug-in."""
        key = self._key_file(client, secret)
        data = base64.b64encode(json.dumps(key).encode()).decode()
        return json.dumps(
            {
                "issuer_url": self.issuer_url,
                "private_key": f"data:application/json;base64,{data}",
                "audience": AUDIENCE,
            }
        )

    @property
    def has_openid(self) -> bool:
        """Whether the server asks the issuer."""
        return not (self.folder / "without-openid").exists()

    @property
    def issuer_url(self) -> str:
        return f"http://127.0.0.1:{(self.folder / 'issuer.port').read_text()}"

    def _key_file(self, client: str, secret: str | None) -> dict[str, str]:
        return {
            "type": "client_credentials",
            "client_id": client,
            "client_secret": secret or PASSWORDS[client],
            "issuer_url": self.issuer_url,
        }

    def settings(self) -> dict[str, str]:
        """Of either server; ports apart."""
        names = [f"AuthenticationProvider{kind}" for kind in ("Token", "Basic", "Tls")]
        if self.has_openid:
            names.append("oidc.AuthenticationProviderOpenID")
        broker = self.pair("broker")
        return {
            "advertisedAddress": "localhost",
            "authenticationEnabled": "true",
            "authenticationProviders": ",".join(_PACKAGE + name for name in names),
            "tokenSecretKey": f"file://{self.folder}/secret.key",
            "basicAuthConf": f"file://{self.folder}/passwords",
            "openIDAllowedTokenIssuers": self.issuer_url,
            "openIDAllowedAudiences": AUDIENCE,
            "openIDRequireIssuersUseHttps": "false",
            "tlsCertificateFilePath": str(broker.certificate),
            "tlsKeyFilePath": str(broker.key),
            "tlsTrustCertsFilePath": str(self.authority),
            "authenticationRefreshCheckSeconds": "2",
            "proxyRoles": "proxy",
            "authorizationEnabled": "true",
            "superUserRoles": "admin",
            "forceDeleteNamespaceAllowed": "true",
            "forceDeleteTenantAllowed": "true",
        }

    def pulsar_settings(self) -> dict[str, str]:
        """What Pulsar needs besides, to talk to itself."""
        return {
            "brokerServicePortTls": "6651",
            "webServicePortTls": "8443",
            "brokerClientAuthenticationPlugin": (
                "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            ),
            "brokerClientAuthenticationParameters": f"token:{self.token('admin')}",
        }


def main(folder: str, *words: str) -> None:
    path = Path(folder).absolute()
    material = Material(path) if (path / "secret.key").exists() else Material.create(path)
    if "issuer" in words:
        with material.issuer():
            threading.Event().wait()
    (path / "without-openid").unlink(missing_ok=True)
    if "no-openid" in words:
        (path / "without-openid").touch()
    settings = {**material.settings(), **material.pulsar_settings()}
    if "no-authorization" in words:
        settings["authorizationEnabled"] = "false"
    for key, value in settings.items():
        print(f"{key}={value}")


if __name__ == "__main__":
    main(*sys.argv[1:])
