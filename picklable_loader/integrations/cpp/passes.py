"""Iteration of bound samplers and streams, one by one and in batches, and its position."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

from ...core.checks import whole_number
from ...datasets.protocol import is_stateful, stream_length_of
from ...errors import CannotSaveError, Difference, StateMismatch, UsageError
from .explained import explained
from .pickling import bound_of, load_state, state_or_none


class Pass:
    """An iterator over a sampler or a stream, which has the position.

    A sampler has one position, and generators that go on from epoch to epoch. So its newest pass
    moves the sampler itself. A pass over a stream has a copy of the stream, as a worker has.
    """

    #: for CustomOrder: a replay would begin without what the sampler has in C++
    state_is_position = True
    _ended = False  # an iterator that has ended does not begin again, and C++ may

    def __init__(self, source: Any, batch_size: int | None = None, drop_last: bool = False) -> None:
        is_stream = isinstance(source, IterableDataset)
        self._source: Any = copy.copy(source) if is_stream else source
        self._batch_size, self._drop_last = batch_size, drop_last
        self._begun = False  # torch calls iter(sampler) twice when it starts workers

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if not self._begun:
            self._begin()
        name = type(self._source).__qualname__
        if _newest.get(id(self._source)) is not self:
            raise UsageError(
                f"another iterator of this {name} has begun since, and "
                "has moved its only position. Give each loader an object of its own"
            )
        count = self._batch_size or 1
        try:
            taken = self._source._next(count)
        except Exception as error:
            raise explained(error, self._source, f"the next {count}")
        if taken is not None and not isinstance(taken, list) and not _is_empty(taken):
            if self._drop_last:
                raise UsageError(
                    f"drop_last=True needs to know how many samples a batch has, and a {name} "
                    "makes whole batches. Leave it out, and end the stream there in C++"
                )
            return taken
        if isinstance(taken, list) and len(taken) > count:
            raise ValueError(
                f"{name} gives {len(taken)} at once when it is asked for {count}. "
                "Return as many as asked for, or fewer; return the others when it is asked again"
            )
        if not isinstance(taken, list) or len(taken) < (count if self._drop_last else 1):
            vars(self._source)["_under_way"] = False
            self._ended = True
            raise StopIteration
        return taken[0] if self._batch_size is None else taken

    def _begin(self) -> None:
        self._take_over()
        attributes = vars(self._source)
        if not attributes.pop("_goes_on", False):
            attributes["_under_way"] = False
            if "_next_epoch" in attributes:  # not by a subclass's set_epoch, which has been called
                bound_of(type(self._source)).set_epoch(self._source, attributes["_next_epoch"])
            self._source._reset()
        self._begun = attributes["_under_way"] = True

    def state_dict(self) -> Any:
        """The position."""
        return {**position(self._source), "begun": self._begun}

    def load_state_dict(self, state: Any) -> None:
        """Go on from that position."""
        self._ended = False
        self._take_over()
        is_stream = isinstance(self._source, IterableDataset)
        if is_stream:
            self._source._reset()  # it may open what load() needs; a sampler's would draw
        load_state_dict(self._source, state)
        self._begun = vars(self._source).pop("_goes_on", False)

    def __getstate__(self) -> dict[str, Any]:
        position(self._source)
        return self.__dict__

    def __setstate__(self, attributes: dict[str, Any]) -> None:
        self.__dict__.update(attributes)
        self._take_over()

    def _take_over(self) -> None:
        _newest[id(self._source)] = self


#: a source's id -> the pass that moves its position. A pass has its source, so while it lives no
#: other source has that id; a source need not be hashable.
_newest: weakref.WeakValueDictionary[int, Pass] = weakref.WeakValueDictionary()


def state_dict(self: Any) -> dict[str, Any]:
    """The state_dict of a sampler, if an ``__iter__`` of its own has not taken more than it gave.

    `around_own_iter` sees to that, but for one that was set when the sampler was there already.
    """
    if type(self).__iter__ is not begin and _unknown_iter(type(self)) is not None:
        raise _unknown_position(type(self).__qualname__)
    return position(self)


def position(self: Any) -> dict[str, Any]:
    """The position of a sampler or stream, and whether a pass is under way."""
    name = type(self).__qualname__
    if not hasattr(self, "_get_state"):
        raise NotImplementedError(f"{name} has no save() and load()")
    source = state_or_none(self)
    if source == {}:
        if isinstance(self, IterableDataset):
            raise NotImplementedError(f"{name}.save() writes nothing")  # the loader replays it
        raise CannotSaveError(
            f"the position of a {name}",
            "its save() writes nothing",
            "Let save() write all that its next indices depend on, and load() read it",
        )
    attributes = vars(self)
    epochs = {"epoch": attributes["_built"].get("epoch"), "next": attributes.get("_next_epoch")}
    known: dict[str, Any] = {name: at for name, at in epochs.items() if at is not None}
    if source is not None:
        known["source"] = source
    if hasattr(self, "_rank_share"):
        known["share"] = self._rank_share()
    return {**known, "begun": attributes.get("_under_way", False)}


def load_state_dict(self: Any, state: dict[str, Any]) -> None:
    """Go on from that position: the next pass begins there."""
    name, attributes = f"state of {type(self).__qualname__}", vars(self)
    is_state = type(state) is dict and "begun" in state
    if not is_state or ("source" not in state and state["begun"]):
        expected = "a dict with the entries 'source' and 'begun'"
        raise StateMismatch(
            [Difference(name, expected, state)],
            "Pass what state_dict() of this class has returned",
        )
    if "source" not in state and "_under_way" in attributes:  # see `state_or_none`
        raise StateMismatch(
            [Difference(name, "one that was saved after its first pass began", state)],
            "Load it into a new object",
        )
    own = self._rank_share() if hasattr(self, "_rank_share") else "a state of no rank"
    if "share" in state and state["begun"] and state["share"] != own:
        raise StateMismatch(
            [Difference(name, own, state["share"])],
            "In mid-epoch a C++ sampler's position is for one rank: save a state on each, and load "
            "that rank's own; or pass shard= and a sampler of the whole dataset",
        )
    begun = attributes.pop("_under_way", None)
    try:
        if "epoch" in state:
            self.set_epoch(state["epoch"])
        if "source" in state:
            load_state(self, state["source"])
            begun = attributes["_goes_on"] = state["begun"]
    finally:
        if begun is not None:
            attributes["_under_way"] = begun
    attributes.pop("_next_epoch", None)
    if "next" in state:
        self.set_epoch(state["next"])


class Batched:
    """A sampler or stream in batches. Attributes are those of torch's BatchSampler, or its own."""

    def __init__(self, sampler: Any, batch_size: int, drop_last: bool = False) -> None:
        whole_number("batch_size", batch_size, 1)
        if not hasattr(type(sampler), "_next"):
            raise UsageError(
                "a library builds the batches() of a C++ sampler anew, as Lightning's predict does "
                f"with the loader's sampler. That one is a {type(sampler).__qualname__}, and the "
                "C++ sampler would be lost. Give the loader sampler=T(...) and batch_size= in "
                "place of batch_sampler=T(...).batches(...)"
            )
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[Any]:
        return Pass(self.sampler, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        return self._batches_of(len(self.sampler))

    def _batches_of(self, count: int) -> int:
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(vars(self)["sampler"], name)


class Batches(Batched):
    """A sampler in batches, for ``batch_sampler=``. Its position is the sampler's."""

    def state_dict(self) -> Any:
        """The sampler's position."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Go on from that position."""
        self.sampler.load_state_dict(state)


class StreamBatches(Batched):
    """A stream in batches, for ``batch_size=None``."""

    @property
    def stream_length(self) -> Callable[[int, int], int] | None:
        """The batches of one stream, which rounds up for itself; None: its samples are unknown."""
        samples_of = stream_length_of(self.sampler)
        if samples_of is None:
            return None

        def batches_of(stream: int, streams: int) -> int:
            count = whole_number("stream_length", samples_of(stream, streams))
            return count if count < 0 else self._batches_of(count)  # the loader refuses such

        return batches_of


IterableDataset.register(StreamBatches)


def _is_empty(batch: Any) -> bool:
    """All tensors of a whole batch have no rows."""
    tensors = [each for each in _tensors(batch) if each.ndim]
    return bool(tensors) and not any(map(len, tensors))


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, tuple | list | dict):
        for part in batch.values() if isinstance(batch, dict) else batch:
            yield from _tensors(part)


def batches(self: Any, batch_size: int, drop_last: bool = False) -> Batched:
    """For ``batches`` of samplers and streams, in C++ code."""
    if type(self).__iter__ is not begin:
        raise UsageError(
            f"{type(self).__qualname__} has an __iter__ of its own in Python, which batches() "
            "would go past. Give the loader batch_size=, or for a sampler torch's BatchSampler"
        )
    of: type[Batched] = StreamBatches if isinstance(self, IterableDataset) else Batches
    return of(self, batch_size, drop_last)


def begin(self: Any) -> Pass:
    """For ``__iter__`` of samplers and streams."""
    return Pass(self)


class OwnPass:
    """The iterator of a sampler's subclass in Python which has an ``__iter__`` of its own.

    Nobody knows what that has done since the sampler in C++ gave an index, so in mid-epoch
    there is no state.
    """

    state_is_position = True

    def __init__(self, sampler: Any, iterator: Iterator[Any]) -> None:
        self._name, self._iterator = type(sampler).__qualname__, iterator

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def state_dict(self) -> Any:
        """There is none."""
        raise _unknown_position(self._name)

    def load_state_dict(self, state: Any) -> None:
        """There is none."""
        self.state_dict()


def _unknown_position(name: str) -> CannotSaveError:
    return CannotSaveError(
        f"the position of a {name}",
        "its __iter__ in Python is around the one in C++, whose position is not all there is",
        "Give the class state_dict and load_state_dict, or have __iter__ return an iterator "
        "that has both; or change the indices in the dataset",
    )


#: each ``__iter__`` that returns an OwnPass, or an iterator with a state
_known: weakref.WeakSet[Any] = weakref.WeakSet()


def _unknown_iter(cls: Any) -> Any:
    """The class that gives a sampler an ``__iter__`` of which nobody knows the position, or None.

    It may be a base next to the bound class, and a decorator may have set it.
    """
    bases = cls.__mro__
    owner = next(base for base in bases if "__iter__" in vars(base))
    own = vars(owner)["__iter__"]
    known = own is begin or own in _known
    # a class with an __iter__, or below one, may have a state_dict that knows of it
    until = bases[: bases.index(owner) + 1]
    return None if known or any("state_dict" in vars(base) for base in until) else owner


def around_own_iter(cls: Any) -> None:
    """Have an ``__iter__`` in Python of a sampler's class say that its position is unknown."""
    if cls.__iter__ is begin or (owner := _unknown_iter(cls)) is None:
        return
    own = vars(owner)["__iter__"]

    @functools.wraps(own)
    def __iter__(self: Any) -> Any:
        iterator = own(self) if owner is cls else super(cls, self).__iter__()
        return iterator if is_stateful(iterator) else OwnPass(self, iterator)

    _known.add(__iter__)
    cls.__iter__ = __iter__
