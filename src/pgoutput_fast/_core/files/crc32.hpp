// CRC-32 as computed by zlib. Processors with carry-less multiplication process sixty-four bytes at a time.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__) && defined(__GNUC__)
#define PGO_CARRYLESS
#include <immintrin.h>
#endif

namespace pgo {

inline constexpr uint32_t CRC32_POLYNOMIAL = 0xedb88320;  // reflected bits

constexpr std::array<uint32_t, 256> crc32_table() {
    std::array<uint32_t, 256> table{};
    for (uint32_t k = 0; k < 256; ++k) {
        uint32_t value = k;
        for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ CRC32_POLYNOMIAL : value >> 1;
        table[k] = value;
    }
    return table;
}

// Updates a remainder with more bytes. The remainder is not inverted.
inline uint32_t crc32_of_bytes(uint32_t remainder, const uint8_t* p, size_t n) noexcept {
    static constexpr std::array<uint32_t, 256> TABLE = crc32_table();
    for (size_t i = 0; i < n; ++i) remainder = remainder >> 8 ^ TABLE[(remainder ^ p[i]) & 0xff];
    return remainder;
}

// x^n modulo the polynomial, in reflected bits, shifted left by one. The shift compensates for the carry-less product
// of reflected numbers, which is one position too far to the right.
constexpr uint64_t crc32_power(int n) {
    uint32_t value = 0x80000000;  // 1
    for (int k = 0; k < n; ++k) value = value & 1 ? value >> 1 ^ CRC32_POLYNOMIAL : value >> 1;
    return static_cast<uint64_t>(value) << 1;
}

#ifdef PGO_CARRYLESS
inline bool has_carryless() noexcept { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }

// Folds a 128-bit remainder over the bytes up to `next`: each half is multiplied by a power of x.
__attribute__((target("pclmul,sse4.1"))) inline __m128i crc32_fold(__m128i from, __m128i powers, __m128i next) noexcept {
    const __m128i low = _mm_clmulepi64_si128(from, powers, 0x00);
    const __m128i high = _mm_clmulepi64_si128(from, powers, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

// Like `crc32_of_bytes`, for at least sixty-four bytes.
__attribute__((target("pclmul,sse4.1"))) inline uint32_t crc32_carryless(uint32_t remainder, const uint8_t* p,
                                                                          size_t n) noexcept {
    const auto load = [](const uint8_t* from) __attribute__((target("pclmul,sse4.1"))) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    };
    // The low half of a register comes first in the stream, so it is 64 bits farther from the end.
    const __m128i by_64 = _mm_set_epi64x(static_cast<int64_t>(crc32_power(4 * 128 - 32)),
                                         static_cast<int64_t>(crc32_power(4 * 128 + 32)));
    const __m128i by_16 = _mm_set_epi64x(static_cast<int64_t>(crc32_power(128 - 32)),
                                         static_cast<int64_t>(crc32_power(128 + 32)));
    __m128i a = _mm_xor_si128(load(p), _mm_cvtsi32_si128(static_cast<int>(remainder)));
    __m128i b = load(p + 16), c = load(p + 32), d = load(p + 48);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = crc32_fold(a, by_64, load(p));
        b = crc32_fold(b, by_64, load(p + 16));
        c = crc32_fold(c, by_64, load(p + 32));
        d = crc32_fold(d, by_64, load(p + 48));
    }
    a = crc32_fold(crc32_fold(crc32_fold(a, by_16, b), by_16, c), by_16, d);
    for (; n >= 16; p += 16, n -= 16) a = crc32_fold(a, by_16, load(p));
    uint8_t rest[16];
    std::memcpy(rest, &a, sizeof rest);
    return crc32_of_bytes(crc32_of_bytes(0, rest, sizeof rest), p, n);
}
#else
inline bool has_carryless() noexcept { return false; }
inline uint32_t crc32_carryless(uint32_t remainder, const uint8_t* p, size_t n) noexcept {
    return crc32_of_bytes(remainder, p, n);
}
#endif

}  // namespace pgo
