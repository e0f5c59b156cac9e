"""Groups rows with equal hashes, and determines which rows of a group cancel each other."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

import secrets

import numpy as np

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* address) nogil

# Prefetch distance, in rows.
cdef enum:
    AHEAD = 16


cdef inline uint64_t _mixed(uint64_t hashed, uint64_t factor) noexcept nogil:
    """Mixes a hash: all its bits affect the upper and the lower bits of the result."""
    return (hashed ^ (hashed >> 32)) * factor


def group_rows(hashes):
    """Assigns rows with equal hashes to the same group.

    Rarely, rows with different hashes share a group.

    Args:
        hashes: uint64 memory.

    Returns:
        (the group of every row, int32; the number of groups). Groups are numbered from 0, in the order of their first
        rows.

    Raises:
        OverflowError: for 2**31 rows or more.
    """
    cdef const uint64_t[::1] hashed = hashes
    cdef int64_t count = hashed.shape[0], i
    cdef int32_t groups = 0
    cdef int bits
    cdef uint64_t mixed, upper, slot, last
    # A random factor prevents hash flooding.
    cdef uint64_t factor = secrets.randbits(64) | 1
    cdef uint64_t[::1] table
    cdef int32_t[::1] group
    if count >= 1 << 31:
        raise OverflowError(f"{count:,} rows are too many for one effect")
    # At least a third of the table stays empty.
    bits = (count + (count >> 1)).bit_length()
    found = np.empty(count, np.int32)
    # An entry is 0 if it is empty; otherwise it has the upper bits of a hash and, below them, the group + 1.
    entries = np.zeros(1 << bits, np.uint64)
    table, group = entries, found
    last = (<uint64_t> 1 << bits) - 1
    upper = ~last
    with nogil:
        for i in range(count):
            if i + AHEAD < count:
                prefetch(&table[_mixed(hashed[i + AHEAD], factor) >> (64 - bits)])
            mixed = _mixed(hashed[i], factor)
            slot = mixed >> (64 - bits)
            # The bits of the hash that `slot` does not use.
            mixed = (mixed << bits) & upper
            while table[slot] and table[slot] & upper != mixed:
                slot = (slot + 1) & last
            if not table[slot]:
                groups += 1
                table[slot] = mixed | <uint64_t> groups
            group[i] = <int32_t> (table[slot] & last) - 1
    return found, groups


def candidate_pairs(groups, int64_t count, puts):
    """Returns rows that may cancel each other, paired with the previous row of their group.

    Rows of a group can cancel each other only if one puts a copy and a later one removes it. All rows of such a group
    are candidates.

    Args:
        groups: the group of every row, int32 memory.
        count: the number of groups.
        puts: which rows put a copy, bool memory. The others remove one.

    Returns:
        (candidates that are not the first row of their group, ascending; the previous row of each), int64.
    """
    cdef const int32_t[::1] group = groups
    cdef const uint8_t[::1] put = puts.view(np.uint8)
    cdef int64_t rows = group.shape[0], i, pairs = 0
    cdef int32_t g
    _check(groups, count, puts)
    # 1: the group has a put. 3: it also has a removal after a put.
    seen = np.zeros(count, np.uint8)
    before = np.full(count, -1, np.int64)
    ones, others = np.empty(rows, np.int64), np.empty(rows, np.int64)
    cdef uint8_t[::1] state = seen
    cdef int64_t[::1] previous = before, one = ones, other = others
    with nogil:
        for i in range(rows):
            g = group[i]
            if put[i]:
                state[g] |= 1
            elif state[g]:
                state[g] = 3
        for i in range(rows):
            g = group[i]
            if state[g] != 3:
                continue
            if previous[g] >= 0:
                one[pairs], other[pairs] = i, previous[g]
                pairs += 1
            previous[g] = i
    return ones[:pairs], others[:pairs]


def cancelled(groups, int64_t count, puts):
    """Returns which rows cancel each other: a removal cancels the oldest remaining put before it in its group.

    Args:
        groups, count, puts: as for `candidate_pairs`. The rows of a group must be equal.

    Returns:
        A bool for every row.
    """
    cdef const int32_t[::1] group = groups
    cdef const uint8_t[::1] put = puts.view(np.uint8)
    cdef int64_t rows = group.shape[0], i, oldest
    cdef int32_t g
    _check(groups, count, puts)
    # A queue per group: its oldest and newest remaining puts, and for every put the next one of the group.
    olds, news = np.full(count, -1, np.int64), np.empty(count, np.int64)
    following = np.empty(rows, np.int64)
    found = np.zeros(rows, np.bool_)
    cdef int64_t[::1] old = olds, new = news, behind = following
    cdef uint8_t[::1] gone = found.view(np.uint8)
    with nogil:
        for i in range(rows):
            g = group[i]
            oldest = old[g]
            if put[i]:
                behind[i] = -1
                if oldest < 0:
                    old[g] = i
                else:
                    behind[new[g]] = i
                new[g] = i
            elif oldest >= 0:
                gone[oldest] = gone[i] = 1
                old[g] = behind[oldest]
    return found


cdef int _check(groups, int64_t count, puts) except -1:
    if len(groups) != len(puts):
        raise ValueError("groups and puts must have the same length")
    if len(groups) and not 0 <= groups.min() <= groups.max() < count:
        raise IndexError(f"a group that is none of {count:,}")
    return 0
