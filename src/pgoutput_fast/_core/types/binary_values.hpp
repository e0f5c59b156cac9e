// Values of fixed width in the format of their types' send functions. The caller has checked the length.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

#include "protocol/reasons.hpp"
#include "types/text_times.hpp"
#include "protocol/wire.hpp"

namespace pgo {

inline Reason read_bool(const uint8_t* p, uint8_t* out) noexcept {
    *out = *p & 1;
    return *p <= 1 ? OK : OUT_OF_RANGE;
}
inline Reason read_int2(const uint8_t* p, int16_t* out) noexcept {
    *out = static_cast<int16_t>(load16(p));
    return OK;
}
inline Reason read_int4(const uint8_t* p, int32_t* out) noexcept {
    *out = static_cast<int32_t>(load32(p));
    return OK;
}
inline Reason read_int8(const uint8_t* p, int64_t* out) noexcept {
    *out = static_cast<int64_t>(load64(p));
    return OK;
}
inline Reason read_oid(const uint8_t* p, int64_t* out) noexcept {
    *out = load32(p);
    return OK;
}

// A NaN on the wire has a sign and a payload. Its text form has neither, so this drops both.
inline Reason read_float4(const uint8_t* p, float* out) noexcept {
    uint32_t bits = load32(p);
    std::memcpy(out, &bits, sizeof bits);
    if (*out != *out) *out = std::numeric_limits<float>::quiet_NaN();
    return OK;
}
inline Reason read_float8(const uint8_t* p, double* out) noexcept {
    uint64_t bits = load64(p);
    std::memcpy(out, &bits, sizeof bits);
    if (*out != *out) *out = std::numeric_limits<double>::quiet_NaN();
    return OK;
}

inline Reason read_date(const uint8_t* p, int32_t* out) noexcept {
    int32_t days = static_cast<int32_t>(load32(p));
    if (days == std::numeric_limits<int32_t>::max() || days == std::numeric_limits<int32_t>::min()) return IS_INFINITE;
    int64_t unix_days = static_cast<int64_t>(days) + EPOCH_DAYS;
    *out = static_cast<int32_t>(unix_days);
    return *out == unix_days ? OK : BEYOND_RANGE;
}
inline Reason read_time(const uint8_t* p, int64_t* out) noexcept {
    *out = static_cast<int64_t>(load64(p));
    if (*out < 0 || *out > MICROS_PER_DAY) return OUT_OF_RANGE;
    return *out == MICROS_PER_DAY ? HOUR_24 : OK;
}
inline Reason read_timestamp(const uint8_t* p, int64_t* out) noexcept {
    int64_t micros = static_cast<int64_t>(load64(p));
    if (micros == std::numeric_limits<int64_t>::max() || micros == std::numeric_limits<int64_t>::min())
        return IS_INFINITE;
    return __builtin_add_overflow(micros, EPOCH_MICROS, out) ? BEYOND_RANGE : OK;
}

}  // namespace pgo
