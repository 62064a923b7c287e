"""Shuffling: an iterable-style dataset in random order, as far as a buffer reaches."""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from typing import Any, Literal

from ..core.checks import check_choice, whole_number
from ..errors import SYMPTOMS, DamagedStateError, Difference, StateMismatch, warn
from ..rng.generators import capture_all
from ..saving.states.arrays import NotPlain
from ..saving.states.plain import decode, encode
from .wrapper import (
    Wrapper,
    WrapperIterator,
    before_iter,
    below,
    check_fields,
    check_list,
    go_before_iter,
    iterable,
    name_of,
    reopen,
    seed_of_iteration,
    states_of,
)

#: states saved within a buffer's length; a resume reads up to the stretch between two in vain
_STATES = 4
#: so many first samples are looked at: do they draw random numbers? Later ones are like these
_LOOKS = 64


# Pickled loaders hold this name and its module: tests/golden/pickles.
class ShuffleBuffer(Wrapper):
    """Shuffles an iterable-style dataset through a buffer.

    The buffer is filled; then a sample that is chosen at random leaves it and the dataset's next
    one comes in, until nothing is left. The order is a function of ``seed``, the epoch and, under
    picklable_loader's loader, of the stream (`current_seed`); nobody's generator is drawn from.

    The iterator can be pickled where the dataset's can, and has torchdata's ``state_dict`` and
    ``load_state_dict`` where the dataset or its iterator has them. No sample is lost or repeated
    by a resume. The method is that of ``tf.data.Dataset.shuffle``, of torchdata's ``Shuffler`` and
    of Hugging Face's ``IterableDataset.shuffle``, which begins with an empty buffer on a resume.

    Args:
        dataset: anything with ``__iter__``.
        size: samples that the buffer holds, from 1; with 1 nothing is shuffled.
        seed: chooses the order, any whole number. Buffers inside of buffers, and beside each
            other, should have different ones.
        state: what a state holds of the buffer. ``"samples"``: the samples themselves, which have
            to be numbers, text, bytes, tensors, arrays, or containers of them; always exact.
            ``"rebuild"``: their numbers only, and a state of the dataset from before the oldest of
            them; a resume reads from there again, in the mean about ``size * (log(size) + 1)``
            samples. Exact if the dataset then gives what it gave before, which one that draws from
            global random generators as it goes does not.

    Raises:
        TypeError: ``dataset`` cannot be iterated over; ``size`` or ``seed`` is no whole number.
        ValueError: ``size`` is below 1, or ``state`` is neither of the two.
    """

    __module__ = "picklable_loader"  # pickles hold this name

    def __init__(
        self,
        dataset: Any,
        size: int,
        seed: int = 0,
        state: Literal["samples", "rebuild"] = "samples",
    ) -> None:
        self.dataset = iterable(dataset)
        self.size = whole_number("size", size)
        if self.size < 1:
            raise ValueError(f"size should be from 1, got size={size}")
        self.seed = whole_number("seed", seed)
        check_choice("state", state, _ITERATORS)
        self.state = state
        self.epoch = 0

    def _within(self) -> list[Any]:
        return [self.dataset]

    def __iter__(self) -> ShuffleIterator:
        seed = seed_of_iteration("shuffle", self.seed, self.epoch)
        return _ITERATORS[self.state](self.dataset, self.size, seed)

    @property
    def stream_length(self) -> Any:
        """The dataset's, if it has one; AttributeError otherwise."""
        return self.dataset.stream_length  # type: ignore[attr-defined]

    def __len__(self) -> int:
        """The dataset's length; TypeError if it has none."""
        return len(self.dataset)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return (
            f"ShuffleBuffer({name_of(self.dataset)}, size={self.size}, seed={self.seed}, "
            f"state={self.state!r})"
        )


class ShuffleIterator(WrapperIterator):
    """One iteration over a `ShuffleBuffer`."""

    kind = "ShuffleBuffer"
    #: the ``state=`` it is for
    mode: str

    def __init__(self, dataset: Any, size: int, seed: int) -> None:
        self.given = 0
        self._dataset = dataset
        self._size = size
        self._seed = seed
        self._inner: Any = None
        self._ended = False
        self._buffer: list[Any] = []

    def __next__(self) -> Any:
        # Refilled before a sample leaves, not after: when the dataset raises, nothing has left.
        self._fill()
        buffer = self._buffer
        if not buffer:
            raise StopIteration
        place = below(len(buffer), self._seed, self.given)
        self.given += 1
        buffer[place], buffer[-1] = buffer[-1], buffer[place]
        return buffer.pop()

    def _settings(self) -> dict[str, Any]:
        return {"size": self._size, "state": self.mode}

    def _save(self) -> dict[str, Any]:
        if self._inner is None:
            return {"ended": self._ended, "inner": None, **before_iter([self._dataset])}
        return {"ended": self._ended, **self._held()}

    def _load(self, state: dict[str, Any]) -> None:
        self._check(state)
        self._seed, self.given, self._ended = state["seed"], state["given"], bool(state["ended"])
        self._inner, self._buffer = None, []
        if state["inner"] is None:
            go_before_iter([self._dataset], state)
        else:
            self._restore(state)

    def __repr__(self) -> str:
        return (
            f"<ShuffleIterator over {name_of(self._dataset)}: {self.given} given, "
            f"{len(self._buffer)} of {self._size} in the buffer>"
        )

    def open(self) -> None:
        if self._inner is None:
            self._inner = reopen(self._dataset, {})

    def _fill(self) -> None:
        self.open()
        # Not asked again once it has ended: some iterators would begin anew.
        while not self._ended and len(self._buffer) < self._size:
            try:
                self._buffer.append(self._read())
            except StopIteration:
                self._ended = True

    def _read(self) -> Any:
        """The buffer's item for the dataset's next sample."""
        raise NotImplementedError

    def _held(self) -> dict[str, Any]:
        """The fields of a state that hold buffer and dataset."""
        raise NotImplementedError

    def _check(self, state: dict[str, Any]) -> None:
        """Raise DamagedStateError unless `_held` may have given these fields."""
        if not isinstance(state.get("ended"), bool):
            raise DamagedStateError("ended", "true or false", state.get("ended"))
        if not isinstance(state.get("inner", 0), dict | None):
            raise DamagedStateError("inner", "the dataset's state", state.get("inner"))

    def _restore(self, state: dict[str, Any]) -> None:
        """Open the dataset and fill the buffer, from these fields."""
        raise NotImplementedError


class SampleKeeper(ShuffleIterator):
    """It holds samples, and saves them."""

    mode = "samples"

    def _read(self) -> Any:
        return next(self._inner)

    def _held(self) -> dict[str, Any]:
        inner = states_of(self._dataset, self._inner)
        try:
            return {"inner": inner, "samples": [encode(sample) for sample in self._buffer]}
        except NotPlain as kind:
            raise NotImplementedError(
                f'a state cannot hold samples with {kind}: ShuffleBuffer(..., state="rebuild")'
            ) from None

    def _check(self, state: dict[str, Any]) -> None:
        super()._check(state)
        if state["inner"] is not None:
            check_list(state, "samples", self._size)

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            samples = [decode(form) for form in state["samples"]]
        except SYMPTOMS as error:
            raise DamagedStateError("samples", "samples of a buffer", error) from error
        self._inner = reopen(self._dataset, state["inner"])
        self._buffer = samples


class Rereader(ShuffleIterator):
    """It holds samples with their numbers, and saves the numbers.

    As it reads it saves states of the dataset, each with the number of the sample that comes next
    there. It holds all from the last one before the oldest sample in the buffer.
    """

    mode = "rebuild"
    #: samples after which it is still to look whether they draw random numbers
    _looks = 0

    def __init__(self, dataset: Any, size: int, seed: int) -> None:
        super().__init__(dataset, size, seed)
        self._count = 0
        self._stretch = max(1, size // _STATES)
        self._states: deque[tuple[int, dict[str, Any]]] = deque()
        self._looks = _LOOKS

    def __next__(self) -> Any:
        _, sample = super().__next__()
        return sample

    def open(self) -> None:
        super().open()
        if not self._states:
            self._save_state()

    def _read(self) -> tuple[int, Any]:
        if self._count % self._stretch == 0:
            self._save_state()
        found = capture_all() if self._looks else None
        sample = next(self._inner)
        self._count += 1
        if found is not None:
            self._looks -= 1
            if found != capture_all():
                self._looks = 0
                self._warn_of_draws()
        return self._count - 1, sample

    def _warn_of_draws(self) -> None:
        warn(
            f"{name_of(self._dataset)} draws from the global random generators while it is read, "
            'and ShuffleBuffer(state="rebuild") reads samples again after a resume, in another '
            "batch: they get other random numbers. Augment after the buffer, in collate_fn, or use "
            'state="samples"'
        )

    def _save_state(self) -> None:
        if self._states and self._states[-1][0] == self._count:
            return  # the dataset has raised here, or was opened here by a resume
        try:
            inner = states_of(self._dataset, self._inner)
        except NotImplementedError:
            inner = {}  # said when a state is asked for that needs it
        self._states.append((self._count, inner))
        self._drop_states()

    def _drop_states(self) -> None:
        oldest = min((number for number, _ in self._buffer), default=self._count)
        while len(self._states) > 1 and self._states[1][0] <= oldest:
            self._states.popleft()

    def _held(self) -> dict[str, Any]:
        self._drop_states()
        start, inner = self._states[0]
        if not inner:
            states_of(self._dataset, self._inner)  # says who has none
            raise NotImplementedError(f"{name_of(self._dataset)} had no state at sample {start}")
        return {
            "inner": deepcopy(inner),
            "start": start,
            "count": self._count - start,
            "numbers": [number - start for number, _ in self._buffer],
        }

    def _check(self, state: dict[str, Any]) -> None:
        super()._check(state)
        if state["inner"] is None:
            return
        check_fields(state, "start", "count")
        numbers = check_list(state, "numbers", self._size)
        count = state["count"]
        fitting = all(type(number) is int and 0 <= number < count for number in numbers)
        if not fitting or len(set(numbers)) < len(numbers):
            raise DamagedStateError("numbers", f"different ones below {count}", numbers)

    def _restore(self, state: dict[str, Any]) -> None:
        start, wanted = state["start"], set(state["numbers"])
        self._count = start
        self._states = deque([(start, deepcopy(state["inner"]))])
        self._inner = reopen(self._dataset, state["inner"])
        # A wanted sample comes into the buffer as it is met: states are held for those there.
        for _ in range(state["count"]):
            try:
                number, sample = self._read()
            except StopIteration:
                raise _elsewhere(self._count, start + state["count"]) from None
            if number - start in wanted:
                self._buffer.append((number, sample))
        met = dict(self._buffer)
        self._buffer = [(start + number, met[start + number]) for number in state["numbers"]]
        if self._ended:
            self._end_again()

    def _end_again(self) -> None:
        """Let the dataset come to its end: it may change something there."""
        try:
            self._read()
        except StopIteration:
            return
        raise _elsewhere(f"more than {self._count - 1}", self._count - 1)


def _elsewhere(expected: Any, found: int) -> StateMismatch:
    return StateMismatch(
        [Difference("samples read", expected, found)],
        'The dataset, read again, has ended elsewhere. ShuffleBuffer(..., state="samples") reads '
        "nothing again.",
    )


_ITERATORS: dict[str, type[ShuffleIterator]] = {"samples": SampleKeeper, "rebuild": Rereader}
