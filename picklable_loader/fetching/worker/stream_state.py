"""The state of a stream, from which another process can go on with it.

A worker uses the first of these methods that the dataset allows:

1. by ``state_dict`` of the dataset, of its iterator, or of both;
2. by pickle of the iterator, with the dataset by reference: of its attributes only those go along
   that the iteration has changed, and with ``num_workers=0`` the others are in the `Baseline`;
3. not at all (generators): the stream is replayed from its start. Where the iteration has changed
   the program's own dataset (``num_workers=0``), its state is the dataset at the `Baseline`.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Set
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from ...datasets.protocol import computes_again, is_hugging_face, iterate, save
from ...datasets.wrapper import Wrapper, keeps_own
from ...errors import CannotSaveError
from ...rng.generators import capture_all, restore_all
from ...rng.owned import owned_not_in
from ...saving.pickles.by_reference import (
    LARGE_BYTES,
    attributes_of,
    dumps,
    left_out,
    loads,
    set_attributes,
)
from ...saving.pickles.picklers import to_bytes
from ...saving.states.arrays import bytes_of
from .baseline import Baseline, FirstBaseline
from .fetch import NEVER, Job
from .flags import attributes_below, flags_of, undo_flags
from .forms import form_of, version_of

StreamState = bytes | Baseline | CannotSaveError | None


class StreamSaver:
    """Takes the states of one stream, whose replica is the job's dataset, and opens it at one."""

    def __init__(
        self,
        job: Job,
        stream: int,
        shared: bool,
        origin: FirstBaseline | None,
        set_epoch: Callable[..., None],
        announced: int | None,
    ) -> None:
        self._dataset = job.dataset
        self._stream = stream
        self._iterable = job.iterable
        #: states of the random generators are part of a state
        self._with_rng = job.seeding == "worker"
        self._by_value = job.by_value
        #: the dataset is the program's own, and is pickled as the iteration has changed it
        self._shared = shared
        #: the dataset as it was given, if it is the same object in each epoch
        self._origin = origin
        #: sets on it the seed that DataPipes share, and the epoch, unless that is the one given
        self._set_epoch = set_epoch
        #: the epoch that set_epoch has given it; None: never
        self._announced = announced
        #: of the epoch at hand: what has become of the dataset before
        self._reached: dict[str, Any] = {}
        #: the generators when it began; empty where they are known without
        self._first_rng: dict[str, Any] = {}
        #: see `open`
        self._seed: Callable[[int], None] = lambda number: None
        self._by_pickle: _ByPickle | None = None
        #: the dataset may change while its iterator alone has a state
        self._halved = job.iterable and keeps_own(job.dataset)
        #: either has a state
        self._has_state = False
        #: the state of this epoch that it was opened at
        self._opened_at: bytes | None = None
        #: then, with ``num_workers=0``: the dataset's changes by ``iter``, to undo
        self._undone: dict[str, Any] | None = None
        #: what the dataset was before the epoch, if that is needed to go on
        self.beginning: Baseline | None = None
        #: where states are pickled
        self._buffer = io.BytesIO()
        #: generators that dataset and iterator own, and that their states lack
        self._unsaved: list[str] = []
        #: batches after which it is still to look for them, and those found last
        self._looks = 0 if job.mark_every == NEVER else 2
        self._seen: dict[str, bytes] = {}
        #: the stream was opened where it has no more to give
        self.over = False
        #: attributes that ``iter`` has changed, and that cannot be put back for another ``iter``
        self._lost: Set[str] = frozenset()
        #: it was opened at the end of the epoch before, and has begun the one at hand
        self.from_last_epoch = False

    def open(self, state: StreamState, begun: bool, seed: Callable[[int], None]) -> Any:
        """The dataset's iterator, as it was at the state; None for map-style data.

        Args:
            state: None: the epoch begins.
            begun: the state is of the epoch at hand; otherwise of the end of the one before.
            seed: seeds the generators as they are seeded before a batch of that number, from 1; 0
                is before ``iter``.

        Raises:
            CannotSaveError: the state is none, but says why there is none.
        """
        if isinstance(state, CannotSaveError):
            raise state
        if isinstance(state, Baseline):
            state = state.changes()
        entries = {} if state is None else pickle.loads(state)
        self._seed = seed
        self._opened_at = state if begun or "over" not in entries else None
        self.over = "over" in entries and begun
        rng = entries.get("rng", {})
        self._set_epoch(None if begun else entries.get("announced"), True)  # it gave that state
        if not self._iterable:
            if "dataset" in entries:
                self._dataset.load_state_dict(entries["dataset"])
                if not begun:
                    self._set_epoch(entries.get("announced"))
            restore_all(rng)
            return None
        before = attributes_below(self._dataset)
        if "over" in entries and not begun:  # that was an epoch's end; this is the next one
            self.from_last_epoch, found = True, capture_all()
            self._finish(entries, before)  # calls `iter`, which may draw
            seed(0)
            restore_all({**found, **rng})
            return self._open({})
        iterator = self._open(entries)
        if self.over and "begun" in entries:  # that is the end, which `iter` has changed
            Baseline.put_back(self._dataset, entries)
        undo_flags(self._dataset, entries.get("after", {}), before)
        restore_all(rng)
        return iterator

    def take(self, iterator: Any, over: bool, fresh: bool, drew: bool = False) -> StreamState:
        """The state at an iterator's position; None if the stream can only be replayed.

        Or why it cannot be saved: that is for users who save, and no reason not to deliver the
        batch.

        Args:
            iterator: the stream's.
            over: the state is for the next epoch.
            fresh: no sample was drawn yet, and the iterator need not have a state.
            drew: random numbers were drawn while its samples were read.
        """
        try:
            entries = self._entries(iterator, fresh, over)
            if drew and not over and computes_again(entries):
                return None  # a replay draws the same numbers
            entries.update(self._of_dataset(entries, over, fresh))
            if not entries and not (over and self._with_rng and self._lives_on):
                return None
            # In the main process the next epoch has generators of its own.
            if self._with_rng and not (over and self._shared):
                entries["rng"] = capture_all()
            again = "pickled" in entries or ("iterator" in entries and self._halved)
            if again and not over and self._first_rng:
                entries["first_rng"] = self._first_rng
            if over:
                if entries.keys() & _PUT_BACK and self._announced is not None:
                    entries["announced"] = self._announced
                entries |= {"over": True, **self._after(entries, iterator)}
            return self._since_beginning(to_bytes(entries, self._buffer))
        except CannotSaveError as error:
            return error
        except Exception as error:  # whatever people's state_dict or __reduce__ raises
            return self._refusal(f"{type(error).__name__}: {error}")

    def first(self, state: StreamState, begins: bool) -> StreamState:
        """The state in which the stream was opened, for pickles, which find the dataset as it is.

        Args:
            state: what `take` has returned there; None if it goes on from a state.
            begins: it was asked.
        """
        beginning = self.beginning
        if self.over:  # `iter` has changed the program's own dataset beyond that end
            return to_bytes({**pickle.loads(self._opened_at or _NOTHING), **self._changes()})
        if self._by_pickle is not None and self._by_pickle.was_read:
            return self._opened_at and self._since_beginning(self._opened_at)
        known = state if begins else self._opened_at
        if beginning is not None and self._has_state and isinstance(known, bytes):
            beginning.state = known
            return beginning
        return beginning if state is None else state

    def _since_beginning(self, state: bytes) -> bytes | Baseline:
        """A state, with the beginning of the program's own dataset if it leaves out some of it.

        A pickle finds that dataset as it is then, and not as it is at this state.
        """
        left_out = self._lost if self._by_pickle is None else self._by_pickle.left_out
        return self.beginning.at(state, left_out) if self.beginning and left_out else state

    @property
    def _lives_on(self) -> bool:
        """The dataset is a worker's copy, which earlier epochs may have changed."""
        return self._origin is not None and not self._shared

    def _changes(self) -> dict[str, Any]:
        """The dataset's changes by now, as entries of a state.

        In the main process a resume calls ``iter`` once more, with the dataset that a pickle holds.
        """
        if self._origin is None:
            return {}
        by_iter = self.beginning.changed() if self._shared and self.beginning else frozenset()
        return self._origin.reached(as_noted=True, also=by_iter)

    def _changes_before(self, entries: dict[str, Any]) -> dict[str, Any]:
        """The changes by earlier epochs; the one at hand begins, or goes on from the entries."""
        changes = self._changes()
        if self._shared and entries.keys() & {"begun", "drift", "pickled"}:
            # It was pickled in mid-epoch: this very epoch may have changed it before that.
            changes.pop("drift", None)
            changes |= {name: entries[name] for name in entries.keys() & {"drift"}}
        return changes

    def _of_dataset(self, entries: dict[str, Any], over: bool, fresh: bool) -> dict[str, Any]:
        """Changes that epochs have made to the dataset, as further entries of a state."""
        if over and self._origin is not None:
            self._origin.note_end()
        if entries.keys() & {"dataset", "iterator"}:
            if self._halved:
                return self._changes() if over else self._before(fresh)
        elif self._lives_on and (over or entries):
            return self._changes() if over else self._reached
        elif "pickled" in entries and "drift" in self._reached:
            return {"drift": self._reached["drift"]}
        return {}

    def _before(self, fresh: bool) -> dict[str, Any]:
        """The dataset before the epoch, as entries of a state with the iterator's state."""
        if self._lives_on or self.beginning is None:
            return self._reached
        if self._undone is None and not fresh:  # a wrapper has called ``iter`` of its datasets
            self._lost = self.beginning.lost()
            changes = pickle.loads(self.beginning.changes() or _NOTHING)
            self._undone = {name: changes[name] for name in changes.keys() & {"begun"}}
            if "drift" in self._reached:
                self._undone["drift"] = self._reached["drift"]
        return self._undone or {}

    def _finish(self, entries: dict[str, Any], before: dict[str, Any]) -> None:
        """Bring the dataset to where the epoch before has left it, and to the epoch at hand."""
        if entries.keys() & {"iterator", "pickled"}:
            self._open(entries)
        elif "dataset" in entries:
            self._dataset.load_state_dict(entries["dataset"])
        if "begun" in entries:
            Baseline.put_back(self._dataset, entries)
        undo_flags(self._dataset, entries.get("after", {}), before)
        if entries.keys() & _PUT_BACK:
            self._set_epoch(entries.get("announced"))  # it may have been chosen since

    def _after(self, entries: dict[str, Any], iterator: Any) -> dict[str, Any]:
        """See `flags_of`."""
        has_state = "iterator" in entries and isinstance(self._dataset, Wrapper)
        has_state |= "dataset" in entries or iterator is self._dataset
        known = self._iterable and has_state
        return flags_of(self._dataset) if known else {}

    def _open(self, entries: dict[str, Any]) -> Any:
        if "begun" in entries:
            Baseline.put_back(self._dataset, entries)
            self._set_epoch(self._announced)
        if self._origin is not None:
            self._origin.note_begin(self.from_last_epoch or bool(entries))
        self._reached = self._changes_before(entries)
        beginning = Baseline(self._dataset, self._by_value) if self._shared else None
        if beginning is not None:
            beginning.drift = self._reached.get("drift", [])
            beginning.lost_before = self._reached.get("lost", [])
        if self._with_rng:
            self._restore_first(entries, beginning)
        iterator = self._iterator(entries)
        self._by_pickle = self.beginning = self._undone = None
        # Generators cannot be pickled; an iterator of Python's own over a list would take the list
        # along, and those of itertools can no longer be from Python 3.14 on.
        picklable = type(iterator).__module__ not in ("builtins", "itertools")
        if not (beginning or picklable):
            return iterator
        self._has_state = _has_state(self._dataset, iterator)
        if not self._has_state or self._halved:
            self.beginning = beginning
        if self._has_state:
            self._lost = self.beginning.lost() if self.beginning else frozenset()
            return iterator
        if picklable:
            self._by_pickle = _ByPickle(self._dataset, self._by_value)
            if "pickled" in entries:
                iterator = self._by_pickle.read(entries["pickled"])
        return iterator

    def _iterator(self, entries: dict[str, Any]) -> Any:
        if isinstance(self._dataset, Wrapper) and "iterator" in entries:
            self._seed(1)  # the first batch had called ``iter`` of the datasets within; it may draw
        return iterate(self._dataset, entries)

    def _restore_first(self, entries: dict[str, Any], beginning: Baseline | None) -> None:
        """Have ``iter``, which may change the dataset, and a replay draw as the epoch has."""
        of_copy = self._lives_on or self._halved
        if not of_copy and beginning is None:
            return
        first_rng = entries.get("first_rng") or capture_all()
        restore_all(first_rng)
        self._first_rng = first_rng
        if beginning is not None:
            beginning.state = to_bytes({"first_rng": first_rng})

    def _entries(self, iterator: Any, fresh: bool, over: bool = False) -> dict[str, Any]:
        if self._by_pickle is not None:
            # The program's own dataset is pickled as its end has left it.
            return {} if over and self._shared else self._by_pickle.write(iterator)
        looks = not fresh and self._looks > 0
        self._looks -= looks
        if self._iterable:
            entries = save(self._dataset, iterator)
        else:
            entries = {"dataset": self._dataset.state_dict()}
        if fresh and "iterator" in entries and entries["iterator"] is None:
            del entries["iterator"]
        empty = [name for name, state in entries.items() if state is None]
        if empty:
            raise self._refusal(f"state_dict() of the {empty[0]} returned None")
        if entries and looks:
            self._look(entries, iterator)
        return {**entries, "unsaved": self._unsaved} if self._unsaved else entries

    def finds_unsaved(self, iterator: Any) -> bool:
        """Look after a batch without a state: should the next one name generators?"""
        if not self._looks or self._by_pickle is not None:
            return False
        with suppress(Exception):  # whatever people's state_dict raises; a state says it
            self._entries(iterator, fresh=False)
        return bool(self._unsaved)

    def _look(self, entries: dict[str, Any], iterator: Any) -> None:
        """Find generators that samples draw from: they have moved between two looks."""
        found = owned_not_in(entries, {"dataset": self._dataset, "iterator": iterator})
        if is_hugging_face(self._dataset):  # its own shuffles copy theirs in each epoch
            found = {path: each for path, each in found.items() if not path.endswith(".generator")}
        before, self._seen = self._seen, found
        self._unsaved = [path for path in found if before.get(path, found[path]) != found[path]][:3]

    def _refusal(self, reason: str) -> CannotSaveError:
        return CannotSaveError(
            f"stream {self._stream} of the dataset {type(self._dataset).__qualname__}",
            reason,
            "state_dict() of the dataset and of its iterator should return what pickle can save",
        )


_NOTHING = pickle.dumps({})
#: entries that give the dataset its attributes of then
_PUT_BACK = {"dataset", "iterator", "pickled", "begun"}


def _has_state(dataset: Any, iterator: Any) -> bool:
    """Either has a state of its own; having the methods is not enough."""
    try:
        return bool(save(dataset, iterator))
    except Exception:  # it has one, and something is wrong with it
        return True


class _ByPickle:
    """Pickles of an iterator, with what it shares with its dataset.

    Large attributes of the dataset are left out if they are as they were at the iteration's
    beginning: ``iter`` finds, or makes, them again.
    """

    def __init__(self, dataset: Any, by_value: bool) -> None:
        self._dataset = dataset
        self._by_value = by_value
        self._begun = {n: _digest(value, dataset) for n, value in attributes_of(dataset).items()}
        self._refused = None in self._begun.values()
        #: the attributes that the newest state leaves out
        self.left_out: Set[str] = frozenset()
        #: an iterator was read, and none written yet
        self.was_read = False

    def write(self, iterator: Any) -> dict[str, Any]:
        """The entry of a state; none if pickle refuses the iterator, or changes may go unseen."""
        attributes = attributes_of(self._dataset)
        digests = {name: _digest(value, self._dataset) for name, value in attributes.items()}
        if self._refused or None in digests.values():
            return {}
        same = {n: attributes[n] for n, digest in digests.items() if digest == self._begun.get(n)}
        try:
            by_id = left_out(attributes, same, iterator, self._dataset, self._by_value)
            changed = {name: value for name, value in attributes.items() if name not in same}
            parts = list(attributes), changed, iterator
            entry = {"pickled": dumps(parts, self._dataset, self._by_value, by_id)}
            self.left_out, self.was_read = frozenset(same), False
            return entry
        except Exception:  # whatever people's __reduce__ raises
            self._refused = True
            return {}

    def read(self, pickled: bytes) -> Any:
        """The iterator; the dataset's attributes are as they were then."""
        names, changed, iterator = loads(pickled, self._dataset)
        set_attributes(self._dataset, changed, attributes_of(self._dataset).keys() - names)
        self.left_out, self.was_read = frozenset(names) - changed.keys(), True
        return iterator


def _digest(value: Any, dataset: Any) -> Any:
    """A value that differs if the attribute has changed; None: nothing can show it.

    Small attributes always differ, and go along: a counter that ``iter`` counts up, for example.
    """
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        if value.nbytes <= LARGE_BYTES:  # `.data` and `.numpy()` show no change in its version
            return object() if value.nbytes <= _SMALL_BYTES else bytes_of(value)
        return id(value), version_of(value), value.data_ptr()
    if isinstance(value, np.ndarray) and value.flags.c_contiguous and not value.dtype.hasobject:
        data: Any = value.reshape(-1).view(np.uint8)
        return blake2b(data, digest_size=16).digest()
    try:
        pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # whatever people's __reduce__ raises
        if not callable(value) and not isinstance(value, _LOCKS):
            return None
        return id(value), form_of(value, None, dataset)  # a transform may count beside a lambda
    return object() if len(pickled) <= _SMALL_BYTES else blake2b(pickled, digest_size=16).digest()


_SMALL_BYTES = 4096
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
