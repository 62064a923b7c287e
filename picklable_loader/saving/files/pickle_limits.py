"""Limits on the time and memory that building a pickle takes, besides reading its bytes.

A few bytes can ask for a copy of a large list, again and again; for keys that take for ever to be
hashed; or for memory of any size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import suppress
from typing import Any

import torch

#: no call that torch.save writes has more arguments, no tensor more dimensions
MOST_ARGUMENTS, MOST_DIMENSIONS = 32, 64
#: a longer tuple is a key of a list's size
MOST_IN_A_KEY = 100

#: calls that hash what they are given, and those that make something of a size
_HASHING = ("builtins.set", "builtins.frozenset", "collections.Counter", "collections.OrderedDict")
_SIZED = {"builtins.bytearray", "torch.Tensor"} | {
    f"{kind.__module__}.{kind.__name__}"
    for kind in (*torch._tensor_classes, *torch._storage_classes)
}
_ENDLESS = 2**62


class Costs:
    """Counts steps.

    A tuple of tuples may take for ever to be hashed, as its parts may be shared; and numbers can
    be chosen that have one hash, so that each is compared with all before it. Texts and bytes
    cannot: Python hashes them with a secret.
    """

    def __init__(self) -> None:
        self._weights: dict[int, tuple[Any, int]] = {}
        self._hashes: defaultdict[tuple[int, int], int] = defaultdict(int)
        self._sets: dict[tuple[int, int], int] = {}
        self._seen: list[Any] = []  # no other object has the id of one that is here

    def of_call(self, name: str, arguments: Any) -> int:
        """Steps of a call, and items that it copies."""
        if type(arguments) is not tuple or len(arguments) > MOST_ARGUMENTS:
            return length(arguments)
        work = sum(map(length, arguments))
        if name in _HASHING:
            work += sum(map(self._of_set, arguments))
        return work + _volume(arguments) if name in _SIZED else work

    def of_keys(self, owner: Any, keys: list[Any] | tuple[Any, ...]) -> int:
        """Steps that a dict, or a set, needs for further keys."""
        self._seen.append(owner)
        total = 0
        for key in keys:
            if type(key) in (int, float, tuple):
                weight = self._weight(key)
                total += weight
                if weight <= MOST_IN_A_KEY:
                    with suppress(TypeError):  # a list in it: no reader takes that
                        bucket = id(owner), hash(key)
                        total += self._hashes[bucket]  # keys of the owner that have this hash
                        self._hashes[bucket] += 1
        return total

    def _of_set(self, items: Any) -> int:
        if type(items) not in (list, tuple):
            return 0
        identity = id(items), len(items)
        if identity not in self._sets:
            self._seen.append(items)
            self._sets[identity] = self.of_keys([], items)
        return self._sets[identity]

    def _weight(self, key: Any) -> int:
        """Parts of a key, each counted as often as it is hashed."""
        waiting = [key]
        while waiting:
            part = waiting[-1]
            if type(part) is not tuple or id(part) in self._weights:
                waiting.pop()
                continue
            new = [each for each in part if type(each) is tuple and id(each) not in self._weights]
            waiting += new
            if not new:
                weight = 1 + sum(self._known(each) for each in part)
                self._weights[id(part)] = part, min(weight, _ENDLESS)
                waiting.pop()
        return self._known(key)

    def _known(self, part: Any) -> int:
        return self._weights[id(part)][1] if type(part) is tuple else 1


def length(value: Any) -> int:
    """Items that a call copies, at most."""
    return len(value) if isinstance(value, list | tuple | dict | str | bytes | bytearray) else 1


def _volume(arguments: tuple[Any, ...]) -> int:
    """Numbers in something that is made of a size."""
    numbers = [n for part in arguments for n in (part if type(part) is tuple else (part,))]
    sizes = [n for n in numbers[:MOST_DIMENSIONS] if type(n) is int]
    return min(_ENDLESS, abs(math.prod(sizes))) if sizes else 0
