// Makes allocations by pgoutput_fast's extension modules fail. starving.py preloads it into a separate process.
//
// An allocation counts if it comes from one of these modules, directly or through the C++ library. All others are
// ignored: Python's, Arrow's, the C library's own.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void __libc_free(void*);
}

namespace {

struct Range {
    uintptr_t begin, end;
};
constexpr int MOST = 256;
Range ours[MOST], cpp[MOST];
int our_count = 0, cpp_count = 0;

std::atomic<long> seen{0}, failed{0}, live{0};
long first = 0;
std::atomic<bool> armed{false};
bool others_too = false;
thread_local bool inside = false;

bool lies_in(const Range* ranges, int count, uintptr_t at) {
    for (int k = 0; k < count; ++k)
        if (at >= ranges[k].begin && at < ranges[k].end) return true;
    return false;
}

int note_module(dl_phdr_info* info, size_t, void*) {
    const bool is_ours = std::strstr(info->dlpi_name, "pgoutput_fast/_core/") != nullptr;
    const bool is_cpp = std::strstr(info->dlpi_name, "libstdc++") || std::strstr(info->dlpi_name, "out_of_memory");
    for (int k = 0; k < info->dlpi_phnum && (is_ours || is_cpp); ++k) {
        const auto& part = info->dlpi_phdr[k];
        if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
        const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
        if (is_ours && our_count < MOST) ours[our_count++] = {begin, begin + part.p_memsz};
        if (is_cpp && cpp_count < MOST) cpp[cpp_count++] = {begin, begin + part.p_memsz};
    }
    return 0;
}

// Whether this allocation counts and must fail.
bool fails(void* caller) {
    if (!armed.load(std::memory_order_relaxed) || inside) return false;
    auto at = reinterpret_cast<uintptr_t>(caller);
    if (!lies_in(ours, our_count, at)) {
        if (!lies_in(cpp, cpp_count, at)) return false;
        inside = true;
        void* frames[16];
        const int depth = backtrace(frames, 16);
        inside = false;
        int k = 0;
        while (k < depth && lies_in(cpp, cpp_count, reinterpret_cast<uintptr_t>(frames[k]))) ++k;
        if (k == depth || !lies_in(ours, our_count, reinterpret_cast<uintptr_t>(frames[k]))) return false;
    }
    const long number = ++seen;
    if (number != first && !(others_too && number > first && first > 0)) return false;
    ++failed;
    return true;
}

void* or_throw(void* p) {
    if (!p) throw std::bad_alloc();
    return p;
}

}  // namespace

extern "C" {

// From now on the `which`-th allocation fails (0: none), and with `then_all` all later ones.
__attribute__((visibility("default"))) void starve(long which, int then_all) {
    void* frames[2];
    backtrace(frames, 2);  // loads its dependencies
    our_count = cpp_count = 0;
    dl_iterate_phdr(note_module, nullptr);
    seen = failed = 0;
    first = which;
    others_too = then_all != 0;
    armed = true;
}
// The number of allocations so far.
__attribute__((visibility("default"))) long feed() {
    armed = false;
    return seen;
}
__attribute__((visibility("default"))) long starved() { return failed; }

__attribute__((visibility("default"))) void* malloc(size_t n) {
    if (fails(__builtin_return_address(0))) {
        errno = ENOMEM;
        return nullptr;
    }
    return __libc_malloc(n);
}
__attribute__((visibility("default"))) void* calloc(size_t n, size_t size) {
    if (fails(__builtin_return_address(0))) {
        errno = ENOMEM;
        return nullptr;
    }
    return __libc_calloc(n, size);
}
__attribute__((visibility("default"))) void* realloc(void* p, size_t n) {
    if (fails(__builtin_return_address(0))) {
        errno = ENOMEM;
        return nullptr;
    }
    return __libc_realloc(p, n);
}
__attribute__((visibility("default"))) void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
    if (fails(__builtin_return_address(0))) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return reinterpret_cast<void*>(syscall(SYS_mmap, at, n, protection, flags, fd, offset));
}
__attribute__((visibility("default"))) void* mremap(void* p, size_t old, size_t n, int flags, ...) noexcept {
    if (fails(__builtin_return_address(0))) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return reinterpret_cast<void*>(syscall(SYS_mremap, p, old, n, flags, nullptr));
}

}  // extern "C"

__attribute__((visibility("default"))) void* operator new(size_t n) {
    return or_throw(fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(n));
}
__attribute__((visibility("default"))) void* operator new[](size_t n) {
    return or_throw(fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(n));
}
__attribute__((visibility("default"))) void* operator new(size_t n, const std::nothrow_t&) noexcept {
    return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(n);
}
__attribute__((visibility("default"))) void* operator new[](size_t n, const std::nothrow_t&) noexcept {
    return fails(__builtin_return_address(0)) ? nullptr : __libc_malloc(n);
}
__attribute__((visibility("default"))) void operator delete(void* p) noexcept { __libc_free(p); }
__attribute__((visibility("default"))) void operator delete[](void* p) noexcept { __libc_free(p); }
__attribute__((visibility("default"))) void operator delete(void* p, size_t) noexcept { __libc_free(p); }
__attribute__((visibility("default"))) void operator delete[](void* p, size_t) noexcept { __libc_free(p); }
