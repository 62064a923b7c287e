"""Iterable-style datasets of every kind that people write, each with noise from all generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from picklable_loader import Interleave, ShuffleBuffer

from .datasets import Boom, as_they_are, sample

#: samples that all streams yield together
LENGTH = 17


def share(length: int = LENGTH) -> range:
    """The indices that this stream yields; shares are uneven."""
    info = get_worker_info()
    return range(length) if info is None else range(info.id, length, info.num_workers)


class Walk:
    """An iterator that pickles, and has no state: gives something for each item."""

    def __init__(self, items: Sequence[Any], give: Callable[[Any], Any] = as_they_are) -> None:
        self.items, self.give, self.at = items, give, 0

    def __iter__(self) -> Walk:
        return self

    def __next__(self) -> Any:
        if self.at == len(self.items):
            raise StopIteration
        self.at += 1
        return self.give(self.items[self.at - 1])


class SavedWalk(Walk):
    """The same, with torchdata's protocol."""

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Generated(IterableDataset[torch.Tensor]):
    """Yields from a generator function: it can only be replayed."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in share():
            yield sample(index)


class Allotted(IterableDataset[Any]):
    """Gives what its worker was allotted by ``worker_init_fn``; its iterator may have a state."""

    def __init__(self, walk: Callable[[Sequence[Any]], Walk] = SavedWalk) -> None:
        self.walk = walk
        self.mine: Sequence[Any] = ()

    def __iter__(self) -> Walk:
        return self.walk(self.mine)


class DrawnWalk(SavedWalk):
    """A walk over items in an order that was drawn, which is in its state."""

    def state_dict(self) -> dict[str, Any]:
        return {"items": self.items, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.items, self.at = state["items"], state["at"]


class Drawn(IterableDataset[torch.Tensor]):
    """Draws an order in each ``iter``; its iterator pickles, and has no state."""

    walk: type[Walk] = Walk

    def __iter__(self) -> Walk:
        items, noise = list(share()), torch.rand(LENGTH).tolist()
        return self.walk(sorted(items, key=noise.__getitem__), sample)


class DrawnWithState(Drawn):
    """Draws an order in each ``iter``; its iterator has a state."""

    walk = DrawnWalk


class ByClass(IterableDataset[torch.Tensor]):
    """Its iterator is a class of the user's, which pickles and has no state_dict."""

    def __init__(self) -> None:
        self.table = [list(range(50))] * 3

    def __iter__(self) -> Iterator[torch.Tensor]:
        return WalkOfItsDataset(self)


class WalkOfItsDataset:
    """Refers to its dataset, which must not be pickled once more."""

    def __init__(self, dataset: Any) -> None:
        self.dataset, self.left = dataset, list(share())

    def __iter__(self) -> WalkOfItsDataset:
        return self

    def __next__(self) -> torch.Tensor:
        if not self.left:
            raise StopIteration
        return sample(self.dataset.table[0][self.left.pop(0)])


class Noting(ByClass):
    """Its iterator keeps what it needs on the dataset."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.left = list(share())
        return NotingWalk(self)


class NotingWalk:
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> NotingWalk:
        return self

    def __next__(self) -> torch.Tensor:
        if not self.dataset.left:
            raise StopIteration
        return sample(self.dataset.left.pop(0))


class Reshuffled(IterableDataset[torch.Tensor]):
    """``iter`` shuffles a long list of its own, its iterator changes it, and its end resets it."""

    def __init__(self) -> None:
        self.files = list(range(3000))

    def __iter__(self) -> Iterator[torch.Tensor]:
        random.shuffle(self.files)
        return ReshuffledWalk(self)


class ReshuffledWalk(WalkOfItsDataset):
    def __next__(self) -> torch.Tensor:
        files = self.dataset.files
        if not self.left:
            files[:] = range(len(files))
            raise StopIteration
        files[-1] += files[self.left[0]]
        return sample(self.left.pop(0)) + files[-1]


class Itself(IterableDataset[torch.Tensor]):
    """Is its own iterator, and pickles."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.left = list(share())
        return self

    def __next__(self) -> torch.Tensor:
        if not self.left:
            raise StopIteration
        return sample(self.left.pop(0))


class StatefulItself(Itself):
    """Is its own iterator, with a state; ``iter`` begins anew."""

    def state_dict(self) -> dict[str, Any]:
        return {"left": self.left}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.left = state["left"]


class StatefulDataset(IterableDataset[torch.Tensor]):
    """As in the tutorial of torchdata: the dataset counts, and its iterator is a generator."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        indices = share()
        for at in range(self.at, len(indices)):
            self.at += 1
            yield sample(indices[at])
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Resumed(StatefulDataset):
    """Begins at its position if load_state_dict has said so, which the first next takes back."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed = False

    def __iter__(self) -> Iterator[torch.Tensor]:
        if not self.resumed:
            self.at = 0
        self.resumed = False
        indices = share()
        while self.at < len(indices):
            self.at += 1
            yield sample(indices[self.at - 1])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.resumed = state["at"], True


class Keeping(IterableDataset[torch.Tensor]):
    """Keeps its place in itself, in a part of it that has two names, and has no state."""

    def __init__(self) -> None:
        self.at = 0
        self.part = {"at": 0, "left": list(range(LENGTH))}
        self.parts = [self.part]

    def __iter__(self) -> Iterator[torch.Tensor]:
        indices = share()
        for at in range(self.at, len(indices)):
            assert self.part["left"][0] == self.part["at"] == self.parts[0]["at"] == self.at
            self.at += 1
            self.part["at"] += 1
            del self.parts[0]["left"][0]
            self.opened = True
            yield sample(indices[at])
        vars(self).clear()
        self.__init__()  # type: ignore[misc]


class StatefulIterator(IterableDataset[torch.Tensor]):
    """Its iterator has a state, the dataset has none."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return StatefulWalk()


class StatefulWalk(Walk):
    def __init__(self) -> None:
        super().__init__(list(share()), sample)

    def state_dict(self) -> dict[str, Any]:
        # Changes its keys and its shapes, and holds a tensor.
        odd = {"odd": torch.arange(self.at)} if self.at % 2 else {"even": {"of": [self.at] * 3}}
        return {"at": self.at, **odd}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert ("odd" in state) == bool(state["at"] % 2)
        self.at = state["at"]


class Breaking(StatefulIterator):
    """Some samples raise, and the next one follows all the same."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return BreakingWalk()


class BreakingWalk(StatefulWalk):
    def __next__(self) -> Any:
        given = super().__next__()
        if given[0] in (2, 3, 10):
            raise Boom
        return given


class Both(StatefulIterator):
    """Both have a state: the dataset counts its epochs, and counts them into its samples."""

    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.epochs += 1
        return BothWalk(self.epochs)

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # `iter` comes after this, and counts.
        self.epochs = state["epochs"] - 1


class BothWalk(StatefulWalk):
    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def __next__(self) -> Any:
        return super().__next__() + 100 * self.epochs


def shuffled() -> IterableDataset[Any]:
    return ShuffleBuffer(StatefulIterator(), size=4, seed=1)


def shuffled_generator() -> IterableDataset[Any]:
    return ShuffleBuffer(Generated(), size=4, seed=1)


def mixed() -> IterableDataset[Any]:
    return Interleave([StatefulIterator(), ByClass()], weights=[1, 2], seed=3)


@dataclass(frozen=True)
class Kind:
    """A kind of dataset."""

    make: Callable[[], IterableDataset[Any]]
    #: a state_dict, which holds no code, goes on at once as well
    stateful: bool = True
    #: in the next epoch of the same process the dataset is another one
    counts: bool = False

    def __str__(self) -> str:
        return self.make.__name__


KINDS = [
    Kind(Generated, stateful=False),
    Kind(ByClass, stateful=False),
    Kind(Noting, stateful=False),
    Kind(Reshuffled, stateful=False),
    Kind(Keeping, stateful=False),
    Kind(Itself, stateful=False),
    Kind(StatefulItself),
    Kind(StatefulDataset),
    Kind(StatefulIterator),
    Kind(Breaking),
    Kind(Both, counts=True),
    Kind(shuffled),
    Kind(shuffled_generator, stateful=False),
    Kind(mixed, stateful=False),
    Kind(Drawn, stateful=False),
    Kind(DrawnWithState),
]
