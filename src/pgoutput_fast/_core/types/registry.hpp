// The table of converters. It maps a name from schema/column_types.py to two function pointers.
#pragma once
#include <cstring>

#include "columns/cells.hpp"
#include "types/convert.hpp"
#include "types/convert_hstore.hpp"
#include "types/convert_list.hpp"
#include "types/convert_printed.hpp"
#include "types/convert_struct.hpp"
#include "types/convert_vector.hpp"
#include "types/interval.hpp"
#include "types/money.hpp"
#include "types/numeric_text.hpp"
#include "types/text_printed.hpp"
#include "types/oids.hpp"

namespace pgo {

struct Kernel {
    const char* name;
    Layout layout;
    uint32_t width;
    Convert text;
    Convert binary;
};

inline constexpr Kernel KERNELS[] = {
    {"bool", Layout::BITS, 0, bool_text, bool_binary},
    {"int2", Layout::FIXED, 2, integer_text<int16_t>, from_binary<int16_t, 2, read_int2>},
    {"int4", Layout::FIXED, 4, integer_text<int32_t>, from_binary<int32_t, 4, read_int4>},
    {"int8", Layout::FIXED, 8, integer_text<int64_t>, from_binary<int64_t, 8, read_int8>},
    {"oid", Layout::FIXED, 8, oid_text, from_binary<int64_t, 4, read_oid>},
    {"float4", Layout::FIXED, 4, float_text<float>, from_binary<float, 4, read_float4>},
    {"float8", Layout::FIXED, 8, float_text<double>, from_binary<double, 8, read_float8>},
    {"decimal", Layout::FIXED, 16, decimal_text, decimal_binary},
    {"numeric_string", Layout::BYTES, 0, numeric_string_text, numeric_string_binary},
    {"numeric_float8", Layout::FIXED, 8, from_text<double, parse_numeric_float8>, numeric_float8_binary},
    {"string", Layout::BYTES, 0, string_any, string_any},
    {"jsonb", Layout::BYTES, 0, string_any, jsonb_binary},
    {"bytea", Layout::BYTES, 0, bytea_text, bytea_binary},
    {"uuid_string", Layout::BYTES, 0, uuid_string_text, uuid_string_binary},
    {"uuid_bytes", Layout::FIXED, 16, uuid_text_to_bytes, uuid_binary_to_bytes},
    {"date", Layout::FIXED, 4, date_text, from_binary<int32_t, 4, read_date>},
    {"time", Layout::FIXED, 8, time_text, from_binary<int64_t, 8, read_time>},
    {"timestamp", Layout::FIXED, 8, timestamp_text<false>,
     from_binary<int64_t, 8, read_timestamp>},
    {"timestamptz", Layout::FIXED, 8, timestamp_text<true>,
     from_binary<int64_t, 8, read_timestamp>},
    {"interval", Layout::FIXED, 16, interval_text, from_binary<Interval, 16, read_interval>},
    {"money", Layout::FIXED, 16, money_text, from_binary<int128, 8, read_money>},
    // Types that become strings. Text is unchanged, unless it depends on the server's version; it is checked only if
    // that is cheap. A binary value becomes the text that the server would print.
    {"char", Layout::BYTES, 0, char_text, print_fixed<1, LONGEST_CHAR, print_char>},
    {"tid", Layout::BYTES, 0, tid_text, print_fixed<6, LONGEST_TID, print_tid>},
    {"xid8", Layout::BYTES, 0, checked_text<is_xid8>, print_fixed<8, LONGEST_INTEGER, print_xid8>},
    {"reg", Layout::BYTES, 0, string_any, print_fixed<4, LONGEST_OID, print_oid>},
    {"pg_lsn", Layout::BYTES, 0, lsn_text, print_fixed<8, LONGEST_LSN, print_lsn>},
    {"snapshot", Layout::BYTES, 0, string_any, print_variable<3, print_snapshot>},
    {"oidvector", Layout::BYTES, 0, string_any, print_variable<2, print_vector<uint32_t, OID_OID>>},
    {"int2vector", Layout::BYTES, 0, string_any, print_variable<2, print_vector<int16_t, INT2_OID>>},
    {"timetz", Layout::BYTES, 0, string_any, print_fixed<12, LONGEST_TIMETZ, print_timetz>},
    {"bits", Layout::BYTES, 0, checked_text<is_bits>, print_variable<8, print_bits>},
    {"inet", Layout::BYTES, 0, network_text<false>, print_variable<3, print_inet<false>>},
    {"cidr", Layout::BYTES, 0, network_text<true>, print_variable<3, print_inet<true>>},
    {"macaddr", Layout::BYTES, 0, checked_text<is_macaddr<6>>, print_fixed<6, 17, print_macaddr<6>>},
    {"macaddr8", Layout::BYTES, 0, checked_text<is_macaddr<8>>, print_fixed<8, 23, print_macaddr<8>>},
    {"line", Layout::BYTES, 0, string_any, print_fixed<24, 3 * LONGEST_FLOAT8 + 4, print_line>},
    {"lseg", Layout::BYTES, 0, string_any, print_fixed<32, 2 * LONGEST_POINT + 3, print_lseg>},
    {"box", Layout::BYTES, 0, string_any, print_fixed<32, 2 * LONGEST_POINT + 1, print_box>},
    {"circle", Layout::BYTES, 0, string_any, print_fixed<24, LONGEST_POINT + LONGEST_FLOAT8 + 3, print_circle>},
    {"path", Layout::BYTES, 0, string_any, print_variable<4, print_path>},
    {"polygon", Layout::BYTES, 0, string_any, print_variable<4, print_polygon>},
    {"tsvector", Layout::BYTES, 0, string_any, print_variable<4, print_tsvector>},
    {"tsquery", Layout::BYTES, 0, string_any, tsquery_binary},
    {"unknown", Layout::BYTES, 0, string_any, unknown_binary},
    // Types of extensions.
    {"hstore", Layout::LIST, 0, convert_hstore<false>, convert_hstore<true>},
    {"vector", Layout::LIST, 0, convert_list<false, SliceVector>, vector_binary<Float4Wire>},
    {"halfvec", Layout::LIST, 0, convert_list<false, SliceVector>, vector_binary<HalfWire>},
    {"sparsevec", Layout::BYTES, 0, string_any, print_variable<4, print_sparsevec>},
    {"geometry", Layout::BYTES, 0, geometry_text, bytea_binary},
    {"cube", Layout::BYTES, 0, string_any, print_variable<4, print_cube>},
    {"list", Layout::LIST, 0, convert_list<false, SliceArray<false>>, convert_list<true, SliceArray<true>>},
    {"list_of_boxes", Layout::LIST, 0, convert_list<false, SliceArray<false, ';'>>,
     convert_list<true, SliceArray<true>>},
    {"list_of_geometries", Layout::LIST, 0, convert_list<false, SliceArray<false, ':'>>,
     convert_list<true, SliceArray<true>>},
    {"composite", Layout::STRUCT, 0, convert_composite<false>, convert_composite<true>},
    {"point", Layout::STRUCT, 0, convert_point<false>, convert_point<true>},
    {"range", Layout::STRUCT, 0, convert_range<false>, convert_range<true>},
    {"multirange", Layout::LIST, 0, convert_list<false, SliceMultirange<false>>,
     convert_list<true, SliceMultirange<true>>},
};

inline const Kernel* find_kernel(const char* name) noexcept {
    for (const Kernel& kernel : KERNELS)
        if (std::strcmp(kernel.name, name) == 0) return &kernel;
    return nullptr;
}

}  // namespace pgo
