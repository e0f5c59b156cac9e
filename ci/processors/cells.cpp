// Reads cells and how to convert them from standard input, converts them, and writes the complete result. The same
// program runs on every processor.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "types/registry.hpp"

namespace {

std::vector<uint8_t> input;
size_t at = 0;

template <class T>
T take() {
    T value;
    std::memcpy(&value, input.data() + at, sizeof value);
    at += sizeof value;
    return value;
}
std::string take_bytes() {
    const auto n = take<uint32_t>();
    at += n;
    return std::string(reinterpret_cast<const char*>(input.data()) + at - n, n);
}
template <class T>
void put(T value) {
    std::fwrite(&value, sizeof value, 1, stdout);
}
void put(const pgo::Buffer& buffer) {
    put(static_cast<uint32_t>(buffer.size()));
    std::fwrite(buffer.data(), 1, buffer.size(), stdout);
}

std::unique_ptr<pgo::Column> take_column() {
    const pgo::Kernel* kernel = pgo::find_kernel(take_bytes().c_str());
    if (!kernel) std::exit(2);
    auto column = std::make_unique<pgo::Column>();
    column->plan.layout = kernel->layout;
    column->plan.width = kernel->width;
    column->plan.text = kernel->text;
    column->plan.binary = kernel->binary;
    column->plan.precision = take<int32_t>();
    column->plan.scale = take<int32_t>();
    column->plan.element_oid = take<uint32_t>();
    column->plan.leaves = take<uint32_t>();
    if (take<uint8_t>()) column->child = take_column();
    for (auto fields = take<uint32_t>(); fields; --fields) {
        const auto oid = take<uint32_t>();
        column->add_field(take_column().release(), oid);
    }
    return column;
}

void put(pgo::Column& column) {
    put(static_cast<uint64_t>(column.buffers.rows));
    put(static_cast<uint64_t>(column.buffers.nulls));
    put(column.buffers.validity);
    put(column.buffers.offsets);
    put(column.buffers.data);
    if (column.child) put(*column.child);
    for (auto& field : column.fields) put(*field);
}

}  // namespace

int main() {
    uint8_t part[1 << 14];
    for (size_t n; (n = std::fread(part, 1, sizeof part, stdin)) > 0;) input.insert(input.end(), part, part + n);
    while (at < input.size()) {
        const std::string level = take_bytes();
        for (int k = 0; k < 4; ++k)
            if (level == pgo::VECTOR_LEVELS[k]) pgo::use_vectors(static_cast<pgo::VectorLevel>(k));
        auto times = take<uint32_t>();  // the cost of one pass is the difference between runs
        auto column = take_column();
        const bool binary = take<uint8_t>();
        std::vector<pgo::Cell> cells(take<uint32_t>());
        uint32_t end = pgo::READ_AFTER;
        for (pgo::Cell& cell : cells) {
            cell.offset = end;
            cell.length = take<int32_t>();
            if (cell.length > 0) end += static_cast<uint32_t>(cell.length);
        }
        const std::string values = take_bytes();
        const std::string source = std::string(pgo::READ_AFTER, '\0') + values + std::string(pgo::READ_AFTER, '\0');
        const auto* base = reinterpret_cast<const uint8_t*>(source.data());
        pgo::Issues issues;
        for (; times; --times) {
            column->rewind(pgo::Mark());
            issues.clear();
            pgo::convert_cells(*column, binary ? column->plan.binary : column->plan.text, {base, base + source.size()},
                               cells.data(), cells.size(), issues);
        }
        put(static_cast<uint8_t>(std::strcmp(level.c_str(), pgo::VECTOR_LEVELS[pgo::vector_level]) == 0));
        put(*column);
        put(static_cast<uint32_t>(issues.size()));
        for (const pgo::Issue& issue : issues) {
            put(issue.row);
            put(static_cast<uint8_t>(issue.reason));
            put(static_cast<uint8_t>(issue.inside));
        }
    }
}
