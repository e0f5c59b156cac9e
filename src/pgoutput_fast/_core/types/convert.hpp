// One converter per type and format. A column selects its two converters once, and they never check the type again. A
// converter has a loop for blocks without missing cells, which only detects whether any cell failed. A second loop then
// determines which ones.
#pragma once
#include <cstdint>
#include <cstring>
#include <limits>

#include "types/binary_numeric.hpp"
#include "types/binary_values.hpp"
#include "columns/column.hpp"
#include "columns/gather.hpp"
#include "types/hex.hpp"
#include "types/money.hpp"
#include "types/interval.hpp"
#include "protocol/limits.hpp"
#include "types/text_numbers.hpp"
#include "types/text_times.hpp"
#include "types/utf8.hpp"
#include "simd/dispatch.hpp"

namespace pgo {

// ---- fixed width: Read is Reason(const uint8_t*, uint32_t length, T*, const Column&) ----------------------------

// A vector loop gets CHUNK cells at a time. After it refuses a chunk, the next CHUNKS_TO_SKIP chunks go directly to the
// portable converter.
constexpr size_t CHUNK = 128;
constexpr uint32_t CHUNKS_TO_SKIP = 8;

template <class T, class Read>
inline void read_chunk(const Column& column, Source source, const Cell* cells, size_t from, size_t to, Issues& issues,
                       T* out, Read read) {
    if (!column.statistics.missing) {
        unsigned failed = 0;
        for (size_t i = from; i < to; ++i)
            failed |= read(source.base + cells[i].offset, static_cast<uint32_t>(cells[i].length), out + i, column);
        if (!failed) return;
    }
    for (size_t i = from; i < to; ++i) {
        Reason reason = OK;
        if (cells[i].length >= 0)
            reason = read(source.base + cells[i].offset, static_cast<uint32_t>(cells[i].length), out + i, column);
        if (cells[i].length < 0 || reason) out[i] = T{};
        if (reason) issues.push_back({static_cast<uint32_t>(i), reason, false});
    }
}

// Lets `quick` convert a chunk with missing cells. `quick` gets only the present cells; then their values are moved to
// their rows.
template <class T>
inline bool take_present(const Column& column, Source source, const Cell* cells, size_t n, T* out, Quick<T> quick) {
    Cell present[CHUNK + 8];
    T values[CHUNK + 8];
    if (const QuickPick pick = PGO_AVX_QUICK(pick_present)) {
        const size_t count = pick(cells, n, present);
        if (count && !quick(source, present, count, values, column)) return false;
        const QuickSpread spread = PGO_AVX_QUICK(spread_values<sizeof(T)>);
        spread(cells, n, reinterpret_cast<uint8_t*>(values), reinterpret_cast<uint8_t*>(out));
        return true;
    }
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
        present[count] = cells[i];
        count += cells[i].length >= 0;
    }
    if (count && !quick(source, present, count, values, column)) return false;
    values[count] = T{};
    for (size_t i = 0, k = 0; i < n; ++i) {
        const bool is_present = cells[i].length >= 0;
        out[i] = values[is_present ? k : count];
        k += is_present;
    }
    return true;
}

template <class T, class Read>
inline void read_fixed(Column& column, Source source, const Cell* cells, size_t n, Issues& issues, T* out,
                       Quick<T> quick, Read read) {
    if (!quick || !column.statistics.readable_around || column.statistics.shortest == 0) {
        read_chunk(column, source, cells, 0, n, issues, out, read);
        return;
    }
    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t end = n - at < CHUNK ? n : at + CHUNK;
        if (column.statistics.chunks_to_skip) --column.statistics.chunks_to_skip;
        else if (column.statistics.missing ? take_present(column, source, cells + at, end - at, out + at, quick)
                                : quick(source, cells + at, end - at, out + at, column)) continue;
        else column.statistics.chunks_to_skip = CHUNKS_TO_SKIP;
        read_chunk(column, source, cells, at, end, issues, out, read);
    }
}

template <class T, class Read>
inline void convert_fixed(Column& column, Source source, const Cell* cells, size_t n, Issues& issues, Quick<T> quick,
                          Read read) {
    read_fixed<T>(column, source, cells, n, issues, column.buffers.reserve_values<T>(n), quick, read);
}

template <class T, Reason (*Parse)(const uint8_t*, uint32_t, T*)>
inline void parse_cells(Column& column, Source source, const Cell* cells, size_t n, Issues& issues, Quick<T> quick) {
    convert_fixed<T>(column, source, cells, n, issues, quick,
                     [](const uint8_t* p, uint32_t length, T* out, const Column&) { return Parse(p, length, out); });
}
template <class T, Reason (*Parse)(const uint8_t*, uint32_t, T*)>
void from_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<T, Parse>(column, source, cells, n, issues, nullptr);
}

// For cells that all have the right width, so that lengths need not be checked one by one.
template <class T, uint32_t width, Reason (*Read)(const uint8_t*, T*)>
bool same_width(Source source, const Cell* cells, size_t n, T* out, const Column& column) noexcept {
    if (column.statistics.longest != width || column.statistics.shortest != width) return false;
    unsigned failed = 0;
    for (size_t i = 0; i < n; ++i) failed |= Read(source.base + cells[i].offset, out + i);
    return !failed;
}
template <class T, uint32_t width, Reason (*Read)(const uint8_t*, T*)>
void from_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    // Removing missing cells is only worthwhile if it needs no loop over single cells.
    const Quick<T> quick = vector_level >= AVX2 || (vector_level != PORTABLE && !column.statistics.missing)
                               ? same_width<T, width, Read>
                               : nullptr;
    convert_fixed<T>(column, source, cells, n, issues, quick,
                     [](const uint8_t* p, uint32_t length, T* out, const Column&) {
                         return length == width ? Read(p, out) : BAD_LENGTH;
                     });
}

template <class T>
void integer_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<T, parse_integer_backed<T>>(column, source, cells, n, issues, PGO_QUICK(integers<T>));
}
template <>
inline void integer_text<int64_t>(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<int64_t, parse_integer_backed<int64_t>>(column, source, cells, n, issues, PGO_QUICK(long_integers));
}
template <class F>
void float_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<F, parse_float_backed<F>>(column, source, cells, n, issues, PGO_AVX_QUICK(floats<F>));
}
inline void date_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<int32_t, parse_date>(column, source, cells, n, issues, PGO_AVX_QUICK(dates));
}
template <bool zoned>
void timestamp_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<int64_t, parse_timestamp<zoned>>(column, source, cells, n, issues, PGO_AVX_QUICK(timestamps<zoned>));
}

inline void time_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<int64_t, parse_time>(column, source, cells, n, issues, PGO_AVX_QUICK(times));
}
inline void money_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<int128, parse_money>(column, source, cells, n, issues, PGO_AVX_QUICK(moneys));
}
inline void interval_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<Interval, parse_interval>(column, source, cells, n, issues, PGO_AVX_QUICK(intervals));
}

inline Reason parse_oid_backed(const uint8_t* p, uint32_t n, int64_t* out) noexcept {
    uint32_t value = 0;
    Reason reason = parse_integer_backed<uint32_t>(p, n, &value);
    *out = value;
    return reason;
}
inline void oid_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    parse_cells<int64_t, parse_oid_backed>(column, source, cells, n, issues, PGO_QUICK(oids));
}

inline void decimal_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    convert_fixed<int128>(column, source, cells, n, issues, PGO_AVX_QUICK(decimals),
                          [](const uint8_t* p, uint32_t length, int128* out, const Column& c) {
                              if (parse_usual_decimal_backed(p, length, c.plan.precision, c.plan.scale, out)) return OK;
                              return parse_decimal(p, length, c.plan.precision, c.plan.scale, out);
                          });
}
inline void decimal_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    convert_fixed<int128>(column, source, cells, n, issues, PGO_AVX_QUICK(binary_decimals),
                          [](const uint8_t* p, uint32_t length, int128* out, const Column& c) {
                              return read_decimal(p, length, c.plan.precision, c.plan.scale, out);
                          });
}

// numeric as float64, which is an option. Converts the text of the numeric, so that both formats round in the same way.
inline void numeric_float8_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    Buffer printed;
    convert_fixed<double>(column, source, cells, n, issues, nullptr,
                          [&printed](const uint8_t* p, uint32_t length, double* out, const Column&) {
                              printed.set_size(0);
                              if (Reason reason = print_numeric(p, length, printed)) return reason;
                              return parse_float<double>(printed.data(), static_cast<uint32_t>(printed.size()), out);
                          });
}

struct Uuid {
    uint8_t bytes[UUID_BYTES];
};
inline void uuid_text_to_bytes(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    convert_fixed<Uuid>(column, source, cells, n, issues, nullptr,
                        [](const uint8_t* p, uint32_t length, Uuid* out, const Column&) {
                            if (length != UUID_TEXT) return BAD_LENGTH;
                            return parse_uuid(p, out->bytes) ? OK : BAD_TEXT;
                        });
}
inline void uuid_binary_to_bytes(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    convert_fixed<Uuid>(column, source, cells, n, issues, nullptr,
                        [](const uint8_t* p, uint32_t length, Uuid* out, const Column&) {
                            if (length != UUID_BYTES) return BAD_LENGTH;
                            std::memcpy(out->bytes, p, UUID_BYTES);
                            return OK;
                        });
}

// ---- bool: read as bytes, stored as bits ------------------------------------------------------------------------

template <class Read>
inline void convert_bool(Column& column, Source source, const Cell* cells, size_t n, Issues& issues,
                         Quick<uint8_t> quick, Read read) {
    column.scratch.valid.resize(n);
    read_fixed<uint8_t>(column, source, cells, n, issues, column.scratch.valid.data(), quick, read);
    append_bits(column.buffers.data, column.buffers.rows, column.scratch.valid.data(), n);
}
inline void bool_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    convert_bool(column, source, cells, n, issues, PGO_AVX_QUICK(bools),
                 [](const uint8_t* p, uint32_t length, uint8_t* out, const Column&) {
        if (length != 1) return BAD_TEXT;
        *out = *p == 't';
        return *p == 't' || *p == 'f' ? OK : BAD_TEXT;
    });
}
inline void bool_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    convert_bool(column, source, cells, n, issues, PGO_AVX_QUICK(binary_bools),
                 [](const uint8_t* p, uint32_t length, uint8_t* out, const Column&) {
        return length == 1 ? read_bool(p, out) : BAD_LENGTH;
    });
}

// ---- variable width ---------------------------------------------------------------------------------------------

// Number of bytes that a vector loop may write after the copied text, in addition to a buffer's SLACK.
constexpr size_t GATHER_SLACK = 192;
#ifdef PGO_AVX2
static_assert(64 * avx512::MOST_PIECES <= SLACK + GATHER_SLACK);
#endif

// Appends the cells one after another, each without its first `skip` bytes. No cell may be shorter than that.
template <uint32_t skip>
inline Gathered gather_bytes(Column& column, Source source, const Cell* cells, size_t n) {
    int32_t* offsets = column.buffers.reserve_offsets(n);
    uint8_t* out = column.buffers.data.reserve(column.statistics.total + GATHER_SLACK);
    Gathered found;
    const QuickGather gather = PGO_AVX_QUICK(gather<skip>);
    if (gather && column.statistics.readable_around) found = gather(source, cells, n, out, offsets, column);
    else found = gather_cells<skip>(source.base, source.end, cells, n, out, offsets);
    column.buffers.data.set_size(static_cast<size_t>(offsets[n]));
    return found;
}

// A vector loop over all cells of a block. It returns true if it converted them all, otherwise the portable writer
// must.
using QuickBytes = bool (*)(Source, const Cell*, size_t, uint8_t*, int32_t*, const Column&) noexcept;

// Lets `quick` append the values, at most `most` bytes. If this returns false, nothing was appended.
inline bool append_quickly(Column& column, Source source, const Cell* cells, size_t n, QuickBytes quick, size_t most) {
    if (!quick || !column.statistics.readable_around) return false;
    if (column.statistics.chunks_to_skip) {
        --column.statistics.chunks_to_skip;
        return false;
    }
    const size_t before = column.buffers.offsets.size();
    int32_t* offsets = column.buffers.reserve_offsets(n);
    if (quick(source, cells, n, column.buffers.data.reserve(most), offsets, column)) {
        column.buffers.data.set_size(static_cast<size_t>(offsets[n]));
        return true;
    }
    column.buffers.offsets.set_size(before);
    column.statistics.chunks_to_skip = CHUNKS_TO_SKIP;
    return false;
}

// Appends values of any length. Write is Reason(const uint8_t*, uint32_t, Buffer&) and appends to the buffer. If it
// reports an issue, its bytes are removed again.
template <class Write>
inline void write_bytes(Column& column, Source source, const Cell* cells, size_t n, Issues& issues, Write write) {
    size_t row = column.buffers.offsets.size() / sizeof(int32_t);
    column.buffers.reserve_offsets(n);
    column.buffers.data.reserve(column.statistics.total);
    if (row == 0) row = 1;
    for (size_t i = 0; i < n; ++i) {
        if (cells[i].length >= 0) {
            size_t before = column.buffers.data.size();
            const uint8_t* p = source.base + cells[i].offset;
            Reason reason = write(p, static_cast<uint32_t>(cells[i].length), column.buffers.data);
            // Offsets are int32. Only huge numbers inside arrays can reach this limit; the limits on rows prevent all
            // other cases.
            if (reason == OK && column.buffers.data.size() > MAX_OFFSET) reason = DOES_NOT_FIT;
            if (reason) {
                issues.push_back({static_cast<uint32_t>(i), reason, false});
                column.buffers.data.set_size(before);
            }
        }
        column.buffers.int_offsets()[row + i] = static_cast<int32_t>(column.buffers.data.size());
    }
}

inline bool is_utf8_run(const uint8_t* p, size_t n) noexcept {
#ifdef PGO_AVX2
    if (vector_level == AVX512) return avx512::is_utf8(p, n);
#endif
    return is_utf8(p, n);
}

// Appends text that must be UTF-8. It copies all values first and checks them as one run. All values are valid exactly
// if the run is valid and no value begins in the middle of a character. Only if this check fails, values are checked
// one by one. Returns false if a skipped byte is not 1; then nothing was appended.
template <uint32_t skip>
inline bool gather_utf8(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    const size_t data_before = column.buffers.data.size(), offsets_before = column.buffers.offsets.size();
    const Gathered found = gather_bytes<skip>(column, source, cells, n);
    if (skip && found.others) {
        column.buffers.data.set_size(data_before);
        column.buffers.offsets.set_size(offsets_before);
        return false;
    }
    if (found.ascii || column.buffers.data.size() == data_before) return true;
    uint8_t* run = column.buffers.data.data();
    if (is_utf8_run(run + data_before, column.buffers.data.size() - data_before)) {
        if (found.whole) return true;
        const int32_t* starts = column.buffers.int_offsets() + column.buffers.offsets.size() / sizeof(int32_t) - n - 1;
        run[column.buffers.data.size()] = 0;  // in SLACK: empty values at the end begin here
        uint32_t inside = 0;          // bit 7 is set if a value begins with a continuation byte, 10xxxxxx
        for (size_t i = 0; i < n; ++i) inside |= run[starts[i]] & ~(uint32_t{run[starts[i]]} << 1);
        if (!(inside & 0x80)) return true;
    }
    column.buffers.data.set_size(data_before);
    column.buffers.offsets.set_size(offsets_before);
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (!is_utf8(p + skip, length - skip)) return NOT_UTF8;
        out.append(p + skip, length - skip);
        return OK;
    });
    return true;
}

inline void string_any(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    gather_utf8<0>(column, source, cells, n, issues);
}
inline void bytea_binary(Column& column, Source source, const Cell* cells, size_t n, Issues&) {
    gather_bytes<0>(column, source, cells, n);
}

// jsonb_send puts a version byte before the text.
inline void jsonb_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    if (column.statistics.shortest && gather_utf8<1>(column, source, cells, n, issues)) return;
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (length == 0) return BAD_LENGTH;
        if (*p != 1) return BAD_VERSION;
        if (!is_utf8(p + 1, length - 1)) return NOT_UTF8;
        out.append(p + 1, length - 1);
        return OK;
    });
}

inline void bytea_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    column.statistics.total /= 2;
    if (append_quickly(column, source, cells, n, PGO_QUICK(byteas), column.statistics.total)) return;
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (length < 2 || p[0] != '\\' || p[1] != 'x' || length % 2) return BAD_TEXT;
        size_t bytes = (length - 2) / 2;
        return from_hex(p + 2, bytes, out.append_uninitialized(bytes)) ? OK : BAD_TEXT;
    });
}

// A geometry of PostGIS. Its text is the hexadecimal form of its binary value.
inline void geometry_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    column.statistics.total /= 2;
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (length % 2) return BAD_TEXT;
        return from_hex<UPPER_HEX>(p, length / 2, out.append_uninitialized(length / 2)) ? OK : BAD_TEXT;
    });
}

inline void numeric_string_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    if (append_quickly(column, source, cells, n, PGO_AVX_QUICK(numerics), column.statistics.total)) return;
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (!is_numeric_text(p, length) && !is_special_numeric(p, length)) return BAD_TEXT;
        out.append(p, length);
        return OK;
    });
}
// The vector loop gets a chunk at a time: its output limit for many chunks could exceed the actual text by far.
inline void numeric_string_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    const QuickBytes quick = PGO_AVX_QUICK(binary_numerics);
    for (size_t at = 0; at < n; at += CHUNK) {
        const size_t count = n - at < CHUNK ? n - at : CHUNK;
        if (append_quickly(column, source, cells + at, count, quick, count * LONGEST_USUAL_NUMERIC)) continue;
        const size_t before = issues.size();
        write_bytes(column, source, cells + at, count, issues,
                    [](const uint8_t* p, uint32_t length, Buffer& out) { return print_numeric(p, length, out); });
        for (size_t k = before; k < issues.size(); ++k) issues[k].row += static_cast<uint32_t>(at);
    }
}

inline void uuid_string_text(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    if (append_quickly(column, source, cells, n, PGO_QUICK(uuids), n * UUID_TEXT)) return;
    uint8_t ignored[UUID_BYTES];
    write_bytes(column, source, cells, n, issues, [&ignored](const uint8_t* p, uint32_t length, Buffer& out) {
        if (length != UUID_TEXT) return BAD_LENGTH;
        if (!parse_uuid(p, ignored)) return BAD_TEXT;
        out.append(p, UUID_TEXT);
        return OK;
    });
}
inline void uuid_string_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    if (append_quickly(column, source, cells, n, PGO_QUICK(binary_uuids), n * UUID_TEXT)) return;
    bool usual = !column.statistics.missing;
    for (size_t i = 0; i < n; ++i) usual &= cells[i].length == static_cast<int32_t>(UUID_BYTES);
    if (usual) {
        int32_t* offsets = column.buffers.reserve_offsets(n);
        uint8_t* out = column.buffers.data.append_uninitialized(n * UUID_TEXT);
        for (size_t i = 0; i < n; ++i) {
            print_uuid(source.base + cells[i].offset, out + i * UUID_TEXT);
            offsets[i + 1] = offsets[i] + static_cast<int32_t>(UUID_TEXT);
        }
        return;
    }
    column.statistics.total = n * UUID_TEXT;
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        if (length != UUID_BYTES) return BAD_LENGTH;
        print_uuid(p, out.append_uninitialized(UUID_TEXT));
        return OK;
    });
}

// A binary cell of an unknown type. Its bytes become hexadecimal text, so that they can be read later.
inline void unknown_binary(Column& column, Source source, const Cell* cells, size_t n, Issues& issues) {
    column.statistics.total = 2 * (column.statistics.total + n);
    write_bytes(column, source, cells, n, issues, [](const uint8_t* p, uint32_t length, Buffer& out) {
        uint8_t* at = out.append_uninitialized(2 + 2 * static_cast<size_t>(length));
        at[0] = '\\';
        at[1] = 'x';
        to_hex(p, length, at + 2);
        return OK;
    });
}

}  // namespace pgo
