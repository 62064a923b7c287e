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
from ..errors import ReplayWarning, warn
from ..fetching.worker import fetch
from ..orders.attributes import rngs_in
from ..rng.owned import ids_of_global, owned_in, seed_of
from ..rng.reads import GLOBALS, Found, by_name, read_in_others
from .changed_data import within
from .history import History
from .position import Position
from .spec import Spec

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
    ids = {*map(id, spec.generators.values()), *_ids_in_sampler(spec)}
    if not ids and not spec.streamed:
        return frozenset()
    found = list(owned_in(parts, ids_of_global(), whole=True, exact=_exact(spec)))
    if found and spec.streamed:
        own = owned_in({"": spec.dataset}, set())
        ids.update(id(each) for path, each in own if not by_name(path))
    return frozenset(path for path, generator in found if id(generator) in ids)


def _exact(spec: Spec) -> str | None:
    return "dataset" if spec.streamed else None


def _ids_in_sampler(spec: Spec) -> set[int]:
    """``id`` of the generators that a sampler of the program's own holds."""
    if spec.known:
        return set()
    known, parts = {id(spec.dataset), *ids_of_global()}, {"": (spec.sampler, spec.batch_sampler)}
    return {id(each) for _, each in owned_in(parts, known, closed=(Dataset,), reads=False)}


def warn_of_unseeded(spec: Spec, collate_fn: Any, looked: set[str]) -> None:
    """Warn, before a loader's first epoch, of what it cannot seed; ``looked`` notes that."""
    if "unseeded" in looked:
        return
    looked.add("unseeded")
    by_sample = spec.options.seeding == "sample" and not spec.iterable
    if by_sample and spec.batch_sampler is not None and fetch.ignores_seeds(spec.dataset):
        warn(
            'seeding="sample" cannot seed each sample within __getitems__ of '
            f"{type(spec.dataset).__qualname__}, which makes a whole batch: random numbers that it "
            "draws depend on the batch size and on the number of ranks. Set __getitems__ = None on "
            "the class, and the loader fetches the samples one by one. If it draws none, ignore it"
        )
    if spec.hooked or not (spec.workers and spec.seeds_generators):
        return
    parts = parts_of(spec, collate_fn)
    owned = owned_in(parts, ids_of_global(), whole=True, exact=_exact(spec))
    found = [each for each in owned if not seed_of(each[1])]
    out = excluded(spec, parts) if found and spec.streamed else ()
    if text := _text(each for each in found if each[0] not in out):
        warn(
            f"the loader cannot seed {text}: if samples are drawn from it, each run gives other "
            "ones, and so does a resume. Seed it yourself, from picklable_loader.current_seed() or "
            'by seed_dataset=, a callable; or pass seed_dataset="off" and nothing is looked for'
        )


def warn_of_made(paths: Iterable[str]) -> None:
    """Warn of generators that first batches have made, by their paths."""
    warn(
        f"the first batch of a process has made loader.{', loader.'.join(paths)}, and the loader "
        "seeds it from the second batch on. If samples are drawn from it, the first batch of each "
        "process may have other random numbers after a resume, or in another run. Make it in "
        "__init__, or one for each sample, from picklable_loader.current_seed() and the index"
    )


def warn_of_collected(spec: Spec, paths: Iterable[str], live: bool, foreign: bool) -> bool:
    """Warn of what code for batches has collected, unless the save holds it; whether it did.

    Args:
        spec: of the loader.
        paths: see `Collected`.
        live, foreign: see `warn_of_unsaved`.
    """
    lost = sorted(paths)
    if live and not spec.workers and not foreign:  # the pickle has it all as it is
        held = spec.options.pickle_dataset
        lost = [path for path in lost if path.startswith("dataset") and not held]
    if lost:
        warn(
            f"loader.{', loader.'.join(lost[:3])} changes while samples are read, and no save "
            "holds that. If samples depend on it, a resume gives other ones, and with workers each "
            "run may. Give the dataset state_dict and load_state_dict, or let a sample depend on "
            "its index and random numbers alone. If it is a cache or a log, ignore this warning"
        )
    return bool(lost)


def warn_of_unsaved(
    spec: Spec,
    collate_fn: Any,
    looked: set[str],
    state: dict[str, Any],
    live: bool,
    foreign: bool,
    passed: bool,
) -> None:
    """Warn, once a loader, of generators that a saved position leaves out.

    Args:
        spec, collate_fn: of the loader.
        looked: the parts that were looked through before; those of this time are added.
        state: the position.
        live: it goes into a pickle, with the loader.
        foreign: another thread moves the loader.
        passed: the loader has had a pass before, whatever epoch `set_epoch` has chosen since.
    """
    later = bool(state["epoch"]) or passed
    if state["step"] and "dataset" not in looked and loses_samples(spec.dataset):
        _warn_of_lost_samples(spec.dataset)
        looked.add("dataset")
    if "state" not in looked:
        _warn_of_wrappers(spec)
        looked.add("state")
    known = {id(spec.dataset), *ids_of_global()}
    given = parts_of(spec, collate_fn)
    names = [
        name for name in _data_at_risk(spec, later, state, live, foreign) if name not in looked
    ]
    if names:
        by_class = names == [_CLASSES]
        # A save holds convert and on_error, or leaves them out, as it does collate_fn.
        alike = {n: n if n == "dataset" else "collate_fn" for n in given}
        parts = {n: each for n, each in given.items() if by_class or alike[n] in names}
        found = _unsaved(spec, parts, known - {id(parts.get("dataset"))})
        if text := _text(each for each in found if not by_class or by_name(each[0])):
            warn(
                f"this save does not hold the state of {text}. If samples are drawn from it, a "
                "resume gives other ones, and with workers each run may. Make a generator for each "
                "sample, from picklable_loader.current_seed() and the index, pass seed_dataset= or "
                "seed_hooks= to the DataLoader, which seed it before each batch, or give the "
                "dataset state_dict and load_state_dict"
            )
        _warn_of_hidden_states(spec, names)
        looked.update(names if by_class else [*names, _CLASSES])
    if live and state["step"] and not spec.workers and "shared" not in looked:
        _warn_of_shared(spec, given, state["order"] or {})
        looked.add("shared")
    if spec.known:
        looked.add("sampler")
    elif "sampler" not in looked:
        _warn_of_sampler(spec, later, looked, state, live)


def _warn_of_lost_samples(dataset: Any) -> None:
    warn(
        f"the state of the dataset {type(dataset).__qualname__} lacks the samples in the buffer of "
        "its shuffle: a resume reads the epoch again from its beginning. Shuffle by "
        "picklable_loader.ShuffleBuffer around the dataset, and it goes on at once. If its own "
        "shuffle() has no seed=, another program has another order",
        ReplayWarning,
    )


def _warn_of_shared(spec: Spec, parts: dict[str, Any], order: dict[str, Any]) -> None:
    """Warn of a generator from which samples are drawn, and the sampler again in a replay."""
    if "log" not in order or "iterator" in order or not (ids := _ids_in_sampler(spec)):
        return
    if text := _text(each for each in owned_in(parts, ids_of_global()) if id(each[1]) in ids):
        warn(
            f"the sampler {type(spec.sampler).__qualname__} has the same generator as {text}: a "
            "resume draws the sampler's indices again, and not the samples in between. If samples "
            "are drawn from it, the rest differs. Give the sampler a generator of its own"
        )


def _warn_of_wrappers(spec: Spec) -> None:
    for part in (spec.dataset, spec.sampler):
        if delegates_state(part):
            name = type(part).__qualname__
            warn(
                f"{name} has state_dict and load_state_dict only by its __getattr__, from what it "
                f"wraps. That state lacks what {name} itself holds, so the loader does not use it, "
                f"and treats {name} as one without a state. Define both methods on the class {name}"
            )


def _warn_of_hidden_states(spec: Spec, names: list[str]) -> None:
    if "dataset" not in names or spec.streamed or delegates_state(spec.dataset):
        return
    for path, dataset in islice(within(spec.dataset), 1, None):
        if is_stateful(dataset):
            outer = type(spec.dataset).__qualname__
            warn(
                f"this save does not hold the state of {path} ({type(dataset).__qualname__}), as "
                f"{outer} around it has no state_dict. If samples depend on it, a resume gives "
                f"other ones, and with workers each run may. Give {outer} state_dict and "
                "load_state_dict, by a subclass if it is torch's"
            )


def _warn_of_sampler(
    spec: Spec, later: bool, looked: set[str], state: dict[str, Any], live: bool
) -> None:
    order = state["order"] or {}
    saves_itself = is_stateful(spec.sampler) or bool(_POSITIONS & order.keys())
    if not saves_itself:
        of_data = {id(each) for _, each in owned_in({"": spec.dataset}, ids_of_global())}
        if of_data:
            of_data -= rngs_in(spec.sampler, spec.dataset)
        shared = (each for each in read_in_others(spec.sampler) if id(each[1]) in of_data)
        if text := _text((f"sampler{path}", each) for path, each in shared):
            _warn_of_order(text)
            looked.add("sampler")
            return
    # A pickle has the generators as they are now, and a replay begins with them.
    replayed = live and "checksum" in order and not {*_POSITIONS, "iterator"} & order.keys()
    # A program that is built anew begins with generators that no earlier epoch has moved.
    at_risk = later and not saves_itself
    if not replayed and not at_risk:
        return
    found = _owned_by_sampler(spec)
    # It has those in its parts, and not those in global variables.
    text = _text(e for e in found if (at_risk if not live or GLOBALS in e[0] else replayed))
    if text:
        _warn_of_order(text)
    if text or not live:
        looked.add("sampler")


def _warn_of_order(found: str) -> None:
    warn(
        f"this state does not hold that of {found}. If the order is drawn from it, a resume in a "
        "program that is built anew gives another order. Keep the generator itself in an attribute "
        "of the sampler, or give the sampler state_dict and load_state_dict"
    )


def warn_of_moved(spec: Spec, cursor: Cursor) -> None:
    """Warn, when a state is loaded, of what sampler and dataset have moved since they were built.

    A state with indices of the order is not meant: a replay compares them. Nor is one of a dataset
    that had moved when it was saved: that save has warned.
    """
    if not (spec.workers or cursor.epoch or cursor.step):
        parts: dict[str, Any] = {"dataset": spec.dataset}
        _warn_of_moved(_unsaved(spec, parts, ids_of_global()), "samples are", "dataset")
    if not (spec.known or cursor.order is not None or is_stateful(spec.sampler)):
        _warn_of_moved(iter(_owned_by_sampler(spec)), "indices are", "sampler")


def _warn_of_moved(found: Found, drawn: str, owner: str) -> None:
    if text := _text(found):
        kept = "keep the generator itself in an attribute of the sampler, or "
        kept = kept if owner == "sampler" else ""
        warn(
            f"no state holds that of {text}, and earlier passes of this loader have moved it. If "
            f"{drawn} drawn from it, the loader gives others than it gave before. Load the state "
            f"into a new loader with a new {owner}; or {kept}give the "
            f"{owner} state_dict and load_state_dict"
        )


def _owned_by_sampler(spec: Spec) -> list[tuple[str, Any]]:
    """The generators that no state has, and that a sampler may draw from.

    Its code may read a global variable with much else in it, such as the dataset's generators.
    """
    parts, known = {"sampler": spec.sampler}, rngs_in(spec.sampler, spec.dataset)
    known |= {id(spec.dataset), *ids_of_global(), *map(id, spec.generators.values())}
    found = list(owned_in(parts, known, reads=False))
    of_data = owned_in({"": spec.dataset}, ids_of_global())
    known = known.union(id(each) for _, each in chain(found, of_data))
    return [*found, *owned_in(parts, known, closed=(Dataset,))]


def _data_at_risk(
    spec: Spec, later: bool, state: dict[str, Any], live: bool, foreign: bool
) -> list[str]:
    """The parts whose generators have moved, or may have, and are not saved as they are."""
    # A run gives each worker the same batches; and none has come from these workers yet.
    alike = spec.workers < 2 or spec.workers_fixed
    unmoved = not later or (spec.workers and not spec.lives_on)
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


def _unsaved(spec: Spec, parts: dict[str, Any], known: set[int]) -> Found:
    """The generators in parts of a loader that are not seeded, and were not named already."""
    seeded = spec.seeds_generators
    out = excluded(spec, parts_of(spec, parts.get("collate_fn"))) if seeded else frozenset()
    for path, generator in owned_in(parts, known, whole=seeded, exact=_exact(spec)):
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
    another, in_torchs_way = position is not history.position, spec.options.seeding == "worker"
    if spec.iterable and in_torchs_way and (another or _draws_ahead(spec)):
        # A resume reads samples again, and draws for them from the loader's one set of generators.
        if any(each["given"] and not each["marked"] for each in state.get("streams", ())):
            warn(
                f"the dataset {type(spec.dataset).__qualname__} is resumed by replay. With "
                'seeding="worker" and num_workers=0, other passes of the loader draw from its '
                "generators, and without seed= the program does. The resume is exact if nothing "
                "was drawn between two batches, or if the dataset reads no sample ahead of its "
                'batch. Use seeding="batch"',
                ReplayWarning,
            )
    origin = history.choice.origin
    if another and (spec.stateful or (origin is not None and origin.reached())):
        warn(
            f"a later pass of this loader has read the dataset {type(spec.dataset).__qualname__}, "
            "which changes itself, in the same process: this state lacks these changes, and "
            "its resume gives other samples if they depend on them. Read the other pass from a "
            "loader with a dataset of its own, or use workers or num_streams=, which read copies"
        )


def _draws_ahead(spec: Spec) -> bool:
    """From the program's own generators, it reads samples ahead of their batch."""
    parts = within(spec.dataset) if spec.options.seed is None else ()
    return any(isinstance(each, ShuffleBuffer) for _, each in parts)
