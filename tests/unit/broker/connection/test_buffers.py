"""The receive buffer and the grouping of what is sent."""

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.connection.connection import coalesce
from magnetar.broker.connection.receive_buffer import FrameBuffer, SharedBuffer


def frames_through(shared: SharedBuffer, stream: bytes, pieces: list[int]) -> list[bytes]:
    """Split as a connection does; sizes are 4 bytes plus content."""
    buffer, found, rest, turn = FrameBuffer(shared), [], stream, 0
    while rest:
        target = buffer.target()
        count = min(len(target), len(rest), pieces[turn % len(pieces)])
        turn += 1
        target[:count] = rest[:count]
        rest = rest[count:]
        view, end = buffer.received(count)
        start = 0
        while end - start >= 4:
            size = 4 + int.from_bytes(view[start : start + 4], "big")
            if start + size > end:
                break
            found.append(bytes(view[start + 4 : start + size]))
            start += size
        buffer.keep(view, start, end)
        shared.view[:] = bytes(len(shared.view))  # other connections use it in between
    return found


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 5, 100, 4_000, 65_530, 65_540, 100_000, 200_000, 600_000]),
        max_size=8,
    ),
    pieces=st.lists(st.sampled_from([1_000, 7_777, 65_536, 300_000]), min_size=1, max_size=5),
    room=st.sampled_from([128 * 1024, 256 * 1024]),
)
def test_frames_come_out_whole_however_they_arrive(
    sizes: list[int], pieces: list[int], room: int
) -> None:
    frames = [bytes((n % 251,)) * size for n, size in enumerate(sizes)]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    assert frames_through(SharedBuffer(room), stream, pieces) == frames


def test_the_rest_of_a_frame_is_read_with_what_follows_while_reads_fill_the_buffer() -> None:
    buffer = FrameBuffer(SharedBuffer())
    room = len(buffer.target())
    view, end = buffer.received(room)
    view[end - 100_000 : end - 99_996] = (130_000).to_bytes(4, "big")
    buffer.keep(view, end - 100_000, end)
    assert len(buffer.target()) == room - 100_000
    view, end = buffer.received(1_000)  # a slow client: the next pieces aren't copied each time
    buffer.keep(view, 0, end)
    assert len(buffer.target()) == 130_004 - 101_000


def test_an_announced_size_alone_costs_no_memory() -> None:
    buffer = FrameBuffer(SharedBuffer())
    head = (5_000_000).to_bytes(4, "big")
    buffer.target()[:4] = head
    view, end = buffer.received(4)
    buffer.keep(view, 0, end)
    assert len(buffer.target()) < 300_000


@given(sizes=st.lists(st.sampled_from([0, 1, 30, 1_100, 4_095, 4_096, 70_000]), max_size=20))
def test_coalescing_changes_neither_bytes_nor_order(sizes: list[int]) -> None:
    buffers: list[bytes | memoryview] = [bytes((n,)) * size for n, size in enumerate(sizes)]
    grouped = coalesce(buffers)
    assert b"".join(grouped) == b"".join(buffers)
    assert len(grouped) <= len(buffers)


def test_large_buffers_are_not_copied_and_small_ones_are_joined() -> None:
    large, small = bytes(100_000), b"head"
    grouped = coalesce([small, small, large, small, large])
    assert [len(buffer) for buffer in grouped] == [8, 100_000, 4, 100_000]
    assert grouped[1] is large
    assert len(coalesce([b"x" * 1_100] * 50)) == 1
