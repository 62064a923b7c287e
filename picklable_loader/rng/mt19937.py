"""The state of Python's own Mersenne Twister, copied as memory where that is safe.

``random.getstate`` makes 625 int objects in 9 µs, more than all other work on random numbers for a
batch. The state is a plain C struct inside the generator object, an ``int`` position and 624 words.
The import of this module checks that once, against ``getstate``, and otherwise uses ``getstate``.
"""

from __future__ import annotations

import _random
import ctypes
import random
import sys
from array import array

__all__ = ["WORDS", "read_words", "write_words"]

#: 624 words and the position in them
WORDS = 625
_BYTES = 4 * WORDS

_generator: random.Random = random._inst
_address = id(_generator) + object.__basicsize__


def _read_slowly() -> bytes:
    _, words, _ = _generator.getstate()
    return array("I", (words[-1], *words[:-1])).tobytes()


def _write_slowly(words: bytes) -> None:
    position, *key = array("I", words)
    version, _, gauss = _generator.getstate()
    _generator.setstate((version, (*key, position), gauss))


def _read_memory() -> bytes:
    return ctypes.string_at(_address, _BYTES)


def _write_memory(words: bytes) -> None:
    ctypes.memmove(_address, words, _BYTES)


def _is_plain_memory() -> bool:
    if sys.implementation.name != "cpython":
        return False
    if _random.Random.__basicsize__ < object.__basicsize__ + _BYTES:
        return False
    return _read_memory() == _read_slowly()


_fast = _is_plain_memory()
#: the state of the generator behind the functions of ``random``: position, then words
read_words = _read_memory if _fast else _read_slowly
#: put it at a state that ``read_words`` gave
write_words = _write_memory if _fast else _write_slowly
