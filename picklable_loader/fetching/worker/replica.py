"""One copy of the dataset, which serves a stream as one of torch's workers would.

A worker has one replica, or several if there are more streams than workers; ``num_workers=0`` has
one as well. People's code in it finds the number of its stream, and the number of streams, in
torch's ``get_worker_info()``.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from ...core.events import Arrived, Emptied, Ended, Failed
from ...core.shard import ALONE, StreamShare
from ...core.streams import Seen, StreamPosition
from ...core.task import Task
from ...datasets.datapipes import seeded
from ...errors import StreamError, UsageError
from ...rng.current import set_current
from ...rng.generators import GLOBAL, restore_all
from ..transport.messages import Answer, EpochStart
from .batch_checksum import batch_checksum, is_other
from .cadence import Cadence
from .collected import Collected
from .dataset_epoch import DatasetEpoch
from .feedback import with_feedback
from .fetch import (
    Fetcher,
    IterableFetcher,
    Job,
    StreamEnded,
    converted,
    hooks_of,
    make_fetcher,
    owned_by,
    parts_of,
)
from .first_baseline import FirstBaseline
from .on_error import NothingLeft
from .position_proof import PositionProof
from .stream_state import StreamSaver


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of one worker: its number, its seeds, and who else there is."""

    worker: int
    workers: int
    #: what torch seeds the worker's generators from, together with its number
    base_seed: int
    worker_init_fn: Any = None
    #: by number of the stream, what it is given in addition; None: nothing
    init_args: Mapping[int, Any] | None = None
    #: DataPipes: the seed that all workers share, for the first epoch
    shared_seed: int | None = None
    #: the epoch that was set on the dataset before the worker was given its copy
    announced: int | None = None
    #: the streams that these workers serve; None: each worker is one
    streams: StreamShare | None = None
    #: it is this process (``num_workers=0``)
    here: bool = False
    #: then, the dataset as it was before the loader's first epoch, if somebody needs that
    origin: FirstBaseline | None = None
    #: each stream reads a copy of the dataset that none has read before: it may be read again
    copies: bool = False
    #: the program's: a spawned process has float32, and `torch.tensor(0.5)` another type there
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    @property
    def served(self) -> StreamShare:
        """The streams that these workers serve, also if each is one."""
        return self.streams or StreamShare(ALONE, self.workers)

    @property
    def several(self) -> bool:
        """This process has several streams, each with a copy of the dataset."""
        return len(self.served) > self.workers or self.copies

    @property
    def may_serve(self) -> range:
        """The numbers of the streams that this worker may come to read."""
        own = self.served.own
        if self.copies:  # it may read streams of other ranks, once its own have ended
            return range(self.served.total)
        # With more streams than workers, a stream may move to another worker.
        return own if len(own) > self.workers else own[self.worker : self.worker + 1]

    @property
    def where(self) -> str:
        """The worker, as torch names it in an error."""
        return f"in DataLoader worker process {self.worker}"


class Replica:
    """The job's dataset, or a copy of it if there are several, and what is fetched from it.

    Args:
        index: of the stream. Its number among all ranks' is what torch's worker would have.

    Raises:
        UsageError: the dataset cannot be copied.
    """

    def __init__(self, job: Job, config: WorkerConfig, index: int) -> None:
        if config.several:
            job = _with_own_copy(job)
        if config.shared_seed is not None:
            seeded(job.dataset, config.shared_seed)
        self._job = job
        self._config = config
        served = config.served
        number = self._number = served.number(index)
        #: it is the program's own, which is pickled with the loader
        self._shared = config.here and not config.several
        origin = config.origin if self._shared else None
        self._epoch = DatasetEpoch(job.dataset, config.announced, origin)
        self._fetcher: Fetcher | None = None
        self._saver: StreamSaver | None = None
        #: the state at the epoch's beginning, where the stream came to it from the one before
        self._first: Any = None
        parts = parts_of(job.dataset, job.collate_fn, job.convert, job.on_error)
        if job.streamed:
            del parts["dataset"]  # its state, or a replay, has what it collects
        #: looks at the first batches; None once it has
        self._collected: Collected | None = Collected(parts)
        self._paths: tuple[str, ...] = ()  # what it has found
        #: its stream has no state, and can only be replayed
        self._replayed = False
        #: a batch that was fetched again was another one than before
        self._differs = False
        self._proof = PositionProof(job.dataset)
        seed = config.base_seed + number
        info = torch_worker.WorkerInfo(
            id=number, num_workers=served.total, seed=seed, dataset=job.dataset
        )
        self._info = info
        #: the same, in an epoch in which people's code sees it
        self._shown: torch_worker.WorkerInfo | None = info

    def start(self) -> None:
        """Do what torch's worker does when it starts; raises what ``worker_init_fn`` raises."""
        torch_worker._worker_info = self._info
        seed = self._config.base_seed + self._number
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(torch_worker._generate_state(self._config.base_seed, self._number))
        set_current(seed)
        if self._job.seeding == "worker":
            for hook in hooks_of(self._job, owned_by(self._job)):
                hook(seed)
        if self._config.worker_init_fn is not None:
            given = self._config.init_args
            more = () if given is None else (given[self._number],)
            self._config.worker_init_fn(self._number, *more)
        job = self._job
        if job.lives_on and job.iterable:
            self._epoch.origin = FirstBaseline(job.dataset, job.by_value)

    def begin(self, begin: EpochStart, position: StreamPosition | None) -> None:
        """Begin an epoch, or go on from a position in it.

        Raises:
            StreamError: it cannot go on from there.
            Exception: what the dataset raises.
        """
        torch_worker._worker_info = self._shown = self._info if begin.worker_info else None
        self._epoch.begin(begin)
        job, seed = self._job, begin.base_seed
        self._replayed = False
        # `begin.states` are of now; a replay of the whole epoch draws from where that began
        if position is None or position.state is not None or not position.given:
            restore_all(begin.states or {})
        if not job.streamed:
            self._fetcher = make_fetcher(job, seed)
            return
        since = 0 if position is None else position.given - position.state_at
        given = 0 if position is None else position.given
        self.cadence = Cadence(job.mark_every, since, given)
        whose_state = self._number, self._shared, self._epoch, self._proof
        self._saver = saver = StreamSaver(job, *whose_state)
        self._first = None
        if position is None:
            self._fetcher = make_fetcher(job, seed, self._number, partial(saver.open, None, False))
            if isinstance(self._fetcher, IterableFetcher):
                self._proof.begin(self._fetcher.iterator)
                self._fetcher.proof = self._proof if self._proof.samples else None
            return
        begun = position.ended or position.state_at > 0  # otherwise it is of the epoch before
        opened = partial(saver.open, position.state, begun)
        try:
            # It may find its position by reading what was delivered: its feedback was, too.
            whose_stream = job, seed, self._number, opened, position.state_at
            self._fetcher = with_feedback(make_fetcher, *whose_stream)[0]
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, AttributeError) and "__main__'" in text:
                text += '. A class that only a script has travels with codec="cloudpickle"'
            raise self._refusal(text) from error
        self._fetcher.ended = saver.over
        # Before batches are fetched again. Only this process is asked for it.
        first = saver.from_last_epoch and self._config.here
        self._first = self.take_state(over=False) if first else None
        task = Task(0, [None] * job.batch_size if job.batched else None, 0)
        again = repeat(task, since)
        tasks = again if job.iterable else position.since
        for number, task in enumerate(tasks, position.state_at + 1):
            self._fetch_again(task, position, number)

    @property
    def from_last_epoch(self) -> bool:
        """Its stream was at the end of the epoch before, and has begun the one at hand."""
        return self._saver is not None and self._saver.from_last_epoch

    def answer(self, run: int, task: Task, began_ns: int) -> Answer:
        """Do a task. An exception of people's code is the answer, unless it ends this process."""
        torch_worker._worker_info = self._shown
        fetcher = self._fetcher
        assert fetcher is not None, "the worker could not begin"
        whose = run, task.step, self._config.worker
        collected = self._collected
        if collected is not None:
            collected.begin()
        try:  # no local variable holds an error: its traceback would hold this frame, and that it
            batch, notes = self._fetched(task)
        except StreamEnded:
            return Answer(*whose, Ended, None, None, self.take_state(over=True))
        except NothingLeft as none:
            return Answer(*whose, Emptied, none.skipped, None, self._state_if_due(began_ns))
        except Exception as error:  # Ctrl-C and sys.exit(), as in a signal's handler, are none
            _explain_cuda(error)
            state = self._state_if_due(began_ns, failed=True)
            wrapped = None if self._config.here else ExceptionWrapper(where=self._config.where)
            return Answer(*whose, Failed, wrapped or error, None, state)
        state = None if self._saver is None else self._state_if_due(began_ns, batch=batch)
        if collected is not None:
            self._paths = collected.end(task.indices)
            self._collected = collected if collected.looks else None
        differs, self._differs = self._differs, False
        some = fetcher.made or self._paths or differs
        found = (fetcher.made, self._paths, differs) if some else ()
        return Answer(*whose, Arrived, batch, None, state, notes=notes, found=found)

    def _fetched(self, task: Task) -> tuple[Any, Any]:
        """A task's batch, and the feedback that comes with it."""
        fetcher = self._fetcher
        assert fetcher is not None
        # `convert` may draw from a generator that the dataset draws from as well.
        return with_feedback(lambda: converted(fetcher.fetch(task), self._job))

    def _state_if_due(self, began_ns: int, failed: bool = False, batch: Any = None) -> Any:
        """The stream's state, if one is due after a batch that was begun then.

        Of a stream that can only be replayed, the batch's checksum.

        One is always due after a batch that failed: what fails in a replay is then no repetition.
        """
        if self._saver is None or self._fetcher is None:
            return None
        now_ns = time.perf_counter_ns()
        due = self.cadence.due(now_ns - began_ns) or failed or self._fetcher.ended
        unsaved = not due and self._saver.finds_unsaved(self._fetcher.iterator)
        # Where one is taken every so many batches, a replay is exact until then.
        if not (due or (unsaved and self._job.mark_every is None)):
            return self._seen(batch)
        # An incomplete batch is the last one; its dataset may have begun anew already.
        state = self.take_state(self._fetcher.ended)
        # With seeding="worker" the program's generators may be elsewhere when batches are dropped.
        disturbed = self._config.here and self._job.seeding == "worker"
        self._replayed = state is None and not disturbed
        self.cadence.taken(time.perf_counter_ns() - now_ns)
        return self._seen(batch) if state is None else state

    def _seen(self, batch: Any) -> Seen | None:
        """A batch's checksum, if its stream can only be replayed, and it is one to compare."""
        due = self._replayed and self.cadence.compared and batch is not None
        return Seen(batch_checksum(batch)) if due else None

    def first_state(self, begins: bool) -> Any:
        """The stream's state at the beginning of the epoch; None: it is not known."""
        state = self.take_state(over=False) if begins else self._first
        return state if self._saver is None else self._saver.first(state, begins or bool(state))

    def take_state(self, over: bool) -> Any:
        """The stream's state now; ``over``: the state in which the next epoch finds the dataset."""
        if self._saver is None or self._fetcher is None:
            return None
        fetcher = self._fetcher
        return self._saver.take(fetcher.iterator, over, fetcher.fresh, fetcher.drew)

    def _fetch_again(self, task: Task, position: StreamPosition, number: int) -> None:
        assert self._fetcher is not None
        try:
            batch, _ = self._fetched(task)  # it was delivered, and so was its feedback
            if position.seen is not None and position.seen[0] == number:
                self._differs = is_other(batch, position.seen[1])
        except StreamEnded:
            raise self._refusal(
                f"it ended before batch {position.given}, which it had given when it was saved"
            ) from None
        except NothingLeft:
            return  # there was no batch then, either
        except Exception as error:
            if position.state is not None:
                text = f"fetched again, a batch raises {type(error).__name__}: {error}"
                raise self._refusal(text) from error
            # Without states nobody knows what had failed already, and was raised then.

    def _refusal(self, reason: str) -> StreamError:
        return StreamError(self._number, type(self._job.dataset).__qualname__, reason)


#: parts of torch's texts, where a forked process uses CUDA: by itself, and by pin_memory
_IN_A_FORK = "re-initialize CUDA in forked"
_INITIALIZING = "CUDA error: initialization error"
_WAY_OUT = (
    'Pass multiprocessing_context="spawn" or "forkserver" to the DataLoader; or have the dataset '
    'return tensors in main memory, and pass to_device="cuda". A loader within the dataset needs '
    "pin_memory=False"
)
#: what torch raises then; AcceleratorError is new in torch 2.8
_CUDA_ERRORS = {RuntimeError, getattr(torch, "AcceleratorError", RuntimeError)}


def _explain_cuda(error: BaseException) -> None:
    """Add the way out to torch's error of a forked process that uses CUDA."""
    if type(error) not in _CUDA_ERRORS:  # the text of any other may be people's code
        return
    match error.args:
        case (str(text), *rest) if _IN_A_FORK in text or (
            # a driver that fails has this text as well, also in a spawned worker
            _INITIALIZING in text
            and torch.cuda._is_in_bad_fork()
        ):
            error.args = (f"{text}. {_WAY_OUT}", *rest)


def _with_own_copy(job: Job) -> Job:
    try:
        memo = {id(each): each for each in GLOBAL.values()}
        return replace(job, dataset=copy.deepcopy(job.dataset, memo))
    except Exception as error:  # whatever people's __reduce__ or __deepcopy__ raises
        name = type(job.dataset).__qualname__
        raise UsageError(
            f"the dataset {name} cannot be copied ({type(error).__name__}: {error}), and a "
            "process that has several streams needs a copy for each: use at least as many "
            'workers as there are streams, and with shard= shard_tail="uneven"'
        ) from error
