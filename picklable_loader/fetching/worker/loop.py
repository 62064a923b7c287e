"""The loop of a worker: it takes tasks from a channel and answers each, until the channel ends."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from ...core.events import Failed, LastState
from ...errors import StreamError
from ...rng.generators import capture_all, use_mersenne_twister
from ..transport.channels import Channel
from ..transport.messages import Answer, Request, read_request
from .collate import collate_into
from .fetch import Job
from .replica import Replica, WorkerConfig


def serve(channel: Channel, job: Job | Exception, config: WorkerConfig) -> None:
    """Answer requests until the other end of the channel is closed.

    An exception in place of the job is the answer to all of them.
    """
    torch.set_num_threads(1)
    use_mersenne_twister()
    collate_into(channel.allocate)
    worker = None if isinstance(job, Exception) else _Worker(job, config)
    done_ns: int | None = None
    while True:
        try:
            message = channel.receive()
        except EOFError:
            return
        began_ns = time.perf_counter_ns()
        request = read_request(message)
        task = request.task
        channel.note(request.ticket)
        if worker is None:
            number = task if isinstance(task, int) else task.step
            answer = Answer(request.run, number, config.worker, None, job)
        else:
            answer = worker.answer(request)
        answer.ticket = request.ticket
        answer.idle_ns = 0 if done_ns is None else began_ns - done_ns
        sending_ns = time.perf_counter_ns()
        channel.send(answer, began_ns)
        done_ns = time.perf_counter_ns()
        if answer.stream_state is None or isinstance(task, int) or task.stream is None:
            continue
        if worker is not None:
            worker.replicas[task.stream].cadence.sent(done_ns - sending_ns)


class _Worker:
    """The state of a worker: its copies of the dataset, and the epoch that each is in."""

    def __init__(self, job: Job, config: WorkerConfig) -> None:
        self._job = job
        self._config = config
        streams = self._own = len(config.served)
        self.replicas: dict[int, Replica] = {}
        #: by stream, the loader's run that it has begun
        self._runs: dict[int, int] = {}
        #: by stream that could not start, begin the epoch, or go on: the answer to all that is
        #: asked of it, as kind, payload and ``started``
        self._failed: dict[int, tuple[type[Failed] | None, Any, bool]] = {}
        for stream in range(config.worker, streams, config.workers):
            self._start(stream)

    def answer(self, request: Request) -> Answer:
        """Do what is asked; no exception of people's code leaves this."""
        task, run, worker = request.task, request.run, self._config.worker
        number, stream = (task, task) if isinstance(task, int) else (task.step, task.stream)
        if stream is None:
            stream = worker
        if stream not in self.replicas and stream not in self._failed:
            self._start(stream)
        began_ns = time.perf_counter_ns()
        self._begin(stream, request)
        failed = self._failed.get(stream)
        if failed is not None:
            kind, payload, started = failed
            if isinstance(task, int) and kind is Failed:  # it leaves no state
                answer = Answer(run, number, worker, LastState, None)
            else:
                answer = Answer(run, number, worker, kind, payload, started=started)
        elif isinstance(task, int):
            state = self.replicas[stream].take_state(over=True)
            answer = Answer(run, number, worker, LastState, None, None, state)
        else:
            answer = self.replicas[stream].answer(run, task, began_ns)
        if self._job.seeding == "worker" and not self._job.iterable:
            answer.states = capture_all()
        return answer

    def _start(self, stream: int) -> None:
        self.replicas.pop(stream, None)
        try:
            replica = Replica(self._job, self._config, stream)
            replica.start()
            self.replicas[stream] = replica
        except Exception:
            self._failed[stream] = Failed, ExceptionWrapper(where=self._config.where), False

    def _begin(self, stream: int, request: Request) -> None:
        """Have a stream begin the epoch, unless it has, or has failed to."""
        begun = self._runs.get(stream)
        if request.begin is None or (request.position is None and request.run == begun):
            return  # with a position it comes back from another worker
        if stream >= self._own and begun not in (None, request.run):
            self._start(stream)  # it was read again in an earlier epoch: its dataset is not fresh
        if stream not in self.replicas:
            return  # it could not start
        self._runs[stream] = request.run
        self._failed.pop(stream, None)
        try:
            self.replicas[stream].begin(request.begin, request.position)
        except StreamError as error:  # tasks may have been queued behind this one
            self._failed[stream] = None, error, True
        except Exception:
            self._failed[stream] = Failed, ExceptionWrapper(where=self._config.where), True
