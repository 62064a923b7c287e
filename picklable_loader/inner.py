"""Inner: what our loader keeps beside torch's attributes, under one name.

People derive classes from torch's loader and give them attributes of any name. Whatever is ours
alone therefore stands in one object, ``loader._pl``, which no subclass is likely to touch.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from . import datapipes
from .anatomy import anatomy, built, fingerprint, generators, is_iterable, length_of
from .core.seeds import base_seed
from .core.snapshot import check_origin
from .core.streams import Place
from .driver import Driver
from .fitting import fit
from .freeze import prepare
from .marks import remembers
from .options import AtEpochEnd, Options, check_choice
from .run import Run
from .saved import beginning
from .saving.codecs import Opened
from .saving.packing import Decision
from .soundness import check
from .source import Source
from .stateful import is_stateful
from .turns import Turn
from .values.tree import check_checksum, copied
from .warn import forgotten
from .worker.beginning import Origin
from .worker.fetch import NEVER, Job, tell_epoch

if TYPE_CHECKING:
    from .iterator import LoaderIterator
    from .loader import DataLoader

__all__ = ["Inner"]


class Inner:
    """What a loader keeps beside torch's attributes.

    Args:
        loader: the loader; it has this.
        options: what our loader takes beyond torch's arguments.
    """

    def __init__(self, loader: DataLoader[Any], options: Options) -> None:
        self._loader: DataLoader[Any] = weakref.proxy(loader)
        self.options = options
        #: number of the epoch that the next ``iter`` begins, unless a state was loaded
        self.next_epoch = 0
        #: the epoch that set_epoch has last told the dataset; None if it was never called
        self.announced: int | None = None
        #: a loaded state that the next ``iter`` goes on from, and its wish for an epoch's end
        self.resume: dict[str, Any] | None = None
        self.resume_at_end: AtEpochEnd | None = None
        #: by stream, what the next epoch finds the dataset in, if it lives on
        self.carried: dict[int, Any] = {}
        # What follows goes into no pickle.
        #: held by the thread that moves the loader's iterators, or saves them
        self.turn = Turn()
        self.source = Source(options.seed, generators(loader), loader.dataset)
        #: the newest run, which state_dict reports even when its iterator is gone
        self.run: Run | None = None
        self.newest_ref: weakref.ref[LoaderIterator[Any]] | None = None
        #: persistent workers, and the iterator that has them
        self.driver: Driver | None = None
        self.kept: weakref.ref[LoaderIterator[Any]] | None = None
        #: one that was unpickled after its last batch: the next ``iter`` goes on from what it left
        self.ended: LoaderIterator[Any] | None = None
        #: parts of the loader that were looked through for generators which no state holds
        self.looked: set[str] = set()
        #: see `origin`; None before the first epoch
        self.origin_known: Origin | None = None
        #: how the loader is pickled, and what was carried in a pickle without its dataset
        self.decision = Decision()
        self.sealed: Opened | None = None
        self._group: Any = None

    # --- saving ----------------------------------------------------------------------------------

    def saved(self) -> dict[str, Any]:
        """What a pickle of the loader holds of this."""
        saved = {name: getattr(self, name) for name in _SAVED}
        if self.resume is not None:
            saved["resume"] = {**self.resume, "rng": self.source.as_now(self.resume["rng"])}
        return saved

    @classmethod
    def restored(cls, loader: DataLoader[Any], saved: dict[str, Any]) -> Inner:
        inner = cls(loader, saved["options"])
        for name in _SAVED:
            setattr(inner, name, saved[name])
        if inner.resume is not None:
            inner.source.load(inner.resume)
        return inner

    # --- reading ---------------------------------------------------------------------------------

    @property
    def lives_on(self) -> bool:
        """Workers go on living from epoch to epoch."""
        return self._loader.persistent_workers and self._loader.num_workers > 0

    @property
    def streamed(self) -> bool:
        """Streams with places of their own serve the tasks."""
        return is_iterable(self._loader) or is_stateful(self._loader.dataset)

    @property
    def streams(self) -> int:
        """How many a new epoch begins with; 0 for data that has no state."""
        if not self.streamed:
            return 0
        return self.options.num_streams or self._loader.num_workers or 1

    @property
    def pinned(self) -> bool:
        """Each batch has its worker."""
        if self.streamed or self.options.seeding == "worker":
            return True
        return self.options.schedule == "round_robin"

    @property
    def newest(self) -> LoaderIterator[Any] | None:
        """The newest iterator, while it lives."""
        return None if self.newest_ref is None else self.newest_ref()

    def job(self) -> Job:
        """What is to be done with tasks."""
        loader, every = self._loader, self.options.snapshot_every_n_steps
        return Job(
            dataset=loader.dataset,
            collate_fn=loader.collate_fn,
            iterable=is_iterable(loader),
            batched=loader._auto_collation,
            drop_last=loader.drop_last,
            seeding=self.options.seeding,
            seed_hooks=self.options.seed_hooks,
            batch_size=loader.batch_size or 1,
            mark_every=None if every == "auto" else every or NEVER,
            stateful=is_stateful(loader.dataset) and not is_iterable(loader),
            on_error=self.options.on_error,
            by_value=self.options.codec == "cloudpickle",
            lives_on=self.lives_on,
        )

    @property
    def has_worker_states(self) -> bool:
        """Each answer brings the generators of its worker."""
        loader = self._loader
        in_torchs_way = self.options.seeding == "worker" and loader.num_workers > 0
        return in_torchs_way and not is_iterable(loader)

    @property
    def asks_at_end(self) -> bool:
        """The last batches do not tell what the next epoch begins with."""
        if self._loader.num_workers and not self.lives_on:
            return False
        return self.job().stateful or self.has_worker_states

    @property
    def asks_when_left(self) -> bool:
        """What a pass that was left has made of workers that live on is to be known."""
        if not self.lives_on or is_stateful(self._loader.dataset):
            return False
        return is_iterable(self._loader) or self.has_worker_states

    def origin(self) -> Origin | None:
        """An iterable-style dataset as it was before the loader's first epoch in this process."""
        loader = self._loader
        if self.origin_known is None and is_iterable(loader) and not is_stateful(loader.dataset):
            self.origin_known = Origin(loader.dataset, self.options.codec == "cloudpickle")
        return self.origin_known

    def drift(self) -> list[str]:
        """Attributes that epochs have changed in the program's own dataset."""
        if self._loader.num_workers or self.origin_known is None:
            return []
        drift: list[str] = self.origin_known.reached().get("drift", [])
        return drift

    def beginning(self, live: bool) -> dict[str, Any]:
        """The state at the start of the epoch that begins next.

        Args:
            live: it goes into a pickle, or to nobody; so it may hold objects.
        """
        return beginning(self._loader, self.next_epoch, live)

    # --- moving ----------------------------------------------------------------------------------

    def remember_origin(self) -> None:
        """Note what the program has built, before anything changes it."""
        self.source.origin = built(self._loader)

    def adopt(self, iterator: LoaderIterator[Any]) -> None:
        """Make it the newest one."""
        self.newest_ref = weakref.ref(iterator)
        self.next_epoch = iterator.epoch + 1
        if self.lives_on:
            self.driver, self.kept = iterator.driver, self.newest_ref

    def abandon(self, resumes: bool = False) -> None:
        """Retire workers that live on, if a pass has changed their datasets.

        Args:
            resumes: a state is gone on from, and they are to be as it has them; else what a pass
                that was left has changed counts, as it is in no state.
        """
        if resumes:
            changed = self.streamed or self.options.seeding == "worker"
        else:
            left = self.run is not None and not self.run.finished
            changed = left and is_stateful(self._loader.dataset)
        if self.driver is not None and changed:
            self.driver.stop()

    def run_ends(self, run: Run) -> None:
        """Note in what state the run leaves the dataset, if that is there in the next epoch."""
        self.carried = {}
        alone = not self._loader.num_workers and self.streams == run.streams == 1
        if self.lives_on or (alone and self.options.num_streams is None):
            marks = run.last_marks
            self.carried = {stream: marks.get(stream) for stream in range(run.streams) if marks}

    def carried_places(self) -> list[Place]:
        """Where the streams stand at the start of the next epoch, if not at their beginning."""
        if len(self.carried) != self.streams:
            return []  # they are of other streams
        return [Place(mark=self.carried[stream]) for stream in range(self.streams)]

    def refit(self) -> None:
        """See that the next epoch has as many streams as the loader says."""
        streams, had = self.streams, len(self.carried)
        if self.driver is not None and self.lives_on:
            self.driver.refit(streams or (self._loader.num_workers if self.pinned else 0))
        if had and had != streams:
            self.carried, marks = {}, self.carried.values()
            if is_stateful(self._loader.dataset) or remembers(marks):
                forgotten(type(self._loader.dataset).__qualname__, had, streams)

    def run_begins(self, run: Run) -> None:
        """Note the newest run."""
        self.run = run
        self.next_epoch = run.epoch + 1

    def accept(
        self, state: dict[str, Any], *, strict: bool, at_epoch_end: str | None
    ) -> dict[str, Any]:
        """A copy of a state that fits; dataset and sampler are what they were when it was saved.

        What the program tells them from now on counts.
        """
        if at_epoch_end is not None:
            check_choice("at_epoch_end", at_epoch_end, ("stop", "next"))
        loader = self._loader
        if isinstance(state, dict) and not state:
            accepted = beginning(loader, 0, live=True)
        else:
            accepted = self._checked(state, strict)
        if not is_iterable(self._loader):
            prepare(anatomy(loader).sampler, accepted["sampler"], self.source)
        self.source.generators = generators(loader)
        self.source.put_back(accepted["rng"])
        self.source.load(accepted)
        if accepted["announced"] is not None:
            tell_epoch(loader.dataset, accepted["announced"])
        self.announced = accepted["announced"]
        return accepted

    def _checked(self, state: Any, strict: bool) -> dict[str, Any]:
        if type(state) is OrderedDict:
            state = dict(dict.items(state))
        check_origin(state)
        loader = self._loader
        length = None if is_iterable(loader) else length_of(anatomy(loader).sampler)
        given = copied(state)
        accepted = fit(given, fingerprint(loader), strict, length)
        check(loader, accepted)
        check_checksum(given)  # last: the other errors say more
        accepted.pop("checksum", None)
        return accepted

    def fresh_epoch(self) -> int:
        """The epoch that begins now; with ``seed=`` the sampler follows."""
        if self.options.seed is not None:
            self.tell_samplers(self.next_epoch)
        return self.next_epoch

    def tell_samplers(self, epoch: int) -> None:
        """Call set_epoch of the samplers that have it, once each."""
        loader = self._loader
        inner = getattr(loader.batch_sampler, "sampler", None)
        samplers = (loader.batch_sampler, loader.sampler, inner)
        for sampler in {id(each): each for each in samplers}.values():
            tell_epoch(sampler, epoch)

    def draw_shared_seed(self, epoch: int) -> int | None:
        """The seed that the workers' DataPipes share; None without DataPipes."""
        if not datapipes.is_iter_datapipe(self._loader.dataset):
            return None
        if self.options.seed is not None:
            return base_seed(self.options.seed, epoch)
        if self._group is None:
            self._group = datapipes.process_group()
        return self.source.draw("loader", lambda g: datapipes.draw_shared_seed(g, self._group))


_SAVED = ("options", "next_epoch", "announced", "resume", "resume_at_end", "carried")
