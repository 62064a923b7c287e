"""Stateful: datasets and iterators that save their own position.

The protocol is torchdata's, which Hugging Face's datasets have as well: ``state_dict`` and
``load_state_dict``, on the dataset, on its iterator, or on both. Theirs means another thing: it is
of one iteration, though the dataset has the methods. See `_Iteration`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from inspect import getattr_static, signature
from typing import Any, cast

from torch.utils.data import ChainDataset, ConcatDataset, StackDataset, Subset

from ..core.checks import whole_number
from ..saving.states.arrays import NotPlain
from ..saving.states.plain import alike, decode, encode

_NONE = object()


def is_stateful(thing: Any) -> bool:
    """It has both methods of the protocol itself; such as need other arguments are something else.

    Such are LitData's and MosaicML's: ``state_dict(num_samples, ...)`` is for their own loaders,
    which count the samples of all workers.
    """
    if not _has_methods(thing) or _holds_weights(thing):
        return False
    return all(getattr_static(thing, method, None) is not None for method in _METHODS)


def delegates_state(thing: Any) -> bool:
    """Its ``__getattr__`` finds the methods of what it wraps: their state lacks what it holds."""
    return _has_methods(thing) and not is_stateful(thing) and not _holds_weights(thing)


_METHODS = ("state_dict", "load_state_dict")


def _holds_weights(thing: Any) -> bool:
    """Its state is its data: a torch Module, or a TensorDict, which may be a dataset."""
    method = getattr(getattr_static(thing, "state_dict", None), "__module__", None)
    return str(method).startswith(("torch.nn.modules.", "tensordict."))


def _has_methods(thing: Any) -> bool:
    save, load = (getattr(thing, method, None) for method in _METHODS)
    if isinstance(thing, type) or not (callable(save) and callable(load)):
        return False
    return _takes(save) and _takes(load, {})


def _takes(method: Callable[..., Any], *arguments: Any) -> bool:
    try:
        found = signature(method)
    except (TypeError, ValueError):  # it is written in C, and does not say
        return True
    try:
        found.bind(*arguments)
    except TypeError:
        return False
    return True


def save(dataset: Any, iterator: Any) -> dict[str, Any]:
    """The states of an iterable-style dataset and of an iterator over it, as they are handed out.

    A ``state_dict`` may raise NotImplementedError: "not in this case", as a wrapper does around
    something that has none.

    Returns:
        `iterate` goes on from it: ``"dataset"``, ``"iterator"``, either, or neither where nobody
        has a state. A dataset that is its own iterator is under ``"iterator"``.
    """
    parts = {"iterator": iterator}
    if dataset is not iterator and not isinstance(iterator, _Iteration | _OfChanged):
        parts["dataset"] = dataset
    states = {name: _state_of(part) for name, part in parts.items()}
    return {name: state for name, state in states.items() if state is not _NONE}


def iterate(dataset: Any, states: dict[str, Any]) -> Any:
    """Go on with an iteration: the dataset's state, then ``iter``, then the iterator's state."""
    if is_hugging_face(dataset):
        iterator: Any = _Iteration(dataset)
        if "iterator" in states:
            iterator.load_state_dict(states["iterator"])
        return iterator
    saved: Any = states.get("iterator")
    if _is_of_changed(saved):
        return _OfChanged.again(dataset, saved)
    if "dataset" in states:
        dataset.load_state_dict(states["dataset"])
    early = states.keys() == {"iterator"} and _begins_at(dataset, saved)
    before = _form(dataset)
    iterator = iter(dataset)
    if early and are_in(dataset, iterator, states):
        return iterator
    if "iterator" in states:
        iterator.load_state_dict(saved)
    elif iterator is not dataset and is_stateful(iterator) and _others(before, _form(dataset)):
        iterator = _OfChanged(dataset, iterator, decode(before))
    return iterator


def _begins_at(dataset: Any, saved: Any) -> bool:
    """Give a dataset that is its own iterator its state, for an ``iter`` that begins there.

    ``iter`` may open its source at a position, or apply what is loaded.
    """
    if is_stateful(dataset) and hasattr(type(dataset), "__next__"):
        with suppress(Exception):  # it may need what ``iter`` opens
            dataset.load_state_dict(deepcopy(saved))
            return True
    return False


def are_in(dataset: Any, iterator: Any, states: Mapping[str, Any]) -> bool | None:
    """A dataset and an iterator over it have states that `save` has given; None: nobody knows."""
    with suppress(NotPlain):
        saved = {name: encode(state) for name, state in states.items()}

        def now() -> dict[str, Any]:
            found = save(dataset, iterator)
            return {name: encode(found[name]) for name in saved}

        return gives(now, saved)
    return None


def gives(form: Callable[[], Any], saved: Any) -> bool | None:
    """The plain form of a state, asked for now, is the saved one; None: nobody knows.

    So it is where it cannot be asked for, or is never twice the same: a state with the time in it.
    """
    with suppress(Exception):  # whatever people's state_dict raises
        found = form()
        return alike(found, saved) or (False if alike(found, form()) else None)
    return None


def dataset_state(states: dict[str, Any]) -> Any:
    """The dataset's state in those of `save`; None if there is none."""
    saved: Any = states.get("iterator")
    return saved["dataset"] if _is_of_changed(saved) else states.get("dataset")


class _OfChanged:
    """An iteration whose ``iter`` has changed the dataset's state; say that it counts epochs there.

    After a ``load_state_dict`` another ``iter`` may change it once more. So the state of this one
    has the dataset's from before ``iter`` as well.
    """

    @classmethod
    def again(cls, dataset: Any, saved: dict[str, Any]) -> _OfChanged:
        """The iteration that `state_dict` has saved."""
        dataset.load_state_dict(deepcopy(saved["dataset"]))
        iterator = iter(dataset)
        if _others(_form_of(saved["dataset"]), _form(dataset)):
            dataset.load_state_dict(deepcopy(saved[_BEFORE]))
            iterator = iter(dataset)
            dataset.load_state_dict(saved["dataset"])
        if saved["iterator"] is not None:
            iterator.load_state_dict(saved["iterator"])
        return cls(dataset, iterator, saved[_BEFORE])

    def __init__(self, dataset: Any, iterator: Any, before: Any) -> None:
        self._dataset, self._iterator, self._before = dataset, iterator, before
        self._begun = False

    def __iter__(self) -> _OfChanged:
        return self

    def __next__(self) -> Any:
        self._begun = True
        return next(self._iterator)

    def state_dict(self) -> dict[str, Any] | None:
        state = self._iterator.state_dict()
        if state is None and self._begun:
            return None
        return {_BEFORE: self._before, "dataset": self._dataset.state_dict(), "iterator": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError("`again` does it")


_BEFORE = "before iter"


def _is_of_changed(state: Any) -> bool:
    return type(state) is dict and state.keys() == {_BEFORE, "dataset", "iterator"}


def _form(dataset: Any) -> Any:
    """A dataset's state in its plain form; None if it has none."""
    try:
        return _form_of(dataset.state_dict()) if is_stateful(dataset) else None
    except Exception:  # whatever people's state_dict raises: a save says so
        return None


def _form_of(state: Any) -> Any:
    try:
        return encode(state)
    except NotPlain:
        return None


def _others(one: Any, other: Any) -> bool:
    """Two plain forms are known to be of other values."""
    return one is not None and other is not None and not alike(one, other)


def _state_of(part: Any) -> Any:
    if not is_stateful(part):
        return _NONE
    try:
        return part.state_dict()
    except NotImplementedError:
        return _NONE


# --- Hugging Face --------------------------------------------------------------------------------


class _Iteration:
    """One iteration over a dataset of Hugging Face's, with its state.

    Such a dataset begins *every* iteration at the state that it was given, so that the epochs after
    a resume would be short; and until the first sample is asked for it tells the state of the
    iteration before. So the dataset is given the state for the first sample only.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._start: dict[str, Any] = {}
        self._samples: Iterator[Any] | None = None

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        return self._begin() if self._samples is None else next(self._samples)

    def state_dict(self) -> dict[str, Any]:
        if loses_samples(self._dataset):
            raise NotImplementedError
        state = None if self._samples is None else self._dataset.state_dict()
        if state is None:  # it has not begun, or was given no shard
            return self._start
        return {**state, _READ_AGAIN: True} if _reads_again(self._dataset) else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state

    def _begin(self) -> Any:
        self._samples = iter(self._dataset)
        if not self._start:
            return next(self._samples)
        before = getattr(self._dataset, "_starting_state_dict", None)
        self._dataset.load_state_dict(self._start)
        try:
            return next(self._samples)
        finally:
            self._dataset.load_state_dict(before)


def is_hugging_face(dataset: Any) -> bool:
    return any(
        (kind.__module__, kind.__qualname__) == ("datasets.iterable_dataset", "IterableDataset")
        for kind in type(dataset).__mro__
    )


def loses_samples(dataset: Any) -> bool:
    """A dataset of Hugging Face's whose state lacks what is in the buffer of its ``shuffle``."""
    return any(type(part).__name__ == "BufferShuffledExamplesIterable" for part in _parts(dataset))


def _reads_again(dataset: Any) -> bool:
    """It has a generator of the program's own, which a resume reads again, and which may draw."""
    generators = (getattr(part, "generate_examples_fn", None) for part in _parts(dataset))
    modules = (type(getattr(each, "__self__", each)).__module__ for each in generators if each)
    return any(name.endswith(".generator") or not name.startswith(_READERS) for name in modules)


def _parts(dataset: Any) -> Iterator[Any]:
    """Parts of a dataset of Hugging Face's; none of any other one."""
    ahead = [dataset._ex_iterable] if is_hugging_face(dataset) else []
    for part in ahead:
        yield part
        ahead += [part.ex_iterable] if hasattr(part, "ex_iterable") else []
        ahead += getattr(part, "ex_iterables", [])


#: the library's readers of files, which draw nothing; one of them calls the program's generator
_READERS = "datasets.packaged_modules."
#: an entry of a state: it is of a dataset with such a generator
_READ_AGAIN = "generator is read again"
#: this one only reads rows of a table again; those of these kinds call a function
_REBATCHED, _CALLING = "RebatchedArrowExamplesIterable", ("MappedExamples", "FilteredExamples")


def computes_again(state: Any, read_again: bool = False) -> bool:
    """A state has one of Hugging Face's that goes back to before samples that it has given.

    A batched ``map``, say, then calls its function again, in another batch of the loader; so does a
    generator (``read_again``: it is the program's).
    """
    if isinstance(state, list | tuple):
        return any(computes_again(each, read_again) for each in state)
    if not isinstance(state, dict):
        return False
    read_again = read_again or _READ_AGAIN in state
    if read_again and state.get("type") == "ExamplesIterable" and state.get("shard_example_idx"):
        return True
    several, before = state.get("previous_states"), state.get("previous_state")
    if isinstance(several, list) and any(several):
        return True
    reads = state.get("type") == _REBATCHED and not any(each in str(before) for each in _CALLING)
    if isinstance(before, dict) and not reads:
        return True
    return any(computes_again(each, read_again) for each in state.values())


def stream_length_of(dataset: Any) -> Callable[[int, int], int] | None:
    """Gives the samples of a stream in an epoch, from its number and theirs; None: not known.

    Args:
        dataset: it has ``stream_length(stream, streams)``; or ``__len__``, the samples of all
            streams, which share these evenly, as ``islice(samples, stream, None, streams)`` does.
    """
    of_one = getattr(dataset, "stream_length", None)
    if callable(of_one):
        return cast("Callable[[int, int], int]", of_one)
    length = length_of(dataset)
    return None if length is None else lambda at, streams: len(range(at, length, streams))


def stream_lengths(dataset: Any, streams: int) -> list[int] | None:
    """By stream, of so many, what `stream_length_of` gives; None: not known."""
    of_one = stream_length_of(dataset)
    if of_one is None:
        return None
    lengths = [whole_number("stream_length", of_one(at, streams)) for at in range(streams)]
    if min(lengths) < 0:
        raise ValueError(f"stream_length should give numbers from 0, got {lengths}")
    return lengths


def length_of(sized: Any) -> int | None:
    """How many samples a dataset has, or indices a sampler; None if it has no length."""
    try:
        return len(sized)
    except (TypeError, ValueError, NotImplementedError):  # as of a negative length
        return None


def datasets_within(dataset: Any) -> list[Any]:
    """The datasets that one of torch's wrappers reads; of any other dataset, none."""
    if isinstance(dataset, Subset):
        return [dataset.dataset]
    if not isinstance(dataset, ConcatDataset | StackDataset | ChainDataset):
        return []
    within: Any = dataset.datasets
    if isinstance(within, dict):
        return list(within.values())
    return list(within) if isinstance(within, list | tuple) else []  # an iterator is not to be read


def set_epoch_of(part: Any, epoch: int) -> None:
    """Call ``set_epoch`` of a dataset or a sampler; of torch's wrappers, that of those within."""
    for set_epoch in _set_epochs(part):
        set_epoch(epoch)


def has_set_epoch(part: Any) -> bool:
    """`set_epoch_of` calls something."""
    return bool(_set_epochs(part))


def _set_epochs(part: Any) -> list[Callable[[int], object]]:
    set_epoch = getattr(part, "set_epoch", None)
    if callable(set_epoch):
        return [set_epoch]
    return [each for inner in datasets_within(part) for each in _set_epochs(inner)]
