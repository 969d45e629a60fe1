"""Cuts what a client sends into WebSocket frames (RFC 6455 5.2); reads whole texts itself. Pure.

Everything else (control frames, fragments, what is large or wrong) is left to the library, which
takes five times as long for a text.
"""

from struct import Struct
from typing import Final

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # the compiled one if there is one

_TEXT_FINAL: Final = 0x81
_FINAL, _IS_MASKED = 0x80, 0x80
_CONTINUATION, _TEXT, _BINARY = 0, 1, 2
_KEPT_BYTES_MAX: Final = 16 * 1024
"""Of a frame that isn't whole yet: beyond it joining the pieces anew takes longer than it gains."""
_ALL: Final = 1 << 63
"""More bytes than will ever come."""
_LENGTH_16, _LENGTH_64 = Struct(">H"), Struct(">Q")


class WebSocketFrameReader:
    """Call ``read`` with all bytes behind the handshake, in order."""

    __slots__ = ("_in_fragments", "_owed", "_rest", "_text_bytes_max")

    def __init__(self, text_bytes_max: int) -> None:
        self._text_bytes_max = text_bytes_max
        self._rest = b""  # the beginning of a frame
        self._owed = 0  # bytes of a frame whose beginning was left to the library
        self._in_fragments = False  # of a message

    def read(self, data: bytes) -> list[list[bytes] | bytes]:
        """Payloads of texts, and between them the bytes of other frames as they came."""
        parts: list[list[bytes] | bytes] = []
        texts: list[bytes] = []
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end = 0, len(data)
        if self._owed:
            at = min(self._owed, end)
            self._owed -= at
            parts.append(data[:at])
        while end - at >= 2:
            head, size = data[at], data[at + 1] - _IS_MASKED
            start = at + 6
            if size < 0 or (size > 125 and head & ~_FINAL > _BINARY):
                # Against the protocol: the library says how, maybe behind the payload. Nothing of
                # that is a frame, nor of what follows.
                size, head = _ALL, 0
            elif size == 126 and end - at >= 4:
                (size,) = _LENGTH_16.unpack_from(data, at + 2)
                start = at + 8
            elif size == 127 and end - at >= 10:
                (size,) = _LENGTH_64.unpack_from(data, at + 2)
                start = at + 14
            elif size > 125:
                break
            after = start + size
            is_short = head == _TEXT_FINAL and 0 <= size <= self._text_bytes_max
            if is_short and not self._in_fragments and after <= end:
                texts.append(apply_mask(data[start:after], data[start - 4 : start]))
                at = after
                continue
            if is_short and not self._in_fragments and after - at <= _KEPT_BYTES_MAX:
                break
            if texts:
                parts.append(texts)
                texts = []
            self._note(head)
            parts.append(data[at:after])
            self._owed = max(after - end, 0)
            at = min(after, end)
        if texts:
            parts.append(texts)
        self._rest = data[at:]
        return parts

    def _note(self, head: int) -> None:
        kind = head & 0x0F
        if kind in (_TEXT, _BINARY):
            self._in_fragments = not head & _FINAL
        elif kind == _CONTINUATION and head & _FINAL:
            self._in_fragments = False
