"""The settings of a loader, as far as its order, its position and its state depend on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from ..core.budget import Policy
from ..core.checks import whole_number
from ..core.cursor import Cursor
from ..core.fields import ITERABLE
from ..core.order import SequenceOrder
from ..core.plan import Grouping, Plan, Unit
from ..core.shard import ALONE, Shard, StreamShare
from ..datasets.protocol import (
    has_set_epoch,
    is_stateful,
    length_of,
    set_epoch_of,
    stream_lengths,
)
from ..datasets.wrapper import has_stateful
from ..orders.attributes import Frozen, freeze
from ..orders.memory import memory
from ..orders.sampler_facts import data_of, describe, draws_at_once, source_length
from ..orders.torch_samplers import gathers_as_torch, is_known, length_in
from ..rng.generators import RNGS
from ..rng.process_rank import rank_and_world
from ..rng.source import Source
from ..saving.states.checksum import checksum
from .options import Options, check_budget, count_bytes
from .ranks import check_lengths, check_shared


class _LiveGrouping:
    """A grouping whose batch size may be changed in mid-epoch, as BatchSampler lets it be."""

    unit = Unit.SAMPLE_OF_BATCH
    drop_last = False

    batch_size = property(attrgetter("_batch_sampler.batch_size"))

    def __init__(self, batch_sampler: BatchSampler, shard: Shard) -> None:
        self._batch_sampler = batch_sampler
        self.shard = shard


@dataclass(frozen=True)
class Spec:
    """How a loader is set up at one moment: its attributes, and what follows from them.

    The loader fills it, for each pass and each question. It holds no collate_fn and no
    worker_init_fn: these may be methods of the loader, which must end with its last reference.
    """

    dataset: Any
    #: torch's attributes of these names; iterable-style data has a sampler without a meaning
    given_sampler: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    generator: Any
    workers: int
    prefetch_factor: int | None
    persistent: bool
    in_order: bool
    options: Options
    #: this rank, among those that share the data
    shard: Shard
    #: of a pass that goes on: the batch size that it began with, which drop_last holds to
    begun_size: int | None = None
    # Derived from these, and often asked.
    iterable: bool = field(init=False)
    #: workers go on living from epoch to epoch
    lives_on: bool = field(init=False)
    #: the sampler that gives the indices; None for iterable-style data
    sampler: Any = field(init=False)
    #: how indices become tasks
    grouping: Grouping = field(init=False)

    def __post_init__(self) -> None:
        facts, batch_sampler = vars(self), self.batch_sampler
        iterable = facts["iterable"] = isinstance(self.dataset, IterableDataset)
        facts["lives_on"] = self.persistent and self.workers > 0
        sampler = self.given_sampler
        if iterable:
            unit = Unit.SAMPLE if self.batch_size is None else Unit.SAMPLE_OF_BATCH
            sampler, grouping = None, Grouping(unit, self.batch_size or 1)
        elif batch_sampler is None:
            grouping = Grouping(Unit.SAMPLE, shard=self.shard)
        elif gathers_as_torch(batch_sampler):
            sampler, size = batch_sampler.sampler, batch_sampler.batch_size
            grouping = cast(Grouping, _LiveGrouping(batch_sampler, self.shard))
            if batch_sampler.drop_last:
                size = self.begun_size or size
                grouping = Grouping(Unit.SAMPLE_OF_BATCH, size, True, self.shard)
        else:
            sampler, grouping = batch_sampler, Grouping(Unit.BATCH, shard=self.shard)
        if self.shared:
            check_shared(sampler, self.shard, self.options.num_streams if iterable else None)
        facts.update(sampler=sampler, grouping=grouping)
        if self.equal_batches:
            check_lengths(self.dataset, self.shard.tail)

    # --- data ------------------------------------------------------------------------------------

    @cached_property
    def stateful(self) -> bool:
        """The dataset saves its own position."""
        return is_stateful(self.dataset)

    @cached_property
    def streamed(self) -> bool:
        """Streams with positions of their own serve the tasks."""
        return self.iterable or self.stateful

    @cached_property
    def streams(self) -> StreamShare:
        """The streams that serve a new epoch's tasks; none: any worker may take any task."""
        if not self.streamed:
            return StreamShare(ALONE, self.workers if self.workers_fixed else 0)
        shard = self.shard if self.iterable else ALONE  # otherwise the order is shared
        return StreamShare(shard, self.options.num_streams or (self.workers or 1) * shard.world)

    def stream_batches(self, total: int) -> list[int] | None:
        """By stream, of so many that all ranks have, its batches; None: their lengths are unknown.

        Raises:
            ValueError, TypeError: ``stream_length`` of the dataset gives no length.
        """
        lengths, size = stream_lengths(self.dataset, total), self.batch_size or 1
        if lengths is None:
            return None
        return [n // size if self.drop_last else -(-n // size) for n in lengths]

    @cached_property
    def batches(self) -> int | None:
        """Batches that each rank has in a new epoch; None: as many as its streams have."""
        found = self.stream_batches(self.streams.total) if self.equal_batches else None
        return None if found is None else self.streams.batches(found)

    @property
    def own_batches(self) -> int:
        """Batches of this rank in a new epoch of streams; TypeError: their lengths are unknown."""
        found = self.stream_batches(self.streams.total)
        if found is None:
            raise TypeError(f"object of type {type(self.dataset).__name__!r} has no len()")
        own = sum(found[at] for at in self.streams.own)
        return own if self.batches is None else self.batches

    @cached_property
    def equal_batches(self) -> bool:
        """Streams of several ranks, of which all are to have as many batches."""
        return self.iterable and self.shard.world > 1 and self.shard.tail != "uneven"

    def length(self, cursor: Cursor | None = None) -> int | None:
        """Indices of an epoch, that of a cursor or a new one; None if the sampler has no length."""
        if self.iterable:
            return None
        begun = length_in(cursor.order, self.sampler) if cursor and self.known else None
        return length_of(self.sampler) if begun is None else begun

    @property
    def is_distributed(self) -> bool:
        """Torch's DistributedSampler shares the data out."""
        return isinstance(self.sampler, DistributedSampler) and self.known

    @cached_property
    def shared(self) -> bool:
        """The data is shared by several ranks, or will be after a resume."""
        return self.options.shard is not None

    @cached_property
    def reads_copies(self) -> bool:
        """Else its one stream is the program's own dataset, which sees no ``get_worker_info()``."""
        given = self.options.num_streams is not None or (self.shared and self.iterable)
        return given or self.workers > 0

    @property
    def dataset_travels(self) -> bool:
        """A pickle holds the dataset that is read, as it is then."""
        return self.options.pickle_dataset and not self.reads_copies

    @property
    def rank(self) -> tuple[int, int]:
        """This rank, and the number of ranks."""
        return (self.shard.rank, self.shard.world) if self.shared else rank_and_world()

    # --- random numbers --------------------------------------------------------------------------

    @property
    def hooked(self) -> bool:
        """The program seeds generators of its own."""
        return bool(self.options.seed_hooks) or callable(self.options.seed_dataset)

    @property
    def seeds_generators(self) -> bool:
        """The loader seeds the generators that dataset and collate_fn own."""
        return self.options.seed_dataset == "auto" and self.options.seeding != "worker"

    # --- order -----------------------------------------------------------------------------------

    @cached_property
    def known(self) -> bool:
        """There is an order for samplers of this kind; a custom one has to be asked."""
        return self.iterable or is_known(self.sampler)

    @property
    def opened_by_loader(self) -> bool:
        """Torch's loader itself calls ``iter`` of the sampler; a BatchSampler does so later."""
        return not self.iterable and self.grouping.unit is not Unit.SAMPLE_OF_BATCH

    @cached_property
    def generators(self) -> dict[str, torch.Generator]:
        """The generators that the loader and its sampler were given; not torch's global one."""
        given = {"loader": self.generator, "sampler": getattr(self.sampler, "generator", None)}
        for name, each in tuple(given.items()):
            if each is None or each is torch.default_generator:
                del given[name]
        return given

    @cached_property
    def moves(self) -> set[str]:
        """The global generators that a pass may move, as sampler or dataset may draw from them."""
        in_torchs_way = self.options.seeding == "worker" and not self.workers
        return set(RNGS) if in_torchs_way or not self.known else set()

    @property
    def draws_unnoticed(self) -> bool:
        """Nobody can notice how far ahead of the consumer the sampler is drawn from.

        Samplers that are not torch's may notice. So may users who look at the generator that they
        gave, or use it for something else, unless its draws are over.
        """
        if self.generator is None and getattr(self.sampler, "generator", None) is None:
            return self.known
        return self.known and draws_at_once(self.sampler)

    def set_epoch_of_samplers(self, epoch: int) -> None:
        """Call set_epoch of the samplers that have it, once each."""
        for sampler in self._samplers():
            set_epoch_of(sampler, epoch)

    @property
    def sampler_has_epochs(self) -> bool:
        """A sampler has set_epoch."""
        return any(map(has_set_epoch, self._samplers()))

    def _samplers(self) -> Iterable[Any]:
        inner = getattr(self.batch_sampler, "sampler", None)
        samplers = (self.batch_sampler, self.given_sampler, inner)
        return {id(each): each for each in samplers}.values()

    @property
    def shows_draws(self) -> bool:
        """Later epochs depend on how often an epoch draws, or calls ``iter`` of the sampler."""
        return self.options.seed is None or not self.known

    @property
    def leaves_traces(self) -> bool:
        """A pass changes what later ones begin with: generators, sampler or dataset."""
        return self.shows_draws or self.streamed

    @property
    def draws_as(self) -> str | None:
        """How torch draws for an epoch: other workers, other draws; see `Cursor.draws_as`."""
        if not self.workers:
            return None
        return "persistent_workers" if self.persistent else "workers"

    # --- workers ---------------------------------------------------------------------------------

    @cached_property
    def workers_fixed(self) -> bool:
        """Each batch has a certain worker."""
        if self.streamed or self.options.seeding == "worker":
            return True
        return self.options.schedule == "round_robin"

    @property
    def has_worker_states(self) -> bool:
        """Each answer brings the generators of its worker."""
        return self.options.seeding == "worker" and self.workers > 0 and not self.iterable

    @property
    def remembers(self) -> bool:
        """The dataset has a state, or one within `ShuffleBuffer` and the like has."""
        return has_stateful(self.dataset)

    @property
    def asks_at_end(self) -> bool:
        """The last batches do not show what the next epoch begins with."""
        if self.workers and not self.lives_on:
            return False
        return (self.stateful and not self.iterable) or self.has_worker_states

    @property
    def asks_when_left(self) -> bool:
        """The state that an unfinished pass leaves in workers that live on has to be asked for."""
        if not self.lives_on or self.remembers:
            return False
        return self.iterable or self.has_worker_states

    def budget_for(self, choice: Any) -> tuple[int, int]:
        """The ``prefetch_budget`` to begin with, and how far it may grow; 0: not at all.

        Raises:
            ValueError, TypeError: it is neither "auto" nor a whole number from 1.
        """
        if not isinstance(choice, str):
            return whole_number("prefetch_budget", choice, 1), 0
        check_budget(choice)
        return 2 * self.workers, 8 * self.workers if self.draws_unnoticed else 0

    def policy(self) -> Policy:
        """The rules by which tasks are given to workers."""
        workers, options = self.workers, self.options
        if not workers:
            return Policy(lazy=True)
        choice = options.prefetch_budget or workers * (self.prefetch_factor or 1)
        budget, most = self.budget_for(choice)
        on_demand = options.prefetch_budget == 1 and not self.known
        return Policy(
            workers=workers,
            budget=budget,
            most=most,
            on_demand=on_demand,
            bytes=count_bytes(options.prefetch_bytes),
            in_order=self.in_order,
            most_deaths=options.max_task_deaths,
            moving=options.schedule == "balanced" and self.streamed,
        )

    # --- states ----------------------------------------------------------------------------------

    def samples(self, total: int) -> int | None:
        """Samples of the dataset, which has so many streams; None where they may be unknown."""
        if not self.iterable:
            return length_of(self.dataset)
        return sum(stream_lengths(self.dataset, total) or ()) if self.equal_batches else None

    def fingerprint(self, total: int | None = None) -> dict[str, Any]:
        """The properties that must be the same where a state is loaded.

        ``total`` is the number of streams of all ranks; None: as many as in a new pass.
        """
        sampler, options = self.sampler, self.options
        fits: dict[str, Any] = {
            "dataset_length": self.samples(self.streams.total if total is None else total),
            "sampler": ITERABLE if self.iterable else describe(sampler),
            "sampler_length": length_of(sampler) if self.known else None,
            "batch_size": self.grouping.batch_size,
            "batches_from": self.grouping.unit.value,
            "drop_last": bool(self.grouping.drop_last),
            "seeding": options.seeding,
            "seed": options.seed,
        }
        data = data_of(sampler)
        if data is not None:
            fits["sampler_checksum"] = checksum(data)
        if (length := source_length(sampler, fits["dataset_length"])) is not None:
            fits["source_length"] = length
        if self.is_distributed and (of_sampler := int(sampler.seed)):
            fits["sampler_seed"] = of_sampler
        if self.shared:
            fits |= {"world_size": self.shard.world, "shard_tail": self.shard.tail}
        if options.seeding == "worker":
            fits["num_workers"] = self.workers
        elif options.seed_dataset != "auto":
            fits["seed_dataset"] = "callable" if callable(options.seed_dataset) else "off"
        if self.streamed:
            fits["dataset"] = type(self.dataset).__qualname__
        return fits

    def unstarted(self, source: Source, moved: bool, live: bool = False) -> dict[str, Any]:
        """The memory of a sampler whose iteration is yet to begin, as a state holds it.

        ``moved``: an epoch may have changed it. ``live``: a pickle holds it, and so any object.
        """
        if not self.known:
            return memory(self.sampler, source, moved, live)
        epoch = getattr(self.sampler, "epoch", None)
        if epoch is None or not isinstance(epoch, int | np.integer):
            return {}
        return {"attributes": {"epoch": ["plain", int(epoch)]}}

    def attributes(self) -> Frozen:
        """The attributes of a custom sampler."""
        return {} if self.known else freeze(self.sampler, self.dataset)

    def remaining(self, cursor: Cursor) -> int | None:
        """Batches that a position leaves to be delivered; None where the sampler has no length."""
        if cursor.batches is not None:
            return max(0, cursor.batches - cursor.step)
        length = self.length(cursor)
        if length is None:
            return None
        order = SequenceOrder(lambda: range(length))
        plan = Plan(order, self.grouping, cursor.next_step, cursor.position)
        return (plan.remaining() or 0) + len(cursor.window)

    def is_over(self, cursor: Cursor) -> bool:
        """No rank has a batch left: all of them begin the next epoch, or none does."""
        shard = replace(self.shard, rank=0)  # which has the most
        return replace(self, shard=shard).remaining(cursor) == 0

    def at_the_end(self, cursor: Cursor) -> bool:
        """All batches of an epoch were delivered."""
        # a rank whose streams have given nothing is at the end, too, if all ranks are
        return (cursor.step > 0 or cursor.batches == 0) and self.is_over(cursor)

    def epoch_and_step(self, cursor: Cursor, at_epoch_end: str) -> tuple[int, int]:
        """Epoch and step at which the loader goes on from a saved cursor."""
        if at_epoch_end == "next" and self.at_the_end(cursor):
            return (cursor.epoch + 1 if cursor.next_epoch is None else cursor.next_epoch), 0
        return cursor.epoch, cursor.step
