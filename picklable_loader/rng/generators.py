"""The three random number generators that people's code draws from, and how to set them aside.

Torch's, numpy's and Python's global generators are captured, restored, seeded, and written as text
in the same way. ``Isolated`` lets code draw from them without a trace. ``GeneratorStates`` is a set
of states of its own that code draws from as if they were the global ones.

The cost of the calls (2 cores, Python 3.11, torch 2.13, numpy 2.4) decides how they are done here:
``torch.manual_seed`` takes 166 µs and ``torch.default_generator.manual_seed`` 1 µs, numpy's
``get_state`` and ``set_state`` 35 µs each and an exchange of its bit generator 0.3 µs.
"""

from __future__ import annotations

import _random
import ctypes
import os
import random
import struct
import threading
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import torch

from ..errors import SYMPTOMS, DamagedStateError
from .mt19937 import WORDS, read_words, write_words
from .text import pack_words, unpack_words

_MASK = 0xFFFFFFFF
_T = TypeVar("_T")

_get_bits: Any = np.random.get_bit_generator  # type: ignore[attr-defined]
_set_bits: Any = np.random.set_bit_generator  # type: ignore[attr-defined]
_python: Any = random._inst

#: the program's own generators, from which people's code may draw without naming them
GLOBAL: dict[str, Any] = {
    "torch": torch.default_generator, "numpy": np.random.mtrand._rand, "python": _python
}  # fmt: skip
_seed_python = _random.Random.seed


# Each class below is a global generator. States compare with ``==``; `from_text` raises ValueError
# if the text is damaged.


class TorchRng:
    """Torch's global generator for the CPU."""

    def capture(self) -> bytes:
        return torch.default_generator.get_state().numpy().tobytes()

    def restore(self, state: bytes) -> None:
        torch.default_generator.set_state(_tensor(state))

    def to_text(self, state: bytes) -> str:
        return pack_words(state)

    def from_text(self, text: str) -> bytes:
        return generator_from_text(text).get_state().numpy().tobytes()


class NumpyRng:
    """Numpy's legacy global generator, a Mersenne Twister unless the user exchanged it."""

    def capture(self) -> tuple[bytes, int, float]:
        bits = _get_bits()
        if not isinstance(bits, np.random.MT19937):
            return (b"", *_GAUSS.unpack(_read_gauss()))
        # The documented address of 624 words and the position in them; `.state` copies the words
        # one by one and takes 30 µs.
        words = ctypes.string_at(bits.ctypes.state_address, 4 * WORDS)
        return (words, *_GAUSS.unpack(_read_gauss()))

    def restore(self, state: tuple[bytes, int, float]) -> None:
        words, has_gauss, gauss = state
        bits = _get_bits()
        if words and isinstance(bits, np.random.MT19937):
            ctypes.memmove(bits.ctypes.state_address, words, 4 * WORDS)
            _write_gauss(_GAUSS.pack(has_gauss, gauss))

    def to_text(self, state: tuple[bytes, int, float]) -> str:
        words, has_gauss, gauss = state
        return f"{has_gauss}:{gauss.hex()}:{b64encode(words).decode()}"

    def from_text(self, text: str) -> tuple[bytes, int, float]:
        has_gauss, gauss, words = text.split(":")
        state = (b64decode(words, validate=True), int(has_gauss), float.fromhex(gauss))
        if state[1] not in (0, 1):
            raise ValueError("not a state of numpy's Gaussian numbers")
        if state[0] and (len(state[0]) != 4 * WORDS or array("I", state[0])[-1] >= WORDS):
            raise ValueError("not a state of numpy's generator")
        return state


class PythonRng:
    """The generator behind the functions of the module ``random``."""

    def capture(self) -> tuple[bytes, float | None]:
        return read_words(), _python.gauss_next

    def restore(self, state: tuple[bytes, float | None]) -> None:
        write_words(state[0])
        _python.gauss_next = state[1]

    def to_text(self, state: tuple[bytes, float | None]) -> str:
        words, gauss = state
        return f"{'' if gauss is None else gauss.hex()}:{b64encode(words).decode()}"

    def from_text(self, text: str) -> tuple[bytes, float | None]:
        gauss, packed = text.split(":")
        words = b64decode(packed, validate=True)
        if len(words) != 4 * WORDS or array("I", words)[0] > WORDS - 1:
            raise ValueError("not a state of Python's generator")
        return words, float.fromhex(gauss) if gauss else None


_torch, _numpy, _py = TorchRng(), NumpyRng(), PythonRng()
RNGS: dict[str, Any] = {"torch": _torch, "numpy": _numpy, "python": _py}


def capture_all() -> dict[str, Any]:
    """The states of all three, by name."""
    return {"torch": _torch.capture(), "numpy": _numpy.capture(), "python": _py.capture()}


def use_mersenne_twister() -> None:
    """Give numpy the global bit generator that batches are drawn from, in a worker.

    A fork has the program's, which `np.random.set_bit_generator` may have exchanged.
    """
    if not isinstance(_get_bits(), np.random.MT19937):
        _set_bits(np.random.MT19937(0))


def restore_all(states: dict[str, Any]) -> None:
    """Put those that are named at captured states."""
    for name, state in states.items():
        RNGS[name].restore(state)


def seed_all(seed: int) -> None:
    """Seed all three from one number."""
    _seed_python(_python, seed)  # what random.seed does, without looking at the seed's type
    _python.gauss_next = None
    np.random.seed(seed & _MASK)
    torch.default_generator.manual_seed(seed)


class Isolated:
    """A context in which the global generators may be seeded and drawn from without a trace.

    Contexts may be nested: each has a bit generator of its own for numpy. Threads take turns: the
    generators are the whole process's.

    A signal's handler may raise within ``__enter__`` or ``__exit__``, as at any line. So
    ``__exit__`` may be called again, and before ``__enter__`` was done: it undoes what was done.
    """

    _spare: list[np.random.MT19937] = []
    #: locked by the thread that sets the global generators aside, or draws from them for a loader
    turn = threading.RLock()
    #: the contexts that the thread with the turn is in; the first one has the program's own states.
    #: A list, as setting an attribute of a class empties Python's caches of it: 2 µs a batch.
    _entered: list[Isolated] = []

    #: the program's states while they are set aside, and numpy's generator of this context
    _program: tuple[Any, ...] | None = None
    _own: np.random.MT19937 | None = None
    #: the lock, if no outer context of this thread has it
    _held: Any = None

    def __enter__(self) -> None:
        turn: Any = self.turn
        if not turn._is_owned():
            self._held = turn
            turn.acquire()
        self._depth = len(self._entered)
        torch_state, bits = torch.default_generator.get_state(), _get_bits()
        self._program = read_words(), _python.gauss_next, torch_state, bits, _read_gauss()
        self._entered.append(self)
        self._own = self._spare.pop() if self._spare else np.random.MT19937(0)
        _set_bits(self._own)

    def __exit__(self, *error: object) -> None:
        if self._program is not None:
            self._put_back()
            del self._entered[self._depth :]
            self._program = None
        if self._own is not None:
            own, self._own = self._own, None
            self._spare.append(own)
        if self._held is not None and self._held._is_owned():
            self._held.release()

    @classmethod
    def run(cls, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call that inside the context; afterwards the program's own are back in any case."""
        return _run_in(cls(), act, *arguments)

    @classmethod
    @contextmanager
    def undone(cls) -> Iterator[None]:
        """The program's own states, for a moment; within the contexts of batches as well."""
        with cls.turn:
            if not cls._entered:
                yield
                return
            outermost, inner = cls._entered[0], cls()
            try:
                with inner:  # sets those at hand aside
                    outermost._put_back()
                    yield
            except BaseException:
                inner.__exit__()
                raise

    def _put_back(self) -> None:
        assert self._program is not None
        words, _python.gauss_next, torch_state, bits, gauss = self._program
        write_words(words)
        torch.default_generator.set_state(torch_state)
        _set_bits(bits)
        _write_gauss(gauss)  # the exchange has cleared it


def _captured(seed: int) -> dict[str, Any]:
    seed_all(seed)
    return capture_all()


def _run_in(context: Isolated | Inside, act: Callable[..., _T], *arguments: Any) -> _T:
    try:
        with context:
            return act(*arguments)
    except BaseException:
        context.__exit__()  # once more: a signal may have come within one of its methods
        raise


def _new_turn() -> None:
    Isolated.turn = threading.RLock()
    Isolated._entered.clear()


# In a forked process no thread is left that could give its turn back.
os.register_at_fork(after_in_child=_new_turn)


class GeneratorStates:
    """States of the global generators, separate from the program's own.

    Inside the context the global generators have these states. Afterwards the program's own are
    back and these states have moved on.

    Args:
        states: captured states by name; a generator that is not named stays the program's own.
    """

    def __init__(self, states: dict[str, Any]) -> None:
        self.states = states
        #: one for each time that they were entered
        self._inside: list[Inside] = []

    @classmethod
    def seeded(cls, seed: int) -> GeneratorStates:
        """All three generators, seeded from one number."""
        return cls(Isolated.run(_captured, seed))

    @property
    def entered(self) -> bool:
        """The global generators are in its states, or have moved on from them."""
        return bool(self._inside)

    def __enter__(self) -> None:
        Inside(self).__enter__()

    def __exit__(self, *error: object) -> None:
        self._inside[-1].__exit__()

    def run(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call that inside the context; afterwards the program's own are back in any case."""
        return Inside(self).run(act, *arguments)


class Inside:
    """One entry into `GeneratorStates`; ``__exit__`` may be called again, as that of `Isolated`."""

    #: the global generators were in all of the states; before, nobody draws
    _begun = False
    #: the program's own states, and those at the end
    _program: dict[str, Any] | None = None
    _moved: dict[str, Any] | None = None
    #: the lock, if no outer context of this thread has it
    _held: Any = None

    def __init__(self, of: GeneratorStates) -> None:
        self._of = of

    def __enter__(self) -> None:
        turn: Any = Isolated.turn
        if not turn._is_owned():
            self._held = turn
            turn.acquire()
        states = self._of.states
        self._of._inside.append(self)
        self._program = {name: RNGS[name].capture() for name in states}
        restore_all(states)
        self._begun = True

    def __exit__(self, *error: object) -> None:
        if self._program is not None:
            if self._begun and self._moved is None:
                self._moved = {name: RNGS[name].capture() for name in self._program}
            restore_all(self._program)
            self._of.states.update(self._moved or {})
            self._program = None
        if self in self._of._inside:
            self._of._inside.remove(self)
        if self._held is not None and self._held._is_owned():
            self._held.release()

    def run(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Call that inside; a plain ``with`` may leave the lock locked, as a signal comes."""
        return _run_in(self, act, *arguments)


def states_to_text(states: Mapping[str, Any]) -> dict[str, str]:
    """Captured states, by name, as a saved state holds them."""
    return {name: RNGS[name].to_text(state) for name, state in states.items()}


def states_from_text(texts: Mapping[str, str]) -> dict[str, Any]:
    """The states that `states_to_text` was given; DamagedStateError if a text is no state."""
    states = {}
    for name, text in texts.items():
        try:
            states[name] = _from_text(name, text)
        except SYMPTOMS:
            raise DamagedStateError(f"rng.{name}", "a saved random state", text) from None
    return states


@lru_cache(maxsize=16)  # a load checks a state first, and sets it later
def _from_text(name: str, text: str) -> Any:
    return RNGS[name].from_text(text)


def generator_to_text(generator: torch.Generator) -> str:
    """A generator's state as text (3.4 kB for torch's 5,056 bytes)."""
    return pack_words(generator.get_state().numpy().tobytes())


def generator_from_text(text: str) -> torch.Generator:
    """A new generator at a saved state; ValueError if the text is damaged."""
    generator = torch.Generator()
    try:
        generator.set_state(_tensor(unpack_words(text)))
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None
    return generator


def set_generator(generator: torch.Generator, text: str) -> None:
    """Put an existing generator at a saved state."""
    generator.set_state(generator_from_text(text).get_state())


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# --- numpy's spare Gaussian ----------------------------------------------------------------------
# Legacy numpy makes normal numbers in pairs and keeps the second one outside of the bit generator.
# Exchanging the bit generator forgets it. get_state copies 624 words besides, in 30 µs; so the two
# fields are copied as memory, where they are found.

_global: Any = np.random.mtrand._rand
#: whether there is one, and its value
_GAUSS = struct.Struct("=i4xd")


def _memory(state: np.random.RandomState) -> memoryview:
    size = np.random.RandomState.__basicsize__
    return memoryview((ctypes.c_char * size).from_address(id(state))).cast("B")


def _find_gauss() -> memoryview | None:
    trial = np.random.RandomState(0)
    trial.standard_normal()
    gauss = trial.get_state(legacy=False)["gauss"]
    at = _memory(trial).tobytes().find(_GAUSS.pack(1, gauss))
    return None if at < 0 else _memory(_global)[at : at + _GAUSS.size]


def _read_slowly() -> bytes:
    state = _global.get_state(legacy=False)
    return _GAUSS.pack(state["has_gauss"], state["gauss"])


def _write_slowly(fields: bytes) -> None:
    has_gauss, gauss = _GAUSS.unpack(fields)
    _global.set_state({**_global.get_state(legacy=False), "has_gauss": has_gauss, "gauss": gauss})


_found = _find_gauss()
_read_gauss = _read_slowly if _found is None else _found.tobytes
_write_gauss = _write_slowly if _found is None else partial(_found.__setitem__, slice(None))
