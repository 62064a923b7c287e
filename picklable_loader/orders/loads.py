"""A sampler is given its state: ``load_state_dict``, ``iter``, and what these two leave behind."""

from __future__ import annotations

from typing import Any

from ..datasets.protocol import gives
from ..rng.generators import GeneratorStates
from ..saving.states.plain import decode, encode_state
from .attribute_rngs import ATTRIBUTE_RNGS
from .attributes import Frozen, changed, freeze, small, thaw


def begin_apart(sampler: Any, rng: dict[str, Any]) -> Any:
    """Call ``iter``, which draws from generators in these states and has drawn so before."""
    return GeneratorStates(dict(rng)).run(iter, sampler)


def begins_at(
    sampler: Any, state: Any, before: Frozen, opened: Frozen, rng: dict[str, Any]
) -> bool:
    """Give a sampler that is its own iterator a state, and have ``iter`` begin there.

    ``iter`` may open its source at a position, or apply what is loaded.

    Args:
        sampler: ``iter`` was called.
        state: the form of its state.
        before, opened: its attributes before ``iter``, and after it.
        rng: states of the generators that ``iter`` draws from, as it has before; see `begin_apart`.

    Returns:
        It has the state then. Otherwise the state is still to be loaded.
    """
    if any(form[0] in ATTRIBUTE_RNGS for form in changed(before, opened).values()):
        return False  # what ``iter`` has made from that generator is of the epoch's beginning
    thaw(sampler, before)
    try:
        sampler.load_state_dict(decode(state))
    except Exception:  # it needs what ``iter`` opens
        thaw(sampler, before)
        begin_apart(sampler, rng)
        return False
    begin_apart(sampler, rng)
    return is_in(sampler, state) is True


def settle(sampler: Any, dataset: Any, before: Frozen, after: Frozen, whole: bool = False) -> None:
    """Undo what ``load_state_dict`` has set for an index that does not come: "resumed", perhaps.

    Args:
        sampler, dataset: the dataset is none of the sampler's own.
        before: its attributes before ``load_state_dict``, which may have moved them, and may have
            made flags.
        after: those that differ at the save: numbers, texts, flags and generators.
        whole: an attribute that has become a list or dict, say, is put back as well.
    """
    moved = changed(freeze(sampler, dataset), before)
    moved = moved if whole else small(moved)
    made: Frozen = {
        path: ["absent", None]
        for path, form in small(moved).items()
        if path not in before and type(form[1]) in (bool, type(None))
    }
    there = small({**before, **after})
    again = {p: f for p, f in there.items() if p in moved or f[0] in ATTRIBUTE_RNGS}
    thaw(sampler, {**made, **again})


def is_in(sampler: Any, state: Any) -> bool | None:
    """A sampler has the state that this is the form of; None: nobody knows."""
    return gives(lambda: encode_state(sampler.state_dict(), "", live=True), state)
