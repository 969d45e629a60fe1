"""Signatures of JSON Web Tokens. Apart from the claims, as its libraries are a twentieth of a
server's start: loaded with the first token.

Forgeries don't get as far as the library: it looks at each character of a token, in Python, before
it looks at the signature, which is 5 ms for 64 KiB.
"""

import json
from typing import Any, Final

from jwt.api_jws import PyJWS
from jwt.exceptions import PyJWTError

from magnetar.bookkeeper.auth.errors import CredentialsError
from magnetar.bookkeeper.auth.keys import VerificationKey
from magnetar.bookkeeper.auth.tokens import algorithm_of, check_size, decoded

_JWS: Final = PyJWS()


def verified_claims(token: bytes, *keys: VerificationKey) -> dict[str, Any]:
    """The claims of a token that was signed with one of ``keys``, of which there is one at least.

    Raises:
        CredentialsError: not a token, or another key's, or another algorithm.
    """
    for key in keys[:-1]:
        try:
            return _verified_claims(token, key)
        except CredentialsError:
            continue
    return _verified_claims(token, keys[-1])


def _verified_claims(token: bytes, key: VerificationKey) -> dict[str, Any]:
    check_size(token)
    _refuse_forgery(token, key)
    try:
        found = _JWS.decode_complete(token, key.key, algorithms=key.algorithms)
        claims = json.loads(found["payload"])
    except PyJWTError as error:
        # Only the kind: texts of the library may repeat parts of the token.
        raise CredentialsError(f"bad token: {type(error).__name__}") from None
    except (ValueError, TypeError, RecursionError):
        raise CredentialsError("bad token: not JSON") from None
    if not isinstance(claims, dict):
        raise CredentialsError("bad token: its claims are no object")
    return claims


def _refuse_forgery(token: bytes, key: VerificationKey) -> None:
    """The signature alone. Whatever passes is asked by the library as well, so that this can only
    refuse; it decodes base64 as laxly as it gets, so that it refuses nothing else than forgeries.

    Raises:
        CredentialsError: not a token, or another key's, or another algorithm.
    """
    signed, _, signature = token.rpartition(b".")
    name = algorithm_of(signed.partition(b".")[0])
    if name is None:
        raise CredentialsError("bad token: DecodeError")
    if name not in key.algorithms:
        raise CredentialsError("bad token: InvalidAlgorithmError")
    try:
        verifier = _JWS.get_algorithm_by_name(name)
        good = verifier.verify(signed, key.key, decoded(signature))
    except ValueError:  # not base64
        good = False
    if not good:
        raise CredentialsError("bad token: InvalidSignatureError")
