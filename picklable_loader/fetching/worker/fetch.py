"""Makes a batch of a task: its indices -> samples -> a batch."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from torch.utils.data import StackDataset, Subset

from ...core.seeds import Seeding
from ...core.task import Task
from ...datasets.protocol import datasets_within
from ...rng.imports import guard_imports
from ...rng.owned import Seed, Seedable, seed_each, seedable_in
from .feedback import sent, take_back
from .on_error import Gathering, OnError, Thinned, left_a_generator
from .position_proof import PositionProof
from .seeding import Draws, Seeder

#: more batches than any stream has: no state is taken in mid-epoch
NEVER = 2**62

#: with such a dataset it matters whether its functions draw random numbers
_HUGGING_FACE = "datasets.iterable_dataset"

#: gives the iterator over an iterable-style dataset; its argument seeds as before ``iter``
Open = Callable[[Callable[[int], None]], Any]


class StreamEnded(Exception):
    """An iterable-style dataset has no more data."""


@dataclass(frozen=True, slots=True)
class Job:
    """The work to do for each task; the same for all workers and epochs of a loader."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    #: the dataset is iterable-style
    iterable: bool
    #: tasks ask for a list of samples, which are collated
    batched: bool
    #: iterable-style: an incomplete batch at the end is dropped
    drop_last: bool = False
    seeding: Seeding = "batch"
    seed_hooks: tuple[Callable[[int], object], ...] = ()
    #: "auto", "off", or a callable: how generators are seeded that people's code for a batch owns
    seed_dataset: Any = "off"
    #: paths to generators that are not seeded
    excluded: frozenset[str] = frozenset()
    #: samples in a batch, of iterable-style data
    batch_size: int = 1
    #: a state is taken after so many batches of a stream; None: as often as costs little
    mark_every: int | None = None
    #: the dataset has a state, though it is map-style
    stateful: bool = False
    #: what becomes of bad samples
    on_error: OnError = "raise"
    #: classes of ``__main__`` go along in states
    by_value: bool = False
    #: workers live from epoch to epoch, and their copies of the dataset with them
    lives_on: bool = False
    #: the rank, and the number of those that share one order
    rank: int = 0
    world: int = 1
    #: places of the order from one sample of a task to the next
    stride: int = 1
    #: random numbers may be drawn while a batch is made; else nobody needs a seed
    draws: bool = True
    #: called in a worker, with its number, when it ends in good order
    exit_fn: Callable[[int], object] | None = None
    #: is given each batch, and gives the one that is sent
    convert: Callable[[Any], Any] | None = None

    @property
    def streamed(self) -> bool:
        """Streams serve the tasks, and have states."""
        return self.iterable or self.stateful


#: of torch's wrappers: ``__getitems__``, which may only pass indices on -> ``__getitem__``
_PASSING: dict[Any, Any] = {kind.__getitems__: kind.__getitem__ for kind in (Subset, StackDataset)}


def bulk_of(dataset: Any, per_sample: bool) -> Callable[[Any], Any] | None:
    """The function that fetches a whole batch of a dataset; None: samples come one by one.

    Args:
        dataset: a map-style one.
        per_sample: each has a seed. Torch's wrappers are then read sample by sample, unless all
            datasets within fetch whole batches.
    """
    bulk: Callable[[Any], Any] | None = getattr(dataset, "__getitems__", None)
    if bulk and per_sample and _passes_on(dataset, bulk):
        return bulk if all(bulk_of(each, True) for each in datasets_within(dataset)) else None
    return bulk


def ignores_seeds(dataset: Any) -> bool:
    """It makes whole batches, for which nobody asks each sample's seed; our C++ classes ask."""
    bulk = bulk_of(dataset, per_sample=True)
    if bulk and _passes_on(dataset, bulk):
        return any(map(ignores_seeds, datasets_within(dataset)))
    own = (dataset, *getattr(dataset, "__dict__", {}).values())
    return bool(bulk) and not any(hasattr(each, "_built_by") for each in own)


def _passes_on(dataset: Any, bulk: Any) -> bool:
    single = _PASSING.get(getattr(bulk, "__func__", None))
    return single is not None and single is type(dataset).__getitem__


class MapFetcher:
    """Fetches batches of a map-style dataset, of one epoch."""

    iterator = None
    ended = fresh = drew = False
    #: paths to generators that its first batch has made; they are seeded since
    made: tuple[str, ...] = ()

    def __init__(self, job: Job, seeder: Seeder, found: Seedable) -> None:
        self._job = job
        self._seeder = seeder
        self._per_sample = seeder.mode == "sample"
        #: the generators before the first batch, which may make others; None from the second on
        self._found = None if seeder.mode == "none" else found
        self._begun = False

    def fetch(self, task: Task) -> Any:
        """The batch of a task; raises whatever the dataset or the collate_fn raises."""
        if self._found is not None and self._begun:
            return self._fetch_second(task)
        self._begun = True
        return self._fetch(task)

    def _fetch_second(self, task: Task) -> Any:
        """Generators that the first batch has made, and this does not replace, are `made`."""
        found, self._found = self._found or {}, None
        new = {at: each for at, each in owned_by(self._job).items() if at not in found}
        if not new:
            return self._fetch(task)
        self._seeder = replace(self._seeder, hooks=hooks_of(self._job, found | new))
        try:
            return self._fetch(task)
        finally:
            paths = sorted(new[at][0].decode() for at in new.keys() & owned_by(self._job))
            self.made = tuple(path.rpartition(",")[0] for path in paths[:3])

    def _fetch(self, task: Task) -> Any:
        job, seeder, per_sample = self._job, self._seeder, self._per_sample
        seeder.before_batch(task)
        if not job.batched:
            if per_sample:
                seeder.before_sample(task.first)
            return job.collate_fn(job.dataset[task.indices])
        bulk = bulk_of(job.dataset, per_sample)
        if bulk:
            samples = self._at_once(bulk, task)
        elif per_sample:
            samples = []
            for position, index in zip(count(task.first, job.stride), task.indices):
                seeder.before_sample(position)
                samples.append(job.dataset[index])
        else:
            samples = [job.dataset[index] for index in task.indices]
        if per_sample:
            seeder.before_collate(task.first)
        return job.collate_fn(samples)

    def _at_once(self, bulk: Callable[[Any], Any], task: Task) -> Any:
        if not self._per_sample:
            return bulk(task.indices)
        first, stride = task.first, self._job.stride
        with self._seeder.for_samples(range(first, first + len(task.indices) * stride, stride)):
            return bulk(task.indices)


class LenientMapFetcher(MapFetcher):
    """Goes on after bad samples: see `Gathering.collated`."""

    def _fetch(self, task: Task) -> Any:
        job, seeder = self._job, self._seeder
        seeder.before_batch(task)
        gathering = Gathering(job.on_error)
        bulk = bulk_of(job.dataset, self._per_sample) if job.batched else None
        if bulk:
            self._in_bulk(bulk, task, gathering)
        else:
            self._singly(task, gathering)
        if job.batched:
            seeder.before_collate(task.first)
        return gathering.collated(job.collate_fn, job.batched)

    def _in_bulk(self, bulk: Callable[[Any], Any], task: Task, gathering: Gathering) -> None:
        """Gather all samples in one call; if it raises, singly, where the dataset can do that."""
        before = sent()
        try:
            gathering.samples = self._at_once(bulk, task)
        except Exception:
            if not hasattr(self._job.dataset, "__getitem__"):
                raise
            take_back(before)
            self._seeder.before_batch(task)  # how much was drawn until then is not to matter
            # Torch's Dataset raises that where a subclass has only __getitems__.
            with suppress(NotImplementedError):
                return self._singly(task, gathering)
            raise

    def _singly(self, task: Task, gathering: Gathering) -> None:
        dataset, indices = self._job.dataset, task.indices if self._job.batched else [task.indices]
        for position, index in zip(count(task.first, self._job.stride), indices):
            if self._per_sample:
                self._seeder.before_sample(position)
            gathering.begin()
            try:
                sample = dataset[index]
            except Exception as error:
                gathering.miss(error, index)
            else:
                gathering.samples.append(sample)


class IterableFetcher:
    """Fetches batches of one stream of an iterable-style dataset, of one epoch.

    Seeds depend on the stream and on how many batches it gave, not on the task's step: when
    another stream ends, and steps are given to other streams, is a matter of timing.
    """

    def __init__(self, job: Job, seeder: Seeder, stream: int, opened: Open, given: int) -> None:
        self._job = job
        self._seed = partial(seeder.before_stream, stream)
        self._given = given
        self.made: tuple[str, ...] = ()
        self._draws: Draws | None = None
        if _HUGGING_FACE in sys.modules:
            self._draws = Draws(bool(seeder.hooks))
            collate = partial(_collated, self._draws, job.collate_fn)  # `self` would be a cycle
            self._job = replace(job, collate_fn=collate)
        self.ended = False
        #: nothing was taken from the iterator yet
        self.fresh = True
        #: looks at the stream's state after each sample, as long as it wants to
        self.proof: PositionProof | None = None
        self._seed(0)
        self.iterator = opened(self._seed)

    def fetch(self, task: Task) -> Any:
        """The stream's next batch.

        Raises:
            StreamEnded: there is none.
        """
        if self.ended:
            raise StreamEnded
        self._given += 1
        self._seed(self._given)
        if self._draws is not None:
            self._draws.begin()
        try:
            return self._fetch(task)
        except StopIteration:  # a collate_fn may raise it, too
            self.ended = True
            raise StreamEnded from None
        finally:
            if self._draws is not None:
                self._draws.end()

    @property
    def drew(self) -> bool:
        """Random numbers were drawn while samples were read, as far as somebody asks."""
        return self._draws is not None and self._draws.some

    def _fetch(self, task: Task) -> Any:
        if not self._job.batched:
            return self._job.collate_fn(self._next())
        samples: list[Any] = []
        try:
            for _ in task.indices:
                samples.append(self._next())
        except StreamEnded:
            self.ended = True
        if not samples or (self._job.drop_last and len(samples) < len(task.indices)):
            raise StreamEnded
        return self._job.collate_fn(samples)

    def _next(self) -> Any:
        try:
            sample = next(self.iterator)
        except StopIteration:
            self.ended = True
            raise StreamEnded from None
        self.fresh = False
        if (proof := self.proof) is not None:
            proof.sampled(self.iterator)
            self.proof = proof if proof.samples else None
        return sample


class LenientIterableFetcher(IterableFetcher):
    """Goes on after bad samples, as far as the iterator does.

    A batch asks for as many samples as it would have without bad ones, and so begins with the same
    one whatever became of those before it.
    """

    def _fetch(self, task: Task) -> Any:
        job = self._job
        count = len(task.indices) if job.batched else 1
        first = (self._given - 1) * count
        gathering = Gathering(job.on_error)
        for number in range(first, first + count):
            gathering.begin()
            try:
                gathering.samples.append(self._next())
            except StreamEnded:
                if job.drop_last or not (gathering.samples or gathering.skipped):
                    raise
                break
            except Exception as error:
                if left_a_generator(error):
                    raise  # the rest of the stream may be lost with it, which must not go unnoticed
                gathering.miss(error, number)
        return gathering.collated(job.collate_fn, job.batched)


def _collated(draws: Draws, collate_fn: Any, samples: Any) -> Any:
    draws.end()
    return collate_fn(samples)


Fetcher = MapFetcher | IterableFetcher


def make_fetcher(
    job: Job, base_seed: int, stream: int = 0, opened: Open | None = None, given: int = 0
) -> Fetcher:
    """The fetcher of one epoch.

    ``opened`` makes a dataset go on from its state, and gives the iterator of iterable-style data;
    None: it begins. The stream has given so many batches of the epoch by then.
    """
    guard_imports()
    mode = job.seeding if job.draws and job.seeding != "worker" else "none"
    found = owned_by(job)
    seeder = Seeder(mode, base_seed, hooks_of(job, found), job.rank, job.world)
    lenient = job.on_error != "raise"
    if job.iterable:
        begun: Open = opened or (lambda seed: iter(job.dataset))
        of_stream = LenientIterableFetcher if lenient else IterableFetcher
        return of_stream(job, seeder, stream, begun, given)
    if opened is not None:
        opened(lambda given: None)
    return (LenientMapFetcher if lenient else MapFetcher)(job, seeder, found)


def converted(batch: Any, job: Job) -> Any:
    """A batch as it is sent: what ``convert`` makes of it, if there is one."""
    if job.convert is None:
        return batch
    if type(batch) is Thinned:
        return Thinned(job.convert(batch.batch), batch.skipped)
    return job.convert(batch)


def parts_of(dataset: Any, collate_fn: Any, convert: Any, on_error: Any) -> dict[str, Any]:
    """The objects whose code makes a batch, by the names of their options."""
    parts = {"dataset": dataset, "collate_fn": collate_fn}
    if convert is not None:
        parts["convert"] = convert
    if callable(on_error):
        parts["on_error"] = on_error
    return parts


def hooks_of(job: Job, found: Seedable) -> tuple[Seed, ...]:
    """Functions that are called with each seed, for the generators of people's code."""
    if job.seed_dataset not in ("auto", "off"):
        return (partial(job.seed_dataset, job.dataset), *job.seed_hooks)
    return (partial(seed_each, found), *job.seed_hooks) if found else job.seed_hooks


def owned_by(job: Job) -> Seedable:
    """The generators of people's code that are seeded, as far as they can be found now."""
    if job.seed_dataset != "auto":
        return {}
    parts = parts_of(job.dataset, job.collate_fn, job.convert, job.on_error)
    exact = "dataset" if job.streamed else None  # worker_init_fn may have given it more
    return seedable_in(parts, job.excluded, exact)
