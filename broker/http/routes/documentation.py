"""/docs: the OpenAPI document as a page, without any asset from elsewhere.

Swagger UI's files come with the package fastapi-swagger (docs/decisions/0012-*.md). The page's own
script is a file too, so that the content security policy can forbid scripts in the page.
"""

import asyncio
import functools
import zlib
from importlib import resources
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from magnetar.broker.http.errors import ApiError
from magnetar.broker.http.middleware.compression import accepts_gzip
from magnetar.broker.http.responses import JsonResponse
from magnetar.broker.http.routing.route import Access, Routes, RoutingMode

routes = Routes(access=Access.FREE, mode=RoutingMode.LOCAL, include_in_schema=False)

_PACKAGE: Final = "fastapi_swagger.resources"
_ASSETS: Final = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon-32x32.png": "image/png",
}
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Magnetar HTTP API</title>
<link rel="icon" href="docs/favicon-32x32.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<noscript>This page needs JavaScript. The description itself: <a
href="openapi.json">openapi.json</a></noscript> <div id="api"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START: Final = """\
SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#api",
  deepLinking: true,
  docExpansion: "none",
  filter: true,
  displayRequestDuration: true,
  validatorUrl: null,
});
"""
_POLICY: Final = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
)


@routes.get("/openapi.json", "")
async def description(request: Request) -> Response:
    return await asyncio.to_thread(lambda: JsonResponse(request.app.state.openapi()))


@routes.get("/docs", "")
async def page() -> Response:
    return _text(_PAGE, "text/html; charset=utf-8")


@routes.get("/docs/start.js", "")
async def start() -> Response:
    return _text(_START, "text/javascript; charset=utf-8")


@routes.get("/docs/{name}", "")
async def asset(name: str, request: Request) -> Response:
    """A file of Swagger UI; compressed once, as it is a megabyte and a half."""
    if name not in _ASSETS:
        raise ApiError(404, "Not Found")
    headers = {"Cache-Control": "public, max-age=3600", "Vary": "Accept-Encoding"}
    packed = accepts_gzip(request.headers.get("accept-encoding", "").encode("latin-1"))
    if packed and not name.endswith(".png"):
        headers["Content-Encoding"] = "gzip"
        data = await asyncio.to_thread(_packed, name)
        return Response(data, media_type=_ASSETS[name], headers=headers)
    return Response(_read(name), media_type=_ASSETS[name], headers=headers)


def _text(text: str, media_type: str) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
    return Response(text, media_type=media_type, headers=headers)


def _read(name: str) -> bytes:
    return resources.files(_PACKAGE).joinpath(name).read_bytes()


@functools.cache
def _packed(name: str) -> bytes:
    return zlib.compress(_read(name), 6, 31)
