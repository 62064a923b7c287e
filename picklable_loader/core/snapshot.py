"""Writes a cursor as a versioned plain dict, the saved state, and reads it with all its checks.

The format is described in docs/state.md; golden files under tests/golden/ hold it in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

from ..errors import DamagedStateError, Difference, ForeignStateError, NewerStateError
from .cursor import Cursor, Saved, usually_sees_worker_info
from .fields import FIELDS, check_records, in_words
from .streams import StreamPosition
from .task import Task

FORMAT = "picklable_loader"
VERSION = 1

#: No counter of a real run comes near this; a larger one is damage.
_LARGEST = 2**62
#: torch's seeds are below this
_LARGEST_SEED = 2**63
#: Nobody has so many tasks under way; a larger count is damage, and must not fill the memory.
_LONGEST_WINDOW = 10**5
#: fields that no state may lack
_REQUIRED = frozenset(
    ("epoch", "step", "next_step", "position", "window", "sampler", "rng", "workers", "fits")
)
#: fields that a state has only where they are not None
_OMITTED = ("num_streams", "batches", "worker_seed", "draws_as", "next_epoch")


def to_plain(cursor: Cursor, fits: Mapping[str, Any]) -> dict[str, Any]:
    """The saved form of a cursor; ``fits`` is the fingerprint of its loader."""
    samples = cast(int, spacing(fits))  # a loader's own one is whole
    state = {
        "format": FORMAT,
        "version": VERSION,
        "epoch": cursor.epoch,
        "step": cursor.step,
        "next_step": cursor.next_step,
        "position": cursor.position,
        "window": _packed(cursor.window, samples) if cursor.window else [],
        "base_seed": cursor.base_seed,
        "order": None if cursor.order is None else {**cursor.order},
        "sampler": {**cursor.sampler},
        "rng": {**cursor.rng},
        "workers": {**cursor.workers},
        "announced": cursor.announced,
        "fits": {**fits},
    }
    if cursor.streams:
        state["streams"] = [_stream(position, samples) for position in cursor.streams]
    if cursor.again:
        again = cursor.again.items()
        state["again"] = {str(r): [_stream(each, samples) for each in s] for r, s in again}
    for name in _OMITTED:
        if (value := getattr(cursor, name)) is not None:
            state[name] = value
    seen = cursor.worker_info
    if seen is not None and seen != usually_sees_worker_info(cursor):
        state["worker_info"] = seen
    if cursor.dataset_rng:
        state["dataset_rng"] = {**cursor.dataset_rng}
    if cursor.counted:
        state["counted"] = True
    if cursor.rank is not None:
        state["rank"] = list(cursor.rank)
    if cursor.feedback is not None:
        state["feedback"] = {**cursor.feedback}
    return state


def from_plain(state: Mapping[str, Any], live: bool = False) -> Saved:
    """The cursor and the fingerprint of what `to_plain` has given.

    ``live``: it comes out of a pickled iterator, which may hold objects.

    Raises:
        ForeignStateError: another loader wrote it.
        NewerStateError: a later version of this package wrote it.
        DamagedStateError: a field is missing, or has a value that is never written.
    """
    check_origin(state)
    if not live:
        check_records(state)
    _check_kinds(state)
    step, next_step, fits = state["step"], state["next_step"], dict(state["fits"])
    tasks = _unpacked(state["window"], spacing(fits), next_step)
    window = tuple(sorted(tasks, key=attrgetter("step")))
    cursor = Cursor(
        epoch=state["epoch"],
        step=step,
        next_step=next_step,
        position=state["position"],
        window=window,
        base_seed=state.get("base_seed"),
        worker_seed=state.get("worker_seed"),
        draws_as=_draws_as(state),
        order=None if state.get("order") is None else dict(state["order"]),
        sampler=dict(state["sampler"]),
        rng=dict(state["rng"]),
        workers=dict(state["workers"]),
        announced=state.get("announced"),
        streams=tuple(_streams(state.get("streams", []), "streams", spacing(fits), next_step)),
        again=_again(state, fits),
        num_streams=state.get("num_streams"),
        batches=state.get("batches"),
        worker_info=state.get("worker_info"),
        dataset_rng=dict(state.get("dataset_rng", {})),
        next_epoch=state.get("next_epoch"),
        counted=state.get("counted", False),
        rank=_rank(state),
        feedback=_feedback(state),
    )
    if cursor.again and cursor.rank is not None:
        raise DamagedStateError("again", "absent in the state of one rank", list(cursor.again))
    if cursor.num_streams is not None and cursor.rank is None:
        raise DamagedStateError("num_streams", "absent in a state of all ranks", cursor.num_streams)
    steps = [task.step for task in window]
    if steps and (len(steps) != len(set(steps)) or max(steps) >= next_step):
        raise DamagedStateError("window", "each step once, below next_step", steps)
    if step + len(steps) > next_step:
        raise DamagedStateError("step", f"at most {next_step - len(steps)}", step)
    return Saved(cursor, fits)


#: what a fingerprint says that lacks it
_ABSENT = {"seed_dataset": "auto", "sampler_seed": 0}


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """Every property in which two fingerprints differ, in the order of the first."""
    names = [*expected, *(name for name in found if name not in expected)]
    return [
        Difference(name, expected.get(name, _ABSENT.get(name)), found.get(name, _ABSENT.get(name)))
        for name in names
        if expected.get(name) != found.get(name)
    ]


# --- checks --------------------------------------------------------------------------------------


def check_origin(state: Any) -> None:
    """Raise StateError unless it says that a version that we know has written it."""
    if type(state) is not dict:
        raise ForeignStateError(f"a {type(state).__name__}", "Expected what state_dict() returned.")
    if type(state.get("format")) is not str or state["format"] != FORMAT or "$skip" in state:
        raise _foreign(state)
    version = _count(state, "version")
    if version > VERSION:
        raise NewerStateError(version, VERSION)
    if version < 1:
        raise DamagedStateError("version", "from 1", version)


def _foreign(state: Mapping[str, Any]) -> ForeignStateError:
    if "$skip" in state:
        return ForeignStateError("json.loads, which read a text of to_json", "Use from_json().")
    if "_snapshot" in state or "_sampler_iter_yielded" in state:
        return ForeignStateError(
            "torchdata's StatefulDataLoader",
            "load_state_dict of a loader takes one over that has exactly the fields of torchdata "
            "0.10 or 0.11.",
        )
    return ForeignStateError(
        f"something with the keys {sorted(map(str, state))[:8]}",
        "Expected what DataLoader.state_dict() or LoaderIterator.state_dict() returned.",
    )


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise DamagedStateError(name, "a whole number from 0", value)
    return value


def _check_kinds(state: Mapping[str, Any]) -> None:
    """Raise DamagedStateError unless the fields have their types, and numbers are in range."""
    for name, kinds in FIELDS["state"].items():
        value = state.get(name)
        if value is None and name not in _REQUIRED:
            continue
        if type(value) not in kinds:
            raise DamagedStateError(name, in_words(kinds), value)
        most = _LARGEST_SEED if name.endswith("_seed") else _LARGEST
        if type(value) is int and not 0 <= value < most:
            raise DamagedStateError(name, "a whole number from 0", value)


def _draws_as(state: Mapping[str, Any]) -> str | None:
    found = state.get("draws_as")
    if found not in (None, "workers", "persistent_workers"):
        raise DamagedStateError("draws_as", "workers or persistent_workers", found)
    return found


def _rank(state: Mapping[str, Any]) -> tuple[int, int] | None:
    form = state.get("rank")
    if form is None:
        return None
    if [type(part) for part in form] != [int, int]:
        raise DamagedStateError("rank", "a rank and the number of ranks", form)
    rank, world = form
    if not 0 <= rank < world:
        raise DamagedStateError("rank", "a rank below the number of ranks", form)
    return rank, world


def _feedback(state: Mapping[str, Any]) -> dict[str, Any] | None:
    form = state.get("feedback")
    if form is None:
        return None
    if type(form.get("notes")) is not list:
        raise DamagedStateError("feedback", "budget, heard and notes", form)
    budget, step = _count(form, "budget"), _count(state, "step")
    if not 0 < budget <= _LONGEST_WINDOW:
        raise DamagedStateError("feedback.budget", f"from 1 to {_LONGEST_WINDOW}", budget)
    steps = []
    for entry in form["notes"]:
        kinds = [type(part) for part in entry] if type(entry) is list else []
        if kinds != [int, list] or not 0 <= entry[0] < step:
            raise DamagedStateError("feedback.notes", f"steps below {step}, with notes", entry)
        steps.append(entry[0])
    if steps != sorted(set(steps)):
        raise DamagedStateError("feedback.notes", "each step once, ascending", steps)
    feedback = {"budget": budget, "heard": _count(form, "heard"), "notes": form["notes"]}
    if (newest := form.get("newest")) is None:
        return feedback
    if type(newest) is not int or not -1 <= newest < step:
        raise DamagedStateError("feedback.newest", f"from -1 to {step - 1}", newest)
    return {**feedback, "newest": newest}


# --- the streams ---------------------------------------------------------------------------------


def _stream(position: StreamPosition, samples: int) -> dict[str, Any]:
    seen = {} if position.seen is None else {"seen": list(position.seen)}
    return {
        "given": position.given,
        "ended": position.ended,
        "marked": position.state_at,
        "mark": position.state,
        "since": _packed(position.since, samples),
        **seen,
    }


def _again(
    state: Mapping[str, Any], fits: Mapping[str, Any]
) -> dict[int, tuple[StreamPosition, ...]]:
    again, world = {}, fits.get("world_size")
    for name, forms in (state.get("again") or {}).items():
        rank = int(name) if len(name) < 10 and name.isdecimal() else -1
        if str(rank) != name or type(world) is not int or not 0 <= rank < world:
            raise DamagedStateError("again", f"ranks below {world}", name)
        streams = _streams(forms, f"again.{name}", spacing(fits), state["next_step"])
        again[rank] = tuple(streams)
    return again


def _streams(
    forms: Any, name: str, samples: int | None, next_step: int
) -> Iterator[StreamPosition]:
    if type(forms) is not list:
        raise DamagedStateError(name, "a list", forms)
    for stream, form in enumerate(forms):
        field = f"{name}[{stream}]"
        kinds = {"ended": bool, "since": list}
        if type(form) is not dict or any(type(form.get(n)) is not kinds[n] for n in kinds):
            raise DamagedStateError(field, "the position of a stream", form)
        counts = {f"{field}.{name}": form.get(name) for name in ("given", "marked")}
        given, state_at = (_count(counts, name) for name in counts)
        since = list(_unpacked(form["since"], samples, next_step))
        if since and max(task.step for task in since) >= next_step:
            raise DamagedStateError(f"{field}.since", f"tasks below {next_step}", form["since"])
        if state_at + len(since) > given:
            raise DamagedStateError(f"{field}.marked", f"at most {given - len(since)}", state_at)
        tasks = [replace(task, stream=stream) for task in since]
        seen = _seen(form.get("seen"), f"{field}.seen", state_at, given)
        yield StreamPosition(given, form["ended"], form.get("mark"), state_at, tasks, seen)


def _seen(form: Any, field: str, state_at: int, given: int) -> tuple[int, int] | None:
    if form is None:
        return None
    if type(form) is list and len(form) == 2 and all(type(each) is int for each in form):
        number, checksum = form
        if state_at < number <= given and 0 <= checksum < 1 << 32:
            return number, checksum
    raise DamagedStateError(field, f"a number up to {given}, and a checksum", form)


# --- the window ----------------------------------------------------------------------------------
# [step, position, indices], or [step, position, null, count, apart]: so many tasks, so many steps
# apart (1 is left out), whose indices the order gives again. Delivery out of order makes long
# windows: all tasks of one worker, for example, which are as many steps apart as there are workers.


def _packed(window: Iterable[Task], samples: int) -> list[list[Any]]:
    packed: list[list[Any]] = []
    newest: dict[int | None, list[Any]] = {}
    for task in window:
        run = newest.get(task.stream)
        apart = None if run is None else _apart(run, task, samples)
        if run is None or apart is None:
            run = newest[task.stream] = [task.step, task.position, task.indices]
            packed.append(run)
        else:
            count = run[3] + 1 if len(run) > 3 else 2
            run[3:] = [count] if apart == 1 else [count, apart]
    return packed


def _apart(run: list[Any], task: Task, per_step: int) -> int | None:
    """How many steps the tasks of a run are apart, if this is the next of them."""
    if run[2] is not None or task.indices is not None:
        return None
    count = run[3] if len(run) > 3 else 1
    steps, samples = task.step - run[0], task.position - run[1]
    known: list[int] = run[4:] or [1 if count > 1 or task.stream is None else steps]
    apart = known[0]
    fits = steps == count * apart and samples == steps * per_step
    return apart if fits else None


def _unpacked(packed: list[Any], samples: int | None, next_step: int) -> Iterator[Task]:
    total = 0
    for at, entry in enumerate(packed):
        field = f"window[{at}]"
        if type(entry) is not list or not 3 <= len(entry) <= 5:
            raise DamagedStateError(field, "a list of step, position and indices", entry)
        counts = {f"{field}.step": entry[0], f"{field}.position": entry[1]}
        step, position = (_count(counts, name) for name in counts)
        if len(entry) == 3:
            yield Task(step, entry[2], position)
            continue
        counts |= {f"{field}.count": entry[3], f"{field}.apart": [*entry, 1][4]}
        count, apart = (_count(counts, f"{field}.{name}") for name in ("count", "apart"))
        last = step + (count - 1) * apart
        if entry[2] is not None or apart < 1 or last >= next_step or samples is None:
            raise DamagedStateError(field, "null and a count of tasks below next_step", entry[2:])
        total += count
        if total > _LONGEST_WINDOW:
            raise DamagedStateError(f"{field}.count", f"{_LONGEST_WINDOW} at most in all", count)
        steps = range(0, count * apart, apart)
        yield from (Task(step + i, None, position + i * samples) for i in steps)


def spacing(fits: Mapping[str, Any]) -> int | None:
    """Samples of the order from one step to the next; None: the fingerprint is damaged.

    With ``{"batch_size": 8, "world_size": 4}`` it is 32.
    """
    size, world = fits.get("batch_size"), fits.get("world_size", 1)
    size = 1 if size is None else size
    if type(size) is not int or type(world) is not int or min(size, world) < 1:
        return None
    return size * world
