"""Nodes in the tree of a file, for objects that are not built, or that are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..states.arrays import bytes_of
from ..states.plain import encode


@dataclass(eq=False, repr=False)
class Built:
    """An object that would be built by a call, or the thing with that name itself."""

    name: str  #: module and name of the class or function
    arguments: Any = None  #: what it would be called with; None: the thing itself
    state: Any = None  #: what it would be filled with
    items: list[Any] = field(default_factory=list)  #: what would be appended to it, or set in it

    @property
    def called(self) -> bool:
        """It would be called; otherwise the name would be looked up."""
        return self.arguments is not None


@dataclass(frozen=True)
class Stored:
    """Data that torch's archive holds outside the pickle."""

    key: str  #: name of the part in the archive
    kind: str  #: torch's class of storage, such as ``"LongStorage"``
    count: int  #: numbers in it

    @property
    def bytes(self) -> int | None:
        """Its size; None where the class is not known."""
        size = _ITEM_BYTES.get(self.kind)
        return None if size is None else self.count * size


#: bytes of a number, by the class of what is stored
_ITEM_BYTES: dict[str, int] = {"UntypedStorage": 1} | {
    name: dtype.itemsize for dtype, name in torch.storage._dtype_to_storage_type_map().items()
}


@dataclass(frozen=True)
class Tensor:
    """A tensor that would be built."""

    #: where its numbers are; in a plain pickle the file of torch that is within it
    stored: Stored | bytes
    shape: tuple[Any, ...]  #: of the tensor
    offset: Any = 0  #: number of its first number in what is stored
    stride: tuple[Any, ...] = ()  #: numbers from one to the next, by dimension
    gradient: Any = False  #: whether it requires one


class Ordered(dict[Any, Any]):
    """An ``OrderedDict``, which may have attributes, as that of a model's state has."""

    state: Any = None


class Key:
    """A large number or a tuple of values as the key of a dict.

    Numbers can be chosen so that Python gives all of them one hash. This one differs from process
    to process.
    """

    __slots__ = ("_hash", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        parts = value if type(value) is tuple else (value,)
        texts = (hash(part) if type(part) in (str, bytes) else repr(part) for part in parts)
        self._hash = hash(repr(list(texts)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.value == other.value


def as_nodes(value: Any) -> Any:
    """Values of JSON as a tree, in which everything can be compared part by part."""
    kind = type(value)
    if kind is dict:
        return {key: as_nodes(each) for key, each in value.items()}
    if kind in (list, tuple):
        return kind(map(as_nodes, value))
    if kind in _SCALARS:
        return value
    if kind is torch.Tensor:
        return Built("torch.Tensor", (str(value.dtype), list(value.shape), bytes_of(value)))
    return Built(f"{kind.__module__}.{kind.__qualname__}", (as_nodes(encode(value)),))


_SCALARS = (bool, bytes, float, int, str, type(None))
