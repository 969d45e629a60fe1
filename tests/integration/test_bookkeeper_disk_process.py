"""A bookie process whose real disk fills up and is emptied again while nobody calls it."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import httpx

from magnetar.bookkeeper import codes, packet
from magnetar.bookkeeper.bookie_client import BookieClient
from magnetar.bookkeeper.service_info import AVAILABLE_PATH, READ_ONLY_PATH
from magnetar.bookkeeper.transport import AddRequest, ReadRequest
from magnetar.bookkeeper.transport_grpc.config import TransportConfig
from magnetar.bookkeeper.transport_grpc.connector import BookieConnector
from magnetar.metadata.factory import connect_store
from tests.bookie_process import BookieProcess
from tests.waiting import eventually
from tests.zookeeper_process import ZooKeeperProcess

KEY = bytes(20)


class Ballast:
    """A file of a quarter of the free space, without a byte written."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ballast"
        self.free_bytes = shutil.disk_usage(folder).free

    def __enter__(self) -> None:
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.free_bytes // 4)

    def __exit__(self, *_: object) -> None:
        self._path.unlink(missing_ok=True)


async def add(client: BookieClient, entry_id: int, *, recovery: bool = False) -> int:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    body = b"x" * 1000
    head = packet.encode_head(1, entry_id, -1, 0, b"", body)
    ids = range(entry_id, entry_id + 1)
    client.add_entries(
        AddRequest(
            1,
            KEY,
            ids,
            [head],
            [body],
            len(head) + len(body),
            recovery,
            lambda _, code: answer.set_result(code),
        )
    )
    return await answer


def check_pages(web: str) -> None:
    answer = httpx.put(f"{web}/gc")
    assert answer.status_code in (200, 429), "429: it has just collected for want of space"
    (details,) = httpx.get(f"{web}/gc_details").json()
    assert details["minorCompacting"] is False
    assert httpx.put(f"{web}/state").status_code == 405
    assert httpx.put(f"{web}/nowhere").status_code == 404


async def test_an_idle_process_turns_read_only_and_back(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    ballast = Ballast(tmp_path)
    settings = {
        "diskUsageThreshold": "1",
        "diskUsageLwmThreshold": "1",
        "diskCheckInterval": "200",
        "minUsableSize": str(ballast.free_bytes - ballast.free_bytes // 8),
        "httpServerEnabled": "true",
        "httpServerPort": "0",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with BookieProcess(tmp_path / "bookie", zookeeper.url("/disk"), *options) as bookie:
        found = re.search(r"^magnetar bookie: (http://\S+) ", bookie.log, re.MULTILINE)
        assert found is not None
        web = f"{found[1]}/api/v1/bookie"

        def state(name: str) -> bool:
            return bool(httpx.get(f"{web}/state").json()[name])

        store = await connect_store(zookeeper.url("/disk"))
        connector = BookieConnector(store, TransportConfig())
        client = connector.connect(bookie.bookie_id)
        try:
            assert await add(client, 0) == codes.OK
            with ballast:
                await eventually(lambda: state("readOnly"), "it never looked at its disk")
                assert await add(client, 1) == codes.READ_ONLY
                assert state("availableForHighPriorityWrites")
                assert await add(client, 1, recovery=True) == codes.OK
                assert len((await client.read_entries(ReadRequest(1, 0, 9, 1 << 20))).packets) == 2
                async with asyncio.timeout(60):
                    while not await store.children(READ_ONLY_PATH):  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                assert await store.children(AVAILABLE_PATH) == ["readonly"]
            await eventually(lambda: not state("readOnly"), "it never came back")
            assert await add(client, 2) == codes.OK
            check_pages(web)
        finally:
            await connector.close()
            await store.close()
        assert bookie.stop() == 0
