"""Completes the classes that torch_data.h binds: pickling, states, iteration, errors in words.

An instance is saved by the arguments of its constructor, and its state where the class has one. A
sampler or stream has one position, in C++; its newest iterator (`Pass`) moves it.
"""

from __future__ import annotations

import functools
from types import MethodType
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from ...errors import CannotLoadError, UsageError
from ...fetching.worker import collate
from ...rng.current import call_seed, sample_seeds
from ...rng.source import random_int64
from .explained import explained
from .passes import around_own_iter, batches, begin, load_state_dict, state_dict
from .pickling import getstate, recorded, reduce, setstate
from .whole import Whole

# --- called by the header --------------------------------------------------------------------


def seed() -> int:
    """The seed of a call into C++; a draw of torch's global generator where no batch has one."""
    known = call_seed()
    return random_int64(None) if known is None else known


def worker() -> tuple[int, int]:
    """The number of this worker, and how many there are."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


#: makes memory for a batch
empty = collate.empty


def check_binding(name: str, torch_version: str, takes_python: bool, gives_python: bool) -> None:
    """Raise unless a class can be bound: by its library's torch, and without the GIL."""
    here = torch.__version__.partition("+")[0]
    if torch_version.partition("+")[0] != here:
        raise CannotLoadError(
            f"the extension with the class {name}",
            f"it was built for torch {torch_version}, and this is torch {here}",
            "Build it again: a C++ extension fits one version of torch",
        )
    if takes_python:
        raise UsageError(
            f"a constructor of {name} takes a Python object, and its methods run without the GIL. "
            "Take C++ types (std::function for a callback), or bind the class with hold_gil()"
        )
    if gives_python:
        raise UsageError(
            f"the samples or batches of {name} are or hold Python objects, and its methods run "
            "without the GIL. Give them C++ types (PICKLABLE_LOADER_FIELDS makes a struct a dict), "
            "or bind the class with hold_gil()"
        )


def complete(cls: Any, kind: str, holds_gil: bool, draws_in_python: bool) -> None:
    """Give a bound class what its kind has in Python.

    Args:
        draws_in_python: it makes samples one by one, with functions of Python that may draw. The
            loader then asks for one after the other, as it seeds Python for each sample.
    """
    built, module = cls.__init__, f"{cls.__module__}."
    cls.__name__ = cls.__name__  # which errors of CPython show; until then it begins with a module

    @functools.wraps(built)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        before = torch.default_generator.get_state()
        _construct(built, module, self, args, kwargs)
        if kind == "sampler":
            around_own_iter(type(self))  # a decorator may have set one since `_subclass`
        if kind == "chunks":
            self._reset()  # as torch's ChunkDataset does before it reads
        # with the GIL, C++ may have the very list, and see how it changes
        given = (args, kwargs) if holds_gil else (recorded(args), recorded(kwargs))
        how: dict[str, Any] = {"args": given[0], "kwargs": given[1]}
        if not torch.equal(before, torch.default_generator.get_state()):
            how["rng"] = before  # the constructor has drawn
        self.__dict__["_built"] = how

    __init__.__doc__ = _without(module, built.__doc__)
    cls._built_by, cls.__init__ = built, __init__
    cls.__init_subclass__ = classmethod(lambda sub, **given: _subclass(cls, kind, sub, **given))
    if hasattr(cls, "set_epoch"):
        cls.set_epoch = _noting(cls.set_epoch)
    for name, method in {**_EVERY, **_METHODS[kind]}.items():
        setattr(cls, name, method)
    if draws_in_python:
        del cls.__getitems__
    if kind == "stream":
        IterableDataset.register(cls)


def _construct(built: Any, module: str, self: Any, args: Any, kwargs: Any) -> None:
    try:
        built(self, *args, **kwargs)
    except TypeError as error:  # pybind11's names classes by their whole module
        error.args = tuple(_without(module, argument) for argument in error.args)
        raise


def _without(module: str, text: Any) -> Any:
    return text.replace(module, "") if isinstance(text, str) else text


def _noting(set_epoch: Any) -> Any:
    """A set_epoch whose epoch is saved: it is none of the constructor's arguments.

    While a pass is under way, the epoch is for the next one. A state would otherwise have this
    pass's position and the next one's epoch, of which ``load`` may make another order.
    """

    def noting(self: Any, epoch: int) -> None:
        attributes = self.__dict__
        attributes.pop("_next_epoch", None)
        if attributes.get("_under_way", False):
            attributes["_next_epoch"] = epoch
            return
        set_epoch(self, epoch)
        attributes["_built"]["epoch"] = epoch

    return noting


def _subclass(bound: Any, kind: str, cls: Any, **arguments: Any) -> None:
    """Have what a subclass in Python overrides hold for batches and positions, too."""
    super(bound, cls).__init_subclass__(**arguments)
    if kind == "sampler":
        around_own_iter(cls)
    bases = [base for base in cls.__mro__ if base is not Dataset]  # whose __getitem__ only raises
    owner = next((base for base in bases if "__getitem__" in vars(base)), bound)
    bulk = next((base for base in bases if "__getitems__" in vars(base)), owner)
    if bases.index(owner) < bases.index(bulk):
        cls.__getitems__ = None  # the loaders then ask for one sample after the other


# --- datasets --------------------------------------------------------------------------------


def _getitem(self: Any, index: Any) -> Any:
    try:
        return self._get(index)
    except Exception as error:
        raise explained(error, self, index, alone=True)


def _getitems(self: Any, indices: Any) -> Any:
    if type(indices) is not list:  # a batch sampler may give tensors
        indices = indices.tolist() if hasattr(indices, "tolist") else [*indices]
    try:
        return self._get_batch(indices, _seeds_of(self, indices))
    except Exception as error:
        raise explained(error, self, indices)


def _seeds_of(dataset: Any, indices: Any) -> list[int]:
    """With seeding="sample", a seed for each index; they are known by their places in the batch."""
    seeds = sample_seeds()
    if seeds is None or not len(indices):
        return []
    if len(seeds) != len(indices):
        raise UsageError(
            f"a wrapper's __getitems__ asks a {type(dataset).__qualname__} for {len(indices)} "
            f'samples within a batch of {len(seeds)}. With seeding="sample" nobody knows which '
            "sample of the batch each is for. Give the wrapper __getitem__ without __getitems__, "
            'or pass seeding="batch"'
        )
    return seeds


class _Bulk:
    """``__getitems__``; None where a ``__getitem__`` in Python has to hold for batches, too.

    `_subclass` does this for a class that has one when it is made. A decorator may set it later.
    """

    def __get__(self, dataset: Any, cls: Any) -> Any:
        if dataset is None or _first(cls, "__getitems__") is not self:
            return _getitems if dataset is None else MethodType(_getitems, dataset)
        return MethodType(_getitems, dataset) if _first(cls, "__getitem__") is _getitem else None


def _first(cls: Any, name: str) -> Any:
    """An attribute of the class or its bases; not torch's ``__getitem__``, which only raises."""
    bases = [base for base in cls.__mro__ if base is not Dataset and name in vars(base)]
    return vars(bases[0])[name]


def _getitems_at_once(self: Any, indices: Any) -> list[Whole]:
    return [Whole(_getitems(self, indices))]


def _getitem_of_whole(self: Any, index: Any) -> Any:
    raise NotImplementedError(  # the loaders take it for no __getitem__
        f"{type(self).__qualname__} makes whole batches, and no samples. Give it to the loader "
        "itself, with a batch_size or a batch_sampler; not within a ConcatDataset or StackDataset"
    )


def _collate(self: Any, samples: Any) -> Any:
    try:
        return self._apply(samples)
    except Exception as error:
        raise explained(error, self, samples)


_EVERY = {"__reduce_ex__": reduce, "__getstate__": getstate, "__setstate__": setstate}

_METHODS: dict[str, dict[str, Any]] = {
    "dataset": {"__getitem__": _getitem, "__getitems__": _Bulk()},
    "chunks": {"__getitem__": _getitem, "__getitems__": _Bulk()},
    "batch dataset": {"__getitem__": _getitem_of_whole, "__getitems__": _getitems_at_once},
    "sampler": {
        "__iter__": begin,
        "batches": batches,
        "state_dict": state_dict,
        "load_state_dict": load_state_dict,
    },
    "stream": {"__iter__": begin, "batches": batches},
    "collate": {"__call__": _collate},
}
