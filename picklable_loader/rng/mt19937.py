"""The state of Python's own Mersenne Twister, copied as memory where that is safe.

``random.getstate`` makes 625 int objects in 9 µs, more than all other work on random numbers for a
batch. The state is a plain C struct inside the generator object, an ``int`` position and 624 words.
The import of this module checks that once, against ``getstate``, and otherwise uses ``getstate``.
"""

from __future__ import annotations

import _random
import ctypes
import random
from array import array
from functools import partial

#: 624 words and the position in them
WORDS = 625
_BYTES = 4 * WORDS

_generator: random.Random = random._inst


def _read_slowly() -> bytes:
    _, words, _ = _generator.getstate()
    return array("I", (words[-1], *words[:-1])).tobytes()


def _write_slowly(words: bytes) -> None:
    position, *key = array("I", words)
    version, _, gauss = _generator.getstate()
    _generator.setstate((version, (*key, position), gauss))


def _memory() -> memoryview | None:
    """The struct; None where it is not where CPython has it."""
    if _random.Random.__basicsize__ < object.__basicsize__ + _BYTES:
        return None
    struct = (ctypes.c_char * _BYTES).from_address(id(_generator) + object.__basicsize__)
    memory = memoryview(struct).cast("B")
    return memory if memory.tobytes() == _read_slowly() else None


_found = _memory()
#: the state of the generator behind the functions of ``random``: position, then words
read_words = _read_slowly if _found is None else _found.tobytes
#: put it at a state that ``read_words`` gave
write_words = _write_slowly if _found is None else partial(_found.__setitem__, slice(None))
