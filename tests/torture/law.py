"""The law: a copy goes on as the original does, or the package has said that it cannot."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from laws.codecs import COPY, JSON, PICKLES, STATES, Codec, _attach
from laws.observe import seed_everything, seen_next
from zoo.datasets import Boom

from picklable_loader import DataLoader, from_json, to_json
from picklable_loader.errors import (
    EmptyEpochWarning,
    LoaderError,
    LoaderWarning,
    ReplayWarning,
    RestartWarning,
    SkippedWarning,
)

from .kinds import Kind

OWN_JSON = Codec(
    "to_json",
    lambda it: to_json(it.state_dict()),
    lambda data, make: _attach(from_json(data), make),
)
WAYS = {codec.name: codec for codec in (*PICKLES, COPY, *STATES, JSON, OWN_JSON)}
#: ways whose copies have the loader's settings with them
PICKLED = {codec.name for codec in PICKLES}

#: warnings of what goes on exactly all the same
_NEWS = (EmptyEpochWarning, ReplayWarning, RestartWarning, SkippedWarning)
#: so does a warning with this text: here no resume has another batch size or number of ranks
_OF_OTHER_SIZES = "depend on the batch size and on the number of ranks"
#: a stream that is read again gives other batches: it comes with the first batch of a resume
_REPLAYED_ANEW = "came as another one"

#: seconds within which the workers of a loader that is gone have ended
_GRACE_S = 10.0
#: saves that another thread makes while the training goes on
_RACING = 6

Make = Callable[[int], DataLoader[Any]]


class Wrong(Exception):
    """The law is broken."""


class Said(Exception):
    """The package has refused, or warned, before anything was wrong."""


class Void(Exception):
    """Such a loader cannot be built."""


@dataclass(frozen=True)
class Hop:
    """The training is saved, and goes on from what was saved.

    Attributes:
        epoch: in this one,
        step: after so many batches; -1: after the last one.
        way: how it is saved.
        workers: how many the loader has that goes on.
        racing: this one of the saves that another thread makes during the next batches; None: one
            save, made by the thread that trains.
    """

    epoch: int
    step: int
    way: str
    workers: int
    racing: int | None = None


@dataclass
class Training:
    """A program: some epochs, of which it may leave some early and pass over batches.

    Attributes:
        kind: of its loader.
        make: builds the loader, with so many workers.
        workers: how many the first one has.
        epochs: how many there are.
        hops: where it is saved.
        skip: in this epoch, after so many batches, it passes over so many.
        leave: it leaves this epoch after so many batches.
        tells_epoch: it calls ``set_epoch``.
        chooses: in this epoch, after so many batches, it calls ``set_epoch`` with this one.
        looks: in this epoch, after so many batches, it takes a batch of another pass. What that
            changes in a sampler or a dataset may be refused, or warned of.
        grows: in this epoch, after so many batches, so many samples come to its dataset. A save may
            warn: workers have copies. A sampler of its own may be refused.
        ordered: batches come in their order; else only which come in an epoch is certain.
    """

    kind: Kind
    make: Make
    workers: int = 0
    epochs: int = 1
    hops: Sequence[Hop] = ()
    skip: tuple[int, int, int] | None = None
    leave: tuple[int, int] | None = None
    tells_epoch: bool = False
    chooses: tuple[int, int, int] | None = None
    looks: tuple[int, int] | None = None
    grows: tuple[int, int, int] | None = None
    ordered: bool = True

    @property
    def exact(self) -> bool:
        """It is promised that nothing is refused, and nothing warned of."""
        return self.kind.promise == "exact" and self.looks is self.grows is None

    def run(self, saves: bool, hops: bool) -> list[list[Any]]:
        """Train; returns the batches of each epoch.

        Args:
            saves: it is saved.
            hops: it goes on with what was saved.
        """
        seed_everything(1)
        try:
            self._grown = 0
            self._loader: Any = self._built(self.workers)
        except (ValueError, TypeError, RuntimeError) as error:
            raise Void(str(error)) from error
        self._ahead = list(self.hops) if saves else []
        self._hops = hops
        self._opened: Any = None  # by a hop at an epoch's end
        try:
            passes = [self._epoch(epoch) for epoch in range(self.epochs)]
        finally:
            self._loader = self._opened = None
        return passes if self.ordered else [sorted(batches, key=repr) for batches in passes]

    def _built(self, workers: int) -> Any:
        loader: Any = self.make(workers)
        if self._grown:
            loader.dataset.size += self._grown
        return loader

    def _epoch(self, epoch: int) -> list[Any]:
        if self.tells_epoch and self._opened is None:
            self._loader.set_epoch(epoch)
        iterator = iter(self._loader) if self._opened is None else self._opened
        self._opened = None
        batches: list[Any] = []
        while True:
            self._beside(epoch, len(batches))
            ways = set()
            while self._opened is None and (hop := self._hop(epoch, len(batches))):
                ways.add(hop.way)
                iterator, batches = self._pass_hop(hop, iterator, batches)
            if self.skip is not None and self.skip[:2] == (epoch, len(batches)):
                with suppress(Boom):
                    iterator.skip(self.skip[2])
            if self.leave == (epoch, len(batches)) or len(batches) == self.kind.limit:
                if self._hops and "into an iterator" in ways:  # a pickle holds that as well
                    raise Void("what an iterator has loaded is what the next iter goes on from")
                return batches
            if self._opened is not None or not self._take(iterator, batches):
                break
        hop = self._hop(epoch, -1)
        if hop is not None and self._opened is None:
            self._pass_hop(hop, iterator, batches)
        return batches

    def _beside(self, epoch: int, step: int) -> None:
        """Other calls of the loader in mid-epoch."""
        if self.chooses is not None and self.chooses[:2] == (epoch, step):
            self._loader.set_epoch(self.chooses[2])
        if self.grows is not None and self.grows[:2] == (epoch, step) and not self._grown:
            self._grown = self.grows[2]
            self._loader.dataset.size += self._grown
        if self.looks == (epoch, step):
            with suppress(Boom, StopIteration):
                next(iter(self._loader))

    def _take(self, iterator: Any, batches: list[Any]) -> bool:
        try:
            batches.append(seen_next(iterator))
        except StopIteration:
            return False
        sampler = getattr(iterator.loader, "sampler", None)
        if hasattr(sampler, "feedback"):
            sampler.feedback(_first_number(batches[-1]))
        return True

    def _hop(self, epoch: int, step: int) -> Hop | None:
        for hop in self._ahead:
            if (hop.epoch, hop.step) == (epoch, step):
                self._ahead.remove(hop)
                return hop
        return None

    def _pass_hop(self, hop: Hop, iterator: Any, batches: list[Any]) -> tuple[Any, list[Any]]:
        """The iterator that goes on, and the batches that came before it in its epoch."""
        codec = WAYS[hop.way]
        with _to_be_said(self.exact, "as it is saved", warned=""):
            if hop.racing is None:
                saved = codec.save(iterator)
            else:
                saved = self._race(codec, iterator, batches)[hop.racing]
        if not self._hops:
            return iterator, batches
        if not codec.shares_loader:
            iterator.close()
        seed_everything(99 + hop.step)
        with _to_be_said(self.exact, "as it is loaded", warned=""):
            copied = codec.load(saved, lambda: self._built(hop.workers))
        if hop.way in PICKLED and copied.loader.num_workers != hop.workers:
            copied.loader.num_workers = hop.workers
            copied.loader.prefetch_factor = 2 if hop.workers else None
        self._loader = copied.loader
        if copied.epoch > iterator.epoch:
            if self.tells_epoch:
                raise Void("the copy's next epoch has begun, and was not told which one it is")
            self._opened = copied
        elif hop.racing is not None:
            batches = batches[: copied.step]
        return copied, batches

    def _race(self, codec: Codec, iterator: Any, batches: list[Any]) -> list[Any]:
        """What another thread saves while this one trains.

        Raises:
            Void: this thread changes the sampler between two steps, and a save may come before the
                change of its step; or it changes the dataset, which a shallow copy shares.
        """
        if codec.shares_loader and self.kind.promise == "honest":
            raise Void("the training goes on in a dataset that it changes, and the copy shares it")
        if hasattr(getattr(iterator.loader, "sampler", None), "feedback"):
            raise Void("the training changes the sampler while another thread saves")
        saves: list[Any] = []
        errors: list[Exception] = []

        def save() -> None:
            try:
                while len(saves) < _RACING:
                    saves.append(codec.save(iterator))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=save)
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        try:
            thread.start()
            while thread.is_alive() and self._take(iterator, batches):
                pass
            thread.join()
        finally:
            sys.setswitchinterval(before)
        if errors:
            raise errors[0]
        return saves


def _first_number(batch: Any) -> int:
    if isinstance(batch, dict):
        return _first_number(batch["index"])
    if isinstance(batch, list):
        return _first_number(batch[0])
    return 0 if batch == "boom" else int(batch)


def check(training: Training) -> None:
    """Raise Wrong unless the law holds.

    Raises:
        Said: it need not, as was said.
        Void: there is no such loader.
    """
    said = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = training.run(saves=False, hops=False)
        _compare(training.run(saves=True, hops=False), whole, "saving has disturbed the original")
        try:
            with _to_be_said(training.exact, "as it goes on", warned=_REPLAYED_ANEW):
                found = training.run(saves=True, hops=True)
            _compare(found, whole, "the copy differs")
        except Said as error:
            said = str(error)  # and not its traceback, to which the loader belongs
    _expect_nothing_left()
    if said:
        raise Said(said)


@contextmanager
def _to_be_said(exact: bool, when: str, warned: str | None = None) -> Any:
    """Errors of the package in this block, and warnings with a text, are wrong if it is exact."""
    try:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            yield
    except LoaderError as error:
        said: Any = error
    else:
        ours = [w.message for w in given if issubclass(w.category, LoaderWarning)]
        doubts = [
            message
            for message in ours
            if not isinstance(message, _NEWS) and _OF_OTHER_SIZES not in str(message)
        ]
        doubts = [message for message in doubts if warned is not None and warned in str(message)]
        said = doubts[0] if doubts else None
    if said is None:
        return
    if exact:
        raise Wrong(f"{type(said).__name__} {when}, of what is promised: {said}") from said
    raise Said(f"{type(said).__name__} {when}: {said}")


def _compare(found: list[list[Any]], whole: list[list[Any]], what: str) -> None:
    for epoch, (here, there) in enumerate(zip(found, whole, strict=True)):
        if here != there:
            same = [a == b for a, b in zip(here, there)]
            step = same.index(False) if False in same else len(same)
            raise Wrong(
                f"{what} in epoch {epoch} at step {step}:\n"
                f"  found    {len(here)} batches, here {str(here[step: step + 1])[:300]}\n"
                f"  expected {len(there)} batches, here {str(there[step: step + 1])[:300]}"
            )


def _expect_nothing_left() -> None:
    deadline = time.monotonic() + _GRACE_S
    gc.collect()
    while left := multiprocessing.active_children():
        if time.monotonic() > deadline:
            raise Wrong(f"processes are left: {left}")
        time.sleep(0.01)
