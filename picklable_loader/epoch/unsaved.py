"""Warns of what no save holds: random generators of the program's own that are not seeded either.

A dataset, a collate_fn, convert=, or a closure in a sampler may hold one. Its next draws depend on
its earlier ones, and in a worker on the batches that came there. So do the next batches of a
loader that counts its epochs. A generator that the loader seeds before each batch
(``seed_dataset="auto"``) is none of these. It warns once of each: before the first epoch if no save
can hold it, or when it saves. It warns as well of a state that a dataset or a sampler only seems to
have.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

from torch.utils.data import Dataset

from ..core.cursor import Cursor
from ..datasets.protocol import delegates_state, is_stateful, loses_samples
from ..datasets.shuffle import ShuffleBuffer
from ..fetching.worker import fetch
from ..orders.attributes import rngs_in
from ..rng.owned import ids_of_global, owned_in, seed_of
from ..rng.reads import GLOBALS, Found, by_name, read_in_others
from .changed_data import within
from .history import History
from .position import Position
from .spec import Spec
from .warnings import (
    delegated_state,
    hidden_state,
    moved_in_sampler,
    read_by_another_pass,
    replay_between_draws,
    replay_to_come,
    seeded_at_once,
    unsaved_in_data,
    unsaved_in_sampler,
    unseeded_in_data,
)

#: dataset, collate_fn, their classes, sampler; states of others; and what cannot be seeded, before
#: the first epoch
MOST_PARTS = 6
_CLASSES = "classes"


def parts_of(spec: Spec, collate_fn: Any) -> dict[str, Any]:
    """The objects whose generators the loader seeds, but for those that are `excluded`."""
    options = spec.options
    return fetch.parts_of(spec.dataset, collate_fn, options.convert, options.on_error)


def excluded(spec: Spec, parts: dict[str, Any]) -> frozenset[str]:
    """The paths, in parts of a loader, to generators that its order or its streams draw from.

    A stream's own, or a state's, are exact as they are; those of classes and in global variables
    are not.
    """
    ids = set(map(id, spec.generators.values()))
    if not spec.known:
        known = {id(spec.dataset), *ids_of_global()}
        of_order = {"": (spec.sampler, spec.batch_sampler)}
        ids.update(
            id(each) for _, each in owned_in(of_order, known, closed=(Dataset,), reads=False)
        )
    if not ids and not spec.streamed:
        return frozenset()
    found = list(owned_in(parts, ids_of_global(), whole=True))
    if found and spec.streamed:
        own = owned_in({"": spec.dataset}, set(), whole=True)
        ids.update(id(each) for path, each in own if not by_name(path))
    return frozenset(path for path, generator in found if id(generator) in ids)


def warn_of_unseeded(spec: Spec, collate_fn: Any, looked: set[str]) -> None:
    """Warn, before a loader's first epoch, of what it cannot seed; ``looked`` notes that."""
    if "unseeded" in looked:
        return
    looked.add("unseeded")
    by_sample = spec.options.seeding == "sample" and not spec.iterable
    if by_sample and spec.batch_sampler is not None and fetch.ignores_seeds(spec.dataset):
        seeded_at_once(type(spec.dataset).__qualname__)
    if spec.hooked or not (spec.workers and spec.seeds_generators):
        return
    parts = parts_of(spec, collate_fn)
    found = [each for each in owned_in(parts, ids_of_global(), whole=True) if not seed_of(each[1])]
    out = excluded(spec, parts) if found and spec.streamed else ()
    if text := _text(each for each in found if each[0] not in out):
        unseeded_in_data(text)


def warn_of_unsaved(
    spec: Spec,
    collate_fn: Any,
    looked: set[str],
    state: dict[str, Any],
    live: bool,
    foreign: bool,
) -> None:
    """Warn, once a loader, of generators that a saved position leaves out.

    Args:
        spec, collate_fn: of the loader.
        looked: the parts that were looked through before; those of this time are added.
        state: the position.
        live: it goes into a pickle, with the loader.
        foreign: another thread moves the loader.
    """
    if state["step"] and "dataset" not in looked and loses_samples(spec.dataset):
        replay_to_come(type(spec.dataset).__qualname__)
        looked.add("dataset")
    if "state" not in looked:
        for part in (spec.dataset, spec.sampler):
            if delegates_state(part):
                delegated_state(type(part).__qualname__)
        looked.add("state")
    known = {id(spec.dataset), *ids_of_global()}
    given = parts_of(spec, collate_fn)
    names = [name for name in _data_at_risk(spec, state, live, foreign) if name not in looked]
    if names:
        by_class = names == [_CLASSES]
        out = () if by_class else {"dataset", "collate_fn"}.difference(names)
        parts = {n: each for n, each in given.items() if _alike(n) not in out}
        found = _unsaved(spec, parts, known - {id(parts.get("dataset"))})
        if text := _text(each for each in found if not by_class or by_name(each[0])):
            unsaved_in_data(text)
        _warn_of_hidden_states(spec, names)
        looked.update(names if by_class else [*names, _CLASSES])
    if spec.known:
        looked.add("sampler")
    elif "sampler" not in looked:
        _warn_of_sampler(spec, looked, state, live)


def _warn_of_hidden_states(spec: Spec, names: list[str]) -> None:
    if "dataset" not in names or spec.streamed or delegates_state(spec.dataset):
        return
    for path, dataset in islice(within(spec.dataset), 1, None):
        if is_stateful(dataset):
            hidden_state(path, type(dataset).__qualname__, type(spec.dataset).__qualname__)


def _alike(name: str) -> str:
    """The part that a save holds, or leaves out, as it does this one."""
    return name if name == "dataset" else "collate_fn"


def _warn_of_sampler(spec: Spec, looked: set[str], state: dict[str, Any], live: bool) -> None:
    order = state["order"] or {}
    if not (is_stateful(spec.sampler) or _POSITIONS & order.keys()):
        of_data = {id(each) for _, each in owned_in({"": spec.dataset}, ids_of_global())}
        if of_data:
            of_data -= rngs_in(spec.sampler, spec.dataset)
        shared = (each for each in read_in_others(spec.sampler) if id(each[1]) in of_data)
        if text := _text((f"sampler{path}", each) for path, each in shared):
            unsaved_in_sampler(text)
            looked.add("sampler")
            return
    # A pickle has the generators as they are now, and a replay begins with them.
    replayed = live and "checksum" in order and not {*_POSITIONS, "iterator"} & order.keys()
    at_risk = _sampler_at_risk(spec, state)
    if not replayed and not at_risk:
        return
    found = _owned_by_sampler(spec)
    # It has those in its parts, and not those in global variables.
    text = _text(e for e in found if (at_risk if not live or GLOBALS in e[0] else replayed))
    if text:
        unsaved_in_sampler(text)
    if text or not live:
        looked.add("sampler")


def warn_of_moved(spec: Spec, cursor: Cursor) -> None:
    """Warn, when a state is loaded, of what its sampler has moved since it was built.

    A state with indices of the order is not meant: a replay compares them.
    """
    if spec.known or cursor.order is not None or is_stateful(spec.sampler):
        return
    if text := _text(_owned_by_sampler(spec)):
        moved_in_sampler(text)


def _owned_by_sampler(spec: Spec) -> list[tuple[str, Any]]:
    """The generators that no state has, and that a sampler may draw from.

    Its code may read a global variable with much else in it, such as the dataset's generators.
    """
    parts, known = {"sampler": spec.sampler}, _saved_of_sampler(spec)
    found = list(owned_in(parts, known, reads=False))
    of_data = owned_in({"": spec.dataset}, ids_of_global())
    known = known.union(id(each) for _, each in chain(found, of_data))
    return [*found, *owned_in(parts, known, closed=(Dataset,))]


def _saved_of_sampler(spec: Spec) -> set[int]:
    """The ids of the generators that a state has, and of the dataset."""
    known = {id(spec.dataset), *ids_of_global(), *map(id, spec.generators.values())}
    return known | rngs_in(spec.sampler, spec.dataset)


def _data_at_risk(spec: Spec, state: dict[str, Any], live: bool, foreign: bool) -> list[str]:
    """The parts whose generators have moved, or may have, and are not saved as they are."""
    # A run gives each worker the same batches; and none has come from these workers yet.
    alike = spec.workers < 2 or spec.pinned
    unmoved = not state["epoch"] or (spec.workers and not spec.lives_on)
    if spec.hooked or (alike and unmoved and not state["step"]):
        return []
    # A generator that another thread moves while it is pickled is not copied.
    travels, parts = live and not spec.workers and not foreign, []
    if spec.streamed or not (travels and spec.options.pickle_dataset):
        parts.append("dataset")
    if spec.streamed or not travels:
        parts.append("collate_fn")
    if not parts and spec.options.codec not in ("cloudpickle", "dill"):
        parts.append(_CLASSES)  # pickle writes a class by its name
    return parts


#: of an order, what the sampler's own state_dict has given
_POSITIONS = {"iterator_state", "sampler_state"}


def _sampler_at_risk(spec: Spec, state: dict[str, Any]) -> bool:
    """A program that is built anew begins with generators that no earlier epoch has moved."""
    if not state["epoch"] or _POSITIONS & (state["order"] or {}).keys():
        return False
    return not is_stateful(spec.sampler)


def _unsaved(spec: Spec, parts: dict[str, Any], known: set[int]) -> Found:
    """The generators in parts of a loader that are not seeded, and were not named already."""
    seeded = spec.seeds_generators
    out = excluded(spec, parts_of(spec, parts.get("collate_fn"))) if seeded else frozenset()
    for path, generator in owned_in(parts, known, whole=seeded):
        if spec.streamed and path.startswith("dataset") and not by_name(path):
            continue  # its state holds it, or a replay moves it again
        # attributes of the loader, which a method of it may use
        of_loader = type(parts.get("collate_fn")) is dict and path.startswith("collate_fn")
        unseedable = seed_of(generator) is None and not spec.workers
        if not seeded or of_loader or unseedable or path in out:
            yield path, generator


def _text(found: Iterable[tuple[str, Any]]) -> str:
    """Some generators, each with path and type; "" if there is none."""
    kinds = [(f"loader.{path}", type(generator)) for path, generator in islice(found, 3)]
    return ", ".join(f"{p} ({k.__module__.partition('.')[0]} {k.__qualname__})" for p, k in kinds)


def warn_of_another_pass(
    spec: Spec, history: History, position: Position | None, state: dict[str, Any]
) -> None:
    """Warn of a pass of which others have changed the dataset, or moved the generators, meanwhile.

    A later pass of the loader reads the same dataset where this process fetches.
    """
    if not spec.streamed or spec.reads_copies:
        return
    if position is None or position.run is None or position.over:
        return
    another = position is not history.position
    if _replays_draws(spec, state) and (another or _draws_ahead(spec)):
        replay_between_draws(type(spec.dataset).__qualname__)
    origin = history.origin_known
    if another and (spec.stateful or (origin is not None and origin.reached())):
        read_by_another_pass(type(spec.dataset).__qualname__)


def _replays_draws(spec: Spec, state: dict[str, Any]) -> bool:
    """A resume reads samples again, and draws for them from the loader's one set of generators."""
    if spec.workers or not spec.iterable or spec.options.seeding != "worker":
        return False
    return any(each["given"] and not each["marked"] for each in state.get("streams", ()))


def _draws_ahead(spec: Spec) -> bool:
    """From the program's own generators, it reads samples ahead of their batch."""
    parts = within(spec.dataset) if spec.options.seed is None else ()
    return any(isinstance(each, ShuffleBuffer) for _, each in parts)
