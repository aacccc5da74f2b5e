"""A pack's seal: the SHA-256 of its bytes, which stands in their midst. What was edited or damaged is no result."""

from __future__ import annotations

import hashlib

#: In the file's metadata, and what stands there while the bytes are counted.
KEY, BLANK = b"fedbench_seal", b"0" * 64


def sealed(data: bytes) -> bytes:
    """A pack with its seal in the place of BLANK. A Parquet file's metadata are its end, so the last one is meant."""
    place = data.rindex(BLANK)
    return data[:place] + hashlib.sha256(data).hexdigest().encode() + data[place + len(BLANK) :]


def whole(data: bytes, seal: bytes) -> bool:
    """Whether a pack that has this seal has the bytes that it was written with."""
    if len(seal) != len(BLANK) or (place := data.rfind(seal)) < 0:
        return False
    view, count = memoryview(data), hashlib.sha256()
    for part in (view[:place], BLANK, view[place + len(seal) :]):
        count.update(part)
    return count.hexdigest().encode() == seal
