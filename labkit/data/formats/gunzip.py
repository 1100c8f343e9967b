"""Unpack gzip files strictly (RFC 1952).

Python's gzip module accepts several members in one file, and padding. The data sets have one member and
nothing after it, so `gunzip` treats anything else as an error and reports its offset.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from labkit.data.errors import FormatError
from labkit.files import atomic_write

BLOCK = 1 << 18  # packed bytes in memory at a time
GZIP = zlib.MAX_WBITS | 16  # makes zlib read the header and check the CRC-32 and the length at the end


def gunzip(packed: Path, unpacked: Path) -> None:
    """Unpack a gzip file to `unpacked`, checked against its CRC-32; a damaged file leaves nothing there.

    Raise FormatError, with the offset in the packed file. Memory use does not depend on the file's size.
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
                    raise FormatError(packed, offset, "valid gzip data", str(error)) from None
                offset += len(block) - len(stream.unconsumed_tail) - len(stream.unused_data)
                block = stream.unconsumed_tail
            if stream.unused_data:
                raise FormatError(packed, offset, "the end of the file", "more bytes")
        if not stream.eof:
            raise FormatError(packed, offset, "more gzip data", "the end of the file")
