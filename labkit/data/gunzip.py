"""Unpacking gzip files, strictly (RFC 1952).

Python's gzip module takes several members end to end, and padding; the data sets have one member and nothing
behind it, so here anything else is an error that says where.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from labkit.data.errors import FormatError
from labkit.files import atomic_write

BLOCK = 1 << 18  # bytes in memory at a time, packed
GZIP = zlib.MAX_WBITS | 16  # zlib reads the header and checks the sum and the length at the end


def gunzip(packed: Path, unpacked: Path) -> None:
    """Write what a gzip file holds to `unpacked`: all of it, checked against its CRC-32, or nothing.

    A FormatError names the offset in the packed file. Holds a few blocks in memory, whatever the size.
    """
    stream = zlib.decompressobj(GZIP)
    with packed.open("rb") as source, atomic_write(unpacked) as out:
        offset = 0
        while block := source.read(BLOCK):
            if stream.eof:
                raise FormatError(packed, offset, "the end of the file", "more bytes")
            while block:
                try:
                    out.write(stream.decompress(block, 4 * BLOCK))
                except zlib.error as error:
                    raise FormatError(packed, offset, "sound gzip data", str(error)) from None
                offset += len(block) - len(stream.unconsumed_tail) - len(stream.unused_data)
                block = stream.unconsumed_tail
            if stream.unused_data:
                raise FormatError(packed, offset, "the end of the file", "more bytes")
        if not stream.eof:
            raise FormatError(packed, offset, "more gzip data", "the end of the file")
