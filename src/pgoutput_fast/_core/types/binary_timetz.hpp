// timetz: microseconds since midnight, and the time zone in seconds west of UTC.
#pragma once
#include <cstdint>

#include "types/printing.hpp"
#include "types/text_times.hpp"
#include "protocol/wire.hpp"

namespace pgo {

constexpr size_t LONGEST_TIMETZ = 48;

// Returns nullptr for a time that cannot occur. The zone may be any number of seconds: below 16 hours if it is written
// in digits, up to a week for a POSIX zone ('12:00 utc+20'), without a limit from timezone(interval, timetz).
inline uint8_t* print_timetz(const uint8_t* p, uint8_t* out) noexcept {
    const int64_t micros = static_cast<int64_t>(load64(p));
    const int32_t west = static_cast<int32_t>(load32(p + 8));
    if (micros < 0 || micros > MICROS_PER_DAY) return nullptr;
    const unsigned seconds = static_cast<unsigned>(micros / MICROS_PER_SECOND);
    unsigned fraction = static_cast<unsigned>(micros % MICROS_PER_SECOND);
    out = print_pair(seconds / 3600, out);
    *out++ = ':';
    out = print_pair(seconds / 60 % 60, out);
    *out++ = ':';
    out = print_pair(seconds % 60, out);
    if (fraction) {
        *out++ = '.';
        for (unsigned unit = 100000; fraction; fraction %= unit, unit /= 10)
            *out++ = static_cast<uint8_t>('0' + fraction / unit);
    }
    // INT32_MIN cannot be negated in 32 bits. Servers since version 14 print these wrapped-around numbers. (Version 10
    // sends no binary values.)
    if (west == INT32_MIN) return print_literal("+4294370773:4294967282:4294967288", out);
    *out++ = west > 0 ? '-' : '+';
    const unsigned zone = static_cast<unsigned>(west < 0 ? -west : west);
    const unsigned hours = zone / 3600;
    out = hours < 100 ? print_pair(hours, out) : print_integer(hours, out);
    if (zone % 3600) {
        *out++ = ':';
        out = print_pair(zone / 60 % 60, out);
    }
    if (zone % 60) {
        *out++ = ':';
        out = print_pair(zone % 60, out);
    }
    return out;
}

}  // namespace pgo
