"""The states of streams, as workers send them and as saved states of a loader hold them.

A worker sends a stream's state as bytes, or the error that says why there is none. The bytes are a
pickle of a dict with these entries:

* ``"dataset"``, ``"iterator"``: what their ``state_dict`` returned;
* ``"unsaved"``: paths of generators that these two own, and that their states lack;
* ``"unmoved_by"``: the number of a sample, 1 or 2, that has not changed these states;
* ``"pickled"``: a pickle of the iterator, instead of these;
* ``"begun"``: the dataset at its beginning, for a replay (`Baseline`; while the epoch lasts, that
  itself is the state);
* ``"drift"``: names of the attributes that earlier epochs have changed;
* ``"lost"``: those of them that no pickle brings back either;
* ``"rng"``: the worker's random number generators (``seeding="worker"``);
* ``"first_rng"``: these when the epoch began, if ``iter`` is to draw from them once more: with
  ``"pickled"``, if ``iter`` is called again, with an ``"iterator"`` of a dataset without state, and
  alone, for a replay in the program's own process;
* ``"over"``: the epoch has ended there, and the next one is to begin;
* ``"announced"``: then, the epoch that set_epoch had given the dataset, if that has a state;
* ``"after"``: then, and before the first batch with ``num_workers=0``, the attributes of a dataset
  with a state that are flags or None (`flags_of`).

A pickle of a loader's iterator holds these bytes, as `Pickled`, and only that type is ever opened
as a pickle. A ``state_dict`` holds plain values: `read` makes such a pickle of them. It has no
pickled iterator: such a stream begins anew and is replayed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from ..core.cursor import Cursor
from ..core.streams import StreamPosition
from ..datasets.protocol import dataset_state, has_set_epoch, is_hugging_face, save
from ..datasets.wrapper import has_stateful
from ..errors import SYMPTOMS, CannotSaveError, DamagedStateError, warn
from ..fetching.worker.baseline import Baseline
from ..fetching.worker.flags import flags_of
from ..rng.generators import states_from_text, states_to_text
from ..saving.pickles.opened import Pickled
from ..saving.pickles.picklers import to_bytes
from ..saving.states.plain import decode, encode_state
from .dataset_rng import Rngs, held_by
from .spec import Spec

_STATES = ("dataset", "iterator")
#: entries that hold what people's code gives, and all that a loader's state may have
_OF_PEOPLE = (*_STATES, "after")
_SAVED = (*_OF_PEOPLE, "over", "announced", "rng", "first_rng")
_OF_RNGS = ("rng", "first_rng")


def savable(positions: Iterable[StreamPosition], live: bool) -> tuple[StreamPosition, ...]:
    """The positions, as a loader's state holds them; ``live``: as a pickle does.

    Raises:
        CannotSaveError: what a worker has sent instead of a state; or a loader's state would have
            to hold more than plain values.
    """
    return tuple(_savable(position, at, live) for at, position in enumerate(positions))


def warn_of_gaps(
    spec: Spec, positions: Sequence[StreamPosition], live: bool, rngs: Rngs, after_left: bool
) -> None:
    """Warn of what the positions of a pass lack; see the functions below.

    Args:
        spec, positions: of the pass.
        live: they are for a pickle.
        rngs: the generators of the dataset that the loader's state has.
        after_left: the pass before was left in its middle.
    """
    dataset = spec.dataset
    _warn_of_lost_generators(dataset, positions)
    _warn_of_unmoved(dataset, positions)
    if after_left and spec.iterable and has_stateful(dataset) and not spec.reads_copies:
        if any(position.from_start for position in positions):
            warn_of_left(dataset)
    if live:
        warn_of_lost(spec, positions)
    else:
        warn_of_drift(spec, positions, rngs)


def warn_of_drift(
    spec: Spec, positions: Iterable[StreamPosition], rngs: Rngs, known: Iterable[str] = ()
) -> None:
    """Warn of attributes that earlier epochs have changed and no state holds, unless ``known``.

    A state has generators of the dataset, ``rngs``, beside the streams' own states.
    """
    known, names = list(known), set()
    for state in (position.state for position in positions):
        if isinstance(state, Baseline):
            names.update(state.drift)
        elif isinstance(state, bytes) and (known or b"drift" in state):
            entries = pickle.loads(state)
            names.update(entries.get("drift", ()))
            if entries.keys() & set(_STATES):
                known = []  # the state holds them, or its iterator needs none of them
    names = names.union(known) - held_by(rngs, spec)
    chosen = " If the program has called set_epoch() of the dataset, call that of the loader"
    if names:
        warn(
            f"the dataset {type(spec.dataset).__qualname__} has no state, and its epochs have "
            f"changed its attributes {', '.join(sorted(names))}: a resume from this state_dict() "
            "begins with a dataset that no epoch has changed. It gives other samples if these "
            "depend on the attributes. Pickle the iterator, or give the dataset state_dict and "
            f"load_state_dict.{chosen if has_set_epoch(spec.dataset) else ''}",
        )


def warn_of_lost(spec: Spec, positions: Iterable[StreamPosition]) -> None:
    """Warn of attributes that a pickle cannot bring to where its resume needs them."""
    names, travels = set[str](), spec.dataset_travels
    for state in (position.state for position in positions):
        if isinstance(state, Baseline):
            names.update(state.lost() if travels else state.lost_with_its_own())
        elif type(state) is bytes and b"lost" in state and not travels:
            names.update(pickle.loads(state).get("lost", ()))
    if names:
        warn(
            f"the dataset {type(spec.dataset).__qualname__} has no state, and its iteration has "
            f"changed its attributes {', '.join(sorted(names))}. A resume needs them as they were "
            "when the epoch began, or as they are in a worker. This pickle does not hold that, as "
            "they are large, or plain pickle refuses them: they hold a lambda, a lock or an object "
            "of a local class. If samples depend on them, the resume gives other ones. Give the "
            'dataset state_dict and load_state_dict; or pass codec="cloudpickle", which takes '
            "lambdas and local classes",
        )


def _warn_of_lost_generators(dataset: Any, positions: Iterable[StreamPosition]) -> None:
    """Warn of generators that a stream draws from, and its state lacks."""
    if found := _entry_of(positions, "unsaved"):
        warn(
            f"the state_dict of {type(dataset).__qualname__}, or of its iterator, lacks random "
            f"generators that they own and draw from: {', '.join(found)}. After a resume these may "
            "draw other numbers. Save their states in state_dict as well, or draw from "
            "picklable_loader.current_seed(). If a resume makes them anew, or reads again from the "
            "start, ignore this"
        )


def _warn_of_unmoved(dataset: Any, positions: Iterable[StreamPosition]) -> None:
    """Warn of a state that cannot be the position of its stream."""
    if number := _entry_of(positions, "unmoved_by"):
        warn(
            f"the state_dict of {type(dataset).__qualname__}, or of its iterator, was the same "
            f"before and after sample {number} of the stream. A resume from it gives samples "
            "again, unless each sample is random. Count before the yield, and save the count; or "
            "take state_dict away, and the loader replays the stream"
        )


def _entry_of(positions: Iterable[StreamPosition], name: str) -> Any:
    """An entry of the first stream's state that has it; None: none has it."""
    states = (each.state for each in positions if type(each.state) is bytes)
    found = (pickle.loads(state).get(name) for state in states if name.encode() in state)
    return next(filter(None, found), None)


def warn_of_left(dataset: Any) -> None:
    """Warn of a state of an epoch's beginning, if the pass before has left the dataset midway."""
    warn(
        "the epoch before was left in its middle. A resume from this state loads the state_dict() "
        f"of the dataset {type(dataset).__qualname__} as the next epoch found it, and then calls "
        "iter(). It gives other samples if iter() begins elsewhere after load_state_dict() than "
        "without. Take the state after the next epoch's first batch (with snapshot_every_n_steps=, "
        "after its first snapshot), or after a whole epoch"
    )


def warn_of_lengths(dataset: Any, streams: Sequence[int]) -> None:
    """Warn of streams that have had more or fewer batches in an epoch than the dataset says."""
    if not streams:
        return
    named = ", ".join(map(str, streams[:8])) + (", ..." if len(streams) > 8 else "")
    warn(
        f"of the dataset {type(dataset).__qualname__}, stream {named} has more or fewer batches "
        "than its length says. All ranks have as many batches as the lengths say: of a longer "
        "stream the rest is not read, and for a shorter one this rank has read streams again. "
        "len(dataset) is the samples of all streams together, in even shares; stream_length gives "
        "those of one"
    )


def warn_of_forgotten(dataset: Any, had: int, total: int) -> None:
    """Warn of states that a dataset's streams have, and that another number of streams loses."""
    warn(
        f"the dataset {type(dataset).__qualname__} was read through {had} streams, and is now "
        f"read through {total}: what each one had saved in itself in earlier epochs is lost, and "
        "the epoch begins with fresh copies. Pass num_streams= to have as many streams under any "
        "number of workers"
    )


def warn_of_used(dataset: Any) -> None:
    """Warn, when a state of before the first epoch is loaded, of a dataset that is not as then."""
    warn(
        f"the dataset {type(dataset).__qualname__} is as earlier passes of this loader have left "
        "it: the loaded state is of before the first epoch, and holds none of it. Load it into a "
        "new loader with a new dataset"
    )


def warn_of_later_attributes(spec: Spec, cursor: Cursor, begun: int, names: Sequence[str]) -> None:
    """Warn, when a state is loaded, of a dataset that is not as when the state's epoch began.

    Args:
        spec, cursor: of the loader, and of the state.
        begun: the number of the loader's epoch that was to begin next.
        names: attributes that epochs have changed in the program's own dataset.
    """
    ended = bool(cursor.streams) and all(stream.ended for stream in cursor.streams)
    needs = spec.epoch_and_step(cursor, "next")[0] if ended else cursor.epoch
    from_start = any(each.from_start for each in cursor.streams)
    if names and needs != begun and (from_start or ended or not cursor.streams):
        warn(
            f"the dataset {type(spec.dataset).__qualname__} has no state, and passes of this "
            f"loader have changed its attributes {', '.join(names)}. The loaded state needs them "
            f"as they were when epoch {needs} began. If samples depend on them, the resume gives "
            "other ones. Load it into a new loader with a new dataset, or give the dataset "
            "state_dict and load_state_dict"
        )


def state_now(spec: Spec, announced: int | None) -> dict[int, Any]:
    """The state in which the next epoch finds a dataset that no worker has a copy of.

    Args:
        spec: of the loader, whose dataset is before its first epoch, or where one was left.
        announced: the epoch that set_epoch has given it.

    Returns:
        By stream, of which there is one; none if the dataset has no state of its own.
    """
    dataset = spec.dataset
    if is_hugging_face(dataset):  # theirs is of one iteration
        return {}
    try:
        entries = save(dataset, None)
        if not entries:
            return {}
        flags = flags_of(dataset) if spec.iterable else {}
        entries |= {"over": True, **({"after": flags} if flags else {})}
        given = {} if announced is None else {"announced": announced}
        return {0: to_bytes({**entries, **given})}
    except Exception as error:  # whatever people's state_dict raises: users who save hear of it
        what, why = f"the dataset {type(dataset).__qualname__}", f"{type(error).__name__}: {error}"
        return {0: CannotSaveError(what, why, "Its state_dict should work between epochs, too")}


def as_left(spec: Spec, states: dict[int, Any], announced: int | None) -> dict[int, Any]:
    """The states in which an epoch that was left in its middle has left the program's dataset.

    Args:
        spec: of the loader.
        states: those that were taken when it was left; none, if the dataset came in a pickle.
        announced: the epoch that set_epoch has given it.
    """
    if not (states or spec.reads_copies):
        states = state_now(spec, announced)
    if states and spec.iterable:
        warn_of_left(spec.dataset)
    return states


def kept_of(states: dict[int, Any]) -> dict[int, Any] | None:
    """The states, to be kept as long as the loader lives; None: one is large, or is an error."""
    small = all(type(state) is bytes and len(state) < _MOST_KEPT for state in states.values())
    return states if small else None


#: bytes
_MOST_KEPT = 1 << 20


def settle(dataset: Any, states: Iterable[Any]) -> None:
    """Bring a dataset to where an epoch has left the copy of a worker, which read it to its end."""
    for entries in (pickle.loads(state) for state in states if type(state) is bytes):
        if "begun" in entries:
            Baseline.put_back(dataset, entries)
        if (state := dataset_state(entries)) is not None:
            dataset.load_state_dict(state)


def brought(positions: Iterable[StreamPosition]) -> dict[int, Any]:
    """By stream, the state that the epoch before has left; none where the epoch has begun."""
    states = {at: each.state for at, each in enumerate(positions) if not each.given}
    known = all(state is None or _may_carry(pickle.loads(state)) for state in states.values())
    return states if known and len(states) == len(list(positions)) else {}


def _may_carry(entries: dict[str, Any]) -> bool:
    """The state is of the end of an epoch, or of a stream that has none."""
    return "over" in entries or not entries.keys() - {"drift", "lost"}


def remembers(states: Iterable[Any]) -> bool:
    """They hold states of the dataset itself, and not only of its iterator."""
    return any(
        type(state) is bytes and (b"\x07dataset" in state or b"\x05begun" in state)
        for state in states
    )


def _savable(position: StreamPosition, stream: int, live: bool) -> StreamPosition:
    state = position.state
    if isinstance(state, CannotSaveError):
        raise state
    if isinstance(state, Baseline):
        state = state.changes() if live else state.state
    if state is None or type(state) is dict:  # of a state that was loaded
        return position.copy(state=state)
    if live:
        return position.copy(state=Pickled(state))
    entries = pickle.loads(state)
    if entries.keys() & {"pickled", "begun"}:  # it holds only the generators of a replay
        over = "over" in entries
        rng = entries.get("rng" if over else "first_rng")
        if rng is None:
            return position.copy(state=None, state_at=0)
        text = states_to_text(rng)
        if over:  # a stream that has ended is not replayed
            return position.copy(state={"over": True, "rng": text})
        return position.copy(state={"first_rng": text}, state_at=0)
    form = {name: entries[name] for name in _SAVED if name in entries}
    for name in filter(form.__contains__, _OF_PEOPLE):
        form[name] = encode_state(form[name], f"stream {stream}: state_dict() of the {name}")
    for name in filter(form.__contains__, _OF_RNGS):
        form[name] = states_to_text(form[name])
    return position.copy(state=form)


def read(positions: Sequence[StreamPosition]) -> list[StreamPosition]:
    """The positions of a saved state, with what workers read as their states.

    Raises:
        DamagedStateError: one is not what `savable` makes.
    """
    return [position.copy(state=_read(position.state, at)) for at, position in enumerate(positions)]


def _read(state: Any, stream: int) -> bytes | None:
    if state is None:
        return None
    if type(state) is Pickled:
        return bytes(state)
    field = f"streams[{stream}].mark"
    if type(state) is not dict:
        raise DamagedStateError(field, "plain values", state)
    try:
        entries = {name: state[name] for name in _SAVED if name in state}
        for name in filter(entries.__contains__, _OF_PEOPLE):
            entries[name] = decode(entries[name])
        for name in filter(entries.__contains__, _OF_RNGS):
            entries[name] = states_from_text(entries[name])
        return to_bytes(entries)
    except SYMPTOMS as error:
        raise DamagedStateError(field, "plain values", state) from error


def replayed(positions: Iterable[StreamPosition], every: int | None) -> int:
    """How many batches are fetched again because their streams have no states.

    The first state is taken after ``every`` batches; None: after the first.
    """
    without_state = (each for each in positions if not each.state_at and not each.ended)
    return sum(each.given for each in without_state if each.given >= (every or 1))


def text_of_replay(spec: Spec, epoch: int, count: int) -> str:
    """The warning of so many batches of an epoch that have to be fetched again."""
    advice = (
        "It goes on at once without a shuffle of its own, and if no batched function draws numbers"
        if is_hugging_face(spec.dataset)
        else "Give the dataset, or its iterator, state_dict and load_state_dict, and it goes on at "
        "once"
    )
    disturbed = spec.options.seeding == "worker" and spec.options.seed is None and not spec.workers
    ahead = (
        '. With seeding="worker", and neither seed= nor workers, a dataset that draws ahead of its '
        "batches, for a shuffle buffer say, gives other samples if the program has drawn in between"
    )
    return (
        f"the dataset {type(spec.dataset).__qualname__} has no state, and is resumed by replay: "
        f"{count} batches of epoch {epoch} are fetched again and dropped. "
        f"{advice}{ahead * disturbed}"
    )


def text_of_difference(dataset: Any) -> str:
    """The warning of a replay that has given other batches."""
    return (
        f"the dataset {type(dataset).__qualname__} has no state, and was read again: a batch that "
        "it had given came as another one. So samples may be lost, or come twice. Perhaps its "
        "__iter__ makes a generator without a seed, random.Random() for example; or threads draw "
        "random numbers; or the order of files differs. Seed from picklable_loader.current_seed(), "
        "or give the dataset state_dict and load_state_dict. If you have changed the data or the "
        "code on purpose, ignore this"
    )
