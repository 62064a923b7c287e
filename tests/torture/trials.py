"""Trials: drawn by chance, and what a smaller one of each would be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from zoo.datasets import N, Noisy

from .kinds import KINDS, Kind
from .law import COPY, JSON, PICKLES, STATES, WAYS, Hop

_TESTS = Path(__file__).parents[1]

#: by option, what it may be, as source text
OPTIONS = {
    "seed": ["5"],
    "generator": ["generator(4)"],
    "seeding": ["'sample'", "'worker'"],
    "schedule": ["'balanced'", "'round_robin'"],
    "in_order": ["False"],
    "num_streams": ["1", "2", "3"],
    "snapshot_every_n_steps": ["1", "3", "10**9"],
    "prefetch_budget": ["1", "5"],
    "prefetch_bytes": ["0", "'1KB'"],
    "prefetch_factor": ["1", "4"],
    "persistent_workers": ["True"],
    "transport": ["'portable'"],
    "batch_size": ["1", "4", "7", "None"],
    "drop_last": ["True"],
    "on_error": ["'skip'"],
    "codec": ["'cloudpickle'", "'dill'"],
    "collate_fn": ["noisily"],
}
#: datasets in the place of an ordinary one
DATASETS = ["NoisyInBulk()", "Broken()", "local_noisy()", "Counting(10)"]

_SCRIPT = '''"""{about}"""

import sys

sys.path[:0] = [{tests!r}, {root!r}]

from chaos.datasets import Counting
from laws.cases import generator
from zoo.datasets import Broken, NoisyInBulk
from torture.kinds import KINDS
from torture.law import Hop, Training, check
from zoo.inexact import local_noisy, noisily

KIND = KINDS[{kind!r}]


def make(workers):
    return KIND.loader({arguments})


if __name__ == "__main__":
    check(Training({training}))
'''


@dataclass(frozen=True)
class Trial:
    """A loader, what is done with it, and when it is saved; the fields are those of `Training`.

    Attributes:
        kind: a name in `KINDS`.
        options: arguments of the loader beyond the kind's, as source text.
    """

    kind: str
    options: dict[str, str] = field(default_factory=dict)
    workers: int = 0
    epochs: int = 1
    hops: tuple[Hop, ...] = ()
    skip: tuple[int, int, int] | None = None
    leave: tuple[int, int] | None = None
    tells_epoch: bool = False
    chooses: tuple[int, int, int] | None = None
    looks: tuple[int, int] | None = None
    grows: tuple[int, int, int] | None = None

    def script(self, about: str = "A trial.") -> str:
        """A program that does it."""
        options = [f"{name}={value}" for name, value in self.options.items()]
        training: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("workers", "epochs", "hops", *dict(_LEAST))
            if getattr(self, name)
        }
        if "in_order" in self.options:
            training["ordered"] = False
        parts = [f"{name}={value!r}" for name, value in training.items()]
        return _SCRIPT.format(
            about=about.replace("\\", "\\\\").replace('"""', "'''"),
            tests=str(_TESTS),
            root=str(_TESTS.parent),
            kind=self.kind,
            arguments=", ".join(["workers", *options]),
            training=", ".join(["KIND", "make", *parts]),
        )

    def smaller(self) -> Iterator[Trial]:
        """Trials with less in them."""
        for hop in self.hops[:-1] if len(self.hops) > 1 else ():
            yield replace(self, hops=tuple(other for other in self.hops if other is not hop))
        if len(self.hops) > 1:
            yield replace(self, hops=self.hops[:-1])
        for name in self.options:
            rest = {other: value for other, value in self.options.items() if other != name}
            yield replace(self, options=rest)
        for name, least in _LEAST:
            if getattr(self, name):
                yield replace(self, **{name: least})
        if self.epochs > 1:
            yield replace(self, epochs=self.epochs - 1)
        if self.workers or any(hop.workers for hop in self.hops):
            fewer = tuple(replace(hop, workers=max(0, hop.workers - 1)) for hop in self.hops)
            yield replace(self, workers=max(0, self.workers - 1), hops=fewer)
        for at, hop in enumerate(self.hops):
            for change in _simpler(hop):
                yield replace(self, hops=(*self.hops[:at], change, *self.hops[at + 1 :]))


_LEAST = (
    ("skip", None),
    ("leave", None),
    ("tells_epoch", False),
    ("chooses", None),
    ("looks", None),
    ("grows", None),
)


def _simpler(hop: Hop) -> Iterator[Hop]:
    if hop.racing is not None:
        yield replace(hop, racing=None)
    for way in (STATES[0].name, PICKLES[0].name):
        if hop.way not in (STATES[0].name, PICKLES[0].name):
            yield replace(hop, way=way)
    if hop.step > 1:
        yield replace(hop, step=hop.step - 1)
    if hop.epoch > 0:
        yield replace(hop, epoch=hop.epoch - 1)


def drawn(chance: Random, kinds: list[str]) -> Trial:
    """One by chance, of those of which the law says something."""
    name = chance.choice(kinds)
    kind = KINDS[name]
    options = _options(chance, kind)
    trial = Trial(name, options, chance.choice((0, 0, 0, 1, 2, 2, 3)), chance.choice((1, 2, 3)))
    in_order = "in_order" not in options and "on_error" not in options
    epoch, step = chance.randrange(trial.epochs), chance.randrange(4)
    if in_order and chance.random() < 0.15:
        trial = replace(trial, skip=(epoch, step, chance.randrange(1, 3)))
    elif in_order and kind.limit is None and chance.random() < 0.15:
        trial = replace(trial, leave=(epoch, step))
    elif "seed" in options and chance.random() < 0.3:
        trial = replace(trial, tells_epoch=True)
    elif "seed" in options and trial.epochs > 1 and chance.random() < 0.3:
        trial = replace(trial, chooses=(epoch, step, chance.randrange(4)))
    elif "seed" in options and kind.promise == "exact" and kind.limit is None and step:
        # Workers are ahead of the look, nobody knows how far; a pass that has given nothing begins
        # behind it. A replay cannot know what the look drew from the loader's own generators.
        if not (kind.has_streams and _seeds_by_worker(trial, kind)):
            trial = replace(trial, looks=(epoch, step), workers=0)
    grows = hasattr(kind.arguments()["dataset"], "size") and "dataset" not in options
    if grows and trial.looks is None and step and chance.random() < 0.2:
        trial = replace(trial, grows=(epoch, step, chance.randrange(1, 20)))
    return replace(trial, hops=_hops(chance, trial, kind))


def _options(chance: Random, kind: Kind) -> dict[str, str]:
    given = kind.arguments()
    options = {
        option: chance.choice(values)
        for option, values in OPTIONS.items()
        if option not in given and chance.random() < 0.12
    }
    if type(given["dataset"]) is Noisy and len(given["dataset"]) == N and chance.random() < 0.3:
        options["dataset"] = chance.choice(DATASETS)
    if chance.random() < 0.02:
        options["multiprocessing_context"] = chance.choice(["'spawn'", "'forkserver'"])

    def has(name: str, value: str) -> bool:
        return options.get(name, repr(given.get(name))) == value

    apart = {
        "batch_size": "batch_sampler" in given,
        "drop_last": "batch_sampler" in given or has("batch_size", "None"),
        "collate_fn": has("batch_size", "None"),
        "generator": "seed" in options,
        "schedule": has("seeding", "'worker'"),
        "num_streams": has("seeding", "'worker'"),
        "in_order": kind.limit is not None or "on_error" in options,
        "dataset": "Counting" in options.get("dataset", "") and "collate_fn" in given,
    }
    return {name: value for name, value in options.items() if not apart.get(name)}


def _hops(chance: Random, trial: Trial, kind: Kind) -> tuple[Hop, ...]:
    plain = trial.skip is trial.leave is trial.chooses is trial.looks is trial.grows is None
    races = plain and kind.limit is None and "on_error" not in trial.options
    may_end = plain and not trial.tells_epoch
    ways = [way for way in WAYS if kind.json or way != JSON.name]
    if trial.looks is not None:
        ways.remove("the loader's state_dict")  # that of the newest pass, the look
    if "Counting" in trial.options.get("dataset", ""):
        ways.remove(COPY.name)  # which has the dataset in common with the original
    hops: list[Hop] = []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        epoch = chance.randrange(trial.epochs)
        step = -1 if may_end and chance.random() < 0.1 else chance.randrange(6)
        if hops and chance.random() < 0.3:  # nothing is taken in between
            epoch, step = hops[-1].epoch, hops[-1].step
        racing = chance.randrange(6) if races and step >= 0 and chance.random() < 0.1 else None
        workers = chance.choice((0, 1, 2, 3)) if _any_workers(trial, kind) else trial.workers
        hops.append(Hop(epoch, step, chance.choice(ways), workers, racing))
    workers, found = trial.workers, []
    for hop in sorted(hops, key=lambda hop: (hop.epoch, hop.step % 100)):
        workers = workers if hop.way == COPY.name else hop.workers  # it has that loader
        found.append(replace(hop, workers=workers))
    return tuple(found)


def _seeds_by_worker(trial: Trial, kind: Kind) -> bool:
    seeding = trial.options.get("seeding", repr(kind.arguments().get("seeding")))
    return seeding == "'worker'"


def _any_workers(trial: Trial, kind: Kind) -> bool:
    """Another number of workers is another way to the same batches, in later epochs as well."""
    options = trial.options
    return not (
        kind.same_workers
        # without workers the next epoch finds the program's own dataset as this one has left it
        or "Counting" in options.get("dataset", "")
        or kind.limit is not None
        or (trial.leave or trial.looks) is not None  # how far the sampler was drawn from
        or _seeds_by_worker(trial, kind)
        or "persistent_workers" in options
        or (kind.has_streams and "num_streams" not in options)
    )
