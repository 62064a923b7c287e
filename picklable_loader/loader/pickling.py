"""A loader as a value: its pickles, copies and states."""

from __future__ import annotations

import copy
import itertools
import sys
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from ..core.checks import whole_number
from ..datasets.datapipes import wrapped
from ..epoch import dataset_rng
from ..epoch.attached import give_back, left_behind, take_over
from ..epoch.carryover import positions_left
from ..epoch.fits import unlike_its_pickle
from ..epoch.history import History
from ..epoch.options import AtEpochEnd, Options
from ..epoch.position import Position
from ..epoch.ranks import check_pickled, own_rank
from ..epoch.spec import Spec
from ..epoch.stream_states import warn_of_later_attributes, warn_of_lost
from ..epoch.turns import still
from ..epoch.unsaved import (
    MOST_PARTS,
    warn_of_another_pass,
    warn_of_collected,
    warn_of_moved,
    warn_of_unsaved,
)
from ..errors import Difference, StateMismatch, UsageError, warn
from ..rng.program import ProgramStates, capture_program
from ..rng.source import Source
from ..saving.pickles.by_reference import attributes_of, set_attributes
from ..saving.pickles.codecs import bare
from ..saving.pickles.parts import class_of, packed, unpacked
from ..saving.pickles.placeholder import check_present, is_absent
from ..saving.states.tree import with_checksum
from .agreement import adopt, gathered
from .copies import apart, named_copy, shared
from .internals import Internals, Owner
from .setup import packing_of, spec_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_T = TypeVar("_T", covariant=True)

#: torch's name of an attribute that cannot be pickled
_CONTEXT = "_DataLoader__multiprocessing_context"


class Picklable(Owner[_T]):
    """The part of a loader that makes it a value."""

    def attach(self, dataset: Dataset[_T]) -> None:
        """Give a loader its dataset back, after it was pickled without (``pickle_dataset=False``).

        Args:
            dataset: what it was saved with, or an equal one.

        Raises:
            StateMismatch: length, sampler or kind are not those that it was saved with; the loader
                is as it was.
            UsageError: it has its dataset.
        """
        with self._pl.turn.moves():
            _attach(self, dataset)

    def state_dict(self, *, behind: int = 0, save_rng: bool = False) -> dict[str, Any]:
        """The position of the newest iterator, or of the next ``iter``.

        The same protocol as torchdata's StatefulDataLoader. It starts and draws nothing.

        Args:
            behind: see `LoaderIterator.state_dict`.
            save_rng: see `LoaderIterator.state_dict`.

        Returns:
            See `LoaderIterator.state_dict`.

        Raises:
            CannotSaveError, UsageError: see `LoaderIterator.state_dict`.
            ValueError, TypeError: ``behind`` is negative, or no whole number.
        """
        return state_of(self, None, behind, save_rng)

    def load_state_dict(
        self,
        state: dict[str, Any],
        *,
        strict: bool = True,
        at_epoch_end: AtEpochEnd | None = None,
        restore_rng: bool = False,
    ) -> None:
        """Have the next ``iter`` go on from a saved state; the iteration at hand is abandoned.

        The newest iterator goes on from it as well, if it has not delivered anything yet. In
        mid-epoch it does not: its next ``next`` warns of that.

        Args:
            state: what ``state_dict`` returned; ``{}`` is the beginning of epoch 0.
            strict: False takes what still has a meaning from a state that does not fit: with
                another batch size, the same sample.
            at_epoch_end: ``"stop"`` or ``"next"``, instead of the loader's own.
            restore_rng: put the program's generators back, as ``save_rng=True`` has saved them:
                torch's, NumPy's, Python's, and those of CUDA devices.

        Raises:
            StateMismatch: the state belongs to another dataset length, sampler, batch size,
                drop_last or seeding; or, with ``restore_rng``, to another rank.
            DamagedStateError, NewerStateError, ForeignStateError: see there. The loader is as it
                was after any of these.
            UsageError: ``restore_rng``, and the state was saved without ``save_rng=True``.
            ValueError: ``at_epoch_end`` is something else.
        """
        with self._pl.turn.jumps("load_state_dict()"):
            newest = self._pl.history.position
            loaded = load_into(self, state, strict, at_epoch_end, restore_rng, None)
            iterator: Any = newest and newest.iterator and newest.iterator()
            if iterator is not None:
                iterator.follow(newest, loaded)

    def gather_state_dict(
        self, group: ProcessGroup | None = None, *, behind: int = 0
    ) -> dict[str, Any]:
        """The state of all ranks of ``shard=``, on each of them; see `merge_states`.

        It is a collective operation: call it on every rank, between two batches.

        Args:
            group: the process group of these ranks. None: that of the DeviceMesh, or all ranks.
            behind: see `LoaderIterator.state_dict`; the same on each rank.

        Returns:
            A state for ``load_state_dict`` on any number of ranks.

        Raises:
            UsageError: the loader has no ``shard=``, or there is no process group; or ``behind`` is
                too much.
            CannotSaveError: the state of a rank cannot be saved; on every rank.
            RanksError: the states are of different passes; or, of all ranks, some do not come.
        """
        return gathered(self, partial(self.state_dict, behind=behind), group)

    #: its parts are looked at one by one when it is pickled
    _packs = True

    def __getstate__(self) -> dict[str, Any]:
        history = self._pl.history
        # These are not in `saved`: a repr asks that, and runs nobody's code.
        past, without = history.past_by_now(), not self._pl.options.pickle_dataset
        carried = {"carried": left_behind(history, spec_of(self))} if without else {}
        state = attributes_of(self)
        context = state.pop(_CONTEXT, None)
        state["_iterator"] = None
        state["_pl"] = {
            **self._pl.saved(),
            **carried,
            **({"past": dict(past)} if past else {}),
            **({"rank": rank} if (rank := own_rank(self)) else {}),
            "start_method": None if context is None else context.get_start_method(),
        }
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state, opened = unpacked(state)
        saved, waiting = state["_pl"], self.__dict__.pop(_WAITING, ())
        set_attributes(self, {**_torchs_own(), **state})
        method = saved["start_method"]
        context = None if method is None else torch.multiprocessing.get_context(method)
        self.__dict__[_CONTEXT] = context
        internals(self, Options.restored(saved["options"]))
        self._pl.history.restore(saved)
        self._pl.pickled_on = saved.get("rank")
        if is_absent(self.dataset):
            self._pl.sealed = opened
        else:
            self._pl.history.source.unpickled = spec_of(self).attributes()
        for iterator, its_state in waiting:
            iterator.__setstate__(its_state)

    def __reduce_ex__(self, protocol: Any) -> Any:
        if type(self).__reduce__ is not object.__reduce__:
            return super().__reduce_ex__(protocol)
        check_pickled(self._pl.options.shard)
        with still(self._pl.turn):
            me: Picklable[_T] = apart(self) if self._pl.turn.foreign else self
            inner = me._pl
            if states := inner.history.next_states:
                warn_of_lost(spec := spec_of(me), positions_left(spec, states))
            kind = class_of(type(me), inner.options.codec)
            state = packed(packing_of(me))
            return *bare(kind, protocol), state

    def __copy__(self) -> Picklable[_T]:
        return self.__deepcopy__(None)

    def __deepcopy__(self, memo: dict[int, Any] | None) -> Picklable[_T]:
        other = type(self).__new__(type(self))
        with still(self._pl.turn):
            state, sealed = self.__getstate__(), self._pl.sealed
            if memo is None:
                sealed = sealed and sealed.beside_others({id(self): other})
            else:
                memo.update({id(self): other, **shared()})
                with named_copy():
                    state, sealed = copy.deepcopy((state, sealed), memo)
        other.__setstate__(state)
        other._pl.sealed = sealed
        return other


#: an attribute of a loader that is not restored yet: iterators that wait for it
_WAITING = "_iterators_that_wait"


def waits_for(loader: Any, iterator: Any, state: dict[str, Any]) -> bool:
    """Whether pickle restores an iterator before its loader, which then restores it at last.

    The loader leads to the iterator: its ``collate_fn`` is a method of a trainer that has both.
    """
    waits = "_pl" not in vars(loader)
    if waits:
        vars(loader).setdefault(_WAITING, []).append((iterator, state))
    return waits


#: numbers for `Internals.number`
_NUMBERS = itertools.count(1)


def internals(loader: Owner[Any], options: Options) -> Spec:
    """Give a loader that was built now its private state; returns how it is set up."""
    source = Source(options.seed, {}, loader.dataset)
    loader._pl = Internals(options, History(source))
    spec = spec_of(loader, built=True)
    source.generators = spec.generators
    if options.shard is not None and options.seed is None:
        loader._pl.number = next(_NUMBERS)
    return spec


#: where DCP asks what it is to save for its state
_DCP = "torch.distributed.checkpoint.state_dict_saver"


def state_of(loader: Owner[Any], iterator: Any, behind: int, save_rng: bool) -> dict[str, Any]:
    """The state of an iterator's pass; None: of the newest. See `LoaderIterator.state_dict`."""
    caller = sys._getframe(1).f_back  # None: a thread's first function, or `atexit`
    if caller is not None and caller.f_globals.get("__name__") == _DCP:
        warn(
            "DCP has saved this loader itself, and cannot load that: a state has other keys at "
            'other times. Use dcp.save({"loader": LoaderState(loader)}), with LoaderState of '
            "picklable_loader.integrations.dcp. The checkpoint at hand can be rescued: see "
            "dcp_to_torch_save in docs/distributed.md"
        )
    whole_number("behind", behind, 0)
    with still(loader._pl.turn):  # until here, another thread may begin a pass
        position = loader._pl.history.position if iterator is None else iterator._position
        return state_here(loader, position, behind, save_rng)


def state_here(
    loader: Owner[Any], position: Position | None, behind: int = 0, save_rng: bool = False
) -> dict[str, Any]:
    """See `state_of`; nobody else moves the loader or the global generators meanwhile."""
    inner = loader._pl
    run = None if position is None else position.run
    spec = spec_of(loader) if run is None or run.finished else run.spec
    state = inner.history.state(spec, position, behind)
    warn_of_another_pass(spec, inner.history, position, state)
    warn_before_save(loader, spec, state, live=False)
    if save_rng:
        state["program"] = capture_program()
    return with_checksum(state, None if run is None else run.writer)


def load_into(
    loader: Owner[Any],
    state: Any,
    strict: bool,
    at_epoch_end: AtEpochEnd | None,
    restore_rng: bool,
    of: Position | None,
) -> Position:
    """Load a state into a loader; see `DataLoader.load_state_dict` and `History.load`."""
    check_present(loader.dataset)  # only the dataset says whether the state is one of its kind
    spec = spec_of(loader)
    saved = state.get("program") if restore_rng and isinstance(state, dict) else None
    program = ProgramStates(saved) if restore_rng else None
    history = loader._pl.history
    iterated, begun = history.iterated, history.next_epoch
    position = history.load(spec, state, strict, at_epoch_end, of)
    if history.taken_over:
        give_back(history, spec)
    assert position.start is not None
    cursor = position.start.cursor
    if iterated:
        warn_of_moved(spec, cursor)
    changed = [] if spec.reads_copies else history.past_by_now().get("changed", [])
    warn_of_later_attributes(spec, cursor, begun, changed)
    dataset_rng.put_back(spec.dataset, cursor.dataset_rng)
    adopt(loader, position.seed)
    if program is not None:
        program.restore()
    return position


def warn_before_save(loader: Owner[Any], spec: Spec, state: dict[str, Any], live: bool) -> None:
    """See `warn_of_collected` and `warn_of_unsaved`."""
    inner = loader._pl
    if inner.collected and not inner.warned_of_collected:
        found = spec, inner.collected, live, inner.turn.foreign
        inner.warned_of_collected = warn_of_collected(*found)
    if len(inner.looked) >= MOST_PARTS:
        return
    collate_fn: Any = loader.collate_fn
    called = collate_fn, inner.options.convert, inner.options.on_error
    if any(getattr(each, "__self__", None) is loader for each in called):  # a subclass's method
        torchs = _torchs_own().keys() | vars(inner.options).keys() | {*_GIVEN, "_pl"}
        collate_fn = {name: each for name, each in vars(loader).items() if name not in torchs}
    passed = inner.history.passed
    warn_of_unsaved(spec, collate_fn, inner.looked, state, live, inner.turn.foreign, passed)


@cache
def _torchs_own() -> dict[str, Any]:
    """The attributes of torch's loader: a pickle from another version of torch may have fewer."""
    whole = vars(TorchDataLoader([None]))  # type: ignore[arg-type]
    return {name: value for name, value in whole.items() if name not in _GIVEN}


#: what each loader has from whoever made it
_GIVEN = ("dataset", "sampler", "batch_sampler")


def _attach(loader: Owner[Any], dataset: Any) -> None:
    """Put a dataset in the place of an absent one."""
    missing: Any = loader.dataset
    if not is_absent(missing):
        raise UsageError("this loader has its dataset: attach is for one that was saved without")
    before, dataset = dict(loader.__dict__), wrapped(dataset)
    inner, history = loader._pl, loader._pl.history
    options, saved = inner.options, None
    # Parts that refer to the dataset are put together anew, around this one.
    if inner.sealed is not None:
        beside = inner.sealed.beside
        parts = inner.sealed.again([dataset if is_absent(thing) else thing for thing in beside])
        if "_pl" in parts:
            saved = parts.pop("_pl")
            options = Options.restored(saved["options"])
        loader.__dict__.update(parts)
    loader.__dict__["dataset"] = dataset
    try:
        unlike = unlike_its_pickle(spec_of(loader).fingerprint(), missing.fits)
    except BaseException:
        loader.__dict__.update(before)
        raise
    kind = type(dataset).__qualname__
    if kind != missing.name and not any(entry.name == "dataset" for entry in unlike):
        unlike.append(Difference("dataset", kind, missing.name))
    if unlike:
        loader.__dict__.update(before)
        raise StateMismatch(unlike, "Attach the dataset that it was saved with.")
    inner.sealed, inner.options, inner.looked = None, options, set()
    if saved is not None:
        history.restore_position(saved)
    take_over(history, spec_of(loader), dataset)
    history.source.unpickled = spec_of(loader).attributes()
