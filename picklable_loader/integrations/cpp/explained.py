"""An error of C++ in words: which sample, whose fault, what to do."""

from __future__ import annotations

import operator
import reprlib
from typing import Any

from ...errors import LoaderError, UsageError

#: a sampler has given a list as an index
_IS_BATCH = ". Pass a sampler that gives lists as batch_sampler=, without a batch_size"


def explained(error: Exception, dataset: Any, asked: Any, alone: bool = False) -> Exception:
    """An error of C++ that names its sample; in our words where pybind11's are riddles.

    Args:
        alone: it was asked for one sample, so a list is no list of indices.
    """
    name, failed = type(dataset).__qualname__, dataset._failed_index()
    if isinstance(error, StopIteration):  # it would end the epoch, as in generators (PEP 479)
        return RuntimeError(f"{name} raised StopIteration when it was asked for {_brief(asked)}")
    # a function in Python that C++ has called raises its own errors
    riddle = None if _is_of_python(error) else _riddle(error, name, dataset, asked, alone)
    if riddle is not None:
        return riddle
    names = len(error.args) == 1 and type(error.args[0]) is str  # others are for programs
    if names and not isinstance(error, LoaderError):  # add_note is Python 3.11's
        asked = _brief(asked if failed < 0 else failed)
        error.args = (f"{error.args[0]} ({name} was asked for {asked})",)
    return error


def _is_of_python(error: Exception) -> bool:
    """It has been raised below the frame that has called into C++."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is not None


def _riddle(error: Exception, name: str, dataset: Any, asked: Any, alone: bool) -> Exception | None:
    """An error of pybind11 in words, or None."""
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        said = error.object.decode(errors="backslashreplace")
        return RuntimeError(
            f"{name} gives Python text that is not UTF-8, in a string or an exception: {said} "
            f"({name} was asked for {_brief(asked)})"
        )
    if isinstance(error, TypeError) and "incompatible function arguments" in text:
        if not hasattr(dataset, "_apply"):
            several = isinstance(asked, list) and not alone
            if (of_index := _of_indices(name, asked if several else [asked])) is not None:
                return of_index
        elif isinstance(asked, list) and asked:
            takes = " ".join(text.partition("Invoked with")[0].split())
            # Where it takes no struct, the field is of an earlier error.
            field = dataset._failed_field() if "(a dict of " in takes else None
            wrong = "" if field is None else f", whose {field!r} does not fit or is missing"
            return TypeError(
                f"{name} cannot collate samples such as {_brief(asked[0])}{wrong}: {takes}"
            )
    if "Unregistered type" in text or "Unable to convert function return value" in text:
        return UsageError(
            f"{name} returns a C++ type that Python does not know ({first_line(error)}). Name its "
            "fields with PICKLABLE_LOADER_FIELDS(Type, ...), or bind it with py::class_"
        )
    if "PyGILState_Check" in text:
        return UsageError(f"{name} uses Python objects without the GIL: bind it with hold_gil()")
    return None


def _of_indices(name: str, indices: list[Any]) -> Exception | None:
    """Python's own error for something that is no index."""
    for index in indices:
        try:
            whole = operator.index(index)
        except TypeError:
            batch = "" if isinstance(index, str) or not hasattr(index, "__len__") else _IS_BATCH
            return TypeError(f"an index of {name} is an int, not {_brief(index)}{batch}")
        if not -(2**63) <= whole < 2**63:
            return IndexError(f"index {whole} is out of range ({name} was asked for it)")
    return None


def _brief(asked: Any) -> str:
    return asked if isinstance(asked, str) and asked.startswith("the ") else reprlib.repr(asked)


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].strip()
