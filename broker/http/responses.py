"""Answers: JSON by orjson, plain text, and nothing at all."""

from typing import Any

import orjson
from starlette.responses import PlainTextResponse, Response


class JsonResponse(Response):
    """JSON of a plain value; written without charset, as Pulsar does."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


TextResponse = PlainTextResponse


def no_content() -> Response:
    """204: done, nothing to tell."""
    return Response(status_code=204)
