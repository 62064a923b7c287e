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
from collections.abc import Callable
from contextlib import suppress
from inspect import GEN_CREATED, getgeneratorstate, isgenerator
from typing import Any

from ...datasets.protocol import are_in, computes_again, iterate, save
from ...datasets.wrapper import Wrapper
from ...errors import CannotSaveError
from ...rng.generators import capture_all, restore_all
from ...saving.pickles.picklers import to_bytes
from .baseline import Baseline
from .dataset_changes import NOTHING, DatasetChanges
from .dataset_epoch import DatasetEpoch
from .fetch import NEVER, Job
from .flags import attributes_below, flags_of, undo_flags
from .pickled_iterator import PickledIterator
from .position_proof import PositionProof
from .unsaved_generators import UnsavedGenerators

StreamState = bytes | Baseline | CannotSaveError | None


class StreamSaver:
    """Takes the states of one stream, whose replica is the job's dataset, and opens it at one."""

    def __init__(
        self,
        job: Job,
        stream: int,
        shared: bool,
        epoch: DatasetEpoch,
        proof: PositionProof,
    ) -> None:
        self._dataset = job.dataset
        self._stream = stream
        self._iterable = job.iterable
        #: states of the random generators are part of a state
        self._with_rng = job.seeding == "worker"
        self._by_value = job.by_value
        #: the dataset is the program's own, and is pickled as the iteration has changed it
        self._shared = shared
        self._epoch, self._proof = epoch, proof
        #: the generators when it began; empty where they are known without
        self._first_rng: dict[str, Any] = {}
        #: see `open`
        self._seed: Callable[[int], None] = lambda number: None
        self._by_pickle: PickledIterator | None = None
        self._changes = DatasetChanges(job, shared, epoch.origin)
        #: dataset or iterator has a state
        self._has_state = False
        #: the state that `open` was given
        self._given: bytes | None = None
        #: where states are pickled
        self._buffer = io.BytesIO()
        self._unsaved = UnsavedGenerators(job.mark_every != NEVER)
        #: the stream was opened where it has no more to give
        self.over = False
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
        self._given = state
        entries = pickle.loads(state or NOTHING)
        self._seed = seed
        self.over = "over" in entries and begun
        rng = entries.get("rng", {})
        if not begun:
            self._epoch.give(entries.get("announced"))  # in which it gave that state
        if not self._iterable:
            if "dataset" in entries:
                self._dataset.load_state_dict(entries["dataset"])
                if not begun:
                    self._epoch.loaded(entries.get("announced"))
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
        if self.over or "after" in entries:
            self._undo_flags(entries, before, iterator)
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
            entries.update(self._changes.in_state(entries, over, fresh))
            if not entries and not (over and self._with_rng and self._changes.lives_on):
                return None
            # In the main process the next epoch has generators of its own.
            if self._with_rng and not (over and self._shared):
                entries["rng"] = capture_all()
            again = "pickled" in entries or ("iterator" in entries and self._changes.halved)
            if again and not over and self._first_rng:
                entries["first_rng"] = self._first_rng
            entries |= self._before_iter(entries, iterator, over, fresh)
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
        beginning = self._changes.beginning
        opened_at = None if self.from_last_epoch else self._given
        if self.over:  # `iter` has changed the program's own dataset beyond that end
            return to_bytes({**pickle.loads(opened_at or NOTHING), **self._changes.by_now()})
        if self._by_pickle is not None and self._by_pickle.was_read:
            return opened_at and self._since_beginning(opened_at)
        known = state if begins else opened_at
        if beginning is not None and self._has_state and isinstance(known, bytes):
            beginning.state = known
            return beginning
        return beginning if state is None else state

    def _since_beginning(self, state: bytes) -> bytes | Baseline:
        """See `DatasetChanges.undone_at`."""
        left_out = None if self._by_pickle is None else self._by_pickle.left_out
        return self._changes.undone_at(state, left_out)

    def _finish(self, entries: dict[str, Any], before: dict[str, Any]) -> None:
        """Bring the dataset to where the epoch before has left it, and to the epoch at hand."""
        iterator = None
        if entries.keys() & {"iterator", "pickled"}:
            iterator = self._open(entries)
        elif "dataset" in entries:
            self._dataset.load_state_dict(entries["dataset"])
        if "begun" in entries:
            Baseline.put_back(self._dataset, entries)
        self._undo_flags(entries, before, iterator)
        if entries.keys() & _PUT_BACK:
            self._epoch.loaded(entries.get("announced"))  # another may have been chosen since

    def _before_iter(
        self, entries: dict[str, Any], iterator: Any, over: bool, fresh: bool
    ) -> dict[str, Any]:
        """Further entries of a state from which the code of ``iter`` runs; see `flags_of`."""
        found: dict[str, Any] = {}
        if over and entries.keys() & _PUT_BACK and self._epoch.start.announced is not None:
            found["announced"] = self._epoch.start.announced
        if over:
            found["over"] = True
        of_wrapper = isinstance(self._dataset, Wrapper) and "iterator" in entries
        # A generator's code runs when its first sample is asked for; so does a wrapper's.
        created = isgenerator(iterator) and getgeneratorstate(iterator) == GEN_CREATED
        has_state = of_wrapper or "dataset" in entries or iterator is self._dataset
        if self._iterable and has_state and (over or (fresh and (created or of_wrapper))):
            flags = flags_of(self._dataset)
            found |= {"after": flags} if flags or not over else {}
        return found

    def _undo_flags(self, entries: dict[str, Any], before: dict[str, Any], iterator: Any) -> None:
        def as_saved() -> bool | None:  # a load may have changed what it was given
            saved = pickle.loads(self._given or NOTHING)
            states = {name: saved[name] for name in saved.keys() & {"dataset", "iterator"}}
            return are_in(self._dataset, iterator, states)

        undo_flags(self._dataset, entries.get("after", {}), before, as_saved)

    def _open(self, entries: dict[str, Any]) -> Any:
        if "begun" in entries:
            Baseline.put_back(self._dataset, entries)
            self._epoch.reseed()
        self._changes.begin(entries, by_state=self.from_last_epoch or bool(entries))
        if self._with_rng:
            self._restore_first(entries)
        if isinstance(self._dataset, Wrapper) and "iterator" in entries:
            self._seed(1)  # the first batch had called ``iter`` of the datasets within; it may draw
        iterator = iterate(self._dataset, entries)
        # Generators cannot be pickled; an iterator of Python's own over a list would take the list
        # along, and those of itertools can no longer be from Python 3.14 on.
        picklable = type(iterator).__module__ not in ("builtins", "itertools")
        asks = picklable or self._shared
        self._by_pickle, self._has_state = None, asks and _has_state(self._dataset, iterator)
        self._changes.opened(self._has_state)
        if self._has_state:
            return iterator
        if picklable:
            self._by_pickle = PickledIterator(self._dataset, self._by_value)
            if "pickled" in entries:
                iterator = self._by_pickle.read(entries["pickled"])
        return iterator

    def _restore_first(self, entries: dict[str, Any]) -> None:
        """Have ``iter``, which may change the dataset, and a replay draw as the epoch has."""
        beginning = self._changes.beginning
        if not (self._changes.lives_on or self._changes.halved or beginning):
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
        looks = not fresh and self._unsaved.wants_another()
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
            self._unsaved.look(entries, self._dataset, iterator)
        if entries and (number := self._proof.unmoved_by):
            entries["unmoved_by"] = number
        return {**entries, "unsaved": self._unsaved.paths} if self._unsaved.paths else entries

    def finds_unsaved(self, iterator: Any) -> bool:
        """Look after a batch without a state: should the next one name generators?"""
        if not self._unsaved.looks or self._by_pickle is not None:
            return False
        with suppress(Exception):  # whatever people's state_dict raises; a state says it
            self._entries(iterator, fresh=False)
        return bool(self._unsaved.paths)

    def _refusal(self, reason: str) -> CannotSaveError:
        return CannotSaveError(
            f"stream {self._stream} of the dataset {type(self._dataset).__qualname__}",
            reason,
            "state_dict() of the dataset and of its iterator should return what pickle can save",
        )


#: entries that give the dataset its attributes of then
_PUT_BACK = {"dataset", "iterator", "pickled", "begun"}


def _has_state(dataset: Any, iterator: Any) -> bool:
    """Either has a state of its own; having the methods is not enough."""
    try:
        return bool(save(dataset, iterator))
    except Exception:  # it has one, and something is wrong with it
        return True
