// The oids of built-in types that the C++ sources use. builtin_types.py has all of them.
#pragma once
#include <cstdint>

namespace pgo {

// begin: written by `python ci/generate_types.py` from PostgreSQL 18
inline constexpr uint32_t INT2_OID = 21;
inline constexpr uint32_t OID_OID = 26;
// end

}  // namespace pgo
