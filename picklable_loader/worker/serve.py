"""The worker: takes tasks from a channel, answers each one, until the channel ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import worker as torch_worker

from ..core.task import Task
from ..datapipes import seeded
from ..randomness import RNGS, capture_all
from ..transport.frames import Answer, Begin, Outcome, Request, read_request
from ..transport.lines import Channel
from .collate import collate_into
from .fetch import Fetcher, Job, StreamEnded, make_fetcher, tell_epoch
from .seeding import set_current

__all__ = ["Post", "serve"]


@dataclass(frozen=True, slots=True)
class Post:
    """A worker's place among the others."""

    worker: int
    workers: int
    #: what torch seeds the worker's generators from, together with its number
    base_seed: int
    worker_init_fn: Callable[[int], object] | None = None
    #: DataPipes: the seed that all workers share, for the first epoch
    shared_seed: int | None = None
    #: the epoch that the dataset was told before the worker was given its copy
    announced: int | None = None


def serve(channel: Channel, job: Job, post: Post) -> None:
    """Answer requests until the other end of the channel is closed."""
    torch.set_num_threads(1)
    collate_into(channel.allocate)
    worker = _Worker(job, post)
    done_ns: int | None = None
    while True:
        try:
            frame = channel.receive()
        except EOFError:
            return
        began_ns = time.perf_counter_ns()
        answer = worker.answer(read_request(frame))
        answer.idle_ns = 0 if done_ns is None else began_ns - done_ns
        channel.send(answer, began_ns)
        done_ns = time.perf_counter_ns()


class _Worker:
    """The state of a worker: its copy of the dataset and the epoch it is in."""

    def __init__(self, job: Job, post: Post) -> None:
        if post.shared_seed is not None:
            job = replace(job, dataset=seeded(job.dataset, post.shared_seed))
        self._job = job
        self._post = post
        self._where = f"in DataLoader worker process {post.worker}"
        self._fetcher: Fetcher | None = None
        #: the loader's run that the worker has begun
        self._run: int | None = None
        #: the epoch that its copy of the dataset was told
        self._announced = post.announced
        #: what went wrong at the start: the answer to the next request, as in torch
        self._trouble: ExceptionWrapper | None = None
        self._seed()
        info = torch_worker.WorkerInfo(
            id=post.worker,
            num_workers=post.workers,
            seed=post.base_seed + post.worker,
            dataset=job.dataset,
        )
        torch_worker._worker_info = info
        try:
            if post.worker_init_fn is not None:
                post.worker_init_fn(post.worker)
        except Exception:
            self._trouble = ExceptionWrapper(where=self._where)

    def answer(self, request: Request) -> Answer:
        """Do what is asked; no exception of people's code leaves this."""
        if request.begin is not None and request.run != self._run:
            self._run = request.run
            self._begin(request.begin)
        outcome, payload = self._fetch(request.task)
        states = None
        if self._job.seeding == "worker" and outcome is not Outcome.ENDED:
            states = capture_all()
        return Answer(request.run, request.task.step, self._post.worker, outcome, payload, states)

    def _fetch(self, task: Task) -> tuple[Outcome, Any]:
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            return Outcome.FAILED, trouble
        try:
            assert self._fetcher is not None, "the worker could not begin"
            return Outcome.ARRIVED, self._fetcher.fetch(task)
        except StreamEnded:
            return Outcome.ENDED, None
        except Exception:
            return Outcome.FAILED, ExceptionWrapper(where=self._where)

    def _begin(self, begin: Begin) -> None:
        try:
            if begin.shared_seed is not None:
                self._job = replace(self._job, dataset=seeded(self._job.dataset, begin.shared_seed))
            if begin.announced not in (None, self._announced):
                self._announced = begin.announced
                tell_epoch(self._job.dataset, begin.announced)
            for name, state in (begin.states or {}).items():
                RNGS[name].restore(state)
            self._fetcher = make_fetcher(self._job, begin.base_seed, self._post.worker)
        except Exception:
            self._trouble = self._trouble or ExceptionWrapper(where=self._where)

    def _seed(self) -> None:
        """Seed as torch seeds its workers."""
        base, worker = self._post.base_seed, self._post.worker
        random.seed(base + worker)
        torch.manual_seed(base + worker)
        np.random.seed(torch_worker._generate_state(base, worker))
        set_current(base + worker)
        if self._job.seeding == "worker":
            for hook in self._job.seed_hooks:
                hook(base + worker)
