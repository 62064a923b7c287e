"""States of random number generators as text, for snapshots: ``"low:..."`` or ``"raw:..."``."""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from functools import lru_cache


@lru_cache(maxsize=16)  # who saves at every step asks for the same state again and again
def pack_words(data: bytes) -> str:
    """Bytes as text, half as long where they are 32-bit numbers in 64-bit fields.

    Torch saves the 624 words of its Mersenne Twister in that way; other bytes survive as well.
    """
    if len(data) % 8:
        return "raw:" + b64encode(data).decode()
    words = array("I", data)
    low, high = words[0::2], words[1::2]
    odd = array("I")
    for at, value in enumerate(high):
        if value:
            odd.extend((at, value))
    if len(odd) > len(high):
        return "raw:" + b64encode(data).decode()
    header = array("I", [len(low), len(odd)])
    return "low:" + b64encode((header + odd + low).tobytes()).decode()


def unpack_words(text: str) -> bytes:
    """The bytes that ``pack_words`` was given; ValueError if the text is damaged."""
    kind, _, body = text.partition(":")
    try:
        data = b64decode(body, validate=True)
    except NotBase64 as error:
        raise ValueError(str(error)) from None
    if kind == "raw":
        return data
    if kind != "low" or len(data) % 4 or len(data) < 8:
        raise ValueError("not a packed state")
    words = array("I", data)
    count, odd = words[0], words[1]
    if len(words) != 2 + odd + count or odd % 2:
        raise ValueError("a packed state of another length")
    spread = array("I", bytes(8 * count))
    spread[0::2] = words[2 + odd :]
    for at in range(2, 2 + odd, 2):
        if words[at] >= count:
            raise ValueError("a packed state with a word out of range")
        spread[2 * words[at] + 1] = words[at + 1]
    return spread.tobytes()
