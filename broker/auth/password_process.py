"""The process that computes hashes of passwords for a broker: questions in, one byte out for each.

It shares nothing with the broker but a socket, so that its work costs the broker neither Python's
lock nor a processor that the broker wants. It ends with that socket.

A question: sizes of hash and password (two big-endian u16), the hash, the password. The answer:
``YES`` or ``NO``.
"""

import os
import signal
import struct
from typing import BinaryIO, Final

from magnetar.broker.auth.password_hashes import verify
from magnetar.broker.cpu_scheduling import INTERRUPT_S, die_with_parent, run_behind_others

YES: Final = b"\1"
NO: Final = b"\0"
_SIZES: Final = struct.Struct(">HH")


def encode_question(digest: str, password: bytes) -> bytes:
    head = digest.encode()
    return b"".join((_SIZES.pack(len(head), len(password)), head, password))


def serve(source: BinaryIO, *, idle: bool) -> None:
    """Answer until the broker closes its end, or is no more.

    Args:
        source: of the socket, which is standard output, too.
        idle: use a processor only while no other does; else a little more.
    """
    die_with_parent()
    run_behind_others(idle=idle)
    # Its handler runs between two hashes; what counts is the interrupt (broker/cpu_scheduling.py).
    signal.signal(signal.SIGALRM, lambda *_: None)
    while len(sizes := source.read(_SIZES.size)) == _SIZES.size:
        digest_bytes, password_bytes = _SIZES.unpack(sizes)
        body = source.read(digest_bytes + password_bytes)
        if len(body) < digest_bytes + password_bytes:
            return
        signal.setitimer(signal.ITIMER_REAL, INTERRUPT_S, INTERRUPT_S)
        good = verify(body[:digest_bytes].decode(), body[digest_bytes:])
        signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            os.write(1, YES if good else NO)
        except OSError:
            return  # the broker is gone
