"""Random cells of the usual kinds, which the vector loops take."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from decimal import Decimal

Rng = random.Random
Make = Callable[[Rng], bytes]


def integer(bits: int) -> Make:
    return lambda rng: b"%d" % (rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1)) >> rng.randrange(bits))


def real(digits: str) -> Make:
    return lambda rng: format(rng.uniform(-1, 1) * 10 ** rng.randrange(0, 6), digits).encode()


def decimal(whole: int, scale: int) -> Make:
    def make(rng: Rng) -> bytes:
        units = rng.randrange(10 ** (whole + scale)) // 10 ** rng.randrange(whole + scale)
        sign = "-" if units and rng.random() < 0.3 else ""
        return f"{sign}{Decimal(units).scaleb(-scale):f}".encode()

    return make


def binary_decimal(whole: int, scale: int) -> Make:
    """Of `whole` digits of base 10000 before the point, and as many behind it as the scale needs."""

    def make(rng: Rng) -> bytes:
        groups = [rng.randrange(10000) >> rng.choice([0, 0, 14]) for _ in range(whole + (scale + 3) // 4)]
        if scale % 4:
            groups[-1] -= groups[-1] % 10 ** (4 - scale % 4)
        while groups and groups[-1] == 0:
            groups.pop()
        weight = whole - 1
        while groups and groups[0] == 0:
            groups.pop(0)
            weight -= 1
        sign = 0x4000 if groups and rng.random() < 0.3 else 0
        header = (len(groups), weight if groups else 0, sign, scale)
        return struct.pack(f">HhHH{len(groups)}H", *header, *groups)

    return make


def binary_numeric(rng: Rng) -> bytes:
    """A numeric of at most seven digits in base 10000, some of them far behind the point."""
    weight = rng.randrange(-3, 4)
    zeros = max(0, -1 - weight)
    groups = [rng.randrange(10000) >> rng.choice([0, 0, 7, 14]) for _ in range(rng.randrange(8 - zeros))]
    sign = 0x4000 if any(groups) and rng.random() < 0.3 else 0
    header = (len(groups), weight, sign, rng.randrange(min(16, 25 - 4 * weight)))
    return struct.pack(f">HhHH{len(groups)}H", *header, *groups)


def interval(rng: Rng) -> bytes:
    """An interval as the server prints it. A negative part needs a plus before the next one."""
    sign = rng.choice([1, 1, 1, -1])
    parts = [
        (rng.randrange(10 ** rng.randrange(1, 8)) * sign, " year"),
        (rng.randrange(12) * sign, " mon"),
        (rng.randrange(10 ** rng.randrange(1, 8)) * rng.choice([1, 1, 1, -1]), " day"),
    ]
    text, behind_negative = [], False
    for number, unit in parts:
        if number and rng.random() < 0.6:
            plus = "+" if behind_negative and number > 0 else ""
            text.append(f"{plus}{number}{unit}{'' if number == 1 else 's'}")
            behind_negative = number < 0
    if not text or rng.random() < 0.7:
        clock = (
            f"{rng.randrange(10 ** rng.randrange(1, 7)):02}:{rng.randrange(60):02}:{rng.randrange(1, 60):02}"
        )
        fraction = f".{rng.randrange(1, 10**6):06}".rstrip("0") if rng.random() < 0.6 else ""
        clock_sign = "-" if rng.random() < 0.2 else "+" if behind_negative else ""
        text.append(clock_sign + clock + fraction)
    return " ".join(text).encode()


def money(rng: Rng) -> bytes:
    cents = rng.randrange(10**12) // 10 ** rng.randrange(12)
    return f"{'-' if cents and rng.random() < 0.3 else ''}${cents // 100:,}.{cents % 100:02}".encode()


def tid(rng: Rng) -> bytes:
    return b"(%d,%d)" % (rng.randrange(10**9) >> rng.randrange(30), rng.randrange(10**4) >> rng.randrange(14))


def network(always_prefix: bool) -> Make:
    def make(rng: Rng) -> bytes:
        address = ".".join(str(rng.randrange(256) >> rng.choice([0, 0, 2, 5, 8])) for _ in range(4))
        return (address + (f"/{rng.randrange(33)}" if always_prefix or rng.random() < 0.3 else "")).encode()

    return make


def day(rng: Rng) -> str:
    return f"{rng.randrange(1, 10000):04}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def stamp(zone: str) -> Make:
    def make(rng: Rng) -> bytes:
        clock = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
        fraction = f".{rng.randrange(1, 10**6):06}".rstrip("0") if rng.random() < 0.8 else ""
        return f"{day(rng)} {clock}{fraction}{zone}".encode()

    return make


def uuid(rng: Rng) -> bytes:
    digits = rng.randbytes(16).hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])).encode()


def words(most: int) -> Make:
    return lambda rng: "".join(rng.choice("abc xyz,") for _ in range(rng.randrange(most))).encode()


# name -> (oid, typmod, binary, cells of the usual kind)
KINDS: dict[str, tuple[int, int, bool, Make]] = {
    "bool": (16, -1, False, lambda rng: rng.choice([b"t", b"f"])),
    "int2": (21, -1, False, integer(16)),
    "int4": (23, -1, False, integer(32)),
    "int8": (20, -1, False, integer(64)),
    "small int8": (20, -1, False, integer(40)),
    "oid": (26, -1, False, lambda rng: b"%d" % rng.randrange(2**32)),
    "float4": (700, -1, False, real(".5f")),
    "float8": (701, -1, False, real(".13f")),
    "whole float8": (
        701,
        -1,
        False,
        lambda rng: b"%d" % (rng.randrange(-(2**63), 2**63) >> rng.randrange(64)),
    ),
    "shortest float8": (
        701,
        -1,
        False,
        lambda rng: repr(rng.uniform(-1, 1) * 10 ** rng.randrange(-3, 12)).encode(),
    ),
    "numeric(12,2)": (1700, (12 << 16 | 2) + 4, False, decimal(10, 2)),
    "numeric(10,0)": (1700, (10 << 16) + 4, False, decimal(10, 0)),
    "numeric(15,14)": (1700, (15 << 16 | 14) + 4, False, decimal(1, 14)),
    "binary numeric(12,2)": (1700, (12 << 16 | 2) + 4, True, binary_decimal(2, 2)),
    "binary numeric(12,0)": (1700, (12 << 16) + 4, True, binary_decimal(3, 0)),
    "binary numeric(15,4)": (1700, (15 << 16 | 4) + 4, True, binary_decimal(2, 4)),
    "binary numeric(14,7)": (1700, (14 << 16 | 7) + 4, True, binary_decimal(1, 7)),
    "binary numeric(15,13)": (1700, (15 << 16 | 13) + 4, True, binary_decimal(0, 13)),
    "numeric": (1700, -1, False, lambda rng: decimal(rng.randrange(1, 15), rng.randrange(15))(rng)),
    "binary numeric": (1700, -1, True, binary_numeric),
    "money": (790, -1, False, money),
    "tid": (27, -1, False, tid),
    "inet": (869, -1, False, network(always_prefix=False)),
    "cidr": (650, -1, False, network(always_prefix=True)),
    "interval": (1186, -1, False, interval),
    "date": (1082, -1, False, lambda rng: day(rng).encode()),
    "time": (1083, -1, False, lambda rng: stamp("")(rng)[11:]),
    "timestamp": (1114, -1, False, stamp("")),
    "timestamptz": (1184, -1, False, stamp("+00")),
    "uuid": (2950, -1, False, uuid),
    "binary uuid": (2950, -1, True, lambda rng: rng.randbytes(16)),
    "bytea": (17, -1, False, lambda rng: b"\\x" + rng.randbytes(rng.randrange(70)).hex().encode()),
    "long bytea": (17, -1, False, lambda rng: b"\\x" + rng.randbytes(rng.randrange(400)).hex().encode()),
    "short text": (25, -1, False, words(30)),
    "long text": (25, -1, False, words(200)),
    "longer text": (25, -1, False, words(700)),
    "code": (1043, -1, False, words(17)),
    "accented text": (25, -1, False, lambda rng: "".join(rng.choices("aé€𝄞 ", k=rng.randrange(60))).encode()),
    "binary int2": (21, -1, True, lambda rng: rng.randbytes(2)),
    "binary int4": (23, -1, True, lambda rng: rng.randbytes(4)),
    "binary int8": (20, -1, True, lambda rng: rng.randbytes(8)),
    "binary float8": (701, -1, True, lambda rng: rng.randbytes(8)),
    "binary bool": (16, -1, True, lambda rng: rng.choice([b"\0", b"\1"])),
    "binary date": (1082, -1, True, lambda rng: struct.pack(">i", rng.randrange(-(10**6), 10**6))),
    "binary timestamp": (1114, -1, True, lambda rng: struct.pack(">q", rng.randrange(-(10**17), 10**17))),
    "jsonb": (3802, -1, True, lambda rng: b"\x01" + words(90)(rng)),
}
