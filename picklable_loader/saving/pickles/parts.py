"""Decides which parts of a loader, or of its iterator, a codec carries, and pickles them so.

The decision is made once for a loader, and again when one of its parts looks different. It tries
pickle on each part, then cloudpickle, then dill, and discards the bytes. Parts that pickle accepts
are pickled normally, so nothing changes for a loader that has no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from types import FunctionType, MethodType
from typing import Any

import torch

from ...rng.generators import GLOBAL
from .codecs import Carried, Codec
from .explain import blame
from .mapped_files import MappedFiles
from .opened import Opened, standing_beside
from .picklers import Refer, is_data, is_lost, reached, refusal
from .placeholder import absent, is_absent
from .stock import STOCK

#: under which name the state of a loader has what is carried
_CARRIED = "_carried"

#: what every pickler accepts
_ATOMS = (type(None), bool, int, float, str, bytes)

#: what anything is pickled as that need not be looked at
_STAND_IN = (standing_beside, (0, None))

Parts = dict[str, Any]
#: by name of a part, the codec that carries it; the others are pickled as they are
Codecs = dict[str, "str | Codec"]
#: see `Carried`
Known = dict[int, tuple[Any, str | None]]


@dataclass(frozen=True)
class Packing:
    """A loader, and how it is to be pickled."""

    #: the loader; its parts may refer to it
    owner: Any
    #: as its ``__getstate__`` gives them
    attributes: Parts
    #: which parts are carried, as far as that is known
    decision: Decision
    dataset: Any
    #: see the arguments of these names of `DataLoader`
    codec: str | Codec
    pickle_dataset: bool
    pickle_mapped: bool
    #: whatever else decides: another object after each change
    version: tuple[object, ...]
    #: the loader's fingerprint, for a stand-in of its dataset
    fits: Callable[[], dict[str, Any]]

    @property
    def parts(self) -> Parts:
        """The attributes that a codec may have to carry."""
        return {n: part for n, part in self.attributes.items() if type(part) not in _ATOMS}

    @property
    def codecs(self) -> Codecs:
        """By part that is carried, its codec; CannotSaveError if none accepts it."""
        return self.decision.codecs(self)

    @property
    def left_out(self) -> set[int]:
        """The dataset, if it is not to be saved."""
        if self.pickle_dataset and not is_absent(self.dataset):
            return set()
        return {id(self.dataset)}


class Decision:
    """The codecs that were decided for a loader's parts; never pickled.

    A copy of the loader is given the ``codecs`` that were decided for it.
    """

    def __init__(self, codecs: Codecs | None = None) -> None:
        self._look: Any = None
        #: alive, as an ``id`` is used again
        self._version: tuple[object, ...] = ()
        self._codecs: Codecs = codecs or {}
        #: it was made for a loader that this one's is a copy of
        self._settled = codecs is not None

    def codecs(self, how: Packing) -> Codecs:
        """See `Packing.codecs`."""
        if self._settled:
            return self._codecs
        look = [(name, id(part), _look(part)) for name, part in how.parts.items() if name != "_pl"]
        version = how.version
        if look != self._look or list(map(id, version)) != list(map(id, self._version)):
            self._codecs, self._look, self._version = _decide(how), look, version
        return self._codecs


def packed(how: Packing) -> Parts:
    """The state of a loader as it is pickled."""
    attributes, codecs, left_out = how.attributes, how.codecs, how.left_out
    if left_out:
        attributes = {**attributes, "dataset": absent(how.dataset, how.fits())}
    if not codecs:
        return attributes
    plain = {name: value for name, value in attributes.items() if name not in codecs}
    theirs = {name: how.attributes[name] for name in codecs}
    # One codec writes all of them, so that what they share stays one object. The last one of
    # `STOCK` takes what those before it take.
    codec = max(codecs.values(), key=lambda c: STOCK.index(c) if isinstance(c, str) else len(STOCK))
    mapped = not how.pickle_mapped
    known: Known = {id(how.owner): (how.owner, None)}
    if left_out:
        known[id(how.dataset)] = attributes["dataset"], None
    return {**plain, _CARRIED: Carried(codec, theirs, known, _held(how, plain), mapped)}


def unpacked(attributes: Parts) -> tuple[Parts, Opened | None]:
    """The state of a loader from what was pickled, and what of it was carried."""
    attributes = dict(attributes)
    opened = attributes.pop(_CARRIED, None)
    return {**attributes, **(opened or {})}, opened


def packed_iterator(how: Packing, iterator: Any) -> Any:
    """A sampler's iterator as it is pickled; CannotSaveError if no codec takes it."""
    parts, codecs, loader = how.parts, how.codecs, how.owner
    moved = {id(parts[name]) for name in codecs} | how.left_out
    still = [loader, *(part for part in parts.values() if id(part) not in moved)]
    shared, choice = _Shared(), how.codec if isinstance(how.codec, str) else None
    by_name = choice in ("auto", STOCK[0])  # otherwise any program is to be able to load it
    if by_name and not refusal(
        STOCK[0], iterator, _refer(moved, shared=shared), still, bool(moved)
    ):
        return iterator
    whole: Known = {id(part): (loader, name) for name, part in parts.items()}
    whole[id(loader)] = loader, None
    # A codec of the user's would copy what the iterator shares with the loader: ours write it.
    todo = (choice,) if choice in STOCK[1:] else STOCK[0 if shared.met else 1 :]
    for codec in dict.fromkeys((*todo, *STOCK[1:])):
        if refusal(codec, iterator, _refer(), [loader, *parts.values()]) is None:
            plain = {name: part for name, part in parts.items() if id(part) not in moved}
            return Carried(codec, {"iterator": iterator}, whole, _held(how, plain))
    raise blame(iterator, "the sampler's iterator")


def _held(how: Packing, plain: Parts) -> dict[int, Any]:
    """The objects in a loader's ordinary parts: carried parts refer to them there."""
    things = reached(plain, lambda obj: _STAND_IN if obj is how.owner or is_data(obj) else None)
    things.pop(id(standing_beside), None)  # it is how they refer
    return things


def class_of(kind: type[Any], choice: str | Codec) -> Any:
    """A loader's class as it is pickled."""
    if kind.__module__.partition(".")[0] == __name__.partition(".")[0]:  # ours
        return kind
    if choice == "auto":
        return kind if refusal("pickle", kind, _refer()) is None else Carried(STOCK[1], kind)
    return kind if choice == STOCK[0] else Carried(choice, kind)


# --- within --------------------------------------------------------------------------------------


def _decide(how: Packing) -> Codecs:
    choice, left_out = how.codec, how.left_out
    todo = {name: part for name, part in how.parts.items() if id(part) not in left_out}
    if not isinstance(choice, str):
        return dict.fromkeys(todo, choice)
    files = None if how.pickle_mapped else MappedFiles()
    known, shared = [how.owner], _Shared()
    codecs: Codecs = {}
    # The codecs to try, in this order; "" is the pickler of the loader. A part that refers to an
    # absent dataset has to be put together again when that is there, and files are named where we
    # write ourselves, and so are the global generators: then we write some parts that pickle would
    # take.
    ourselves = bool(left_out) or files is not None
    for codec in ("", *tried(choice)) if choice not in STOCK[1:] else (choice,):
        if codec == STOCK[0] and not (ourselves or shared.met):
            continue
        barred = set() if codec else left_out
        if codec and left_out:
            known.append(how.dataset)
        refer = _refer(
            barred, codec, files, lenient=choice == STOCK[0], shared=None if codec else shared
        )
        writer, asks = codec or STOCK[0], bool(barred)
        # Pickle takes all parts of most loaders.
        if not codec and refusal(writer, list(todo.values()), refer, known, asks) is None:
            return {}
        for name, part in tuple(todo.items()):
            if refusal(writer, part, refer, known, asks) is None:
                known.append(todo.pop(name))
                if codec:
                    codecs[name] = codec
    for name, part in todo.items():
        raise blame(part, f"loader.{name}", tried(choice))
    return codecs


def tried(choice: str) -> tuple[str, ...]:
    """The codecs that a choice allows, pickle first."""
    return STOCK if choice == "auto" else tuple(dict.fromkeys((STOCK[0], choice)))


def _look(part: Any) -> list[Any]:
    """Signs of whether a part has changed. It does not look far into it: it is asked often."""
    near = list(getattr(part, "__dict__", {}).values())
    look = [type(each) if isinstance(each, _ATOMS) or is_data(each) else id(each) for each in near]
    # Farther away only kinds count, and functions: what a dataset collects is no other decision.
    for thing in near:  # it grows meanwhile: what is near comes first
        if isinstance(thing, _NAMED):
            continue
        try:
            held = thing if isinstance(thing, list | tuple | dict) else vars(thing)
            inside: Any = held.values() if isinstance(held, dict) else held
            ends = [*islice(inside, _MOST_NEAR), *islice(reversed(inside), _MOST_NEAR)]
        except Exception:  # it has no attributes, or whatever people's __iter__ raises
            continue
        for each in ends:  # what was put in last is among them
            look.append(id(each) if isinstance(each, _NAMED) else type(each))
            if len(near) < _MOST_SEEN and not isinstance(each, _ATOMS):
                near.append(each)
    return look


#: how many things are looked into, and how many of what is in one, from both ends
_MOST_SEEN, _MOST_NEAR = 64, 8
#: those of one type differ in whether pickle takes them
_NAMED = (type, FunctionType, MethodType)


class _Shared:
    """The global generators: a pickler that knows nothing of ours would copy them."""

    def __init__(self) -> None:
        self.ids = set(map(id, GLOBAL.values()))
        #: one was refused
        self.met = False


def _refer(
    barred: Any = (),
    codec: str | None = None,
    files: MappedFiles | None = None,
    lenient: bool = True,
    shared: _Shared | None = None,
) -> Refer:
    """Gives a stand-in for data, so that it is not copied; refuses what is barred.

    The codec "" is whoever pickles the loader, and knows nothing of ours. A lenient trial lets pass
    what ``torch.save`` may save, and pickle cannot read again.
    """
    by_name, strict = codec in ("", STOCK[0]), codec == "" and not lenient

    def refer(obj: Any) -> tuple[Any, ...] | None:
        if by_name and type(obj) is MethodType:
            if getattr(obj.__self__, obj.__name__, None) != obj:
                raise TypeError("it is a method that has got another name, from a decorator")
        if shared is not None and id(obj) in shared.ids:
            shared.met = True
            raise TypeError("it is a generator that all of the program shares")
        if strict and isinstance(obj, torch.Tensor) and is_lost(obj):
            raise TypeError(f"no pickle with a tensor of {obj.dtype} can be read again")
        if files is not None and files.by_name(obj) is not None:
            if codec == "":
                raise TypeError("it is to be saved by its file's name")
            return _STAND_IN
        if id(obj) in barred:
            raise TypeError("it refers to what is saved in another way")
        return _STAND_IN if is_data(obj) else None

    return refer
