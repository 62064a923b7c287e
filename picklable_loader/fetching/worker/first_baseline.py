"""The attributes of a dataset before its first epoch, and who has changed them since.

A persistent worker has a copy that earlier epochs have changed, but a resume begins with the
program's own dataset: `FirstBaseline` has the changes of the copy.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Mapping, Set
from functools import lru_cache
from itertools import islice
from types import CodeType, FunctionType
from typing import Any

from torch.utils.data import Dataset

from ...datasets.datapipes import is_iter_datapipe, lasting
from ...datasets.protocol import has_set_epoch, set_epoch_of
from ...rng.reads import codes_in
from ...saving.pickles.by_reference import attributes_of
from .baseline import Baseline, differ
from .forms import Form
from .set_anew import set_anew

#: a longer list is none of datasets
_MOST_DATASETS = 1000
#: by which code asks for an attribute that may not be there
_ASKING = {"getattr", "hasattr"}
#: by which it has all attributes, by their names
_BY_TEXT = {"vars", "__dict__"}
_ITERATING = {"__init__", "__iter__", "__next__", "__call__", "__getitem__"}
_NO_PAST: dict[str, list[str]] = {}


class FirstBaseline(Baseline):
    """The attributes of a dataset before its first epoch; later epochs use the same object.

    Of a dataset that was unpickled, ``past`` is what `past` has given then.
    """

    def __init__(
        self, dataset: Any, by_value: bool = False, past: Mapping[str, Iterable[str]] = _NO_PAST
    ) -> None:
        super().__init__(dataset, by_value)
        self._drifted = frozenset(past.get("changed", ()))
        self._made = frozenset(past.get("made", ()))
        #: below the attributes as well
        self._first = self._paths()
        #: paths to what set_epoch changes: a resume calls it again
        self._set_by_epoch: set[tuple[Any, ...]] = set()
        #: attributes as they were at the newest beginning or end of an epoch
        self._newest = dict(self._each)
        #: that was an end, or the program has built the dataset
        self._between = True
        #: the names of those that the program has changed, and of those that epochs have
        self._by_program: set[str] = set()
        self._by_epochs: set[str] = set()

    def set_epoch(self, epoch: int) -> None:
        """Call the dataset's ``set_epoch``, and note the attributes that it changes."""
        before = self._paths()
        set_epoch_of(self._dataset, epoch)
        after = self._paths()
        self._set_by_epoch |= {path for path, form in after.items() if form != before.get(path)}

    def note_begin(self, by_state: bool) -> None:
        """An epoch begins. The program has set what has changed since the end of the one before.

        ``by_state``: the epoch goes on from a state, which has set that.
        """
        by_program = self._between and not by_state
        self._note(self._by_program if by_program else self._by_epochs)
        self._between = False

    def note_end(self) -> None:
        """An epoch has ended."""
        self._note(self._by_epochs)
        self._between = True

    def takes_over(self, drift: Iterable[str]) -> None:
        """The dataset was given another one's attributes, of which epochs had changed ``drift``."""
        self._note(self._by_program)
        self._by_epochs.update(drift)

    def _note(self, changed: set[str]) -> None:
        before, self._newest = self._newest, self._forms()
        changed |= differ(before, self._newest)

    def _set_by_program(self, now: dict[str, Form]) -> set[str]:
        """Attributes that the program has set between epochs, and no epoch has changed."""
        since = differ(self._newest, now) if self._between else set()
        return (self._by_program | since) - self._by_epochs

    def _paths(self) -> dict[tuple[Any, ...], Form]:
        """By path, the forms of attributes, and of those of datasets below; none if not needed."""
        dataset = self._dataset
        if self._stateful or not has_set_epoch(dataset):
            return {}
        found: dict[tuple[Any, ...], Form] = {}
        ahead: list[tuple[Any, ...]] = [((), dataset, {id(dataset)})]
        for path, owner, above in ahead:
            for name, value in _parts(owner):
                where = *path, name
                if id(value) not in above and (_is_dataset(value) or _holds_datasets(value)):
                    ahead.append((where, value, above | {id(value)}))
                else:
                    found[where] = self._form(value)
        return found

    def _form(self, value: Any) -> Form:
        return super()._form(lasting(value))

    def past(self) -> dict[str, list[str]]:
        """Names of attributes that epochs have changed, and of others that they have made."""
        made = self._made | (self._attributes().keys() - self._each)
        found = {"changed": self.reached().get("drift", []), "made": sorted(made)}
        return {kind: names for kind, names in found.items() if names}

    def reached(self, as_noted: bool = False, also: Set[str] = frozenset()) -> dict[str, Any]:
        """A state's entries, which bring another copy to the attributes of this one.

        Args:
            as_noted: it has not changed since `note_begin` or `note_end`.
            also: attributes that the other copy may have changed, where this one has not.
        """
        now = self._attributes()
        gone = sorted(self._each.keys() - now.keys())
        forms = self._newest if as_noted else self._forms()
        changed = {
            name: now[name]
            for name, form in forms.items()
            if form.known and form != self._each.get(name)
        }
        hidden = {n: form for n, form in forms.items() if not form.known and n in self._each}
        lost = self._lost_among(hidden)
        if not gone and not changed and not lost and not also:
            return {"drift": sorted(self._drifted)} if self._drifted else {}
        known = {name: value for name, value in now.items() if forms[name].known}
        try:
            entry = gone, self._written(known, changed.keys() | (also & known.keys()), self._leaves)
        except Exception:  # whatever people's __reduce__ raises
            return {}
        # An attribute that the program had not built is most often set anew by each `__iter__`;
        # unless its first value is the class's, or it is a number that the code asks for.
        kinds = [kind for kind in type(self._dataset).__mro__ if not _is_torchs(kind)]
        numbers = {name for name, value in changed.items() if type(value) in (int, float)}
        built = (
            (self._each.keys() - self._made)
            .union(
                *(changed.keys() & vars(kind).keys() for kind in kinds),
                numbers & _asked_for(kinds[0]),
            )
            .difference(set_anew(self._dataset))
        )
        as_in_class = {name for name in changed if self._first.get((name,)) == forms[name]}
        again = self._only_set_by_epoch() | self._set_by_program(forms)
        lost &= built - again - as_in_class
        drift = {*gone, *changed} & built - again - as_in_class
        found: dict[str, Any] = {"drift": sorted(drift | lost | self._drifted)}
        found |= {"begun": entry} if gone or changed or also else {}
        return {**found, "lost": sorted(lost)} if lost else found

    def _only_set_by_epoch(self) -> set[str]:
        """Attributes in which set_epoch has changed something, and nothing else has."""
        names = {path[0] for path in self._set_by_epoch}
        if not names:
            return names
        now = self._paths()
        others = self._first.keys() & now.keys() - self._set_by_epoch
        return names - {path[0] for path in others if self._first[path] != now[path]}


def _parts(owner: Any) -> list[tuple[Any, Any]]:
    """The parts of a dataset, or of a list or dict of them, by name; a class's values as well."""
    if isinstance(owner, list | tuple):
        return list(enumerate(owner))
    if isinstance(owner, dict):
        return list(owner.items())
    kinds = [kind for kind in reversed(type(owner).__mro__) if not _is_torchs(kind)]
    of_class = {name: value for kind in kinds for name, value in vars(kind).items()}
    named = {name: value for name, value in of_class.items() if not name.startswith("__")}
    plain = {name: value for name, value in named.items() if not hasattr(value, "__get__")}
    return list({**plain, **attributes_of(owner)}.items())


def _is_dataset(value: Any) -> bool:
    """It is one, whose attributes an epoch can change; `lasting` knows those of DataPipes."""
    its_own = isinstance(value, Dataset) or callable(getattr(type(value), "set_epoch", None))
    return its_own and not is_iter_datapipe(value)


def _holds_datasets(value: Any, deep: int = 2) -> bool:
    items = value.values() if isinstance(value, dict) else value
    few = isinstance(value, list | tuple | dict) and 0 < len(items) <= _MOST_DATASETS
    if not few or not deep:
        return False
    return any(_is_dataset(item) or _holds_datasets(item, deep - 1) for item in items)


@lru_cache(256)
def _asked_for(kind: Any) -> frozenset[str]:
    """Names that a class's code asks for, and sets: ``self.n = getattr(self, "n", 0) + 1``.

    Methods that no iteration calls do not count: a length may ask for what each ``iter`` sets.
    """
    asked, can_set = set[str](), set[str]()
    for base in kind.__mro__:
        for name, each in () if _is_torchs(base) else vars(base).items():
            function = getattr(each, "fget", None) or getattr(each, "__func__", each)
            for code in codes_in(function.__code__) if isinstance(function, FunctionType) else ():
                asks, sets = _asked_and_set(code)
                can_set |= sets
                asked |= asks if name in _ITERATING or not name.startswith("__") else set()
    return frozenset(asked & can_set)


def _asked_and_set(code: CodeType) -> tuple[set[str], set[str]]:
    texts = {text for text in code.co_consts if isinstance(text, str)}
    if _BY_TEXT.intersection(code.co_names):  # ``vars(self)["epochs"] = ...`` sets one as well
        return texts, texts
    steps = list(dis.get_instructions(code))
    asked = set[str]()
    for at, step in enumerate(steps):
        if step.opname == "LOAD_GLOBAL" and step.argval in _ASKING:
            named = (each.argval for each in steps[at:] if each.opname == "LOAD_CONST")
            asked.update(text for text in islice(named, 1) if isinstance(text, str))
    by_text = texts if "setattr" in code.co_names else set[str]()
    return asked, by_text.union(each.argval for each in steps if each.opname == "STORE_ATTR")


def _is_torchs(kind: type[Any]) -> bool:
    return kind.__module__.partition(".")[0] == "torch"
