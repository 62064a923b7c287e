"""Gathers the samples of a batch, whatever the dataset raises for some of them (``on_error``).

A *bad* sample is one that the dataset raises an exception for. It is skipped, or replaced by
another one.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from .feedback import sent, take_back

#: what becomes of bad samples: "raise" or "skip", or what is given the exception and the index
OnError = Literal["raise", "skip"] | Callable[[Exception, Any], Any]

#: samples that were skipped: the index of each, and the text of its error
Bad = list[tuple[Any, str]]


#: characters that are saved of an error's text
_LONGEST = 500


class Thinned(NamedTuple):
    """A batch without its bad samples."""

    batch: Any
    skipped: Bad


class NothingLeft(Exception):
    """All samples of a batch were bad, and are ``skipped``: there is no batch."""

    def __init__(self, skipped: Bad) -> None:
        super().__init__(skipped)
        self.skipped = skipped


class Gathering:
    """The samples of one batch; ``on_error`` is not "raise"."""

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self.samples: Any = []
        self.skipped: Bad = []
        self._sent = sent()

    def begin(self) -> None:
        """A sample comes next."""
        self._sent = sent()

    def miss(self, error: Exception, index: Any) -> None:
        """A sample is bad. Called while its error is handled, so that a callable can ``raise``."""
        take_back(self._sent)
        if isinstance(error, NotImplementedError):
            raise error  # not the sample is bad: the dataset lacks a method
        another = self._on_error(error, index) if callable(self._on_error) else None
        if another is None:
            text = "".join(traceback.format_exception_only(error)).strip()
            short = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
            self.skipped.append((index, short))
        else:
            self.samples.append(another)

    def collated(self, collate_fn: Callable[[Any], Any], batched: bool) -> Any:
        """The batch; a `Thinned` one if samples were skipped, NothingLeft if all were.

        It is made of a list of samples (``batched``), or of one alone.
        """
        # In this order: what a bulk call has given may be anything.
        if self.skipped and not self.samples:
            raise NothingLeft(self.skipped)
        batch = collate_fn(self.samples if batched else self.samples[0])
        return Thinned(batch, self.skipped) if self.skipped else batch


def left_a_generator(error: BaseException) -> bool:
    """The error, or one behind it, has come out of a generator, which is dead since then."""
    behind: BaseException | None = error
    seen: set[int] = set()
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        for frame, _ in traceback.walk_tb(behind.__traceback__):
            if frame.f_code.co_flags & inspect.CO_GENERATOR:
                return True
        behind = behind.__cause__ or behind.__context__
    return False
