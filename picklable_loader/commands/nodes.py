"""Nodes: what stands in the tree of a file for things that are not built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Built", "Stored", "Tensor"]


@dataclass(eq=False, repr=False)
class Built:
    """An object that would be built by a call, or the thing itself that a name stands for.

    Attributes:
        name: module and name of the class or function.
        arguments: what it would be called with; None: the thing itself.
        state: what it would be filled with.
        items: what would be appended to it, or set in it.
    """

    name: str
    arguments: Any = None
    state: Any = None
    items: list[Any] = field(default_factory=list)

    @property
    def called(self) -> bool:
        """It would be called; otherwise the name would be looked up."""
        return self.arguments is not None


@dataclass(frozen=True)
class Stored:
    """Data that stands beside the pickle in torch's archive.

    Attributes:
        key: name of the part in the archive.
        kind: torch's class of storage, such as ``"LongStorage"``.
        count: numbers in it.
    """

    key: str
    kind: str
    count: int


@dataclass(frozen=True)
class Tensor:
    """A tensor that would be built.

    Attributes:
        stored: where its numbers are; None where that is not known.
        shape: of the tensor.
        offset: number of its first number in what is stored.
        stride: numbers from one to the next, by dimension.
    """

    stored: Stored | None
    shape: tuple[Any, ...]
    offset: Any = 0
    stride: tuple[Any, ...] = ()
