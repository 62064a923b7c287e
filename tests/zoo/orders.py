"""Orders and plans without samplers, for tests of the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
