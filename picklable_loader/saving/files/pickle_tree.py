"""Reads a pickle as a tree of its parts, without building or importing anything.

The reader is a machine with a stack, as pickle's own. A call becomes a `Built`: the name of the
callable, and its arguments. The reader reads each byte once, and no operation costs more than the
bytes that it reads. Parts of a tree may be shared, so a small pickle may hold an endless tree: code
that walks one visits each part once.
"""

from __future__ import annotations

import pickletools
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

from ..pickles.opened import Pickled, open_carried
from .pickle_limits import MOST_ARGUMENTS, MOST_DIMENSIONS, MOST_IN_A_KEY, Costs, length
from .pickle_nodes import Built, Key, Ordered, Stored, Tensor


class NotPickle(ValueError):
    """The bytes are no pickle."""


@dataclass(frozen=True)
class Nested:
    """Bytes in a pickle that are a pickle themselves, and are opened when it is used.

    Attributes:
        data: the bytes; None where they are not known.
        called: loading opens them, as a file of ``torch.save``; otherwise a stream does.
    """

    data: bytes | None
    called: bool


@dataclass
class Trace:
    """The effects that building a pickle would have.

    Attributes:
        tree: the object that it would build: Python's own values, and `Built`, `Stored` and
            `Tensor` for anything else.
        names: all that it would import on the way, even if unused; module and name.
        nested: pickles within it. They are not read here: see `names_of`.
        stored: all data outside the pickle that it asks for.
        tensors: all tensors that it would build.
        work: steps that a reader needs besides reading: the items that its calls copy, and the
            comparisons of its keys. An honest pickle needs fewer than it has bytes.
    """

    tree: Any = None
    names: set[str] = field(default_factory=set)
    nested: list[Nested] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    work: int = 0


def trace(data: bytes | BinaryIO) -> Trace:
    """Read a pickle without building anything.

    Args:
        data: the pickle; bytes after it are ignored. A file is positioned behind it afterwards.

    Raises:
        NotPickle: the bytes are none.
    """
    machine = _Machine()
    try:
        for operation, argument, _ in pickletools.genops(data):
            machine.do(operation.name, argument)
    except _Done:
        machine.trace.tree = machine.stack[-1]
        return machine.trace
    except Exception as error:  # whatever damaged bytes make of a stack
        raise NotPickle(str(error) or type(error).__name__) from error
    raise NotPickle("it does not end")


class _Done(Exception):
    pass


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.trace = Trace()
        self.protocol = 0
        self.costs = Costs()
        self.encoded: dict[int, tuple[str, Any]] = {}

    def do(self, name: str, argument: Any) -> None:
        """One operation of the pickle."""
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name in _LITERALS:
            long = isinstance(argument, int) and argument.bit_length() > _LONGEST_BITS
            self.stack.append(f"0x{argument:x}" if long else argument)
        elif name in _ACTIONS:
            _ACTIONS[name](self, argument)
        elif name not in _IDLE:
            raise NotPickle(f"an operation {name}")

    def drop_mark(self, _: Any) -> None:
        self.pop_mark()

    def pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def mark(self, _: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def begin(self, protocol: int) -> None:
        self.protocol = protocol

    def stop(self, _: Any) -> None:
        if not self.stack:
            raise NotPickle("nothing is left")
        raise _Done

    def pop(self, _: Any) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.pop_mark()

    def duplicate(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def put(self, number: Any) -> None:
        self.memo[len(self.memo) if number is None else int(number)] = self.stack[-1]

    def get(self, number: Any) -> None:
        self.stack.append(self.memo[int(number)])

    def gather(self, kind: Callable[[list[Any]], Any]) -> None:
        items = self.pop_mark()
        self.stack.append(kind(items))

    def tuple_of(self, count: int) -> None:
        items = self.stack[-count:]
        if len(items) < count:
            raise NotPickle("too little on the stack")
        self.stack[-count:] = [tuple(items)]

    def name(self, text: str) -> None:
        self.stack.append(self.named(*text.split(" ", 1)))

    def named(self, module: str, name: str) -> Built:
        """The thing that a name stands for."""
        if self.protocol < 3:  # written with the names of Python 2
            if (module, name) in NAME_MAPPING:
                module, name = NAME_MAPPING[module, name]
            else:
                module = IMPORT_MAPPING.get(module, module)
        self.trace.names.add(f"{module}.{name}")
        return Built(f"{module}.{name}")

    def stack_name(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if type(name) is not str or type(module) is not str:
            raise NotPickle("a name that is no text")
        self.stack.append(self.named(module, name))

    def call(self, _: Any) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        self.stack.append(self.called(called, arguments))

    def call_named(self, _: Any) -> None:
        _, arguments, called = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.stack.append(self.called(called, arguments))

    def instance(self, text: str) -> None:
        arguments = tuple(self.pop_mark())
        self.stack.append(self.called(self.named(*text.split(" ", 1)), arguments))

    def instance_on_stack(self, _: Any) -> None:
        called, *arguments = self.pop_mark()
        self.stack.append(self.called(called, tuple(arguments)))

    def called(self, called: Any, arguments: Any) -> Any:
        """The node for the result of a call."""
        name = called.name if isinstance(called, Built) else f"a {type(called).__name__}"
        few = type(arguments) is tuple and len(arguments) <= MOST_ARGUMENTS
        self.trace.work += self.costs.of_call(name, arguments)
        if name in _OPENERS:
            data = arguments[_OPENERS[name]] if few and len(arguments) > _OPENERS[name] else None
            self.trace.nested.append(Nested(data if type(data) is bytes else None, True))
        if name in _KNOWN and few:
            try:
                return self.note(_KNOWN[name](self, *arguments))
            except Exception:  # a call with other arguments than these have
                pass
        return Built(name, arguments)

    def note(self, found: Any) -> Any:
        if isinstance(found, Tensor):
            self.trace.tensors.append(found)
        return found

    def encode(self, text: str, encoding: str) -> bytes:
        """Bytes, as protocol 2 writes them. A text that is called for again is not read again."""
        if id(text) not in self.encoded:
            self.encoded[id(text)] = text, text.encode("latin-1")
        found: bytes = self.encoded[id(text)][1]
        return found

    def fill(self, _: Any) -> None:
        state = self.stack.pop()
        self.trace.work += length(state)
        if isinstance(self.stack[-1], Built | Ordered):
            self.stack[-1].state = state

    def add(self, items: list[Any]) -> None:
        owner = self.stack[-1]
        (owner.items if isinstance(owner, Built) else owner).extend(items)

    def set_items(self, items: list[Any]) -> None:
        owner = self.stack[-1]
        self.look_at(owner, items)
        if isinstance(owner, dict):
            owner.update(_pairs(items))
        else:
            owner.items.extend(zip(items[::2], items[1::2]))

    def look_at(self, owner: Any, items: list[Any]) -> None:
        """Note what keys cost, and which values are opened as pickles."""
        self.trace.work += self.costs.of_keys(owner, items[::2])
        for key, value in zip(items[::2], items[1::2]):
            if type(key) is str and key in _MARKS:
                if key == "begun" and type(value) is tuple:
                    value = value[-1] if value else None
                if type(value) is bytes:
                    self.trace.nested.append(Nested(value, False))

    def new_dict(self, _: Any) -> None:
        items = self.pop_mark()
        found: dict[Any, Any] = {}
        self.look_at(found, items)
        found.update(_pairs(items))
        self.stack.append(found)

    def stored(self, pid: Any) -> None:
        found = _stored(pid)
        if isinstance(found, Stored):
            self.trace.stored.append(found)
        self.stack.append(found)


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
    held = stored if isinstance(stored, Stored) else None
    if max(len(shape), len(stride)) > MOST_DIMENSIONS:
        raise NotPickle("a tensor of too many dimensions")
    if not all(type(number) is int for number in (offset, *shape, *stride)):
        raise NotPickle("a tensor whose shape is none")
    return Tensor(held, tuple(shape), offset, tuple(stride), gradient is True)


def _stored(pid: Any) -> Any:
    if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
        kind = pid[1].name if isinstance(pid[1], Built) else ""
        if type(pid[2]) is str and type(pid[4]) is int:
            return Stored(pid[2], kind.rpartition(".")[2], pid[4])
    return Built("what stands outside of the pickle", (pid,))


#: calls that make values, by what these are
_KNOWN: dict[str, Callable[..., Any]] = {
    "_codecs.encode": _Machine.encode,
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

_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
    "NEXT_BUFFER": lambda: Built("a buffer outside of the pickle"),
}

_LITERALS = set(
    "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING "
    "BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8 UNICODE BINUNICODE SHORT_BINUNICODE "
    "BINUNICODE8".split()
)
_IDLE = {"FRAME", "READONLY_BUFFER"}


#: longer numbers are shown in hexadecimal: decimals take time that grows as a square
_LONGEST_BITS = 4096


def _pairs(items: list[Any]) -> dict[Any, Any]:
    return {_key(key): value for key, value in zip(items[::2], items[1::2])}


def _key(key: Any) -> Any:
    """The node for a key. Tuples of tuples may take for ever to be hashed, or shown."""
    flat = key if type(key) is tuple else (key,)
    if len(flat) > MOST_IN_A_KEY or not all(type(part) in _FLAT for part in flat):
        return Built("a key", (key,))
    chosen = type(key) is tuple or (type(key) is int and key.bit_length() > _HASH_BITS)
    return Key(key) if chosen else key


_FLAT = (str, bytes, int, float, bool, type(None), Built)
_HASH_BITS = 60  # a smaller number is its own hash


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": _Machine.begin,
    "STOP": _Machine.stop,
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.drop_mark,
    "DUP": _Machine.duplicate,
    "PUT": _Machine.put,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "MEMOIZE": lambda machine, _: machine.put(None),
    "GET": _Machine.get,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "TUPLE": lambda machine, _: machine.gather(tuple),
    "LIST": lambda machine, _: machine.gather(list),
    "DICT": _Machine.new_dict,
    "FROZENSET": lambda machine, _: machine.gather(list),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": _Machine.stack_name,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_named,
    "INST": _Machine.instance,
    "OBJ": _Machine.instance_on_stack,
    "BUILD": _Machine.fill,
    "APPEND": lambda machine, _: machine.add([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.add(machine.pop_mark()),
    "ADDITEMS": lambda machine, _: machine.add(machine.pop_mark()),
    "SETITEM": lambda machine, _: machine.set_items([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "PERSID": _Machine.stored,
    "BINPERSID": lambda machine, _: machine.stored(machine.stack.pop()),
    "EXT1": lambda machine, number: machine.name(f"copyreg extension{number}"),
    "EXT2": lambda machine, number: machine.name(f"copyreg extension{number}"),
    "EXT4": lambda machine, number: machine.name(f"copyreg extension{number}"),
}
