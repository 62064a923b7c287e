"""Errors and warnings of this package; each one pickles and says whose fault it is and what to do.

::

    LoaderError
    ├── StateError (ValueError)       a state for load_state_dict, or a file for load
    │   ├── StateMismatch             belongs to another dataset, batch size, sampler, ...
    │   ├── OrderMismatch             the sampler gives other indices than before
    │   ├── DamagedStateError         has a field that no version of this package would write
    │   ├── NewerStateError           was written by a later version of this package
    │   └── ForeignStateError         was written by another loader
    ├── CannotSaveError (TypeError)   an object of the user's that cannot be saved exactly
    ├── CannotLoadError (RuntimeError) what was carried cannot be opened here
    ├── WorkerDied (RuntimeError)     workers die of a task
    ├── StreamError (RuntimeError)    a stream of the dataset cannot go on from its saved state
    ├── NoSampleError (RuntimeError)  all samples of many batches in a row are bad
    ├── RanksError (RuntimeError)     ranks that share data do not agree, or do not come
    ├── UsageError (RuntimeError)     a call that has no meaning at this moment
    └── InvalidTransition             a bug of ours: please report it

    LoaderWarning (UserWarning)
    ├── EmptyEpochWarning             a resumed pass delivers nothing
    ├── ReplayWarning                 a resume has to fetch batches again
    ├── RestartWarning                a worker has died, and is replaced
    └── SkippedWarning                a batch comes without its bad samples

The fields of an error are its ``args``, so that pickle rebuilds it. Its text is made when it is
read.
"""

from __future__ import annotations

import os
import reprlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

#: Errors of code that meets damaged data; any other error has another reason.
SYMPTOMS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    StopIteration,
    TypeError,
    ValueError,
)


class LoaderError(Exception):
    """Base of every error that this package raises of its own."""

    def __post_init__(self) -> None:
        self.args = tuple(vars(self).values())


class StateError(LoaderError, ValueError):
    """A state, or a checkpoint, that cannot be loaded; the loader is as it was before."""


class Difference(NamedTuple):
    """One property in which a state does not fit a loader.

    Attributes:
        name: the property, for example ``"batch_size"``.
        expected: its value in the loader.
        found: its value in the state.
    """

    name: str
    expected: Any
    found: Any


@dataclass(eq=False, repr=False)
class StateMismatch(StateError):
    """The state belongs to a loader that is set up in another way.

    Attributes:
        differences: every property that differs.
        advice: what to do.
    """

    differences: list[Difference]
    advice: str

    def __str__(self) -> str:
        rows = "\n".join(
            f"  {name}: expected {_short(expected)} (this loader), "
            f"found {_short(found)} (the state)"
            for name, expected, found in self.differences
        )
        return f"the state does not fit this loader:\n{rows}\n{self.advice}"


@dataclass(eq=False, repr=False)
class OrderMismatch(StateError):
    """A custom sampler, replayed, gives other indices than it gave before the state was saved.

    Attributes:
        sampler: the sampler's class.
        taken: how many indices were compared.
    """

    sampler: str
    taken: int

    def __str__(self) -> str:
        return (
            f"the sampler {self.sampler} gives other indices than when the state was saved: the "
            f"first {self.taken} of the epoch differ. The order depends on something that the "
            "state does not hold, for example a generator in a closure or in a global variable, "
            "numbers that its __init__ has drawn, or data that has changed. No batch was "
            "delivered. Give the sampler state_dict and load_state_dict that hold its position, "
            "store its generator in an attribute, or use "
            "register_order."
        )


@dataclass(eq=False, repr=False)
class DamagedStateError(StateError):
    """A field of the state has a value that was never written there.

    Attributes:
        field: path of the field within the state.
        expected: what belongs there, in words.
        found: the value that is there.
        advice: what to do.
    """

    field: str
    expected: str
    found: Any
    advice: str = "use an earlier checkpoint"

    def __str__(self) -> str:
        return (
            f"the state is damaged: {self.field!r} should be {self.expected}, found "
            f"{_short(self.found)}. Nothing was loaded; {self.advice}."
        )


@dataclass(eq=False, repr=False)
class NewerStateError(StateError):
    """The state was written by a later version of this package.

    Attributes:
        found: format version of the state.
        supported: the latest format version that this installation reads.
    """

    found: int
    supported: int

    def __str__(self) -> str:
        return (
            f"the state has format version {self.found}, this picklable_loader reads up to "
            f"{self.supported}: upgrade picklable_loader."
        )


@dataclass(eq=False, repr=False)
class ForeignStateError(StateError):
    """The state was written by something else.

    Attributes:
        origin: what wrote it, as far as is known.
        advice: what to do.
    """

    origin: str
    advice: str

    def __str__(self) -> str:
        return f"this is not a state of picklable_loader but of {self.origin}. {self.advice}"


@dataclass(eq=False, repr=False)
class CannotSaveError(LoaderError, TypeError):
    """Something cannot be saved so that a resume would be exact.

    Attributes:
        what: the object, with its path from the loader.
        reason: why it cannot be saved.
        advice: the way out.
    """

    what: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what} cannot be saved: {self.reason}. {self.advice}"


@dataclass(eq=False, repr=False)
class CannotLoadError(LoaderError, RuntimeError):
    """Something in a pickle cannot be opened in this program; the pickle is as it was.

    Attributes:
        what: the object.
        reason: why it cannot be opened.
        advice: the way out.
    """

    what: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what} cannot be opened here: {self.reason}. {self.advice}."


@dataclass(eq=False, repr=False)
class StreamError(LoaderError, RuntimeError):
    """A stream of the dataset cannot go on from its saved state; the state is as it was.

    Attributes:
        stream: number of the stream.
        dataset: the dataset's class.
        reason: what went wrong in it.
    """

    stream: int
    dataset: str
    reason: str

    def __str__(self) -> str:
        return (
            f"stream {self.stream} of the dataset {self.dataset} cannot go on from its saved "
            f"state: {self.reason}. No batch is lost: fix the dataset, or load the state into a "
            "loader over the data that it was saved with."
        )


@dataclass(eq=False, repr=False)
class WorkerDied(LoaderError, RuntimeError):
    """Workers die of a task, again and again. The iterator is before its batch.

    Attributes:
        step: number of the batch within the epoch; None: they die before they are at any.
        indices: what the dataset is asked for, for that batch; None: it is iterable-style.
        stream: number of its stream; None where there are no streams.
        exitcodes: how each of the workers ended: an exit code, or a signal's number, negative.
        causes: the same in words, and what a stuck worker was at.
    """

    step: int | None
    indices: Any
    exitcodes: tuple[int, ...]
    causes: tuple[str, ...]
    stream: int | None = None

    def __str__(self) -> str:
        causes = "\n".join(f"  {cause}" for cause in self.causes)
        if self.step is None:
            return (
                f"{len(self.exitcodes)} workers in a row died before they had begun with a task, "
                f"in worker_init_fn or earlier:\n{causes}\nThe iterator is as it was."
            )
        asked = f"indices {_short(self.indices)}"
        skip = "and skip(1) goes past it."
        if self.indices is None:
            asked = f"stream {self.stream}"
            skip = "but not go past it, as the stream has to be read in order."
        return (
            f"{len(self.exitcodes)} workers died of step {self.step} ({asked}):\n{causes}\n"
            f"The iterator is before that batch: it can be pickled, {skip}"
        )


@dataclass(eq=False, repr=False)
class NoSampleError(LoaderError, RuntimeError):
    """All samples of many batches in a row were bad; the next call goes on after them.

    Attributes:
        batches: how many were passed over.
        newest: the newest bad sample: where it was, and its error.
    """

    batches: int
    newest: str

    def __str__(self) -> str:
        return (
            f"{self.batches} batches in a row had no sample that the dataset could give; the "
            f"newest: {self.newest}. If that is how the data is, call next again, which goes on."
        )


@dataclass(eq=False, repr=False)
class RanksError(LoaderError, RuntimeError):
    """Ranks that share the data (``shard=``) do not agree, or some are missing.

    Attributes:
        problem: what they should have done.
        advice: the way out.
        missing: ranks that are missing.
        doubled: ranks that are there several times.
        differences: by property, the values that were found, each with its ranks:
            ``{"batch_size": {"8": [0, 1], "16": [2]}}``.
    """

    problem: str
    advice: str
    missing: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    differences: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    def __str__(self) -> str:
        rows = [
            f"  {name}: "
            + ", ".join(f"{_cut(value)} on {_ranks(ranks)}" for value, ranks in each.items())
            for name, each in self.differences.items()
        ]
        rows += [f"  missing: {_ranks(self.missing)}"] if self.missing else []
        rows += [f"  more than once: {_ranks(self.doubled)}"] if self.doubled else []
        return "\n".join([f"{self.problem}:", *rows, self.advice])


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"{len(ranks)} ranks ({shown})"


class UsageError(LoaderError, RuntimeError):
    """A call that has no meaning at this moment; the text says which does."""


@dataclass(eq=False, repr=False)
class InvalidTransition(LoaderError, RuntimeError):
    """The schedule met an event that its table does not know: a bug of this package.

    Attributes:
        phase: where the task stood.
        event: the event.
        step: the task's step; None where the event has none.
        past: the last events, that one included, as text; the newest comes last.
    """

    phase: str
    event: str
    step: int | None
    past: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"step {self.step} is {self.phase} and cannot take {self.event}. This is a bug of "
            "picklable_loader: please report it with this text."
            + "".join(f"\n  {event}" for event in self.past)
        )


class LoaderWarning(UserWarning):
    """Base of every warning that this package gives of its own."""


class EmptyEpochWarning(LoaderWarning):
    """The state was taken after an epoch's last batch: the resumed pass has nothing left."""


class ReplayWarning(LoaderWarning):
    """A resume fetches batches again that had been delivered before."""


class RestartWarning(LoaderWarning):
    """A worker has died. The loader replaces it, and a new worker fetches its batches again."""


class SkippedWarning(LoaderWarning):
    """A batch is delivered without its bad samples, or passed over; it comes once an epoch."""


_REPR = reprlib.Repr()  # whatever its size, and however deep it is
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 200


def _short(value: Any) -> str:
    return _cut(_REPR.repr(value))


def _cut(text: str, limit: int = 80) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


_PACKAGE = os.path.dirname(__file__) + os.sep


def warn(text: str, category: type[Warning] = LoaderWarning) -> None:
    """Give a warning, at the line of the program that has called into this package."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def fails_again(act: Callable[..., object], *arguments: Any) -> bool:
    """Whether what has raised an error raises once more; otherwise a signal handler has raised."""
    try:
        act(*arguments)
        return False
    except Exception:
        return True
