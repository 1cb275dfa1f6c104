"""Cuts from shared libraries what only a debugger reads: python3 without_symbols.py LIBRARY...

A loader maps the segments that the program headers name (ELF, 64 bits, little-endian) and reads nothing else. What lies
between and behind them is sections: symbols and debugging information, of which one wheel brings 170 MB. The segments
are moved together; their addresses stay.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM = struct.Struct("<IIQQQQQQ")  # type, flags, offset, address, physical address, length, memory, alignment
_LOAD = 1


def without_symbols(data: bytes) -> bytes:
    """A library's bytes, its loaded segments alone.

    Raises:
        ValueError: it is no library of this kind.
    """
    if not data.startswith(_MAGIC):
        raise ValueError("no shared library for 64 bits, little-endian")
    header = list(_HEADER.unpack_from(data))
    place, size, count = header[5], header[9], header[10]
    programs = [list(_PROGRAM.unpack_from(data, place + number * size)) for number in range(count)]
    loaded = sorted(
        (offset, length, address, step) for kind, _, offset, address, _, length, _, step in programs if kind == _LOAD
    )
    made, moved = bytearray(), []
    for offset, length, address, step in loaded:
        made += bytes((address - len(made)) % max(1, step))  # a file's place and its address agree modulo the page
        moved.append((offset, offset + length, len(made) - offset))
        made += data[offset : offset + length]

    def now(offset: int, length: int) -> int:
        for begin, end, by in moved:
            if begin <= offset and offset + length <= end:
                return offset + by
        if length:
            raise ValueError("it has a segment that is not loaded; leave it as it is")
        return 0

    for program in programs:
        program[2] = now(program[2], program[5])
    header[5] = now(place, count * size)
    header[6] = header[11] = header[12] = header[13] = 0  # there is no table of sections any more
    _HEADER.pack_into(made, 0, *header)
    for number, program in enumerate(programs):
        _PROGRAM.pack_into(made, header[5] + number * size, *program)
    return bytes(made)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            Path(name).write_bytes(without_symbols(Path(name).read_bytes()))
        except ValueError as error:
            sys.exit(f"without_symbols.py: {name}: {error}")
