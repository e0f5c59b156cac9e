"""Where whole plain transactions lie among payloads: what need not wait for anything behind it."""
from libc.stdint cimport int64_t, uint8_t
from libcpp.vector cimport vector

from pgoutput_fast._core.protocol.fields cimport EPOCH_SHIFT, LAST_TIMESTAMP
from pgoutput_fast._core.protocol.kinds cimport MSG_BEGIN, MSG_BEGIN_PREPARE, MSG_COMMIT, MSG_STREAM_START
from pgoutput_fast._core.protocol.limits cimport MAX_PAYLOAD
from pgoutput_fast._core.tagging.scan cimport BOUNDARY, Payloads, damaged_offsets, message_class
from pgoutput_fast._core.protocol.wire cimport load64, prefetch

# Tags lie too far apart for the processor to guess: this many messages ahead they are asked for.
cdef int64_t AHEAD = 64

# Whether a kind opens or closes something, or is unknown: asked for each message, so not by a call.
cdef uint8_t[256] TURNS
for _kind in range(256):
    TURNS[_kind] = message_class(_kind) & BOUNDARY or message_class(_kind) == 0

# Where the search stands: in something that is no plain transaction, between transactions, in a plain one.
cdef enum Place:
    ELSEWHERE
    BETWEEN
    INSIDE


cdef inline int64_t _offset(Payloads payloads, int64_t i) noexcept nogil:
    return payloads.offsets32[i] if payloads.offsets32 != NULL else payloads.offsets64[i]


# What the two read is a part of what protocol/boundary.pyx reads: here they are asked of every third message or so.
cdef inline bint _begins(const uint8_t* p, int64_t size, int64_t* lsn, int64_t* timestamp) noexcept nogil:
    """Whether a Begin is valid, and the Commit's position and time that it announces."""
    if size != 21:
        return False
    lsn[0] = <int64_t> load64(p + 1)
    timestamp[0] = <int64_t> load64(p + 9)
    if lsn[0] < 0 or timestamp[0] > LAST_TIMESTAMP:
        return False
    timestamp[0] += EPOCH_SHIFT
    return True


cdef inline bint _commits(const uint8_t* p, int64_t size, int64_t lsn, int64_t timestamp) noexcept nogil:
    """Whether a Commit is valid and the one that was announced."""
    return (size == 26 and p[1] == 0 and <int64_t> load64(p + 2) == lsn and <int64_t> load64(p + 10) >= 0
            and <int64_t> load64(p + 18) == timestamp - EPOCH_SHIFT)


cdef int64_t _search(Payloads payloads, Place place, int64_t lsn, int64_t timestamp, int64_t least,
                     vector[int64_t]& found) except? -2 nogil:
    """Appends begin and end of each stretch to `found`. Returns -1 - i where message i's offsets are
    damaged.

    `lsn` and `timestamp` are what the Begin said, where it begins inside of a transaction.
    """
    cdef int64_t count = payloads.count
    cdef int64_t begin = 0, complete = 0
    cdef int64_t i, end
    cdef int64_t at = _offset(payloads, 0)
    cdef uint8_t kind
    cdef const uint8_t* p
    for i in range(count):
        end = _offset(payloads, i + 1)
        if end < at or at < 0 or end > payloads.data_size:
            return -1 - i
        if i + AHEAD < count:
            prefetch(payloads.data + _offset(payloads, i + AHEAD))
        p = payloads.data + at
        kind = p[0] if at < end <= at + MAX_PAYLOAD else 0
        if TURNS[kind]:
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
                # After these no transaction is open, whether they can be read or not.
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


def plain_stretches(array, bint between, int64_t least, announced=None):
    """[(begin, end)] of stretches of whole plain transactions, each with a Begin and the Commit that it announced.

    A stretch from 0 on may begin with the rest of the plain transaction that is open.

    What a stretch gives is known when it ends: none of its messages has to wait, and none of its boundaries is one
    that could be refused.

    Args:
        array: payloads, a binary or large binary Arrow array.
        between: whether no transaction is open before the first.
        least: how many messages make a stretch worth while, unless the payloads are nothing else.
        announced: the Commit's (LSN, timestamp) of the plain transaction that is open before the first, if one is.
    """
    cdef Payloads payloads = Payloads(array)
    cdef vector[int64_t] found
    cdef int64_t failed = 0
    cdef size_t k
    cdef int64_t lsn = 0, timestamp = 0
    cdef Place place = BETWEEN if between else ELSEWHERE
    if announced is not None:
        lsn, timestamp = announced
        place = INSIDE
    if payloads.count:
        with nogil:
            failed = _search(payloads, place, lsn, timestamp, min(least, payloads.count), found)
    if failed:
        raise damaged_offsets(-1 - failed)
    return [(found[2 * k], found[2 * k + 1]) for k in range(found.size() // 2)]
