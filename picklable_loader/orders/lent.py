"""The iterator of a sampler that the program has, too: has it changed that?"""

from __future__ import annotations

from typing import Any

from .unknown import form_to_compare


class Lent:
    """The iterator that ``get_sampler_iter()`` has given to the program; false before that."""

    def __init__(self) -> None:
        #: form of the iterator, as it was last drawn from; None: the program does not have it
        self._form: Any = None
        #: the program has changed it, or may have
        self.changed = False

    def __bool__(self) -> bool:
        return self._form is not None

    def note(self, iterator: Any, sampler: Any) -> None:
        """The program has the iterator as it is now, which is no change of the program's."""
        self._form = _form(iterator, sampler)

    def look(self, iterator: Any, sampler: Any) -> None:
        """Note whether the program has changed it."""
        if self and not self.changed:
            now = _form(iterator, sampler)
            self.changed = type(now) is not list or now != self._form


def _form(iterator: Any, sampler: Any) -> Any:
    if type(iterator).__module__ in ("builtins", "itertools"):
        return []  # such as a generator: it has no attributes that could be changed
    # An iterator that is the sampler is to be looked into, too.
    return form_to_compare(iterator, None if iterator is sampler else sampler, None)
