"""Runs a static Linux program for ARM on any machine.

Unicorn emulates the processor. This module emulates the few system calls that the program makes.
"""

from __future__ import annotations

import struct
from pathlib import Path

from unicorn import UC_ARCH_ARM64, UC_HOOK_BLOCK, UC_HOOK_INTR, UC_MODE_ARM, Uc
from unicorn.arm64_const import (
    UC_ARM64_REG_PC,
    UC_ARM64_REG_SP,
    UC_ARM64_REG_X0,
    UC_ARM64_REG_X1,
    UC_ARM64_REG_X2,
    UC_ARM64_REG_X8,
)

__all__ = ["run"]

PAGE = 1 << 12
STACK, STACK_SIZE = 0x7F_0000_0000, 8 << 20
HEAP, HEAP_SIZE = 0x40_0000_0000, 1 << 30
EINVAL, ENOTTY = -22, -25

# The numbers of Linux system calls on ARM.
READ, WRITE, READV, WRITEV, IOCTL, EXIT, EXIT_GROUP = 63, 64, 65, 66, 29, 93, 94
BRK, MUNMAP, MREMAP, MMAP, MPROTECT, MADVISE = 214, 215, 216, 222, 226, 233
SET_TID_ADDRESS, SIGACTION, SIGPROCMASK, GETTID, GETAFFINITY = 96, 134, 135, 178, 123


def run(program: Path, given: bytes) -> tuple[bytes, int]:
    """Run a program. Returns what it wrote to standard output and how many instructions it executed.

    Raises:
        RuntimeError: if the program ends with an error, or makes a system call that this module does not emulate.
    """
    machine = Machine(program, given)
    machine.run()
    return bytes(machine.written), machine.instructions


class Machine:
    def __init__(self, program: Path, given: bytes) -> None:
        self.uc = Uc(UC_ARCH_ARM64, UC_MODE_ARM)
        self.given, self.written = memoryview(given), bytearray()
        self.status: int | None = None
        self.instructions = 0
        self.heap = HEAP
        self.uc.mem_map(HEAP, HEAP_SIZE)
        self.uc.mem_map(STACK, STACK_SIZE)
        self.entry, headers = self._load(program.read_bytes())
        self._put_arguments(headers)
        self.uc.hook_add(UC_HOOK_INTR, self._system_call)
        self.uc.hook_add(UC_HOOK_BLOCK, self._count)

    def run(self) -> None:
        self.uc.emu_start(self.entry, 0)
        if self.status != 0:
            raise RuntimeError(
                f"ended with {self.status} at {self.uc.reg_read(UC_ARM64_REG_PC):#x}: {self.written[-200:]!r}"
            )

    def _load(self, elf: bytes) -> tuple[int, tuple[int, int, int]]:
        """Map the program. Returns its entry point, and the address, size and number of its program headers."""
        entry, at = struct.unpack_from("<QQ", elf, 24)
        size, count = struct.unpack_from("<HH", elf, 54)
        segments = [struct.unpack_from("<IIQQQQQQ", elf, at + k * size) for k in range(count)]
        loaded = [each for each in segments if each[0] == 1]
        first = min(each[3] for each in loaded) & -PAGE
        last = max(each[3] + each[6] for each in loaded)
        self.uc.mem_map(first, -(-(last - first) // PAGE) * PAGE)
        for _, _, offset, address, _, in_file, _, _ in loaded:
            self.uc.mem_write(address, elf[offset : offset + in_file])
        return entry, (next(each[3] - each[2] for each in loaded if each[2] <= at) + at, size, count)

    def _put_arguments(self, headers: tuple[int, int, int]) -> None:
        top = STACK + STACK_SIZE - 4096
        self.uc.mem_write(top, b"program\0" + bytes(range(16)))
        address, size, count = headers
        # AT_PHDR, AT_PHENT, AT_PHNUM, AT_PAGESZ, AT_ENTRY, AT_RANDOM, AT_NULL
        auxiliary = (3, address, 4, size, 5, count, 6, PAGE, 9, self.entry, 25, top + 8, 0, 0)
        words = (1, top, 0, 0, *auxiliary)
        pointer = (top - 8 * len(words)) & ~15
        self.uc.mem_write(pointer, struct.pack(f"<{len(words)}Q", *words))
        self.uc.reg_write(UC_ARM64_REG_SP, pointer)

    def _count(self, uc: Uc, address: int, size: int, user_data: object) -> None:
        self.instructions += size // 4

    def _system_call(self, uc: Uc, number: int, user_data: object) -> None:
        call = uc.reg_read(UC_ARM64_REG_X8)
        registers = (UC_ARM64_REG_X0, UC_ARM64_REG_X1, UC_ARM64_REG_X2)
        a, b, c = (uc.reg_read(register) for register in registers)
        result = 0
        if number != 2:  # not a system call, but an exception of the processor
            self.status = -number
            uc.emu_stop()
            return
        if call == READ:
            result = self._read(b, c)
        elif call == WRITE:
            self.written += uc.mem_read(b, c)
            result = c
        elif call == READV:
            for k in range(c):
                result += self._read(*struct.unpack("<QQ", uc.mem_read(b + 16 * k, 16)))
        elif call == WRITEV:
            for k in range(c):
                address, size = struct.unpack("<QQ", uc.mem_read(b + 16 * k, 16))
                self.written += uc.mem_read(address, size)
                result += size
        elif call == MMAP:
            result = self._map(b)
        elif call == MREMAP:
            result = self._map(c)
            uc.mem_write(result, bytes(uc.mem_read(a, min(b, c))))
        elif call == IOCTL:
            result = ENOTTY
        elif call == GETAFFINITY:
            result = EINVAL
        elif call == BRK:
            result = 0  # no memory this way, so the program maps memory instead
        elif call in (EXIT, EXIT_GROUP):
            self.status = a
            uc.emu_stop()
        elif call not in (MUNMAP, MPROTECT, MADVISE, SET_TID_ADDRESS, SIGACTION, SIGPROCMASK, GETTID):
            self.status = -call
            uc.emu_stop()
        uc.reg_write(UC_ARM64_REG_X0, result & 0xFFFF_FFFF_FFFF_FFFF)

    def _read(self, address: int, size: int) -> int:
        part = self.given[:size]
        self.given = self.given[len(part) :]
        self.uc.mem_write(address, bytes(part))
        return len(part)

    def _map(self, size: int) -> int:
        """Return the address of fresh memory. Unmapped memory is never used again."""
        at = self.heap
        self.heap += -(-size // PAGE) * PAGE
        if self.heap > HEAP + HEAP_SIZE:
            raise RuntimeError("the program takes more memory than it is given")
        return at
