"""The position of a loader, as a small frozen value. `snapshot` writes it as a plain dict."""

from __future__ import annotations

from typing import Any, NamedTuple

from .streams import StreamPosition
from .task import Task

#: nobody changes it: `to_plain` copies
_EMPTY: dict[str, Any] = {}


class Cursor(NamedTuple):
    """Everything that a loader with the same settings needs in order to go on exactly.

    Each save makes one: a tuple is made in a quarter of the time of a frozen dataclass.
    """

    #: number of the epoch, from 0
    epoch: int = 0
    #: steps of this epoch that the consumer has passed: delivered batches, batches that
    #: raised, skipped ones, and steps that had no batch, since all of their samples were bad
    step: int = 0
    #: the order goes on with this task; every earlier one was delivered or is in the window
    next_step: int = 0
    #: samples that the order has before task ``next_step``
    position: int = 0
    #: drawn and not delivered. Empty where the order can be sought in and delivery is in order:
    #: these tasks are then simply drawn again, and ``next_step == step``. Indices are None where
    #: the order gives them again.
    window: tuple[Task, ...] = ()
    #: the seed that the tasks' seeds derive from; None while it is not drawn
    base_seed: int | None = None
    #: the order's own state; None while it has none
    order: dict[str, Any] | None = None
    #: a custom sampler's state before its iteration begins; empty where that is not needed
    sampler: dict[str, Any] = _EMPTY
    #: states of the random number generators that later draws come from, by name
    rng: dict[str, Any] = _EMPTY
    #: states of the workers' random number generators, by worker (``seeding="worker"`` only)
    workers: dict[str, Any] = _EMPTY
    #: the position of each stream; empty where there are none, or they begin the epoch
    streams: tuple[StreamPosition, ...] = ()
    #: streams of all ranks, where ``streams`` has those of one ``rank`` only; None: it has all
    num_streams: int | None = None
    #: of a merged state, by rank: the streams that it reads again. They are for as many ranks only
    again: dict[int, tuple[StreamPosition, ...]] = {}
    #: steps that the pass has in all, where all ranks have as many; None: as its streams have
    batches: int | None = None
    #: of a pass with one stream: people's code in it sees torch's ``get_worker_info()``, as in a
    #: worker; None: see `sees_worker_info`
    worker_info: bool | None = None
    #: by path, the generators that the dataset owns, as they were when the epoch began, if a
    #: stream is to be read again from its start
    dataset_rng: dict[str, Any] = _EMPTY
    #: the epoch that ``set_epoch`` has last set on the dataset; None if it was never called
    announced: int | None = None
    #: the epoch of the pass after this one, which ``set_epoch`` has chosen; None: the next number
    next_epoch: int | None = None
    #: nobody has chosen that epoch: later passes have begun the ones before it
    counted: bool = False
    #: the rank that this belongs to and the number of ranks, (0, 2), where ranks may differ: it
    #: holds indices, or a checksum of them. With ``shard=``, a beginning has it as well, so that
    #: `merge_states` knows whose it is; None: any rank can go on from it
    rank: tuple[int, int] | None = None
    #: the seed that persistent workers were started with, in an earlier epoch; None: ``base_seed``
    worker_seed: int | None = None
    #: ``"workers"`` or ``"persistent_workers"``: later epochs draw as torch does with these; None:
    #: as with ``num_workers=0``, or nobody can notice
    draws_as: str | None = None
    #: of a sampler that listens: the budget, the first step that it has not heard of, and feedback
    #: that it has not received, ``{"budget": 2, "heard": 7, "notes": [[6, [0.5]]]}``. ``newest`` is
    #: the step that the consumer has got last, where steps after it were skipped; -1: none. None:
    #: it does not listen
    feedback: dict[str, Any] | None = None


class Saved(NamedTuple):
    """A cursor, and the fingerprint of the loader that it belongs to."""

    cursor: Cursor
    #: properties that must be the same where it is loaded, for example ``{"batch_size": 4}``
    fits: dict[str, Any]


def before_epoch(cursor: Cursor) -> bool:
    """No epoch was begun yet, whichever comes next."""
    # A rank may have got nothing yet from streams that others have read: it has their base seed.
    fresh = cursor.num_streams is None or cursor.base_seed is None
    return cursor.step == 0 and cursor.order is None and fresh


def usually_sees_worker_info(cursor: Cursor) -> bool:
    """Whether people's code sees ``get_worker_info()`` where the cursor does not say so."""
    several = len(cursor.streams) > 1 or cursor.num_streams is not None
    return several or cursor.draws_as is not None


def sees_worker_info(cursor: Cursor) -> bool:
    """Whether people's code in the streams of a cursor sees torch's ``get_worker_info()``.

    Without workers, and without ``num_streams``, that is None.
    """
    return usually_sees_worker_info(cursor) if cursor.worker_info is None else cursor.worker_info


def is_beginning(cursor: Cursor) -> bool:
    """No epoch was begun yet, and no rank has anything of it: any rank can begin it."""
    return before_epoch(cursor) and not (cursor.streams or cursor.window or cursor.next_step)
