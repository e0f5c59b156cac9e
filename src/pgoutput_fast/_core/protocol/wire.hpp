// Reads big-endian integers. These functions do not check bounds: the caller must do so.
#pragma once
#include <cstdint>
#include <cstring>

namespace pgo {

inline uint16_t load16(const uint8_t* p) noexcept {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_bswap16(v);
}
inline uint32_t load32(const uint8_t* p) noexcept {
    uint32_t v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_bswap32(v);
}
inline uint64_t load64(const uint8_t* p) noexcept {
    uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_bswap64(v);
}
// Eight bytes in memory order, for arithmetic on several characters at once.
inline uint64_t load64_raw(const uint8_t* p) noexcept {
    uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// A cell of a tuple: its value's offset from the block's base, and the value's length. A negative length encodes why
// there is no value.
struct Cell {
    uint32_t offset;
    int32_t length;
};
constexpr int32_t CELL_NULL = -1;
constexpr int32_t CELL_UNCHANGED = -2;

}  // namespace pgo
