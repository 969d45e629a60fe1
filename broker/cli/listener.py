"""Asks a port which protocol it speaks, after a call to it has failed. Sends no credentials."""

import contextlib
import enum
import socket
import ssl
import struct
from collections.abc import Iterator
from typing import Final

_ANSWER_S_MAX: Final = 2.0
_HTTP_QUESTION: Final = b"HEAD / HTTP/1.0\r\n\r\n"
# A frame with BaseCommand{type: CONNECT, connect: {client_version: "probe"}} of PulsarApi.proto;
# built here, as protobuf takes longer to load than the rest of a command.
_CONNECT: Final = b"\x08\x02\x12\x07\x0a\x05probe"
_PULSAR_QUESTION: Final = struct.pack(">II", len(_CONNECT) + 4, len(_CONNECT)) + _CONNECT
_PULSAR_ANSWER: Final = struct.Struct(">IIB")
_TYPE_FIELD: Final = 0x08


class Listener(enum.Enum):
    """What was found at an address; a scheme where it speaks a protocol that we know."""

    HTTP = "http"
    HTTPS = "https"
    PULSAR = "pulsar"
    PULSAR_TLS = "pulsar+ssl"
    NO_HOST = "no address of the name is known"
    NOBODY = "nothing listens there"
    NO_ROUTE = "no connection"
    SILENT = "it takes connections, and speaks nothing that we know"


def find_listener(host: str, port: int) -> Listener:
    """Takes a few seconds where nobody answers."""
    try:
        over_tls = _speaks_tls(host, port)
        for question, plain, encrypted in (
            (_PULSAR_QUESTION, Listener.PULSAR, Listener.PULSAR_TLS),
            (_HTTP_QUESTION, Listener.HTTP, Listener.HTTPS),
        ):
            if _is_answer(plain, _ask(host, port, question, over_tls=over_tls)):
                return encrypted if over_tls else plain
    except socket.gaierror:
        return Listener.NO_HOST
    except ConnectionRefusedError:
        return Listener.NOBODY
    except OSError:
        return Listener.NO_ROUTE
    return Listener.SILENT


def _is_answer(protocol: Listener, answer: bytes) -> bool:
    if protocol is Listener.HTTP:
        return answer.startswith(b"HTTP/")
    if len(answer) < _PULSAR_ANSWER.size:
        return False
    size, command_size, field = _PULSAR_ANSWER.unpack_from(answer)
    return bool(field == _TYPE_FIELD and command_size + 4 <= size)


def _speaks_tls(host: str, port: int) -> bool:
    with _connected(host, port) as plain:
        try:
            _wrapped(plain, host).close()
        except ssl.SSLError as error:
            # An alert is TLS, too: it wants a certificate, or another version.
            return "ALERT" in (error.reason or "")
        except OSError:
            return False
    return True


def _ask(host: str, port: int, question: bytes, *, over_tls: bool) -> bytes:
    """The first bytes of the answer; none where the server closes or says nothing."""
    with _connected(host, port) as plain, contextlib.suppress(TimeoutError, ConnectionError):
        connection = plain
        if over_tls:
            try:
                connection = _wrapped(plain, host)
            except ssl.SSLError:
                return b""
        with connection:
            connection.sendall(question)
            with contextlib.suppress(ssl.SSLError):
                return connection.recv(64)
    return b""


@contextlib.contextmanager
def _connected(host: str, port: int) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=_ANSWER_S_MAX) as connection:
        yield connection


def _wrapped(plain: socket.socket, host: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain, server_hostname=host)
