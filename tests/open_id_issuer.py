"""An OpenID Connect issuer on loopback: discovery, keys, and tokens for clients with a secret."""

import http.server
import json
import threading
import time
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

_ANYTHING = object()


class Issuer:
    """Serves from ``with`` to the end of the block; counts what it is asked."""

    def __init__(self, port: int = 0) -> None:
        self.keys: dict[str, rsa.RSAPrivateKey] = {}
        self.secrets: dict[str, str] = {}  # by client id, for client_credentials
        self.lifetime_s = 3600.0  # of the tokens that clients get
        self.asked = 0  # for its keys
        self.issued = 0  # tokens that clients got
        self.claims: dict[str, Any] = {}  # of the tokens that clients get, instead of the usual
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add_key(self, kid: str, key: rsa.RSAPrivateKey | None = None) -> None:
        """From now on its only key."""
        self.keys = {kid: key or rsa.generate_private_key(public_exponent=65537, key_size=2048)}

    def token(self, kid: str, **claims: Any) -> str:
        """Signed by a key that it has; ``claims`` instead of the usual ones."""
        body = {"iss": self.url, "aud": "us", "sub": "carol", "exp": time.time() + 60, **claims}
        return jwt.encode(body, self.keys[kid], "RS256", headers={"kid": kid})

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/.well-known/openid-configuration":
                    self._answer(200, issuer._discovery())
                elif self.path == "/keys":
                    issuer.asked += 1
                    self._answer(200, {"keys": [_jwk(*each) for each in issuer.keys.items()]})
                else:
                    self._answer(404, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                fields = {name: values[0] for name, values in parse_qs(body).items()}
                self._answer(*issuer._grant(self.path, fields))

            def _answer(self, status: int, body: Any) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler

    def _discovery(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint": f"{self.url}/token",
            # What stricter readers demand (OpenID Connect Discovery 3)
            "authorization_endpoint": f"{self.url}/authorize",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }

    def _grant(self, path: str, fields: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """RFC 6749, 4.4: client credentials; the role is the client's id."""
        if path != "/token" or fields.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        client = fields.get("client_id", "")
        if self.secrets.get(client, _ANYTHING) != fields.get("client_secret"):
            return 401, {"error": "invalid_client", "error_description": "who is that?"}
        self.issued += 1
        claims = {"sub": client, "aud": fields.get("audience", ""), **self.claims}
        token = self.token(next(iter(self.keys)), exp=time.time() + self.lifetime_s, **claims)
        lifetime_s = int(self.lifetime_s)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": lifetime_s}


def _jwk(kid: str, key: rsa.RSAPrivateKey) -> dict[str, Any]:
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    return {**public, "kid": kid, "alg": "RS256", "use": "sig"}
