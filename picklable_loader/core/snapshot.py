"""Snapshot: the cursor as a versioned plain dict, and back, with everything checked on the way.

The format is described in docs/state.md; golden files under tests/golden/ hold it in place.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from ..errors import (
    DamagedStateError,
    Difference,
    ForeignStateError,
    NewerStateError,
)
from .cursor import Cursor
from .events import Task

__all__ = [
    "FORMAT",
    "VERSION",
    "differences",
    "from_plain",
    "pack_words",
    "to_plain",
    "unpack_words",
]

FORMAT = "picklable_loader"
VERSION = 1

#: No counter of a real run comes near this; a larger one is damage.
_LARGEST = 2**63
#: Nobody has so many tasks under way; a larger count is damage, and must not fill the memory.
_LONGEST_WINDOW = 10**6


def to_plain(cursor: Cursor, fits: Mapping[str, Any]) -> dict[str, Any]:
    """The saved form of a cursor.

    Args:
        cursor: where the loader stands.
        fits: the loader's fingerprint: properties that must be the same on resume.
    """
    return {
        "format": FORMAT,
        "version": VERSION,
        "epoch": cursor.epoch,
        "step": cursor.step,
        "next_step": cursor.next_step,
        "position": cursor.position,
        "window": _packed(cursor.window, fits.get("batch_size")),
        "base_seed": cursor.base_seed,
        "order": cursor.order,
        "sampler": cursor.sampler,
        "rng": cursor.rng,
        "workers": cursor.workers,
        "announced": cursor.announced,
        "fits": dict(fits),
    }


def from_plain(state: Mapping[str, Any]) -> tuple[Cursor, dict[str, Any]]:
    """The cursor and the fingerprint of a saved form.

    Raises:
        ForeignStateError: another loader wrote it.
        NewerStateError: a later version of this package wrote it.
        DamagedStateError: a field is missing, or has a value that is never written.
    """
    _check_origin(state)
    step = _count(state, "step")
    next_step = _count(state, "next_step")
    fits = dict(_typed(state, "fits", dict))
    window = tuple(_unpacked(_typed(state, "window", list), fits.get("batch_size"), next_step))
    cursor = Cursor(
        epoch=_count(state, "epoch"),
        step=step,
        next_step=next_step,
        position=_count(state, "position"),
        window=window,
        base_seed=_count_or_none(state, "base_seed"),
        order=None if state.get("order") is None else dict(_typed(state, "order", dict)),
        sampler=dict(_typed(state, "sampler", dict)),
        rng=dict(_typed(state, "rng", dict)),
        workers=dict(_typed(state, "workers", dict)),
        announced=_count_or_none(state, "announced"),
    )
    steps = [task.step for task in window]
    if steps != sorted(set(steps)) or any(at >= next_step for at in steps):
        raise DamagedStateError("window", "ascending steps below next_step", steps)
    if step + len(steps) > next_step:
        raise DamagedStateError("step", f"at most {next_step - len(steps)}", step)
    return cursor, fits


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[Difference]:
    """Every property in which two fingerprints differ, in the order of the first."""
    names = [*expected, *(name for name in found if name not in expected)]
    return [
        Difference(name, expected.get(name), found.get(name))
        for name in names
        if expected.get(name) != found.get(name)
    ]


@lru_cache(maxsize=16)  # who saves at every step asks for the same state again and again
def pack_words(data: bytes) -> str:
    """Bytes as text, half as long where they are 32-bit numbers in 64-bit fields.

    Torch saves the 624 words of its Mersenne Twister in that way; other bytes survive as well.
    """
    if len(data) % 8:
        return "raw:" + b64encode(data).decode()
    words = array("I", data)
    low, high = words[0::2], words[1::2]
    odd = array("I")
    for at, value in enumerate(high):
        if value:
            odd.extend((at, value))
    if len(odd) > len(high):
        return "raw:" + b64encode(data).decode()
    header = array("I", [len(low), len(odd)])
    return "low:" + b64encode((header + odd + low).tobytes()).decode()


def unpack_words(text: str) -> bytes:
    """What ``pack_words`` was given.

    Raises:
        ValueError: the text is damaged.
    """
    kind, _, body = text.partition(":")
    try:
        data = b64decode(body, validate=True)
    except NotBase64 as error:
        raise ValueError(str(error)) from None
    if kind == "raw":
        return data
    if kind != "low" or len(data) % 4 or len(data) < 8:
        raise ValueError("not a packed state")
    words = array("I", data)
    count, odd = words[0], words[1]
    if len(words) != 2 + odd + count or odd % 2:
        raise ValueError("a packed state of another length")
    spread = array("I", bytes(8 * count))
    spread[0::2] = words[2 + odd :]
    for at in range(2, 2 + odd, 2):
        if words[at] >= count:
            raise ValueError("a packed state with a word out of range")
        spread[2 * words[at] + 1] = words[at + 1]
    return spread.tobytes()


# --- checks --------------------------------------------------------------------------------------


def _check_origin(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping):
        raise ForeignStateError(f"a {type(state).__name__}", "Expected what state_dict() returned.")
    if state.get("format") != FORMAT:
        raise _foreign(state)
    version = _count(state, "version")
    if version > VERSION:
        raise NewerStateError(version, VERSION)
    if version < 1:
        raise DamagedStateError("version", "from 1", version)


def _foreign(state: Mapping[str, Any]) -> ForeignStateError:
    keys = set(state)
    if "_snapshot" in keys or {"_sampler_iter_yielded", "_num_yielded"} <= keys:
        snapshot = state.get("_snapshot", {})
        passed = state.get("_num_yielded")
        if isinstance(snapshot, Mapping) and "_snapshot_step" in snapshot:  # it had workers
            passed = snapshot["_snapshot_step"] + state.get("_steps_since_snapshot", 0)
        return ForeignStateError(
            "torchdata's StatefulDataLoader",
            "It cannot be converted, since it holds no state of the augmentation. Finish the epoch "
            "with torchdata, or begin it again and pass over what was seen: "
            f"`it = iter(loader); it.skip({passed})`.",
        )
    return ForeignStateError(
        f"something with the keys {sorted(map(str, keys))[:8]}",
        "Expected what DataLoader.state_dict() or LoaderIterator.state_dict() returned.",
    )


def _typed(state: Mapping[str, Any], name: str, kind: type[Any]) -> Any:
    value = state.get(name)
    if type(value) is not kind:
        raise DamagedStateError(name, f"a {kind.__name__}", value)
    return value


def _count(state: Mapping[str, Any], name: str) -> int:
    value = state.get(name)
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise DamagedStateError(name, "a whole number from 0", value)
    return value


def _count_or_none(state: Mapping[str, Any], name: str) -> int | None:
    return None if state.get(name) is None else _count(state, name)


# --- the window ----------------------------------------------------------------------------------
# [step, position, indices], or [step, position, null, count]: so many tasks, a batch apart, whose
# indices the order gives again. Many workers and delivery out of order make long windows.


def _packed(window: Iterable[Task], batch_size: int | None) -> list[list[Any]]:
    packed: list[list[Any]] = []
    for task in window:
        run = packed[-1] if packed else None
        if run is not None and task.indices is None and _continues(run, task, batch_size):
            run[3:] = [_counted(run) + 1]
        else:
            packed.append([task.step, task.position, task.indices])
    return packed


def _continues(run: list[Any], task: Task, batch_size: int | None) -> bool:
    count = _counted(run)
    after = run[0] + count, run[1] + count * (batch_size or 1)
    return run[2] is None and (task.step, task.position) == after


def _counted(run: list[Any]) -> int:
    return int(run[3]) if len(run) == 4 else 1


def _unpacked(packed: list[Any], batch_size: Any, next_step: int) -> Iterator[Task]:
    for at, entry in enumerate(packed):
        field = f"window[{at}]"
        if type(entry) not in (list, tuple) or not 3 <= len(entry) <= 4:
            raise DamagedStateError(field, "a list of step, position and indices", entry)
        counts = {f"{field}.step": entry[0], f"{field}.position": entry[1]}
        step, position = (_count(counts, name) for name in counts)
        if len(entry) == 3:
            yield Task(step, entry[2], position)
            continue
        counts[f"{field}.count"] = entry[3]
        count, spacing = _count(counts, f"{field}.count"), batch_size or 1
        if entry[2] is not None or step + count > next_step or type(spacing) is not int:
            raise DamagedStateError(field, "null and a count of tasks below next_step", entry[2:])
        if count > _LONGEST_WINDOW:
            raise DamagedStateError(f"{field}.count", f"at most {_LONGEST_WINDOW}", count)
        yield from (Task(step + i, None, position + i * spacing) for i in range(count))
