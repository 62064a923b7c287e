"""The plan makes tasks from an order, a batch size and drop_last; the schedule draws them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from operator import attrgetter
from typing import Any, cast

from ..errors import UsageError
from .order import Listener, Order, RandomAccess, Section
from .shard import ALONE, Shard
from .streams import StreamPosition
from .task import Task

#: how many tasks may wait for slow workers while the others go on: their indices take memory
MOST_ASIDE = 10_000


class Unit(Enum):
    """The kind of one item of the order."""

    SAMPLE_OF_BATCH = "sample of a batch"  # indices are gathered into batches
    SAMPLE = "sample"  # each index is a task of its own (batch_size=None)
    BATCH = "batch"  # the sampler yields batches (a custom batch_sampler)


@dataclass(frozen=True, slots=True)
class Grouping:
    """How the order's items become tasks."""

    unit: Unit
    #: indices in a task; 1 unless the unit is SAMPLE_OF_BATCH
    batch_size: int = 1
    drop_last: bool = False
    #: the rank whose tasks these are
    shard: Shard = ALONE


#: why a custom order has no position any more: a signal handler may raise at any line of a sampler
LOST = (
    "a signal, such as Ctrl-C, has stopped the sampler while indices were drawn from it, and its "
    "position is unknown"
)

_step = attrgetter("step")

#: batches that are taken at a time to count their samples
_STRIDE = 4096


class Plan:
    """The tasks of one epoch, drawn one after the other.

    Args:
        order: the sequence of indices; it is at ``position`` already.
        grouping: how its items become tasks.
        next_step: number of the next task.
        position: samples before the next task.
        backlog: tasks that were drawn before and are to come first, in order of their steps.
        streams: how many streams serve the tasks in turn; 0: any worker may take any of them.
        most_aside: how many tasks of other streams `draw_from` may set aside; 0: none, the order is
            drawn from in turn only.
    """

    #: the order says how many batches there are
    batches = limit = None
    cut = False

    def __init__(
        self,
        order: Order,
        grouping: Grouping,
        next_step: int = 0,
        position: int = 0,
        backlog: Iterable[Task] = (),
        streams: int = 0,
        most_aside: int = 0,
    ) -> None:
        self.order = order
        self.grouping = grouping
        #: the next task that the order gives has this number, and this many samples before it
        self.next_step = next_step
        self.position = position
        self._gathered = grouping.unit is Unit.SAMPLE_OF_BATCH
        self._by_batch = grouping.unit is Unit.BATCH
        self._alone = grouping.shard.world == 1
        self._random_access = isinstance(order, RandomAccess) and not self._by_batch
        self.streams = streams
        self._most_aside = most_aside
        #: by stream, tasks of steps below ``next_step``, ascending
        self._queues: dict[int | None, deque[Task]] = {}
        self.give_back(backlog)
        #: the order has no more
        self._ended = False
        #: items at the end of a custom sampler of which this rank has no task
        self.tail: list[Any] = []
        #: the order has moved, and the next step has not: drawing was stopped by a signal
        self.interrupted = False
        #: so it was with a custom sampler's order, which cannot be sought in
        self.lost = False

    @property
    def custom(self) -> bool:
        """Code of the user's gives the order, and may raise."""
        return not self.order.seekable

    @property
    def listens(self) -> bool | None:
        """The sampler receives feedback; None: nobody knows before it is opened."""
        if self.order.seekable or not isinstance(self.order, Listener):
            return False
        return self.order.listens

    @property
    def draws_ahead(self) -> bool:
        """Tasks of a stream may be drawn before those of others whose turn is earlier."""
        return self.streams > 0 and self._most_aside > 0

    @property
    def backlog(self) -> list[Task]:
        """The tasks that the order has given and nobody has drawn, in order of their steps."""
        queues = self._queues
        return sorted(chain.from_iterable(queues.values()), key=_step) if queues else []

    def give_back(self, tasks: Iterable[Task]) -> None:
        """Tasks that were drawn are to be drawn again."""
        queues: dict[int | None, deque[Task]] = {}
        by_step = {task.step: task for task in (*self.backlog, *tasks)}
        for task in sorted(by_step.values(), key=_step):
            queues.setdefault(task.stream, deque()).append(task)
        self._queues = queues

    def put_back(self, tasks: Sequence[Task]) -> bool:
        """Undo the draws of all these tasks, in order of their steps, and of the backlog.

        Returns:
            Whether the order takes them back: a custom sampler need not.

        Raises:
            Exception: the sampler's; nothing has changed.
        """
        pending = sorted([*tasks, *self.backlog], key=_step)
        if not (pending or self.tail):
            return True
        if self.order.seekable and pending[0].step + len(pending) != self.next_step:
            self.give_back(tasks)  # later steps were delivered before them
            return True
        if not self.order.seekable:
            order = self.order
            if not (isinstance(order, Listener) and order.put_back(self._given(pending))):
                return False
        self._queues, self.tail, self.interrupted = {}, [], self.order.seekable
        if pending:
            self.next_step, self.position = pending[0].step, pending[0].position
        self.seek()
        self._ended = self.interrupted = False
        return True

    def _given(self, tasks: Sequence[Task]) -> list[Any]:
        """The batches of tasks, and what came after these, for all ranks, as the order gave it."""
        steps = [task.indices if task.drawn is None else task.drawn for task in tasks]
        if self._gathered:
            return [*steps, self.tail] if self.tail else steps
        return [*(steps if self._alone else chain.from_iterable(steps)), *self.tail]

    def restart(self, tasks: Iterable[Task], positions: Sequence[StreamPosition]) -> None:
        """Go on after an interruption: these tasks were drawn, and are to be drawn again."""
        self.give_back(tasks)
        if self.interrupted:
            self.lost = not self.order.seekable
            self.seek()

    def seek(self) -> None:
        """Have the order go on at the next task, if it can be sought in."""
        if self.order.seekable:
            self.order.seek(self.item(self.next_step, self.position))

    def draw(self) -> Task:
        """The next task.

        Raises:
            StopIteration: there is none.
        """
        queue = self._first_queue() if self._queues else None
        return self._take() if queue is None else _pop(queue)

    def next_steps(self) -> dict[int, int]:
        """By stream, the step that `draw_from` gives next, if it may be drawn now."""
        aside = sum(map(len, self._queues.values()))
        steps = {}
        for stream in range(self.streams):
            between = (stream - self.next_step) % self.streams
            if queue := self._queues.get(stream):
                steps[stream] = queue[0].step
            elif not self._ended and aside + between <= self._most_aside:
                steps[stream] = self.next_step + between
        return steps

    def draw_from(self, stream: int) -> Task | None:
        """The next task of a stream; None: the order has ended before it.

        Tasks of other streams that the order gives before it are set aside.
        """
        while not (queue := self._queues.get(stream)):
            other = self._queues.setdefault(self.next_step % self.streams, deque())
            try:
                other.append(self._take())  # no signal is handled in between
            except StopIteration:
                self._ended = True
                return None
        return _pop(queue)

    def look_ahead(self) -> None:
        """Ask the order for the next task, which the next draw gives."""
        try:
            self.give_back([self.draw()])
        except StopIteration:
            pass  # it has no more

    def _first_queue(self) -> deque[Task] | None:
        """The one of the lowest step."""
        queues = [queue for queue in self._queues.values() if queue]
        if not queues:
            self._queues = {}
        return min(queues, key=lambda queue: queue[0].step, default=None)

    def _take(self) -> Task:
        """The next task that the order gives; StopIteration if there is none."""
        step, start, task = self.next_step, self.position, None
        if self.lost:
            raise UsageError(f"{LOST}. Begin the epoch anew, or resume from an earlier state")
        self.interrupted, size = True, self.grouping.batch_size
        try:
            items = self.order.take(size) if self._alone else self._global_step(step, start)
        except Exception:  # a sampler's own, which the consumer gets: the next draw goes on
            self.interrupted = self.order.seekable
            raise
        if not self._alone:
            task = self.share(step, start, items)
        elif items and (len(items) == size or not self.grouping.drop_last):
            stream = step % self.streams if self.streams else None
            task = Task(step, items if self._gathered else items[0], start, stream)
        if task is None:
            if items and not self.order.seekable:
                self.tail = list(items)
            self.interrupted = False
            raise StopIteration
        position = start + (sum(map(_samples, items)) if self._by_batch else len(items))
        self.next_step, self.position, self.interrupted = step + 1, position, False
        return task

    def _global_step(self, step: int, start: int) -> Sequence[Any]:
        """The items that all ranks have in a step; fewer at the epoch's end only."""
        grouping, order = self.grouping, self.order
        count = grouping.batch_size * grouping.shard.world
        if self._random_access:
            length = order.length()
            if length is not None and length - start >= count:
                return Section(cast(RandomAccess, order), range(start, start + count))
        if order.seekable:
            order.seek(self.item(step, start))
        return order.take(count)

    def share(self, step: int, start: int, items: Sequence[Any]) -> Task | None:
        """This rank's task of a step; None: it has none.

        ``start`` is the number of samples before it, and ``items`` are those of all ranks.
        """
        grouping, shard = self.grouping, self.grouping.shard
        mine = shard.of(items, self._first)
        if not mine or (grouping.drop_last and len(mine) < grouping.batch_size):
            return None
        return Task(
            step,
            mine if self._gathered else mine[0],
            start,
            step % self.streams if self.streams else None,
            sum(map(_samples, items[: shard.rank])) if self._by_batch else shard.rank,
            None if self.order.seekable or shard.world == 1 else items,
        )

    def gives_again(self, tasks: Sequence[Task]) -> bool:
        """Whether these tasks, in their sequence, are cut as the order would be cut now.

        They are not if the batch size has changed since they were drawn.
        """
        if self.grouping.unit is not Unit.SAMPLE_OF_BATCH:
            return True
        stride = self.grouping.batch_size * self.grouping.shard.world
        following = [(task.step, task.position) for task in tasks[1:]]
        for task, (step, end) in zip(tasks, [*following, (self.next_step, self.position)]):
            samples = end - task.position
            short = samples < stride and end == self.order.length()
            if step == task.step + 1 and samples != stride and not short:
                return False
        return True

    def again(self, task: Task) -> Task | None:
        """A task of a saved state, with this rank's indices; None: it has none of them.

        The state has those of all ranks, or None where the order gives them again.
        """
        items, grouping = task.indices, self.grouping
        if self.order.seekable:
            self.order.seek(self.item(task.step, task.position))
            items = self.order.take(grouping.batch_size * grouping.shard.world)
        elif self._alone and not self._gathered:
            items = [items]
        return self.share(task.step, task.position, items)

    def _first(self, count: int) -> list[Any]:
        """The order's first items, if it can go back to them."""
        if not self.order.seekable:
            return []
        self.order.seek(0)
        return self.order.take(count)

    def item(self, step: int, position: int) -> int:
        """The number of a step's first item in the order."""
        return step * self.grouping.shard.world if self._by_batch else position

    def advance(self, steps: int) -> int:
        """Pass over tasks, without walking where the order can be sought in.

        Returns:
            How many were passed over: fewer than ``steps`` at the end of the epoch.
        """
        passed = 0
        while passed < steps and (queue := self._first_queue()):
            queue.popleft()
            passed += 1
        wanted = steps - passed
        if wanted and self.order.seekable:
            return passed + (self._stride(wanted) if self._by_batch else self._leap(wanted))
        for _ in range(wanted):
            try:
                self.draw()
            except StopIteration:
                break
            passed += 1
        return passed

    def end(self, stream: int) -> None:
        """Streams of map-style data do not end before the order does."""

    def repeat(self, made: int) -> int:
        """See `StreamPlan`; the order has no more."""
        return 0

    def remaining(self) -> int | None:
        """How many tasks are still to be drawn; None where the sampler has no length."""
        length = self.order.length()
        if length is None:
            return None
        left = max(0, length - self.item(self.next_step, self.position))
        return sum(map(len, self._queues.values())) + batches_in(left, self.grouping)

    def _stride(self, wanted: int) -> int:
        # Batches of a list may have any size: their samples must be counted.
        passed, position, shard = 0, self.position, self.grouping.shard
        self.interrupted = True
        self.order.seek(self.item(self.next_step, self.position))
        while passed < wanted:
            batches = self.order.take(min(wanted - passed, _STRIDE) * shard.world)
            if not batches:
                break
            passed += shard.count(len(batches))
            position += sum(map(_samples, batches))
        step = self.next_step + passed
        self.next_step, self.position, self.interrupted = step, position, False
        return passed

    def _leap(self, wanted: int) -> int:
        left = self.remaining()
        steps = wanted if left is None else min(wanted, left)
        length, step = self.order.length(), self.next_step + steps
        position = self.position + steps * self.grouping.batch_size * self.grouping.shard.world
        if length is not None:
            position = min(position, length)
        self.interrupted = True
        self.order.seek(position)
        self.next_step, self.position, self.interrupted = step, position, False
        return steps


def batches_in(items: int, grouping: Grouping) -> int:
    """Batches that a rank makes of so many items of the order, from the beginning of a step."""
    mine = grouping.shard.count(items)
    return mine // grouping.batch_size if grouping.drop_last else -(-mine // grouping.batch_size)


def _samples(indices: Any) -> int:
    """Samples of one item of the order."""
    try:
        return len(indices)
    except TypeError:
        return 1


def _pop(queue: deque[Task]) -> Task:
    task = queue[0]
    del queue[0]  # no signal is handled between this line and the next
    return task
