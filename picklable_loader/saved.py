"""The forms in which positions are saved that no run stands at, or not any more."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from .anatomy import anatomy, draws_from, fingerprint, generators, is_iterable, unstarted
from .core.cursor import Cursor
from .core.seeds import next_base_seed
from .core.snapshot import from_plain, to_plain
from .errors import CannotSaveError, DamagedStateError
from .marks import savable, warn_of_drift
from .randomness import RNGS
from .run import Run
from .saving.packing import decided
from .source import place_of
from .stateful import is_stateful
from .values.tree import copied

if TYPE_CHECKING:
    from .loader import DataLoader
    from .standing import Standing

__all__ = [
    "alone",
    "apart",
    "beginning",
    "next_epoch",
    "snapshot",
    "unmoved",
]


def beginning(loader: DataLoader[Any], epoch: int, live: bool) -> dict[str, Any]:
    """The state at the start of an epoch, of a loader that stands between two.

    Args:
        live: see `snapshot`.
    """
    loader._pl.source.generators = generators(loader)
    parts = anatomy(loader)
    cursor = Cursor(
        epoch,
        rng=loader._pl.source.state(draws_from(parts)),
        announced=loader._pl.announced,
        sampler=unstarted(loader, parts, live),
    )
    return _noted(loader, to_plain(cursor, fingerprint(loader, parts)))


def snapshot(
    loader: DataLoader[Any], run: Run | None, state: dict[str, Any] | None, live: bool
) -> dict[str, Any]:
    """Where a pass stands: its run, or without one the state that it is to go on from.

    Args:
        live: objects that only pickle can save may stand in it.
    """
    if run is None:
        return unmoved(loader, state or loader._pl.beginning(live), live)
    if run.unmoved is not None and "iterator" not in (run.unmoved["order"] or ()):
        return unmoved(loader, run.unmoved, live)
    return _noted(loader, run.snapshot(live))


def unmoved(loader: DataLoader[Any], state: dict[str, Any], live: bool) -> dict[str, Any]:
    """A state that a loader was given, from which it has not moved; see `snapshot`.

    Its generators may have: another loader may draw from them.
    """
    given = _without_objects(state, live)
    source = loader._pl.source
    if source.seed is not None:
        return given
    rng = source.as_now(given["rng"])
    if not live:
        rng = {**source.given(), **{name: text for name, text in rng.items() if name in RNGS}}
    return {**given, "rng": rng}


def next_epoch(loader: DataLoader[Any], run: Run, live: bool = False) -> dict[str, Any]:
    """The start of the epoch after a run that is over; live: see `snapshot`."""
    if run is loader._pl.run and loader._pl.next_epoch != run.epoch + 1:
        return loader._pl.beginning(live=False)  # set_epoch has chosen another one
    lives_on, seeded = loader._pl.lives_on, loader._pl.options.seed is not None
    left, places = run.after(), loader._pl.carried_places()
    if not live:
        warn_of_drift(loader.dataset, places, loader._pl.drift())
    cursor = Cursor(
        epoch=run.epoch + 1,
        base_seed=next_base_seed(run.base_seed) if lives_on and not seeded else None,
        worker_seed=run.worker_seed if lives_on else None,
        rng={} if seeded else left.rng,  # with a seed each epoch begins with its own
        workers=left.workers if lives_on else {},
        sampler=left.sampler,
        announced=left.announced,
        streams=savable(places, live),
    )
    return _noted(loader, to_plain(cursor, fingerprint(loader)))


def _noted(loader: DataLoader[Any], state: dict[str, Any]) -> dict[str, Any]:
    loader._pl.source.place = place_of(state)
    return state


def _without_objects(state: dict[str, Any], live: bool) -> dict[str, Any]:
    """A copy of a state that shares nothing with it; unless it is live, of plain values only.

    Raises:
        CannotSaveError: it came in a pickle, with objects that no state can hold.
    """
    order = state["order"]
    if live:
        has_iterator = order is not None and "iterator" in order
        return copy.copy(state) if has_iterator else copy.deepcopy(state)
    cursor, fits = from_plain(state, live=True)
    if order is not None and "iterator" in order:
        if "log" not in order:
            raise CannotSaveError(
                "the sampler's iterator",
                "it was restored from a pickle and cannot be replayed",
                "Pickle the iterator instead of taking its state_dict",
            )
        order = {name: value for name, value in order.items() if name != "iterator"}
    plain = replace(cursor, order=order, streams=savable(cursor.streams, live=False))
    try:
        return copied(to_plain(plain, fits))  # type: ignore[no-any-return]
    except DamagedStateError as error:
        raise CannotSaveError(
            error.field,
            "it came in a pickle, and is no plain value",
            "Pickle the iterator instead of taking its state_dict",
        ) from None


def alone(iterator: Standing[Any]) -> dict[str, Any]:
    """What an iterator is pickled as, with a loader of its own that shares what cannot change.

    Two iterators of one loader draw from the same generators and the same sampler; a copy of an
    iterator is to go on undisturbed, so that it has copies of these.
    """
    saved = iterator.__getstate__()
    saved["loader"], memo = _alone(saved["loader"])
    saved["state"] = copy.deepcopy(saved["state"], memo)
    return saved


def apart(owner: Any) -> Any:
    """What a thread pickles of a loader, or of an iterator, that another thread moves meanwhile.

    Pickle reads sampler, generators and dataset one after the other, long after it has asked for
    them. So it is given copies, which nobody moves.

    Args:
        owner: a loader, of which this is a copy; or an iterator, of which this is the state.

    Raises:
        CannotSaveError: something in it cannot be copied.
    """
    is_loader = isinstance(owner, TorchDataLoader)
    loader: Any = owner if is_loader else owner.loader
    # An iteration in this process changes the dataset itself.
    moves_data = is_iterable(loader) and not (loader.num_workers or is_stateful(loader.dataset))
    try:
        if is_loader:
            copied = found = copy.deepcopy(loader) if moves_data else _alone(loader)[0]
        else:
            found = copy.deepcopy(owner.__getstate__()) if moves_data else alone(owner)
            copied = found["loader"]
        copied._pl.decision = decided(loader)
        return found
    except (CannotSaveError, Warning):  # a filter may make an error of a warning
        raise
    except Exception as error:  # whatever stands in people's samplers and datasets
        raise CannotSaveError(
            "the sampler, or the dataset of an iteration in this process,",
            f"another thread calls next(), so that it has to be copied, which failed "
            f"({type(error).__name__}: {error})",
            "Take state_dict() instead, or pickle in the thread that calls next()",
        ) from error


def _alone(loader: DataLoader[Any]) -> tuple[DataLoader[Any], dict[int, Any]]:
    """A copy of a loader with a sampler and generators of its own; what was copied for it."""
    memo: dict[int, Any] = {id(loader.dataset): loader.dataset}
    if anatomy(loader).known:
        kept = getattr(loader.sampler, "__dict__", {}).values()
        memo.update({id(value): value for value in kept if not isinstance(value, torch.Generator)})
    copied = copy.copy(loader)
    for name in ("sampler", "batch_sampler", "generator"):
        copied.__dict__[name] = copy.deepcopy(loader.__dict__[name], memo)
    copied._pl.source.generators = generators(copied)
    return copied, memo
