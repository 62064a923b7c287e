"""Lives: the circumstances of a trainer from its start to its end, on which no batch depends."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from .kinds import Kind

__all__ = ["Life", "quiet"]


@dataclass(frozen=True)
class Life:
    """One life of a trainer.

    Attributes:
        workers: how many it has.
        transport, schedule, prefetch_budget: the loader's arguments.
        patience_s: its timeout, upon which workers are restarted; 0: none.
        pickles: it saves its iterator, and not the loader's state.
        save_every: batches from one checkpoint to the next.
    """

    workers: int
    transport: str = "auto"
    schedule: str | None = None
    prefetch_budget: int | None = None
    patience_s: float = 0.0
    pickles: bool = False
    save_every: int = 10

    @classmethod
    def drawn(cls, kind: Kind, transport: str, chance: Random) -> Life:
        """One by chance."""
        return cls(
            workers=chance.choice(kind.workers),
            transport=transport,
            schedule=chance.choice((None, "balanced", "round_robin")),
            prefetch_budget=chance.choice((None, 1, 3, 16)),
            patience_s=chance.choice((0.0, 0.3)),
            pickles=chance.random() < 0.5,
            save_every=chance.choice((1, 3, 10)),
        )

    def arguments(self) -> dict[str, Any]:
        """The loader's."""
        timely = {"timeout": self.patience_s, "on_timeout": "restart"} if self.workers else {}
        return {
            "workers": self.workers,
            "transport": self.transport,
            "schedule": self.schedule,
            "prefetch_budget": self.prefetch_budget,
            **timely,
        }


def quiet(kind: Kind) -> Life:
    """Nothing happens in it, and it has as few workers as may be."""
    return Life(workers=min(kind.workers))
