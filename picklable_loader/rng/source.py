"""The random draws of one loader: from its seed, its generator, or the global generators.

Torch's loader draws the base seed of an epoch and, through its samplers, the order. It draws from
its ``generator`` or from torch's global one. So does ours, at the same moments. With ``seed=`` it
draws nothing at all.

After a resume without ``seed=`` or ``generator=`` the loader draws from a private copy of the
global generators, as they were when the state was saved. It still moves the global generator by the
same draws, as torch would, so that dropout in the model is not shifted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ..core.seeds import order_seed
from ..errors import SYMPTOMS, DamagedStateError
from .current import fetching
from .generators import (
    RNGS,
    GeneratorStates,
    Inside,
    Isolated,
    capture_all,
    generator_from_text,
    generator_to_text,
    set_generator,
    states_from_text,
    states_to_text,
)

_T = TypeVar("_T")

#: all sources of this process, by their id
_LIVING: weakref.WeakValueDictionary[int, Source] = weakref.WeakValueDictionary()


def random_int64(generator: torch.Generator | None) -> int:
    """One number, drawn as torch's loader and samplers draw their seeds.

    The program's default device is for its own tensors: a seed of another device's generator could
    not be saved, and one of "meta" is no number.
    """
    number = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator)
    return int(number.item())


#: the global states that this process has last saved
_SAVED_HERE: dict[str, Any] = {}


def rejoin(drawing: Source | None = None) -> None:
    """Have loaders draw from the program's own generators where these are in the loaded states.

    The program has restored them, or has not moved them: from here on they give the same draws as
    the saved ones. All loaders are checked before one of them begins, as it may draw, and so may
    the program.

    Args:
        drawing: the source of the loader that is about to draw.
    """
    living = [each for ref in _LIVING.valuerefs() if (each := ref()) is not None]
    apart = [each for each in living if each.private is not None and each.seed is None]
    if not apart:
        return
    with Isolated.turn:
        found = capture_all()
        for source in apart:
            source.join(found, living, source is drawing)


#: no states: within it the program's own are drawn from
_NONE = GeneratorStates({})


class Source:
    """Where the draws of one loader come from.

    Args:
        seed: the loader's ``seed=``; then nothing is ever drawn.
        generators: the loader's generator and its sampler's, by the names ``"loader"`` and
            ``"sampler"``; those that are not there draw from torch's global generator.
        dataset: the loader's, which is none of its sampler's own attributes.
    """

    def __init__(
        self, seed: int | None, generators: dict[str, torch.Generator], dataset: Any = None
    ) -> None:
        self.seed = seed
        self.generators = generators
        self.dataset = dataset
        #: the global states of the moment of saving, after a resume; None: the global ones
        self.private: GeneratorStates | None = None
        #: a custom sampler's attributes as the program has built them, which no state has to
        #: hold; empty where they are not known
        self.origin: dict[str, list[Any]] = {}
        #: the sampler's attributes as they were unpickled: ``load_state_dict`` begins with them
        self.unpickled: dict[str, list[Any]] = {}
        #: the global states that it has last saved, as long as it has not drawn since: a copy that
        #: is resumed in this process must not take the draws that this one is going to make
        self.saved_at: dict[str, Any] = {}
        #: ``fits`` of the state that was last saved or loaded; copies are alike in it at any step
        self.fits: Any = None
        #: the global states of the state that was last loaded, as text
        self.loaded: dict[str, str] = {}
        #: those of them that the program has restored: draws come from its generators again
        self.joined: set[str] = set()
        _LIVING[id(self)] = self

    @property
    def origins(self) -> tuple[dict[str, list[Any]], ...]:
        """The sampler's attributes that a state, when it is loaded, may find."""
        return (self.origin, self.unpickled) if self.unpickled else (self.origin,)

    def draw(self, name: str, how: Callable[[torch.Generator | None], _T]) -> _T:
        """Draw from the generator of that name, or as a draw from torch's global one."""
        generator, private = self.generators.get(name), self._private_here()
        if generator is not None:
            return how(generator)
        if private is None or "torch" not in private.states:
            return self._draw_here(how)
        value = private.run(how, None)
        self._draw_here(how)  # the global generator moves as it does under torch
        return value

    def _draw_here(self, how: Callable[[torch.Generator | None], _T]) -> _T:
        with Isolated.turn:
            # Not before: a copy in another thread would take this draw for the program's own.
            self.saved_at.pop("torch", None)
            return how(None)

    def apart(self, saved: dict[str, str]) -> Source:
        """A source that draws the same numbers and moves no generator of the user's.

        It draws from saved states, as ``state`` gives them, and otherwise from those at hand.
        """
        clones = {id(given): given.clone_state() for given in self.generators.values()}
        generators = {name: clones[id(given)] for name, given in self.generators.items()}
        source = Source(self.seed, generators, self.dataset)
        source.origin = self.origin
        source.put_back(saved)
        source.restore(saved)
        with self._unmoved():
            states = capture_all()
        source.private = GeneratorStates(
            {**states, **(source.private or GeneratorStates({})).states}
        )
        return source

    def globals(self) -> Inside:
        """A context in which a user's sampler finds the global generators it should draw from.

        No other thread has them set aside meanwhile.
        """
        return Inside(self._private_here() or _NONE)

    def _private_here(self) -> GeneratorStates | None:
        """The copy of the program's generators, where the loader would draw from these.

        A loader within a dataset draws from those at hand, which the batch was seeded with.
        """
        return None if fetching() else self.private

    def _unmoved(self) -> AbstractContextManager[Any]:
        """A context to look at the program's in; also while some loader makes a batch."""
        return self.private or Isolated.undone()

    def start(self, name: str) -> str:
        """The state, as text, from which the next draw under that name will be made."""
        generator = self.generators.get(name)
        if generator is not None:
            return generator_to_text(generator)
        return self.globals().run(generator_to_text, torch.default_generator)

    def state(self, moved: Iterable[str] = (), live: bool = False) -> dict[str, str]:
        """The states from which later draws will come.

        ``moved`` are global generators that the user's sampler or dataset draws from. With ``live``
        the loader is saved as well, and with it the generators that it was given.
        """
        if self.seed is not None:
            return {} if self.private is None else states_to_text(self.private.states)
        saved = {} if live or not self.generators else self.given()
        chosen = {*moved, *(() if len(self.generators) == 2 else ("torch",))}
        found = {}
        with self._unmoved():
            for name in filter(chosen.__contains__, RNGS):
                found[name] = RNGS[name].capture()
                saved[name] = RNGS[name].to_text(found[name])
        if self.private is None:
            self.saved_at = found
            _SAVED_HERE.update(found)
        return saved

    def given(self) -> dict[str, str]:
        """The states of the loader's own generators; of one that has both names, once."""
        given = {id(g): (name, g) for name, g in reversed(self.generators.items())}
        return {name: generator_to_text(g) for name, g in given.values()}

    def check(self, saved: dict[str, Any], workers: dict[str, Any]) -> None:
        """Raise DamagedStateError unless ``restore`` will accept it, and each worker its part."""
        states_from_text({name: saved[name] for name in saved if name not in _GIVEN})
        for worker, states in workers.items():
            if type(states) is not dict:
                raise DamagedStateError(f"workers.{worker}", "states of generators", states)
            states_from_text(states)
        for name in sorted(_GIVEN & saved.keys()):
            try:
                generator_from_text(saved[name])
            except SYMPTOMS:
                raise DamagedStateError(f"rng.{name}", "a state", saved[name]) from None

    def put_back(self, saved: dict[str, str]) -> None:
        """Set the loader's own generators to saved states, as a state is loaded.

        Loaders may share a generator: the program loads all their states before it draws.
        """
        for name, generator in self.generators.items():
            if name in saved:
                set_generator(generator, saved[name])

    def saved(self) -> dict[str, Any]:
        """The part of it that a pickle of the loader holds, besides its generators."""
        if self.private is None:
            return {}
        return {"rng": states_to_text(self.private.states), "rng_fits": self.fits}

    def become(self, saved: Mapping[str, Any]) -> None:
        """Draw as the source that has `saved` this."""
        if "rng" in saved:
            self.load(saved["rng"], saved["rng_fits"])

    def load(self, rng: dict[str, str], fits: dict[str, Any]) -> None:
        """Note that a state is loaded, from which the loader goes on later.

        Other loaders, and the program, may draw before it does. So what the program has restored
        by now, or until another loader begins, is known from then on.
        """
        self.fits, self.saved_at, self.joined = fits, {}, set()
        self.loaded = {name: text for name, text in rng.items() if name in RNGS}
        self.restore(rng)
        rejoin()

    def restore(self, saved: dict[str, str]) -> None:
        """Let later draws come from a private copy of the global generators, in saved states.

        Not of those that the program has restored since that state was loaded.
        """
        joined = self._joined_of(saved) | _GIVEN
        texts = {name: text for name, text in saved.items() if name not in joined}
        self.private = GeneratorStates(states_from_text(texts)) if texts else None

    def as_now(self, rng: dict[str, str]) -> dict[str, str]:
        """The generators' part of a state from which the loader has not moved, as it is now."""
        joined = self._joined_of(rng)
        with self._unmoved():
            return {**rng, **states_to_text({name: RNGS[name].capture() for name in joined})}

    def _joined_of(self, rng: dict[str, str]) -> set[str]:
        return {name for name in self.joined & rng.keys() if self.loaded.get(name) == rng[name]}

    def join(self, found: dict[str, Any], living: list[Source], draws: bool) -> None:
        """Drop the private copies of generators that the program has restored.

        The program's generators are in the states ``found``; a loader that ``draws`` is about to
        do so, and whether others are is not known.
        """
        private = self.private
        if private is None or private.entered:
            return
        copies = [each for each in living if each is not self and each.fits == self.fits]
        for name, state in list(private.states.items()):
            if state != found[name] or state in [each.saved_at.get(name) for each in copies]:
                continue  # it is not restored; or the original is going to make these draws
            loaded = self.loaded.get(name) in [each.loaded.get(name) for each in copies]
            if loaded and not draws and _SAVED_HERE.get(name) == state:
                continue  # nobody has restored it: these are copies, and only one can have it
            del private.states[name]
            self.joined.add(name)
        self.private = private if private.states else None


#: names of the generators that a loader was given
_GIVEN = {"loader", "sampler"}


@dataclass(frozen=True)
class Setting:
    """Inputs for the order of one epoch, besides the sampler."""

    source: Source
    epoch: int = 0
    #: the order's saved state, if it is to be restored
    saved: dict[str, Any] | None = None
    #: the epoch is not the sampler's current one (``batch_at`` of another epoch)
    elsewhere: bool = False

    def private(self) -> GeneratorStates | None:
        """The generator that the sampler draws from, where there is a seed; else None."""
        seed = self.source.seed
        return None if seed is None else GeneratorStates.seeded(order_seed(seed, self.epoch))
