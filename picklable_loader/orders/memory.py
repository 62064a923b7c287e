"""The state of a sampler between two epochs, and the way back to it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ..datasets.protocol import is_stateful
from ..errors import DamagedStateError, UsageError
from ..rng.source import Source
from ..saving.states.plain import decode, encode_state
from .attribute_rngs import ATTRIBUTE_RNGS
from .attributes import Frozen, at_path, changed, freeze, look, small, thaw
from .loads import is_in, settle
from .unknown import OPAQUE, check_known, lost, once_only, warn_of_iterator


def memory(sampler: Any, source: Source, started: bool, live: bool = False) -> dict[str, Any]:
    """A sampler's state before its iteration, as far as the program would not rebuild it.

    Raises:
        CannotSaveError: it was iterated before (``started``), and keeps something from epoch to
            epoch that cannot be saved; or its state_dict holds more than plain values.
    """
    now = freeze(sampler, source.dataset)
    attributes = changed(now, *source.origins)
    if is_stateful(sampler):
        state = encode_state(sampler.state_dict(), "state_dict() of the sampler: ", live)
        # It may hold weights, and not the generator that the next epoch is drawn from.
        rngs = {path: form for path, form in attributes.items() if form[0] in ATTRIBUTE_RNGS}
        found = {"state": state, "attributes": rngs, "after": _others(attributes, source.origins)}
        return {name: entry for name, entry in found.items() if entry}
    if started:
        if not live and hasattr(sampler, "__next__") and not hasattr(sampler, "__dict__"):
            raise once_only(sampler)
        # A pickle holds the sampler as it is.
        check_known(now, now if live else source.origin, sampler)
        for path, form in () if live else now.items():
            if form[0] == "iterator":
                warn_of_iterator(path, at_path(sampler, path), sampler)
    return {"attributes": attributes} if attributes else {}


def _others(attributes: Frozen, origins: Sequence[Frozen]) -> Frozen:
    """Numbers, texts and flags among the attributes; of one that has become a list, its name."""
    now = {path: form for path, form in attributes.items() if form[0] not in ATTRIBUTE_RNGS}
    was = {path for each in origins for path in small(each)}
    lists: Frozen = {path: ["foreign", None] for path in now if path in was}
    return {**lists, **small(now)}


def prepare(sampler: Any, saved: dict[str, Any], source: Source, started: bool = False) -> None:
    """Make a sampler what ``memory`` has seen; ``started`` says that it has been iterated here.

    Raises:
        DamagedStateError: that is not what it saves. The sampler is as it was.
        UsageError: it cannot be made that again.
    """
    attributes = saved.get("attributes", {})
    built, origin = source.origin, source.origin or source.unpickled
    if started and origin:
        built = _built_again(sampler, origin, source.dataset)
    elif is_stateful(sampler):
        built = {}  # it was not iterated, so what the program has set on it since then counts
    before = {at: form for at in (*built, *attributes) if (form := look(sampler, at)) is not None}
    state = None
    if "state" in saved:
        with suppress(Exception):  # it may have none before its first pass
            state = copy.deepcopy(sampler.state_dict())
    try:
        thaw(sampler, built)
        if "state" in saved:
            unloaded = freeze(sampler, source.dataset)
            sampler.load_state_dict(decode(saved["state"]))
            _settle_before(sampler, saved, unloaded, source.dataset)
        thaw(sampler, attributes)
    except Exception as error:
        if state is not None:
            sampler.load_state_dict(state)
        thaw(sampler, before)
        raise DamagedStateError("sampler", "what this sampler saves", error) from error


def _built_again(sampler: Any, origin: Frozen, dataset: Any) -> Frozen:
    """The attributes that make a sampler again what the program has built, or unpickled."""
    now = freeze(sampler, dataset)
    # A state_dict has all that iterating changes, and so what cannot be put back as well.
    for path, kind in () if is_stateful(sampler) else lost(origin, now):
        if kind not in ("iterator", "foreign"):
            raise UsageError(
                f"the sampler {type(sampler).__qualname__} cannot be put back to where it began: "
                f"its attribute {path} {OPAQUE[kind]}. Load the state into a new loader with a "
                "new sampler, or give the sampler state_dict and load_state_dict"
            )
    return {**origin, **changed(origin, now)}


def _settle_before(sampler: Any, saved: dict[str, Any], before: Frozen, dataset: Any) -> None:
    """The same between two epochs, where no index clears "resumed" in time: an empty epoch.

    What ``iter`` is to apply stays: without it, the sampler is in another state than the saved one.
    """
    state, after = saved["state"], saved.get("after", {})
    loaded, known = freeze(sampler, dataset), is_in(sampler, state) is not None
    settle(sampler, dataset, before, {**saved.get("attributes", {}), **after}, whole=True)
    there = is_in(sampler, state)
    if there is False:
        thaw(sampler, after)  # torchdata's count of indices, which only ``iter`` loads
        there = is_in(sampler, state)
    if there is False or (there is None and known):
        thaw(sampler, loaded)
