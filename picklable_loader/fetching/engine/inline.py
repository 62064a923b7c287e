"""The engine that fetches in this process (``num_workers=0``)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any, TypeVar

from torch.utils.data._utils import worker as torch_worker

from ...core.events import Answered, Ended, LastState
from ...core.streams import StreamPosition, StreamStates
from ...core.task import Task
from ...rng.current import run_apart
from ...rng.generators import capture_all, restore_all
from ..transport.messages import Answer, EpochStart
from ..worker.collate import collate_here
from ..worker.fetch import Job
from ..worker.replica import Replica, WorkerConfig
from .deaths import DeathCount
from .stats import Clocks, WorkerStats

_T = TypeVar("_T")


class InlineEngine:
    """Fetches in this process, when it is waited for.

    ``isolation`` makes the context in which people's code runs; ``before_batch`` is called in it
    with the step of each batch.
    """

    timed_out = renewed = False
    worker_states: dict[str, Any] = {}
    deaths = DeathCount(0)

    def __init__(
        self,
        job: Job,
        config: WorkerConfig,
        isolation: Callable[[], AbstractContextManager[Any]],
        before_batch: Callable[[int], None] | None,
    ) -> None:
        self._isolation = isolation
        self._before_batch = before_batch
        self._tasks: deque[Task] = deque()
        #: streams whose last states are asked for
        self._asked: deque[int] = deque()
        self.answers: dict[int, Answer] = {}
        self._seed = 0
        self.clocks = Clocks(1)
        self._job, self._config = job, config
        #: later ones are read again, after their epoch's end, for this epoch only
        self._own = len(config.served)
        self._replicas = {n: Replica(job, config, n) for n in range(self._own)}
        self._opening: tuple[EpochStart, dict[int, StreamPosition]] = EpochStart(0), {}
        #: there is one stream, and torch's worker information does not show it
        self._bare = self._started = config.streams is None

    def begin(
        self, begin: EpochStart, states: dict[str, Any], positions: dict[int, StreamPosition]
    ) -> StreamStates:
        self._tasks.clear()
        self._asked.clear()
        self.answers.clear()
        self._seed = begin.base_seed
        return self._inside(self._begin, begin, positions)

    def send(self, worker: int | None, task: Task, position: StreamPosition | None = None) -> None:
        self._tasks.append(task)

    def ask(self, worker: int, stream: int, position: StreamPosition | None = None) -> None:
        self._asked.append(stream)

    def wait(self) -> Answered | LastState:
        if self._asked:
            state = self._inside(self._replicas[self._asked[0]].take_state, True)
            return LastState(self._asked.popleft(), state)
        # The task is removed only when it is done: Ctrl-C loses nothing.
        task = self._tasks[0]
        began_ns = perf_counter_ns()
        answer = self._inside(self._answer, task, began_ns)
        answer.busy_ns = busy_ns = perf_counter_ns() - began_ns
        ended = answer.kind is Ended
        self.clocks.answered(0, busy_ns, ended=ended)
        self._tasks.popleft()
        if not ended:
            self.answers[task.step] = answer
        return answer.event()

    def look(self) -> Sequence[Answered]:
        return ()

    def workers(self) -> tuple[WorkerStats, ...]:
        return self.clocks.stats([os.getpid()])

    def close(self) -> None:
        self._tasks.clear()
        self.answers.clear()
        self._replicas.clear()

    def _answer(self, task: Task, began_ns: int) -> Answer:
        if self._before_batch is not None:
            self._before_batch(task.step)
        stream = task.stream or 0
        if stream not in self._replicas:
            replica = Replica(self._job, self._config, stream)
            replica.start()
            begin, positions = self._opening
            replica.begin(begin, positions.get(stream))
            self._replicas[stream] = replica
        return self._replicas[stream].answer(0, task, began_ns)

    def _begin(self, begin: EpochStart, positions: dict[int, StreamPosition]) -> StreamStates:
        self._replicas = {n: each for n, each in self._replicas.items() if n < self._own}
        self._opening = begin, positions
        for stream, replica in self._replicas.items():
            if not self._started:
                replica.start()
            position = positions.get(stream)
            rngs = capture_all()
            try:
                replica.begin(begin, position)
            finally:
                if position is not None and not replica.from_last_epoch:
                    # With seeding="worker" the generators are the loader's state. To load the
                    # dataset's state and to fetch batches again must not move them, also if that
                    # is interrupted.
                    restore_all(rngs)
        self._started = True
        # The dataset is the program's own: a pickle of the loader finds it in mid-epoch.
        first = {n: each.first_state(n not in positions) for n, each in self._replicas.items()}
        return {stream: state for stream, state in first.items() if state is not None}

    def _inside(self, act: Callable[..., _T], *arguments: Any) -> _T:
        """Run people's code, which leaves no trace in this process."""
        info = torch_worker._worker_info
        try:
            # The seed is that of the loader's own draws: no batch is being fetched yet.
            if self._bare:
                return run_apart(self._isolation(), self._seed, act, *arguments)
            with collate_here():
                return run_apart(self._isolation(), self._seed, act, *arguments)
        finally:
            torch_worker._worker_info = info
