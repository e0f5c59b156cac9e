// Small pieces of text that the printers of binary values share.
#pragma once
#include <charconv>
#include <cstdint>
#include <cstring>

namespace pgo {

// The most characters that a 64-bit integer takes, including a minus.
constexpr size_t LONGEST_INTEGER = 20;

template <class T>
inline uint8_t* print_integer(T value, uint8_t* out) noexcept {
    char* at = reinterpret_cast<char*>(out);
    return reinterpret_cast<uint8_t*>(std::to_chars(at, at + LONGEST_INTEGER, value).ptr);
}

// Prints a value below 100 with two decimal digits.
inline uint8_t* print_pair(unsigned value, uint8_t* out) noexcept {
    out[0] = static_cast<uint8_t>('0' + value / 10);
    out[1] = static_cast<uint8_t>('0' + value % 10);
    return out + 2;
}

template <size_t n>
inline uint8_t* print_literal(const char (&text)[n], uint8_t* out) noexcept {
    std::memcpy(out, text, n - 1);
    return out + n - 1;
}

}  // namespace pgo
