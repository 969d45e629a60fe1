"""What the failure tests share: traffic over raw clients, a small disk, what a topic holds."""

import contextlib
import errno
import os
import secrets
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from magnetar.broker.protocol import pulsar_api_pb2 as pb
from tests.history import assert_stored
from tests.raw_client import Position, RawClient


def new_topic() -> str:
    return f"persistent://public/default/failures-{secrets.token_hex(6)}"


def open_producer(url: str, topic: str) -> RawClient:
    client = RawClient(url)
    answer = client.create_producer(topic)
    assert isinstance(answer, pb.CommandProducerSuccess), answer
    return client


def send_all(client: RawClient, numbers: Iterable[int], payload_bytes: int = 100) -> None:
    """Send numbered messages without waiting for receipts."""
    padding = b"x" * payload_bytes
    client.send_bytes(b"".join(RawClient.send_frame(n, b"%012d" % n + padding) for n in numbers))


def take_receipts(client: RawClient, count: int) -> dict[int, Position]:
    """The next receipts: number -> position."""
    receipts = {}
    for _ in range(count):
        receipt = client.expect(pb.BaseCommand.SEND_RECEIPT)[0].send_receipt
        receipts[receipt.sequence_id] = (receipt.message_id.ledgerId, receipt.message_id.entryId)
    return receipts


def publish(url: str, topic: str, numbers: range, payload_bytes: int = 100) -> dict[int, Position]:
    """Send and wait for every receipt."""
    with open_producer(url, topic) as client:
        send_all(client, numbers, payload_bytes)
        return take_receipts(client, len(numbers))


def keep(url: str, topic: str) -> None:
    """A subscription that holds back trimming."""
    with RawClient(url) as client:
        answer = client.subscribe(topic, "keeper", initialPosition=pb.CommandSubscribe.Earliest)
        assert isinstance(answer, pb.CommandSuccess), answer


def open_reader(url: str, topic: str) -> RawClient:
    """A client with a new subscription from the first message on; it has no permits yet."""
    client = RawClient(url)
    answer = client.subscribe(
        topic, f"reader-{secrets.token_hex(4)}", initialPosition=pb.CommandSubscribe.Earliest
    )
    assert isinstance(answer, pb.CommandSuccess), answer
    return client


def read_numbers(client: RawClient, count: int) -> list[int]:
    """Permit and receive so many messages; their numbers in order of arrival."""
    client.flow(count)
    return [int(client.receive_message()[1][:12]) for _ in range(count)]


def check_history(url: str, topic: str, acknowledged: dict[int, Position]) -> None:
    """Every acknowledged message is where its receipt said, in order, once."""
    found: dict[Position, int] = {}
    last = max(acknowledged.values())
    with open_reader(url, topic) as client:
        client.flow(1_000_000)
        while not found or max(found) < last:
            position, payload = client.receive_message()
            assert position not in found
            found[position] = int(payload[:12])
    assert_stored(found, acknowledged)


@contextlib.contextmanager
def small_disk(path: Path, size_mb: int) -> Iterator[Path]:
    """A file system of that size mounted at ``path``; skips the test where that isn't allowed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    path.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "none", str(path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small disk is not permitted: {mounted.stderr.decode()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> Path:
    """Take all space that is left; removing the returned file gives it back."""
    path = disk / "filler"
    with path.open("wb") as file:
        while True:
            left = os.statvfs(disk)
            try:
                os.posix_fallocate(file.fileno(), 0, left.f_bavail * left.f_frsize)
            except OSError as error:
                if error.errno != errno.ENOSPC:  # else the process took some meanwhile
                    raise
            else:
                return path


def flip_byte(path: Path, offset: int) -> None:
    """Bit rot: one byte of a file changes."""
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))
