"""Mixing: what the wrappers of iterable-style datasets share.

Each random choice is a hash of a seed and of the choice's number. So there is no generator to be
saved or to be turned back, and none of anybody else's is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from ..core.checks import whole_number
from ..core.seeds import mixing_draw, mixing_seed
from ..errors import DamagedStateError, Difference, NewerStateError, StateMismatch, UsageError
from ..rng.current import current_seed
from .protocol import is_hugging_face, is_stateful, iterate, save, set_epoch_of

#: version of the states of all wrappers; also of what is drawn, since a state goes on with it
FORMAT = 1

#: a draw is below 2**_BITS
_BITS = 62


def below(limit: int, seed: int, number: int) -> int:
    """The choice of that number: a whole number from 0 to ``limit - 1``."""
    return mixing_draw(seed, number) * limit >> _BITS


def unit(seed: int, number: int) -> float:
    """The choice of that number: from 0 up to, not including, 1."""
    return (mixing_draw(seed, number) >> (_BITS - 53)) * 2.0**-53


def seed_of_iteration(purpose: str, seed: int, epoch: int) -> int:
    """The seed of an iteration that begins here and now.

    Under our loader the seed of the stream tells streams and epochs apart. Under torch's own, its
    workers would all make the same choices but for their number.
    """
    try:
        place = current_seed()
    except UsageError:
        worker = get_worker_info()
        place = -1 if worker is None else worker.id
    return mixing_seed(purpose, seed, epoch, place)


class Wrapper(IterableDataset[Any]):
    """An iterable-style dataset over others, with ``seed`` and ``epoch``."""

    epoch: int

    def _within(self) -> list[Any]:
        """The datasets."""
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """Decide the random choices of the iterations that begin from now on.

        Args:
            epoch: any whole number. All datasets within get it as well.

        Raises:
            TypeError: it is no whole number.
        """
        self.epoch = whole_number("epoch", epoch)
        for dataset in self._within():
            set_epoch_of(dataset, self.epoch)


class WrapperIterator(Iterator[Any]):
    """One iteration over a wrapper."""

    #: the wrapper's class, as states name it
    kind: str
    given: int  #: samples that were given so far
    _seed: int

    def open(self) -> None:
        """Call ``iter`` of the datasets, unless it was called; the first ``next`` does it.

        Not before that, as a resume gives the datasets their states first.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The position, as plain values and what the datasets' own ``state_dict`` give.

        Raises:
            NotImplementedError: neither a dataset nor its iterator has a state, or a sample in a
                buffer is of a kind that no state can hold.
        """
        begin = {"kind": self.kind, "format": FORMAT, **self._settings()}
        return {**begin, "seed": self._seed, "given": self.given, **self._save()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of `state_dict`; ``iter`` of the datasets is called here.

        Args:
            state: what `state_dict` of a wrapper with the same arguments gave. The seed may be
                another one: the state's counts.

        Raises:
            StateMismatch: it is of another wrapper, or of other settings; or a dataset, read again,
                has ended elsewhere.
            DamagedStateError: it was never given like this.
            NewerStateError: a later version of this package wrote it.
        """
        if not isinstance(state, dict):
            raise DamagedStateError("state", "a dict", state)
        self._compare(state, {"kind": self.kind})
        check_fields(state, "format")
        if state["format"] > FORMAT:
            raise NewerStateError(state["format"], FORMAT)
        self._compare(state, self._settings())
        check_fields(state, "seed", "given")
        self._load(state)

    def _compare(self, state: dict[str, Any], expected: dict[str, Any]) -> None:
        found = {name: state.get(name) for name in expected}
        if found != expected:
            raise StateMismatch(
                [Difference(n, v, found[n]) for n, v in expected.items() if v != found[n]],
                f"Build the {self.kind} as it was when the state was saved.",
            )

    def _settings(self) -> dict[str, Any]:
        """The settings that a state depends on."""
        raise NotImplementedError

    def _save(self) -> dict[str, Any]:
        """All further fields of a state."""
        raise NotImplementedError

    def _load(self, state: dict[str, Any]) -> None:
        """Check the further fields of a state, and go on from it."""
        raise NotImplementedError


# --- datasets inside of a wrapper ----------------------------------------------------------------


def iterable(dataset: Any) -> Iterable[Any]:
    """The dataset, if it can be iterated over; TypeError otherwise."""
    if isinstance(dataset, Iterable):
        return dataset
    raise TypeError(
        f"expected an iterable-style dataset, found {type(dataset).__qualname__}, which has no "
        "__iter__. A map-style dataset is shuffled by the loader's sampler instead."
    )


def states_of(dataset: Any, iterator: Any) -> dict[str, Any]:
    """Copies of a dataset's and its iterator's states; NotImplementedError if they have none."""
    states = save(dataset, iterator)
    if not states:
        raise NotImplementedError(f"neither {name_of(dataset)} nor its iterator has a state here")
    # They are often what the dataset goes on counting with.
    return deepcopy(states)


def keeps_own(dataset: Any) -> bool:
    """No state holds what the dataset changes in itself, even where its iterator has a state."""
    return not all(map(is_stateful, innermost([dataset])))


def has_stateful(dataset: Any) -> bool:
    """The dataset has a state of its own, or one below it has."""
    return any(map(is_stateful, innermost([dataset])))


def before_iter(datasets: Iterable[Any]) -> dict[str, Any]:
    """A state's field for datasets that were not opened yet, if they have states."""
    states = [deepcopy(save(each, None).get("dataset")) for each in innermost(datasets)]
    return {"before": states} if any(state is not None for state in states) else {}


def go_before_iter(datasets: Iterable[Any], state: dict[str, Any]) -> None:
    """Give datasets the states that `before_iter` has saved."""
    below = list(innermost(datasets))
    states = check_list(state, "before", len(below)) if "before" in state else []
    for dataset, each in zip(below, states):
        if each is not None:
            dataset.load_state_dict(deepcopy(each))


def innermost(datasets: Iterable[Any]) -> Iterator[Any]:
    """The datasets below all wrappers; Hugging Face's have states of iterations only."""
    for dataset in datasets:
        if isinstance(dataset, Wrapper):
            yield from innermost(dataset._within())
        elif not is_hugging_face(dataset):
            yield dataset


def reopen(dataset: Any, states: dict[str, Any]) -> Any:
    """The iteration that `states_of` has saved, or a new one; the states stay the caller's.

    A wrapper within calls ``iter`` of its datasets now: so they draw in one order, always.
    """
    iterator = iterate(dataset, deepcopy(states))
    if isinstance(iterator, WrapperIterator):
        iterator.open()
    return iterator


def name_of(dataset: Any) -> str:
    """The name of a dataset in texts: a wrapper in full, others by their class."""
    kind: Any = type(dataset)
    # By default an object shows where it lies in memory, and a list all that it holds.
    plain = kind.__repr__ is object.__repr__ or not isinstance(dataset, IterableDataset)
    return kind.__qualname__ if plain else repr(dataset)


# --- what states hold ----------------------------------------------------------------------------


def check_fields(state: dict[str, Any], *names: str) -> None:
    """These fields are whole numbers from 0."""
    for name in names:
        if type(state.get(name)) is not int or state[name] < 0:
            raise DamagedStateError(name, "a whole number from 0", state.get(name))


def check_list(state: dict[str, Any], name: str, most: int) -> list[Any]:
    """This field is a list of at most so many values."""
    found = state.get(name)
    if not isinstance(found, list) or len(found) > most:
        raise DamagedStateError(name, f"a list of at most {most}", found)
    return found
