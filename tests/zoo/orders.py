"""Orders: without samplers, for tests of the core; and one of a sampler of somebody's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Sampler

from picklable_loader.core.order import SequenceOrder
from picklable_loader.core.plan import Plan
from picklable_loader.core.task import Task


class Walked:
    """An order that can only be walked through, with or without a length."""

    seekable = False

    def __init__(self, items: Sequence[Any], says_length: bool = True) -> None:
        self.left = list(items)
        self.size = len(items) if says_length else None

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[Any]:
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def seek(self, position: int) -> None:
        raise AssertionError("a plan sought in an order that is not seekable")

    def length(self) -> int | None:
        return self.size

    def state(self, live: bool) -> dict[str, Any] | None:
        return None


def sequence(items: Sequence[Any]) -> SequenceOrder:
    return SequenceOrder(lambda: items)


def rest(plan: Plan, limit: int = 1000) -> list[Task]:
    """All that can be drawn."""
    tasks: list[Task] = []
    try:
        while len(tasks) < limit:
            tasks.append(plan.draw())
    except StopIteration:
        pass
    return tasks


class Cyclic(Sampler[int]):
    """A sampler whose order somebody registers: `CyclicOrder`."""

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))

    def __len__(self) -> int:
        return self.length


class CyclicOrder:
    """It expects its state to be well; ``held`` is in the state, too."""

    seekable = True
    held: Any = None

    def __init__(self, sampler: Cyclic, setting: Any) -> None:
        self.size = len(sampler)
        self.start = (setting.saved or {"start": 0})["start"] % self.size
        self.position = 0

    def open(self) -> None:
        pass

    def take(self, count: int) -> list[int]:
        places = range(self.position, min(self.position + count, self.size))
        self.position += len(places)
        return [(self.start + place) % self.size for place in places]

    def seek(self, position: int) -> None:
        self.position = position

    def length(self) -> int:
        return self.size

    def state(self, live: bool) -> dict[str, Any]:
        return {"start": self.start, "held": self.held}
