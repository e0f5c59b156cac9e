// Makes a Truncate of one relation from a Truncate of several. It is used where the whole message is already kept.
#pragma once
#include <cstdint>
#include <cstring>

namespace pgo {

constexpr int64_t TRUNCATE_OF_ONE = 14;  // bytes at most: tag, xid, count, flags, oid

// Writes a Truncate of the relation `oid` with the tag, xid and flags of `message`, which must be complete up to its
// flags. Returns the length.
inline int64_t write_truncate_of(const uint8_t* message, bool in_stream, uint32_t oid, uint8_t* to) noexcept {
    const int64_t head = in_stream ? 5 : 1;
    const uint8_t count[4] = {0, 0, 0, 1};
    const uint32_t wire = __builtin_bswap32(oid);
    std::memcpy(to, message, static_cast<size_t>(head));
    std::memcpy(to + head, count, 4);
    to[head + 4] = message[head + 4];
    std::memcpy(to + head + 5, &wire, 4);
    return head + 9;
}

}  // namespace pgo
