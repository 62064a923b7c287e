"""One copy of the dataset, which serves a stream as one of torch's workers would.

A worker has one replica, or several if there are more streams than workers; ``num_workers=0`` has
one as well. People's code in it finds the number of its stream, and the number of streams, in
torch's ``get_worker_info()``.
"""

from __future__ import annotations

import copy
import random
import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from ...core.events import Arrived, Emptied, Ended, Failed
from ...core.streams import StreamPosition
from ...core.task import Task
from ...datasets.datapipes import seeded
from ...datasets.protocol import tell_epoch
from ...errors import StreamError, UsageError
from ...rng.current import set_current
from ...rng.generators import RNGS
from ..transport.messages import Answer, EpochStart
from .baseline import FirstBaseline
from .fetch import Fetcher, Job, StreamEnded, make_fetcher
from .on_error import NothingLeft
from .stream_state import Cadence, Marker


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of one worker: its number, its seeds, and who else there is."""

    worker: int
    workers: int
    #: what torch seeds the worker's generators from, together with its number
    base_seed: int
    worker_init_fn: Any = None
    #: DataPipes: the seed that all workers share, for the first epoch
    shared_seed: int | None = None
    #: the epoch that was set on the dataset before the worker was given its copy
    announced: int | None = None
    #: how many streams there are; None: each worker is one
    streams: int | None = None
    #: it is this process (``num_workers=0``)
    here: bool = False

    @property
    def where(self) -> str:
        """The worker, as torch names it in an error."""
        return f"in DataLoader worker process {self.worker}"


class Replica:
    """One copy of the dataset, and what is fetched from it.

    Args:
        job: what to do with tasks; its dataset is this copy.
        config: the worker's.
        number: of the stream, which torch's worker would have.
        bare: nothing tells the dataset that it is one of several (``num_workers=0``).
        shared: it is the program's own, which is pickled with the loader.
        origin: it as it was before the loader's first epoch, if it is the program's own.
    """

    def __init__(
        self,
        job: Job,
        config: WorkerConfig,
        number: int,
        bare: bool = False,
        shared: bool = False,
        origin: FirstBaseline | None = None,
    ) -> None:
        if config.shared_seed is not None:
            job = replace(job, dataset=seeded(job.dataset, config.shared_seed))
        self._job = job
        self._config = config
        self._number = number
        self._shared = shared
        self._origin = origin
        self._fetcher: Fetcher | None = None
        #: the epoch that was set on its copy of the dataset
        self._announced = config.announced
        self._marker: Marker | None = None
        self._info: torch_worker.WorkerInfo | None = None
        if not bare:
            streams = config.workers if config.streams is None else config.streams
            seed = config.base_seed + number
            self._info = torch_worker.WorkerInfo(
                id=number, num_workers=streams, seed=seed, dataset=job.dataset
            )

    def enter(self) -> None:
        """From now on people's code finds itself here."""
        torch_worker._worker_info = self._info

    def start(self) -> None:
        """Do what torch's worker does when it starts; raises what ``worker_init_fn`` raises."""
        self.enter()
        self._seed()
        if self._config.worker_init_fn is not None:
            self._config.worker_init_fn(self._number)
        job = self._job
        if job.lives_on and job.iterable:
            self._origin = FirstBaseline(job.dataset, job.by_value)

    def begin(self, begin: EpochStart, place: StreamPosition | None) -> None:
        """An epoch begins, or goes on from a place.

        Raises:
            StreamError: it cannot go on from there.
            Exception: what the dataset raises.
        """
        self.enter()
        self._tell(begin, self._announced)
        job = self._job
        if place is None or place.mark is not None or not place.given:
            for name, state in (begin.states or {}).items():
                RNGS[name].restore(state)
        if not job.streamed:
            self._fetcher = make_fetcher(job, begin.base_seed)
            return
        self._cadence = Cadence(job.mark_every)
        seeding, by_value = job.seeding, job.by_value
        self._marker = Marker(
            job.dataset,
            self._number,
            job.iterable,
            seeding,
            by_value,
            self._shared,
            self._origin,
            partial(self._tell, begin),
        )
        if place is None:
            opened = partial(self._marker.open, None)
            self._fetcher = make_fetcher(job, begin.base_seed, self._number, opened)
        else:
            self._go_on(begin, place)

    def _tell(self, begin: EpochStart, announced: int | None = None) -> None:
        """Set the epoch, and the seed that DataPipes share, on the dataset.

        Args:
            begin: the epoch.
            announced: the one that the dataset has.
        """
        dataset = self._job.dataset
        if begin.shared_seed is not None:
            dataset = seeded(dataset, begin.shared_seed)
            self._job = replace(self._job, dataset=dataset)
        if begin.announced in (None, announced):
            return
        self._announced = begin.announced
        if self._origin is None:
            tell_epoch(dataset, begin.announced)
        else:
            self._origin.tell(begin.announced)

    def answer(self, run: int, task: Task, began_ns: int) -> Answer:
        """Do a task. What people's code raises is the answer, but for what ends this process.

        Args:
            run: number of the run that asks.
            task: the task.
            began_ns: when its work began, by ``time.perf_counter_ns``.
        """
        torch_worker._worker_info = self._info
        assert self._fetcher is not None, "the worker could not begin"
        whose = run, task.step, self._config.worker
        try:  # no local variable holds an error: its traceback would hold this frame, and that it
            batch = self._fetcher.fetch(task)
        except StreamEnded:
            return Answer(*whose, Ended, None, None, self.last_mark())
        except NothingLeft as none:
            return Answer(*whose, Emptied, none.skipped, None, self._mark_if_due(began_ns))
        except BaseException as error:
            here = self._config.here
            if isinstance(error, KeyboardInterrupt) if here else not isinstance(error, Exception):
                raise
            mark = self._mark_if_due(began_ns, failed=True)
            wrapped = None if here else ExceptionWrapper(where=self._config.where)
            return Answer(*whose, Failed, wrapped or error, None, mark)
        mark = None if self._marker is None else self._mark_if_due(began_ns)
        return Answer(*whose, Arrived, batch, None, mark)

    def _mark_if_due(self, began_ns: int, failed: bool = False) -> Any:
        """The stream's mark, if one is due after a batch that was begun then.

        One is always due after a batch that failed: what fails in a replay is then no repetition.
        """
        if self._marker is None or self._fetcher is None:
            return None
        now_ns = time.perf_counter_ns()
        due = self._cadence.due(now_ns - began_ns)
        if not (due or failed or self._fetcher.ended):
            return None
        # An incomplete batch is the last one; its dataset may have begun anew already.
        mark = self._mark(self._fetcher.ended)
        self._cadence.taken(time.perf_counter_ns() - now_ns)
        return mark

    def mark_sent(self, cost_ns: int) -> None:
        """Note what it has cost to send a batch with a mark."""
        self._cadence.sent(cost_ns)

    def first_mark(self, begins: bool) -> Any:
        """The stream's mark at the beginning of the epoch; None: it is not known."""
        mark = self._mark(over=False) if begins else None
        return self._marker.beginning if mark is None and self._marker is not None else mark

    def last_mark(self) -> Any:
        """The state in which the next epoch finds the dataset."""
        return self._mark(over=True)

    def _mark(self, over: bool) -> Any:
        if self._marker is None or self._fetcher is None:
            return None
        return self._marker.take(self._fetcher.iterator, over, self._fetcher.fresh)

    def _go_on(self, begin: EpochStart, place: StreamPosition) -> None:
        assert self._marker is not None
        begun = place.ended or place.marked > 0  # otherwise it is of the epoch before
        opened, seed = partial(self._marker.open, place.mark, begun), begin.base_seed
        try:
            self._fetcher = make_fetcher(self._job, seed, self._number, opened, place.marked)
        except Exception as error:
            raise self._refusal(f"{type(error).__name__}: {error}") from error
        self._fetcher.ended = self._marker.over
        again = repeat(_again(self._job), place.given - place.marked)
        for task in again if self._job.iterable else place.since:
            self._fetch_again(task, place)

    def _fetch_again(self, task: Task, place: StreamPosition) -> None:
        assert self._fetcher is not None
        try:
            self._fetcher.fetch(task)
        except StreamEnded:
            raise self._refusal(
                f"it ended before batch {place.given}, which it had given when it was saved"
            ) from None
        except NothingLeft:
            return  # there was no batch then, either
        except Exception as error:
            if place.mark is not None:
                text = f"fetched again, a batch raises {type(error).__name__}: {error}"
                raise self._refusal(text) from error
            # Without marks nobody knows what had failed already, and was told then.

    def _refusal(self, reason: str) -> StreamError:
        return StreamError(self._number, type(self._job.dataset).__qualname__, reason)

    def _seed(self) -> None:
        """Seed as torch seeds its workers."""
        base, number = self._config.base_seed, self._number
        random.seed(base + number)
        torch.manual_seed(base + number)
        np.random.seed(torch_worker._generate_state(base, number))
        set_current(base + number)
        if self._job.seeding == "worker":
            for hook in self._job.seed_hooks:
                hook(base + number)


class Copies:
    """Copies of a job, each with a dataset of its own.

    Args:
        job: the job; its dataset goes to the first who asks, if there will be one only.
        several: there will be more.
    """

    def __init__(self, job: Job, several: bool) -> None:
        self._job = job
        self._several = several

    def next(self) -> Job:
        """One that is the caller's own.

        Raises:
            UsageError: the dataset cannot be copied.
        """
        if not self._several:
            return self._job
        try:
            return replace(self._job, dataset=copy.deepcopy(self._job.dataset))
        except Exception as error:  # whatever people's __reduce__ or __deepcopy__ raises
            name = type(self._job.dataset).__qualname__
            raise UsageError(
                f"the dataset {name} cannot be copied ({type(error).__name__}: {error}), and a "
                "process that has several streams needs a copy for each: use at least as many "
                "workers as there are streams"
            ) from error


def _again(job: Job) -> Task:
    return Task(0, [None] * job.batch_size if job.batched else None, 0)
