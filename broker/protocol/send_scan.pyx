# cython: language_level=3
"""SENDs of one read, as long as they are plain: their heads and bodies without protobuf objects.
ACKs, and keys of batches, too; and the receipts of SENDs.

Plain: from one producer, with a checksum that is right, one message or a batch each, no chunk, no encryption,
and no field that this file doesn't know. That of a transaction is plain if its metadata names the transaction.
`Connection` reads everything else, and everything where this isn't compiled: it says what is wrong with a frame,
this only stops in front of it. So nothing here raises an error for what a client sends. A test holds the two
against each other.

Every byte is read behind a comparison with the end of what it belongs to.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from crc32c import crc32c

cdef enum:
    _HEAD_BYTES = 32  # see entry_header
    _BATCH = 1  # entry_header.FLAG_BATCH
    _TRANSACTION = 16  # entry_header.FLAG_TRANSACTION
    _KEY = 32  # entry_header.FLAG_KEY
    _BATCHED_BYTES_MIN = 6  # as entry_header
    _CHECKED = 0x0E01
    _SEND_TAGS = 0x080632  # BaseCommand: its type is SEND, and the field of that
    _ACK_TAGS = 0x080A52  # the same of ACK
    _RECEIPT_BYTES_MAX = 68  # of a frame: five numbers of up to ten bytes, and 18 around them


# By compression type, as entry_header: bytes of the codec's frame, and how many bytes each other one can
# stand for.
cdef int64_t[5] _FRAME_BYTES = [0, 0, 6, 9, 1]
cdef int64_t[5] _EXPANSION = [1, 255, 1032, 32768, 22]


cdef struct Send:
    uint64_t producer_id
    uint64_t sequence_id
    uint64_t highest_id
    uint64_t messages
    bint names_transaction


cdef struct Ack:
    uint64_t consumer_id
    uint64_t request_id
    uint64_t txn_least
    uint64_t txn_most
    uint64_t ledger_id
    uint64_t entry_id
    uint64_t left  # PendingAck.left
    uint64_t batch_size


cdef struct Single:
    const uint8_t *key  # NULL: it has none
    Py_ssize_t key_size
    Py_ssize_t payload_size
    bint is_null
    bint is_gone


cdef struct Metadata:
    uint64_t publish_time
    uint64_t deliver_at
    uint64_t compression
    uint64_t unpacked_size
    uint64_t count  # of a batch
    bint is_batch
    bint has_key
    uint32_t key_hash
    int transaction  # 3: both halves are there
    uint64_t marker  # 0: it isn't one
    uint64_t txn_least
    uint64_t txn_most


cdef inline uint32_t _u32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline void _put_u64(uint8_t *at, uint64_t value) noexcept nogil:
    cdef int index
    for index in range(7, -1, -1):
        at[index] = value & 0xFF
        value >>= 8


cdef inline const uint8_t *_varint(
    const uint8_t *at, const uint8_t *end, uint64_t *value
) noexcept nogil:
    """Where the number ends; NULL: it doesn't, has more than 64 bits, or is longer than it need be."""
    cdef uint64_t number = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at < end and shift < 63:
        byte = at[0]
        at += 1
        number |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                return NULL
            value[0] = number
            return at
        shift += 7
    if at < end and at[0] == 1:  # the tenth byte
        value[0] = number | (<uint64_t>1 << 63)
        return at + 1
    return NULL


cdef inline const uint8_t *_sized(
    const uint8_t *at, const uint8_t *end, uint64_t *size
) noexcept nogil:
    """Where the content of a field of bytes begins, which ends by ``end``; NULL: it doesn't."""
    at = _varint(at, end, size)
    if at == NULL or size[0] > <uint64_t>(end - at):
        return NULL
    return at


cdef inline uint8_t *_put_varint(uint8_t *at, uint64_t value) noexcept nogil:
    """Where the number ends."""
    while value > 0x7F:
        at[0] = value & 0x7F | 0x80
        at += 1
        value >>= 7
    at[0] = <uint8_t>value
    return at + 1


cdef inline uint8_t *_put_receipt(
    uint8_t *frame, uint64_t producer_id, uint64_t ledger_id, uint64_t entry_id, uint64_t sequence_id, uint64_t highest_id
) noexcept nogil:
    """Where the frame ends."""
    cdef uint8_t *at = frame + 12
    cdef uint8_t *message_id
    at[0] = 0x08
    at = _put_varint(at + 1, producer_id)
    at[0] = 0x10
    at = _put_varint(at + 1, sequence_id)
    at[0] = 0x1A
    message_id = at + 2
    message_id[0] = 0x08
    at = _put_varint(message_id + 1, ledger_id)
    at[0] = 0x10
    at = _put_varint(at + 1, entry_id)
    message_id[-1] = <uint8_t>(at - message_id)
    at[0] = 0x20
    at = _put_varint(at + 1, highest_id)
    memset(frame, 0, 8)
    frame[3], frame[7] = <uint8_t>(at - frame - 4), <uint8_t>(at - frame - 8)
    frame[8], frame[9], frame[10] = 0x08, 0x07, 0x3A
    frame[11] = <uint8_t>(at - frame - 12)
    return at


def encode_receipts(
    uint64_t producer_id, uint64_t ledger_id, uint64_t entry_id, int step, list sequence_ids, list highest_ids,
    Py_ssize_t start, Py_ssize_t end,
):
    """SEND_RECEIPT frames for ``sequence_ids[start:end]``, joined.

    Args:
        entry_id: of the first; each other one has ``step`` more.
    """
    cdef uint8_t *data
    cdef uint8_t *at
    cdef Py_ssize_t index
    if not 0 <= start <= end <= min(len(sequence_ids), len(highest_ids)):
        raise IndexError(f"receipts {start} to {end} of {len(sequence_ids)}")
    at = data = <uint8_t *>PyMem_Malloc((end - start) * _RECEIPT_BYTES_MAX + 1)
    if data == NULL:
        raise MemoryError
    try:
        for index in range(start, end):
            at = _put_receipt(at, producer_id, ledger_id, entry_id, sequence_ids[index], highest_ids[index])
            entry_id += step
        return PyBytes_FromStringAndSize(<char *>data, at - data)
    finally:
        PyMem_Free(data)


cdef bint _read_send(const uint8_t *at, const uint8_t *end, Send *send) noexcept nogil:
    """False: not plain."""
    cdef uint64_t value = 0
    cdef uint8_t tag
    cdef int seen = 0
    send.highest_id, send.messages, send.names_transaction = 0, 1, False
    while at < end:
        tag = at[0]
        at = _varint(at + 1, end, &value)
        if at == NULL:
            return False
        if tag == 0x08:
            send.producer_id = value
            seen |= 1
        elif tag == 0x10:
            send.sequence_id = value
            seen |= 2
        elif tag == 0x18:  # num_messages
            if value > 0x7FFFFFFF:
                return False
            send.messages = value
        elif tag == 0x20 or tag == 0x28:  # least and most bits; `on_send` looks at the metadata, too
            send.names_transaction = True
        elif tag == 0x30:
            send.highest_id = value
        else:
            return False
    return seen == 3 and (send.highest_id == 0 or send.highest_id >= send.sequence_id)


cdef bint _is_property(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Both of a property's required fields are there, and nothing else."""
    cdef uint64_t size = 0
    cdef uint8_t tag
    cdef int seen = 0
    while at < end:
        tag = at[0]
        at = _sized(at + 1, end, &size)
        if at == NULL:
            return False
        if tag == 0x0A:
            seen |= 1
        elif tag == 0x12:
            seen |= 2
        else:
            return False
        at += size
    return seen == 3


cdef uint32_t _murmur3(const uint8_t *at, Py_ssize_t size) noexcept nogil:
    """MurmurHash3_x86_32 with seed 0, by Austin Appleby's description."""
    cdef uint32_t hashed = 0, block
    cdef Py_ssize_t index, whole = size & ~3
    for index in range(0, whole, 4):
        block = at[index] | (<uint32_t>at[index + 1] << 8)
        block |= (<uint32_t>at[index + 2] << 16) | (<uint32_t>at[index + 3] << 24)
        block *= <uint32_t>0xCC9E2D51
        block = ((block << 15) | (block >> 17)) * <uint32_t>0x1B873593
        hashed ^= block
        hashed = ((hashed << 13) | (hashed >> 19)) * 5 + <uint32_t>0xE6546B64
    if size & 3:
        block = 0
        for index in range(size - 1, whole - 1, -1):
            block = (block << 8) | at[index]
        block *= <uint32_t>0xCC9E2D51
        hashed ^= ((block << 15) | (block >> 17)) * <uint32_t>0x1B873593
    hashed ^= <uint32_t>size
    hashed = (hashed ^ (hashed >> 16)) * <uint32_t>0x85EBCA6B
    hashed = (hashed ^ (hashed >> 13)) * <uint32_t>0xC2B2AE35
    return hashed ^ (hashed >> 16)


cdef bint _read_metadata(const uint8_t *at, const uint8_t *end, Metadata *found) noexcept nogil:
    """False: not plain."""
    cdef uint64_t tag = 0, value = 0
    cdef const uint8_t *key = NULL
    cdef Py_ssize_t key_size = 0
    cdef int seen = 0
    cdef bint is_ordering_key = False
    memset(found, 0, sizeof(Metadata))
    while at < end:
        at = _varint(at, end, &tag)
        if at == NULL:
            return False
        if tag & 7 == 0:
            at = _varint(at, end, &value)
            if at == NULL:
                return False
            if tag == 0x10:  # sequence_id
                seen |= 2
            elif tag == 0x18:
                found.publish_time = value
                seen |= 4
            elif tag == 0x98:
                found.deliver_at = value
            elif tag == 0x58:  # num_messages_in_batch
                found.is_batch, found.count = True, value
            elif tag == 0x40:
                found.compression = value
            elif tag == 0x48:
                found.unpacked_size = value
            elif tag == 0xA0:  # marker_type
                if value == 0 or value >= 0x80:
                    return False
                found.marker = value
            elif tag == 0xB0:
                found.txn_least, found.transaction = value, found.transaction | 1
            elif tag == 0xB8:
                found.txn_most, found.transaction = value, found.transaction | 2
            # event_time, highest_sequence_id, null_value, null_partition_key
            elif tag not in (0x60, 0xC0, 0xC8, 0xF0):
                return False
        elif tag & 7 == 2:
            at = _sized(at, end, &value)
            if at == NULL:
                return False
            if tag == 0x0A:  # producer_name
                seen |= 1
            elif tag == 0x22:
                if not _is_property(at, at + value):
                    return False
            elif tag == 0x32:  # partition_key
                if not is_ordering_key:
                    key, key_size = at, <Py_ssize_t>value
            elif tag == 0x92:
                key, key_size, is_ordering_key = at, <Py_ssize_t>value, True
            elif tag not in (0x82, 0x102):  # schema_version, schema_id
                return False
            at += value
        else:
            return False
    if key != NULL:
        found.has_key = True
        found.key_hash = _murmur3(key, key_size) & 0x7FFFFFFF
    if found.is_batch and (
        # Protobuf would cut them to 32 bits, or forget the last one.
        found.count >> 31 or found.unpacked_size >> 32 or found.compression > 4
    ):
        return False
    return seen == 7 and (found.transaction == 0 or found.transaction == 3)


cdef uint32_t _count(const Metadata *metadata, int64_t size) noexcept nogil:
    """Messages of a batch whose payload has so many bytes: see entry_header.make_header."""
    cdef int64_t unpacked, count = <int64_t>metadata.count
    if metadata.compression:
        unpacked = (size - _FRAME_BYTES[metadata.compression]) * _EXPANSION[metadata.compression]
        size = max(size, min(<int64_t>metadata.unpacked_size, unpacked))
    return <uint32_t>max(1, min(count, size // _BATCHED_BYTES_MIN))


cdef bytes _head(const Metadata *metadata, Py_ssize_t payload_bytes):
    """The entry's head: see entry_header."""
    cdef uint32_t count = 1
    cdef bytes head = PyBytes_FromStringAndSize(NULL, _HEAD_BYTES)
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(head)
    memset(at, 0, _HEAD_BYTES)
    if metadata.is_batch:
        count = _count(metadata, payload_bytes)
        at[3] = _BATCH
    if metadata.transaction:
        at[3] |= _TRANSACTION
    at[0], at[1] = 0x4D, 1
    at[4], at[5] = count >> 24, (count >> 16) & 0xFF
    at[6], at[7] = (count >> 8) & 0xFF, count & 0xFF
    _put_u64(at + 8, metadata.publish_time)
    if <int64_t>metadata.deliver_at > 0:
        _put_u64(at + 16, metadata.deliver_at)
    if metadata.has_key:
        at[3] |= _KEY
        at[24], at[25] = metadata.key_hash >> 24, (metadata.key_hash >> 16) & 0xFF
        at[26], at[27] = (metadata.key_hash >> 8) & 0xFF, metadata.key_hash & 0xFF
    return head


def scan_sends(view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t body_max, Py_ssize_t metadata_max):
    """The plain SENDs at the beginning of ``view[start:end]``, of the first one's producer.

    Args:
        view: a memoryview of bytes.
        body_max: of metadata and payload with what is in front of them.

    Returns:
        None: the first frame isn't one. Else where the next frame begins; the producer's id; of each
        its head, body, sequence id, and the highest one of its batch; how many messages they say
        they are; the bytes of their bodies; and of those that are of a transaction, by index, most
        and least bits, or None if there are none.
    """
    cdef Py_buffer buffer
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        if start < 0 or end > buffer.len:
            raise IndexError(f"bytes {start} to {end} of {buffer.len}")
        return _scan(view, <const uint8_t *>buffer.buf, start, end, body_max, metadata_max)
    finally:
        PyBuffer_Release(&buffer)


cdef object _scan(
    object view,
    const uint8_t *data,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t body_max,
    Py_ssize_t metadata_max,
):
    cdef Send send
    cdef Metadata metadata
    cdef Py_ssize_t frame_end, body_from, size, payload_from, body_bytes = 0
    cdef uint64_t producer_id = 0, messages = 0
    cdef dict transactions = None
    cdef list heads = [], bodies = [], sequence_ids = [], highest_ids = []
    while end - start >= 12:
        frame_end = start + 4 + <Py_ssize_t>_u32(data + start)
        size = <Py_ssize_t>_u32(data + start + 4)
        body_from = start + 8 + size
        if (
            frame_end > end
            or size < 4
            or frame_end - body_from < 10
            or frame_end - body_from > body_max
            or _u32(data + start + 8) != (_SEND_TAGS << 8 | <uint32_t>(size - 4))
            or not _read_send(data + start + 12, data + body_from, &send)
            or (heads and send.producer_id != producer_id)
            or (data[body_from] << 8 | data[body_from + 1]) != _CHECKED
        ):
            break
        size = <Py_ssize_t>_u32(data + body_from + 6)
        payload_from = body_from + 10 + size
        if (
            size > metadata_max
            or payload_from > frame_end
            or not _read_metadata(data + body_from + 10, data + payload_from, &metadata)
            or metadata.marker
            or (send.names_transaction and not metadata.transaction)
            or crc32c(view[body_from + 6 : frame_end]) != _u32(data + body_from + 2)
        ):
            break
        producer_id = send.producer_id
        if metadata.transaction:
            if transactions is None:
                transactions = {}
            transactions[len(heads)] = (metadata.txn_most, metadata.txn_least)
        heads.append(_head(&metadata, frame_end - payload_from))
        size = frame_end - body_from
        bodies.append(PyBytes_FromStringAndSize(<const char *>data + body_from, size))
        sequence_ids.append(send.sequence_id)
        highest_ids.append(send.highest_id)
        # As SendPath.on_send: a number for statistics, which a client may choose
        messages += send.messages if 0 < send.messages <= <uint64_t>size else 1
        body_bytes += size
        start = frame_end
    if not heads:
        return None
    return start, producer_id, heads, bodies, sequence_ids, highest_ids, messages, body_bytes, transactions


def scan_transaction(body):
    """What the metadata of a stored entry says of a transaction.

    Returns:
        Marker type or 0, most and least bits, and when it was published. None: ask protobuf, as the
        entry isn't plain but for its marker, has no checksum, or names no transaction.
    """
    cdef Py_buffer buffer
    cdef Metadata metadata
    cdef const uint8_t *data
    cdef Py_ssize_t size
    cdef bint is_found = False
    PyObject_GetBuffer(body, &buffer, PyBUF_SIMPLE)
    data = <const uint8_t *>buffer.buf
    if buffer.len >= 10 and (data[0] << 8 | data[1]) == _CHECKED:
        size = <Py_ssize_t>_u32(data + 6)
        is_found = size <= buffer.len - 10 and _read_metadata(data + 10, data + 10 + size, &metadata)
    PyBuffer_Release(&buffer)
    if not is_found or not metadata.transaction:
        return None
    return metadata.marker, metadata.txn_most, metadata.txn_least, metadata.publish_time


cdef bint _read_message_id(const uint8_t *at, const uint8_t *end, Ack *ack) noexcept nogil:
    """False: not plain."""
    cdef uint64_t value = 0
    cdef uint8_t tag
    cdef int seen = 0
    while at < end:
        tag = at[0]
        at = _varint(at + 1, end, &value)
        if at == NULL:
            return False
        if tag == 0x08:
            ack.ledger_id, seen = value, seen | 1
        elif tag == 0x10:
            ack.entry_id, seen = value, seen | 2
        elif tag == 0x28:  # ack_set: one word
            if seen & 4:
                return False
            ack.left, seen = value, seen | 4
        elif tag == 0x30:
            ack.batch_size = value
        elif tag != 0x18 and tag != 0x20:  # partition, batch_index
            return False
    return seen & 3 == 3


cdef bint _read_ack(const uint8_t *at, const uint8_t *end, Ack *ack) noexcept nogil:
    """False: not plain."""
    cdef uint64_t value = 0
    cdef uint8_t tag
    cdef int seen = 0
    ack.left = ack.batch_size = 0
    while at < end:
        tag = at[0]
        if tag == 0x1A:  # message_id: a single one
            at = _sized(at + 1, end, &value)
            if at == NULL or seen & 4 or not _read_message_id(at, at + value, ack):
                return False
            if ack.batch_size > 64:
                return False
            at, seen = at + value, seen | 4
            continue
        at = _varint(at + 1, end, &value)
        if at == NULL:
            return False
        if tag == 0x08:
            ack.consumer_id, seen = value, seen | 1
        elif tag == 0x10:  # ack_type: individual
            if value:
                return False
            seen |= 2
        elif tag == 0x30:
            ack.txn_least, seen = value, seen | 8
        elif tag == 0x38:
            ack.txn_most, seen = value, seen | 16
        elif tag == 0x40:
            ack.request_id, seen = value, seen | 32
        else:
            return False
    return seen == 63


def scan_acks(view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count_max):
    """The plain ACKs at the beginning of ``view[start:end]``, of the first one's consumer and transaction.

    Plain: individual, of one entry or of some messages of a batch of up to 64, with a request id.

    Args:
        view: a memoryview of bytes.

    Returns:
        None: the first frame isn't one. Else where the next frame begins; the consumer's id; most and
        least bits of the transaction; of each its request id, and what a `PendingAck` is made of.
    """
    cdef Py_buffer buffer
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        if start < 0 or end > buffer.len:
            raise IndexError(f"bytes {start} to {end} of {buffer.len}")
        return _scan_acks(<const uint8_t *>buffer.buf, start, end, count_max)
    finally:
        PyBuffer_Release(&buffer)


cdef object _scan_acks(const uint8_t *data, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count_max):
    cdef Ack ack
    cdef Py_ssize_t frame_end, size
    cdef uint64_t consumer_id = 0, least = 0, most = 0
    cdef list request_ids = [], found = []
    while end - start >= 12 and len(found) < count_max:
        frame_end = start + 4 + <Py_ssize_t>_u32(data + start)
        size = <Py_ssize_t>_u32(data + start + 4)
        if (
            frame_end > end
            or size < 4
            or frame_end != start + 8 + size
            or _u32(data + start + 8) != (_ACK_TAGS << 8 | <uint32_t>(size - 4))
            or size - 4 > 127
            or not _read_ack(data + start + 12, data + frame_end, &ack)
            or (found and ack.consumer_id != consumer_id)
            or (found and (ack.txn_least != least or ack.txn_most != most))
        ):
            break
        consumer_id, least, most = ack.consumer_id, ack.txn_least, ack.txn_most
        request_ids.append(ack.request_id)
        found.append(((<int64_t>ack.ledger_id, <int64_t>ack.entry_id), ack.left, ack.batch_size))
        start = frame_end
    if not found:
        return None
    return start, consumer_id, most, least, request_ids, found


def scan_ack(view, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count_max):
    """What the command ``view[start:end]`` acknowledges, if it is an individual ACK of whole entries.

    Args:
        view: a memoryview of bytes.
        count_max: entries that it may name.

    Returns:
        None: ask protobuf. Else the consumer's id; the request's or None; the positions, one at least.
    """
    cdef Py_buffer buffer
    PyObject_GetBuffer(view, &buffer, PyBUF_SIMPLE)
    try:
        if start < 0 or end > buffer.len:
            raise IndexError(f"bytes {start} to {end} of {buffer.len}")
        return _scan_ack(<const uint8_t *>buffer.buf + start, <const uint8_t *>buffer.buf + end, count_max)
    finally:
        PyBuffer_Release(&buffer)


cdef object _scan_ack(const uint8_t *at, const uint8_t *end, Py_ssize_t count_max):
    cdef Ack ack
    cdef uint64_t value = 0
    cdef uint8_t tag
    cdef int seen = 0
    cdef list positions = []
    if end - at < 4 or _u32(at) >> 8 != _ACK_TAGS:
        return None
    at = _sized(at + 3, end, &value)
    if at == NULL or at + value != end:
        return None
    while at < end:
        tag = at[0]
        if tag == 0x1A:  # message_id
            at = _sized(at + 1, end, &value)
            ack.left = 0
            if at == NULL or len(positions) == count_max or not _read_message_id(at, at + value, &ack) or ack.left:
                return None
            positions.append((ack.ledger_id, ack.entry_id))
            at += value
            continue
        at = _varint(at + 1, end, &value)
        if at == NULL:
            return None
        if tag == 0x08:
            ack.consumer_id, seen = value, seen | 1
        elif tag == 0x10:  # ack_type: individual
            if value:
                return None
            seen |= 2
        elif tag == 0x40:
            ack.request_id, seen = value, seen | 4
        else:
            return None
    if seen & 3 != 3 or not positions:
        return None
    return ack.consumer_id, ack.request_id if seen & 4 else None, positions


cdef bint _read_single(const uint8_t *at, const uint8_t *end, Single *single) noexcept nogil:
    """The metadata of a message in a batch; False: ask protobuf."""
    cdef uint64_t value = 0
    cdef uint8_t tag
    cdef bint is_sized = False
    memset(single, 0, sizeof(Single))
    while at < end:
        tag = at[0]
        if tag == 0x0A or tag == 0x12 or tag == 0x3A:  # a property, the key, the ordering key
            at = _sized(at + 1, end, &value)
            if at == NULL or (tag == 0x0A and not _is_property(at, at + value)):
                return False
            if tag == 0x12:
                single.key, single.key_size = at, <Py_ssize_t>value
            at += value
            continue
        at = _varint(at + 1, end, &value)
        if at == NULL:
            return False
        if tag == 0x18:
            if value > 0x7FFFFFFF:
                return False
            single.payload_size, is_sized = <Py_ssize_t>value, True
        elif tag == 0x20:
            single.is_gone = value != 0
        elif tag == 0x48:
            single.is_null = value != 0
        elif tag != 0x28 and tag != 0x30 and tag != 0x40 and tag != 0x50:
            return False
    return is_sized


def scan_keys(data, Py_ssize_t count):
    """Of each message of a batch: its key or None, whether it has no value, and whether it is compacted out.

    Args:
        data: the batch, not compressed.

    Returns:
        None: ask protobuf, as a message is broken or has a field that this file doesn't know.
    """
    cdef Py_buffer buffer
    cdef Single single
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef Py_ssize_t size
    cdef list found = []
    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
    at, end = <const uint8_t *>buffer.buf, <const uint8_t *>buffer.buf + buffer.len
    try:
        while len(found) < count:
            if end - at < 4:
                return None
            size = <Py_ssize_t>_u32(at)
            at += 4
            if size > end - at or not _read_single(at, at + size, &single):
                return None
            at += size
            if single.payload_size > end - at:
                return None
            at += single.payload_size
            found.append((
                None if single.key == NULL else single.key[: single.key_size],
                single.is_null or single.payload_size == 0,
                single.is_gone,
            ))
        return found
    finally:
        PyBuffer_Release(&buffer)
