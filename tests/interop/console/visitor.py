"""What tests do at the console's pages, and beside them by REST."""

import re
from typing import Any

import httpx

LOCAL = "http://localhost"


async def rest(admin_url: str, path: str) -> Any:
    async with httpx.AsyncClient() as client:
        return (await client.get(f"{admin_url}/admin/v2/{path}")).json()


async def post(client: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    page = await client.get(path)
    (token,) = re.findall(r'name="token" value="(\w+)"', page.text)
    return await client.post(path, data={"token": token, **fields})


async def step(client: httpx.AsyncClient, path: str, **typed: str) -> httpx.Response:
    """A step's form; ``new_name`` is its field, ``name`` confirms."""
    own = {"name": "name", "value": "value", "new_name": "value.name"}
    fields = {own.get(name, f"value.{name}"): text for name, text in typed.items()}
    return await post(client, f"/console/{path}", **fields)


def reason_of(page: httpx.Response) -> str:
    return " ".join(re.findall(r'role="alert"[^>]*>(.*?)<', page.text))
