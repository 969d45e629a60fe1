"""Reads an answer that is made by pieces."""

from collections.abc import AsyncIterator
from typing import Any

import orjson


async def whole(pieces: AsyncIterator[bytes]) -> Any:
    return orjson.loads(b"".join([piece async for piece in pieces]))
