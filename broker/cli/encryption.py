"""End-to-end encryption as Pulsar's clients do it: the broker has no keys.

An entry's payload, compressed before, is sealed by AES-256-GCM with a data key of the producer's
own; the data key travels with each entry, sealed in turn by RSA-OAEP for every reader's public key.
"""

import argparse
import base64
import binascii
import os
import re
from collections import OrderedDict
from pathlib import Path
from typing import Final
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from magnetar.broker.cli.errors import CliError
from magnetar.broker.protocol import pulsar_api_pb2 as pb

_DATA_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_DATA_KEYS_MAX: Final = 100
"""Unsealed data keys that are remembered: of as many producers."""
_PEM: Final = "application/x-pem-file"
_DATA_URI: Final = re.compile(r"data:([^;,]*)(?:;charset=[^;,]*)?(;base64)?,(.*)", re.DOTALL)


class UndecryptableError(Exception):
    """None of a message's keys is ours, or somebody changed it."""


def encryptor_of(options: argparse.Namespace) -> "Encryptor | None":
    """Of ``-ekn`` and ``-ekv``; None: neither is given. Raises CliError."""
    name, uri = options.encryption_key_name, options.encryption_key_value
    if not name and not uri:
        return None
    if not name or not uri:
        raise CliError("-ekn NAME and -ekv KEY belong together")
    return Encryptor(name, read_key(uri))


def decryptor_of(options: argparse.Namespace) -> "Decryptor | None":
    """Of ``-ekv``; None: it isn't given. Raises CliError."""
    uri = options.encryption_key_value
    return Decryptor(read_key(uri)) if uri else None


def read_key(uri: str) -> bytes:
    """The PEM text that ``file:///path`` or ``data:application/x-pem-file;base64,...`` names.

    Raises:
        CliError: neither of them, or it can't be read.
    """
    if (match := _DATA_URI.fullmatch(uri)) is not None:
        kind, is_base64, text = match.groups()
        if kind != _PEM:
            raise CliError(f"-ekv: data of type {kind or 'text/plain'}, {_PEM} is expected")
        try:
            return base64.b64decode(text, validate=True) if is_base64 else unquote_to_bytes(text)
        except binascii.Error as error:
            raise CliError(f"-ekv: not base64: {error}") from error
    if not uri.startswith("file:"):
        raise CliError(f"-ekv: file:///path or data:{_PEM};base64,... is expected")
    parts = urlsplit(uri)
    path = Path(unquote(parts.netloc + parts.path))
    try:
        return path.read_bytes()
    except OSError as error:
        raise CliError(f"-ekv: {path}: {error.strerror}") from error


class Encryptor:
    """Seals what one command sends, with one data key: far fewer entries than the 2**32 that
    random nonces allow.
    """

    def __init__(self, name: str, public_key: bytes) -> None:
        """
        Args:
            name: of the key, for readers that have several.
            public_key: RSA, as PEM.
        Raises:
            CliError: it is none.
        """
        self.name = name
        try:
            key = serialization.load_pem_public_key(public_key)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise CliError(f"-ekv: not a public key in PEM: {error}") from error
        if not isinstance(key, rsa.RSAPublicKey):
            raise CliError("-ekv: not an RSA key: others can be read by Java clients only")
        data_key = os.urandom(_DATA_KEY_BYTES)
        self._cipher = AESGCM(data_key)
        self.wrapped: bytes = key.encrypt(data_key, _oaep())
        """The data key, sealed for its reader."""

    def seal(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        """The payload sealed; says into the metadata how."""
        nonce = os.urandom(_NONCE_BYTES)
        del metadata.encryption_keys[:]  # of the piece before
        metadata.encryption_keys.add(key=self.name, value=self.wrapped)
        metadata.encryption_param = nonce
        return self._cipher.encrypt(nonce, bytes(payload), None)


class Decryptor:
    """Opens what was sealed for one private key."""

    def __init__(self, private_key: bytes) -> None:
        """Raises CliError: no RSA key as PEM, or one with a password."""
        try:
            key = serialization.load_pem_private_key(private_key, None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise CliError(f"-ekv: not a private key in PEM: {error}") from error
        if not isinstance(key, rsa.RSAPrivateKey):
            raise CliError("-ekv: not an RSA key: only Java clients can use others")
        self._key = key
        self._ciphers: OrderedDict[bytes, AESGCM] = OrderedDict()

    def open(self, metadata: pb.MessageMetadata, payload: bytes | memoryview) -> bytes:
        """The payload as it was sealed; takes the seal out of the metadata.

        Raises:
            UndecryptableError: see the class.
        """
        sealed, nonce = bytes(payload), metadata.encryption_param
        for key in metadata.encryption_keys:
            try:
                opened = self._cipher(key.value).decrypt(nonce, sealed, None)
            except (ValueError, InvalidTag):
                continue
            for field in ("encryption_keys", "encryption_param", "encryption_algo"):
                metadata.ClearField(field)
            return opened
        names = ", ".join(key.key for key in metadata.encryption_keys)
        raise UndecryptableError(f"the private key doesn't open it (sealed for {names})")

    def _cipher(self, wrapped: bytes) -> AESGCM:
        """Raises ValueError: sealed for another key."""
        if wrapped in self._ciphers:
            self._ciphers.move_to_end(wrapped)
            return self._ciphers[wrapped]
        cipher = self._ciphers[wrapped] = AESGCM(self._key.decrypt(wrapped, _oaep()))
        if len(self._ciphers) > _DATA_KEYS_MAX:
            self._ciphers.popitem(last=False)
        return cipher


def _oaep() -> padding.OAEP:
    """With SHA-1, which all of Pulsar's clients use here; OAEP doesn't rest on collisions."""
    sha1 = hashes.SHA1()
    return padding.OAEP(mgf=padding.MGF1(sha1), algorithm=sha1, label=None)
