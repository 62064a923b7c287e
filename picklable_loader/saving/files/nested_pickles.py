"""Finds pickles within pickles, and the names that all of them import."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable
from typing import BinaryIO

import torch

from ..states.arrays import TORCH_DTYPES
from .pickle_nodes import Stored
from .pickle_tree import Nested, NotPickle, Trace, trace

#: in place of names that are not known
_CODE_WITHIN = "a file within the file"

#: pickles in pickles are looked into so deep: each level is read again
_MOST_LEVELS = 8


def names_of(found: Iterable[Trace]) -> frozenset[str]:
    """The names that pickles import, nested ones included; `_CODE_WITHIN` if that is not known.

    Each byte is read once for each pickle that contains it, and `_MOST_LEVELS` times at most.
    """
    names: set[str] = set()
    seen: dict[int, Nested] = {}  # also holds the bytes, so that no other ones have their id
    waiting = deque((each, 0) for each in found)
    while waiting:
        each, level = waiting.popleft()
        names |= each.names
        for inner in each.nested:
            if id(inner.data) in seen and inner.data is not None:
                continue
            seen[id(inner.data)] = inner
            try:
                if inner.data is None or level == _MOST_LEVELS:
                    raise NotPickle("not known")
                within = traces(io.BytesIO(inner.data)) if inner.called else [trace(inner.data)]
                waiting.extend((one, level + 1) for one in within)
            except NotPickle:  # unless it is called: somebody else's, of the same name
                if inner.called or level == _MOST_LEVELS:
                    names.add(_CODE_WITHIN)
    return frozenset(names)


def traces(file: BinaryIO) -> list[Trace]:
    """The only pickle of a file, or all five of a file that an old torch has written."""
    first = trace(file)
    return [first, *(trace(file) for _ in range(4))] if first.tree == _OLD_TORCH else [first]


def data_of(opened: bytes) -> bytes:
    """The numbers in a file of torch within a plain pickle, after their type and their count.

    Equal tensors have equal ones. The file also has a number of the process that wrote it.
    """
    file = io.BytesIO(opened)
    try:
        stored = [each.tree for each in traces(file)][3:4]
    except NotPickle:
        return opened
    if not stored or not isinstance(stored[0], Stored):
        return opened
    return f"{stored[0].kind} {stored[0].count} ".encode() + opened[file.tell() :]


#: what torch's files began with before they were archives, and still do if that is asked for
_OLD_TORCH = 0x1950A86A20F9469CFC6C


# --- harmless names ------------------------------------------------------------------------------

#: what torch's safe reader builds by itself, from 2.6 on: values; module and name
BUILT_BY_TORCH = (
    {f"{kind.__module__}.{kind.__name__}" for kind in torch._storage_classes}
    | {f"torch.{name}" for name in TORCH_DTYPES}
    | set(
        "_codecs.encode builtins.bytearray builtins.complex builtins.set collections.Counter "
        "collections.OrderedDict torch.Size torch.Tensor torch._tensor._rebuild_from_type_v2 "
        "torch._utils._rebuild_parameter torch._utils._rebuild_qtensor torch.device "
        "torch._utils._rebuild_sparse_tensor torch._utils._rebuild_tensor_v2 "
        "torch.nn.parameter.Parameter torch.serialization._get_layout".split()
    )
)
