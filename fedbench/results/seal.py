"""A pack's seal: the SHA-256 of its bytes, which stands in their midst. What was edited or damaged is no result."""

from __future__ import annotations

import hashlib

#: In the file's metadata, and what stands there while the bytes are counted.
KEY, BLANK = b"fedbench_seal", b"0" * 64


def sealed(data: bytes) -> bytes:
    """A pack with its seal in the place of BLANK. A Parquet file's metadata are its end, so the last one is meant."""
    return _replaced(data, BLANK, hashlib.sha256(data).hexdigest().encode())


def whole(data: bytes, seal: bytes) -> bool:
    """Whether a pack that has this seal has the bytes that it was written with."""
    return len(seal) == len(BLANK) and seal in data and sealed(_replaced(data, seal, BLANK)) == data


def _replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    place = data.rindex(old)
    return data[:place] + new + data[place + len(old) :]
