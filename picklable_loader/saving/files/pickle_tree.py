"""Reads a pickle as a tree of its parts, without building or importing anything.

The reader is Python's own unpickler. A name becomes a `Built`, and so does a call: the name of the
callable, and its arguments. The reader reads each byte once, and no operation costs more than the
bytes that it reads. Parts of a tree may be shared, so a small pickle may hold an endless tree: code
that walks one visits each part once.
"""

from __future__ import annotations

import io
import pickle
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from ..pickles.opened import Pickled, open_carried
from .pickle_limits import MOST_ARGUMENTS, MOST_DIMENSIONS, MOST_IN_A_KEY, Costs, length
from .pickle_nodes import Built, Key, Ordered, Stored, Tensor


class NotPickle(ValueError):
    """The bytes are no pickle."""


@dataclass(frozen=True)
class Nested:
    """Bytes in a pickle that are a pickle themselves, and are opened when it is used."""

    data: bytes | None  #: the bytes; None where they are not known
    called: bool  #: loading opens them, as a file of ``torch.save``; otherwise a stream does.


@dataclass
class Trace:
    """The effects that building a pickle would have."""

    #: the object that it would build: Python's own values, and `Built`, `Stored` and `Tensor`
    #: for anything else
    tree: Any = None
    #: all that it would import on the way, even if unused; module and name
    names: set[str] = field(default_factory=set)
    #: pickles within it. They are not read here: see `names_of`.
    nested: list[Nested] = field(default_factory=list)
    #: all data outside the pickle that it asks for
    stored: list[Stored] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)  #: all tensors that it would build
    #: steps that a reader needs besides reading: the items that its calls copy, and the
    #: comparisons of its keys. An honest pickle needs fewer than it has bytes.
    work: int = 0


def trace(data: bytes | BinaryIO) -> Trace:
    """Read a pickle without building anything; NotPickle if the bytes are none.

    Bytes after it are ignored. A file is positioned after it afterwards.
    """
    reader = _Reader(io.BytesIO(data) if isinstance(data, bytes) else data)
    try:
        reader.trace.tree = reader.load()
    except Exception as error:  # whatever damaged bytes make of a stack
        raise NotPickle(str(error) or type(error).__name__) from error
    return reader.trace


#: the unpickler that is written in Python, of which every step can be replaced
_InPython: Any = pickle._Unpickler


class _Reader(_InPython):  # type: ignore[misc]
    """Nothing of the base class that imports, calls or sizes anything is in use here."""

    dispatch = dict(_InPython.dispatch)

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="latin-1")
        self.trace = Trace()
        self._costs = Costs()
        self._encoded: dict[int, tuple[str, Any]] = {}

    # --- names and calls -------------------------------------------------------------------------

    def find_class(self, module: str, name: str) -> Built:
        """The node for the thing with a name."""
        if self.proto < 3:  # written with the names of Python 2
            if (module, name) in NAME_MAPPING:
                module, name = NAME_MAPPING[module, name]
            else:
                module = IMPORT_MAPPING.get(module, module)
        self.trace.names.add(f"{module}.{name}")
        return Built(f"{module}.{name}")

    def get_extension(self, code: int) -> None:
        self.append(self.find_class("copyreg extension", str(code)))

    def _call(self, _: Any = None) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        self._instantiate(called, arguments)

    def _call_named(self) -> None:
        self.stack.pop()
        self._call()

    def _instantiate(self, called: Any, arguments: Any) -> None:
        """Append the node for the result of a call."""
        if type(arguments) is list:  # of an operation that has them one by one
            arguments = tuple(arguments)
        name = called.name if isinstance(called, Built) else f"a {type(called).__name__}"
        few = type(arguments) is tuple and len(arguments) <= MOST_ARGUMENTS
        self.trace.work += self._costs.of_call(name, arguments)
        if name in _OPENERS:
            data = arguments[_OPENERS[name]] if few and len(arguments) > _OPENERS[name] else None
            self.trace.nested.append(Nested(data if type(data) is bytes else None, True))
        found = Built(name, arguments)
        if name in _KNOWN and few:
            with suppress(Exception):  # a call with other arguments than these have
                found = _KNOWN[name](self, *arguments)
        if isinstance(found, Tensor):
            self.trace.tensors.append(found)
        self.append(found)

    def encode(self, text: str, encoding: str) -> bytes:
        """Bytes, as protocol 2 writes them. A text that is called for again is not read again."""
        if id(text) not in self._encoded:
            self._encoded[id(text)] = text, text.encode("latin-1")
        found: bytes = self._encoded[id(text)][1]
        return found

    def persistent_load(self, pid: Any) -> Any:
        found = _stored(pid)
        if isinstance(found, Stored):
            self.trace.stored.append(found)
        return found

    # --- containers ------------------------------------------------------------------------------

    def _fill(self) -> None:
        state = self.stack.pop()
        self.trace.work += length(state)
        if isinstance(self.stack[-1], Built | Ordered):
            self.stack[-1].state = state

    def _add(self, items: list[Any]) -> None:
        owner = self.stack[-1]
        (owner.items if isinstance(owner, Built) else owner).extend(items)

    def _set_items(self, items: list[Any]) -> None:
        """Set items, note what their keys cost, and which values are opened as pickles."""
        owner, pairs = self.stack[-1], list(zip(items[::2], items[1::2]))
        self.trace.work += self._costs.of_keys(owner, items[::2])
        for key, value in pairs:
            if type(key) is str and key in _MARKS:
                if key == "begun" and type(value) is tuple:
                    value = value[-1] if value else None
                if type(value) is bytes:
                    self.trace.nested.append(Nested(value, False))
        if isinstance(owner, dict):
            owner.update((_key(key), value) for key, value in pairs)
        else:
            owner.items.extend(pairs)

    def _dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    # --- sizes -----------------------------------------------------------------------------------

    def _bytearray(self) -> None:
        (size,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(size)))  # the base class makes one of any size first

    dispatch |= {
        getattr(pickle, name)[0]: act
        for name, act in {
            "FRAME": lambda self: self.read(8),
            "READONLY_BUFFER": lambda self: None,
            "NEXT_BUFFER": lambda self: self.append(Built("a buffer outside of the pickle")),
            "BYTEARRAY8": _bytearray,
            # what is in a set need not be hashable here
            "EMPTY_SET": _InPython.load_empty_list,
            "FROZENSET": _InPython.load_list,
            "DICT": _dict,
            "REDUCE": _call,
            "NEWOBJ": _call,
            "NEWOBJ_EX": _call_named,
            "BUILD": _fill,
            "APPEND": lambda self: self._add([self.stack.pop()]),
            "APPENDS": lambda self: self._add(self.pop_mark()),
            "ADDITEMS": lambda self: self._add(self.pop_mark()),
            "SETITEM": lambda self: self._set_items([self.stack.pop(-2), self.stack.pop()]),
            "SETITEMS": lambda self: self._set_items(self.pop_mark()),
        }.items()
    }


def _shortened(load: Callable[[Any], None]) -> Callable[[_Reader], None]:
    def load_number(reader: _Reader) -> None:
        load(reader)
        number = reader.stack[-1]
        if type(number) is int and number.bit_length() > _LONGEST_BITS:
            reader.stack[-1] = f"0x{number:x}"

    return load_number


for _name in ("INT", "LONG", "LONG1", "LONG4"):
    _code = getattr(pickle, _name)[0]
    _Reader.dispatch[_code] = _shortened(_Reader.dispatch[_code])


#: how a plain pickle has a tensor's data: torch opens any file of torch.save there, with code
OPENED = "torch.storage._load_from_bytes"

#: a stream's state in a pickled iterator; it is opened when the iterator goes on
PICKLED = f"{Pickled.__module__}.{Pickled.__qualname__}"

#: what opens a pickle when it is called, and which of its arguments that is
_OPENERS = {
    OPENED: 0,
    f"{open_carried.__module__}.{open_carried.__qualname__}": 1,
    PICKLED: 0,
}

#: what in an iterator is opened when a stream goes on, by its name
_MARKS = ("mark", "pickled", "begun")


def _tensor(stored: Any, offset: Any, shape: Any, stride: Any, gradient: Any = False) -> Tensor:
    if isinstance(stored, Built) and stored.name == OPENED:
        (stored,) = stored.arguments
    if not isinstance(stored, Stored | bytes):
        raise NotPickle("a tensor whose numbers are nowhere")  # the node is the call, then
    if max(len(shape), len(stride)) > MOST_DIMENSIONS:
        raise NotPickle("a tensor of too many dimensions")
    if not all(type(number) is int for number in (offset, *shape, *stride)):
        raise NotPickle("a tensor whose shape is none")
    return Tensor(stored, tuple(shape), offset, tuple(stride), gradient is True)


def _stored(pid: Any) -> Any:
    if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
        kind = pid[1].name if isinstance(pid[1], Built) else ""
        if type(pid[2]) is str and type(pid[4]) is int:
            return Stored(pid[2], kind.rpartition(".")[2], pid[4])
    return Built("an object outside of the pickle", (pid,))


#: calls that make values, by what these are
_KNOWN: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _Reader.encode,
    PICKLED: lambda _, data: data,
    "copyreg._reconstructor": lambda _, kind, *rest: Built(kind.name, ()),  # protocols 0 and 1
    "collections.OrderedDict": lambda _: Ordered(),
    "torch._utils._rebuild_tensor_v2": lambda _, *given: _tensor(*given[:5]),
    "torch._utils._rebuild_parameter": lambda _, tensor, gradient, *rest: replace(
        tensor, gradient=gradient
    ),
    "builtins.set": lambda _, items: items,  # what is in it need not be hashable here
    "builtins.complex": lambda _, *parts: complex(*parts),
}

#: longer numbers are shown in hexadecimal: decimals take time that grows as a square
_LONGEST_BITS = 4096


def _key(key: Any) -> Any:
    """The node for a key. Tuples of tuples may take for ever to be hashed, or shown."""
    flat = key if type(key) is tuple else (key,)
    if len(flat) > MOST_IN_A_KEY or not all(type(part) in _FLAT for part in flat):
        return Built("a key", (key,))
    chosen = type(key) is tuple or (type(key) is int and key.bit_length() > _HASH_BITS)
    return Key(key) if chosen else key


_FLAT = (str, bytes, int, float, bool, type(None), Built)
_HASH_BITS = 60  # a smaller number is its own hash
