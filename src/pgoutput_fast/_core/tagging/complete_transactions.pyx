"""Finds complete plain transactions among payloads. They need not wait for any later message."""
from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.fields cimport EPOCH_SHIFT, LAST_TIMESTAMP
from pgoutput_fast._core.protocol.kinds cimport MSG_BEGIN, MSG_BEGIN_PREPARE, MSG_COMMIT, MSG_STREAM_START
from pgoutput_fast._core.protocol.limits cimport MAX_PAYLOAD
from pgoutput_fast._core.tagging.scan cimport (
    BETWEEN,
    BOUNDARY,
    ELSEWHERE,
    INSIDE,
    Payloads,
    SearchPosition,
    damaged_offsets,
    message_class,
    offset_at,
)
from pgoutput_fast._core.protocol.wire cimport load64, prefetch

# Prefetch distance, in messages. Tags are too far apart for the processor to prefetch them by itself.
cdef int64_t AHEAD = 64

# By kind: whether it is a boundary message or unknown. A table, because a call per message would be slow.
cdef uint8_t[256] BOUNDARY_OR_UNKNOWN
for _kind in range(256):
    BOUNDARY_OR_UNKNOWN[_kind] = message_class(_kind) & BOUNDARY or message_class(_kind) == 0

# The next two functions read less than protocol/boundary.pyx does, because they run for about every third message.
cdef inline bint _begins(const uint8_t* p, int64_t size, int64_t* lsn, int64_t* timestamp) noexcept nogil:
    """Whether a Begin is valid. `lsn` and `timestamp` are then those of the Commit that it announces."""
    if size != 21:
        return False
    lsn[0] = <int64_t> load64(p + 1)
    timestamp[0] = <int64_t> load64(p + 9)
    if lsn[0] < 0 or timestamp[0] > LAST_TIMESTAMP:
        return False
    timestamp[0] += EPOCH_SHIFT
    return True


cdef inline bint _commits(const uint8_t* p, int64_t size, int64_t lsn, int64_t timestamp) noexcept nogil:
    """Whether a Commit is valid and is the one that the Begin announced."""
    return (size == 26 and p[1] == 0 and <int64_t> load64(p + 2) == lsn and <int64_t> load64(p + 10) >= 0
            and <int64_t> load64(p + 18) == timestamp - EPOCH_SHIFT)


cdef int64_t _search(Payloads payloads, SearchPosition place, int64_t lsn, int64_t timestamp, int64_t least,
                     vector[int64_t]& found) except? -2 nogil:
    """Appends the begin and end of every range to `found`. Returns -1 - i if the offsets of message i are damaged.

    If the search begins inside a plain transaction, `lsn` and `timestamp` are those announced by its Begin.
    """
    cdef int64_t count = payloads.count
    cdef int64_t begin = 0, complete = 0
    cdef int64_t i, end
    cdef int64_t at = offset_at(payloads, 0)
    cdef uint8_t kind
    cdef const uint8_t* p
    for i in range(count):
        end = offset_at(payloads, i + 1)
        if end < at or at < 0 or end > payloads.data_size:
            return -1 - i
        if i + AHEAD < count:
            prefetch(payloads.data + offset_at(payloads, i + AHEAD))
        p = payloads.data + at
        kind = p[0] if at < end <= at + MAX_PAYLOAD else 0
        if BOUNDARY_OR_UNKNOWN[kind]:
            if place == BETWEEN and kind == MSG_BEGIN:
                place = INSIDE if _begins(p, end - at, &lsn, &timestamp) else ELSEWHERE
            elif place == INSIDE and kind == MSG_COMMIT:
                place = BETWEEN if _commits(p, end - at, lsn, timestamp) else ELSEWHERE
            else:
                place = ELSEWHERE
            if place == ELSEWHERE:
                if complete - begin >= least:
                    found.push_back(begin)
                    found.push_back(complete)
                begin = complete = i + 1
                # After any other boundary message no transaction is open, even if the message is invalid.
                if (kind != 0 and kind != MSG_BEGIN and kind != MSG_BEGIN_PREPARE and kind != MSG_STREAM_START
                        and message_class(kind)):
                    place = BETWEEN
        if place == BETWEEN:
            complete = i + 1
        at = end
    if complete - begin >= least:
        found.push_back(begin)
        found.push_back(complete)
    return 0


def complete_ranges(array, bint between, int64_t least, announced=None):
    """Returns ranges of messages that contain complete plain transactions: [(begin, end)].

    A transaction is complete with its Begin and the Commit that the Begin announced. A range from 0 on may begin with
    the rest of the open plain transaction.

    At the end of a range, the outcome of all its messages is known: none has to wait for a later message. None of its
    boundary messages can be invalid.

    Args:
        array: payloads, a binary or large binary Arrow array.
        between: whether no transaction is open before the first message.
        least: minimum number of messages in a range, unless it has all messages of `array`.
        announced: (LSN, timestamp) of the Commit if a plain transaction is open before the first message.
    """
    cdef Payloads payloads = Payloads(array)
    cdef vector[int64_t] found
    cdef int64_t failed = 0
    cdef size_t k
    cdef int64_t lsn = 0, timestamp = 0
    cdef SearchPosition place = BETWEEN if between else ELSEWHERE
    if announced is not None:
        lsn, timestamp = announced
        place = INSIDE
    if payloads.count:
        with nogil:
            failed = _search(payloads, place, lsn, timestamp, min(least, payloads.count), found)
    if failed:
        raise damaged_offsets(-1 - failed)
    return [(found[2 * k], found[2 * k + 1]) for k in range(found.size() // 2)]
