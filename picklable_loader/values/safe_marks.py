"""Safe marks: the states of streams inside of a pickled iterator, read without running code.

A worker gives its stream's state as bytes, a pickle, and a pickle of the iterator keeps them as
they are. Where the iterator has come through the safe door they may be anybody's. So they are read
here by a reader that knows values only, and written anew: who opens them later opens our own.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

from ..dtypes import dumps
from ..errors import NeedsCodeError

__all__ = ["reread_iterator", "reread_loader"]


def reread_iterator(saved: Any) -> dict[str, Any]:
    """What an iterator is pickled as, with marks that we have written.

    Args:
        saved: what its ``__getstate__`` returned, or a file says that it did.

    Raises:
        NeedsCodeError: a mark holds something else than values.
        pickle.UnpicklingError: it is nothing that ``__getstate__`` returns.
    """
    read = dict(_expect(saved, "what an iterator is pickled as"))
    _refuse_unknown(read, _OF_AN_ITERATOR)
    return {**read, "state": _reread_state(read.get("state"))}


def reread_loader(saved: Any) -> dict[str, Any]:
    """What a loader is pickled as; see `reread_iterator`."""
    read = dict(_expect(saved, "what a loader is pickled as"))
    inner = dict(_expect(read.get("_pl"), "what a loader keeps"))
    _refuse_unknown(inner, _OF_A_LOADER)
    inner["resume"] = _reread_state(inner.get("resume"))
    carried = _expect(inner.get("carried"), "what streams have left")
    inner["carried"] = {stream: _values(mark, stream) for stream, mark in carried.items()}
    return {**read, "_pl": inner}


# What is not known here may be bytes that are opened as code when the loader is built.
_OF_AN_ITERATOR = {"loader", "state", "finished", "newest"}
_OF_A_LOADER = {
    "options",
    "next_epoch",
    "announced",
    "resume",
    "resume_at_end",
    "carried",
    "start_method",
}


def _refuse_unknown(found: dict[Any, Any], known: set[str]) -> None:
    unknown = [name for name in found if name not in known]
    if unknown:
        raise NeedsCodeError(
            f"the field {unknown[0]!r} of the iterator or its loader",
            "it is not known to hold values only",
            "Save state_dict() instead",
        )


def _expect(found: Any, what: str) -> dict[Any, Any]:
    if type(found) is not dict:
        raise pickle.UnpicklingError(f"{what} should be a dict, found a {type(found).__name__}")
    return found


def _reread_state(state: Any) -> Any:
    streams = state.get("streams") if isinstance(state, dict) else None
    if not isinstance(streams, list):
        return state
    places = [_reread_place(place, stream) for stream, place in enumerate(streams)]
    return {**state, "streams": places}


def _reread_place(place: Any, stream: int) -> Any:
    if not isinstance(place, dict):
        return place
    return {**place, "mark": _values(place.get("mark"), stream)}


def _values(mark: Any, stream: Any) -> Any:
    if type(mark) is not bytes:
        return mark
    entries = _Values(mark, stream).load()
    if not isinstance(entries, dict) or not _ENTRIES.issuperset(entries):
        raise _refused(stream, "its iterator was pickled as a whole")
    if "begun" in entries:
        new, before = entries["begun"]
        _Values(before, stream).load()  # what is opened later is to be looked through now
        entries["begun"] = list(new), before
    return dumps(entries)


#: what a mark may have besides the pickle of an iterator
_ENTRIES = {"begun", "dataset", "iterator", "rng", "over"}


def _refused(stream: Any, reason: str) -> NeedsCodeError:
    return NeedsCodeError(
        f"stream {stream} of the dataset",
        reason,
        "Give the dataset's iterator state_dict and load_state_dict that hold plain values, or "
        "save state_dict() instead",
    )


class _Values(pickle.Unpickler):
    """Reads values, and refuses anything that would have to be called."""

    def __init__(self, mark: bytes, stream: Any) -> None:
        super().__init__(io.BytesIO(mark))
        self._stream = stream

    def load(self) -> Any:
        try:
            return super().load()
        except NeedsCodeError:
            raise
        except Exception as error:  # whatever damaged bytes make of it
            raise _refused(self._stream, f"its state cannot be read: {error!r}") from error

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        known = _KNOWN.get(module, ())
        if name in known or (module.startswith("numpy.") and name in _KNOWN["numpy"]):
            return super().find_class(module, name)
        raise _refused(self._stream, f"its state holds {module}.{name}")


def _storage(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


_KNOWN: dict[str, tuple[str, ...]] = {
    "builtins": ("complex", "frozenset", "range", "set", "slice"),
    "collections": ("Counter", "OrderedDict", "deque"),
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"),
    "numpy": ("_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar"),
    "pathlib": ("PosixPath", "PurePosixPath"),
    "picklable_loader.dtypes": ("restored",),
    "torch._utils": ("_rebuild_tensor_v2",),
}
