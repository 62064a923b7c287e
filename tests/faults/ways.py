"""Ways to die: when, and how. All of them work under every start method."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
from zoo.streams import SavedWalk, Walk, share

from picklable_loader.fetching.transport.arena import Arena
from picklable_loader.fetching.transport.pipes import PipeChannel
from picklable_loader.fetching.transport.seqpacket import PacketChannel

__all__ = ["HOW", "WHEN", "Button", "Death", "Samples", "Stream"]

#: samples in every dataset here; batches have two
LENGTH = 20


def by_signal(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


#: how a process may end itself, with the exit code that is seen
HOW: dict[str, tuple[Callable[[], Any], int]] = {
    "SIGKILL": (by_signal(signal.SIGKILL), -signal.SIGKILL),
    "SIGSEGV": (by_signal(signal.SIGSEGV), -signal.SIGSEGV),
    "SIGBUS": (by_signal(signal.SIGBUS), -signal.SIGBUS),
    "SIGTERM": (by_signal(signal.SIGTERM), -signal.SIGTERM),
    "_exit": (lambda: os._exit(7), 7),
    "sys.exit": (lambda: sys.exit(7), 7),
}


@dataclass(frozen=True)
class Button:
    """Ends the process that presses it, as often as there are files for it."""

    folder: Path
    how: str = "SIGKILL"

    def set(self, presses: int = 1) -> Button:
        for number in range(presses):
            (self.folder / f"press{number}").touch()
        return self

    def press(self) -> None:
        for file in self.folder.glob("press*"):
            try:
                file.unlink()
            except FileNotFoundError:  # another process was faster
                continue
            HOW[self.how][0]()


class Samples(Dataset[torch.Tensor]):
    """Samples with random numbers of every generator; one of them may press the button."""

    def __init__(self, button: Button | None = None, deadly: int = 9) -> None:
        self.button, self.deadly = button, deadly

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.button is not None and index == self.deadly:
            self.button.press()
        noise = int(torch.randint(10**6, ())), np.random.randint(10**6)
        # large enough to stand in an arena
        return torch.tensor([index, *noise]).repeat(10_000)


class Remembers(Samples):
    """A map-style dataset with a state."""

    total = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = super().__getitem__(index)
        self.total += index
        return sample + self.total

    def state_dict(self) -> dict[str, int]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.total = state["total"]


class Stream(IterableDataset[torch.Tensor]):
    """Its iterator pickles; with a button, some samples press it."""

    def __init__(self, button: Button | None = None, deadly: int = 9) -> None:
        self.samples = Samples(button, deadly)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return Walk(share(LENGTH), self.samples.__getitem__)


class Stateful(Stream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return SavedWalk(share(LENGTH), self.samples.__getitem__)


class Generated(Stream):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from super().__iter__()


class Received(Samples):
    """Presses the button when a started worker receives it, which under fork never happens."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.button is not None:
            self.button.press()


# --- when ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pressing:
    """Calls a function, and presses the button before, or after."""

    button: Button
    call: Any
    after: bool = False

    def __call__(self, *arguments: Any) -> Any:
        if not self.after:
            self.button.press()
        result = self.call(*arguments)
        if self.after:
            self.button.press()
        return result


@dataclass(frozen=True)
class Patched:
    """A worker_init_fn that lets a method of ours press the button."""

    button: Button
    kinds: tuple[type[Any], ...]
    method: str
    after: bool

    def __call__(self, worker: int) -> None:
        for kind in self.kinds:
            setattr(kind, self.method, patched(getattr(kind, self.method), self))


def patched(method: Any, how: Patched) -> Any:
    return lambda *arguments: Pressing(how.button, method, how.after)(*arguments)


@dataclass(frozen=True)
class AtStart:
    """A worker_init_fn that presses the button."""

    button: Button

    def __call__(self, worker: int) -> None:
        self.button.press()


@dataclass(frozen=True)
class Death:
    """When: makes the arguments of a loader whose workers die then."""

    options: Callable[[Button], dict[str, Any]]
    #: only a certain transport has that moment
    transport: str = "auto"
    #: whoever dies then owes something; others may be noticed when all is over, or never
    owes: bool = True


_CHANNELS = PacketChannel, PipeChannel


def within(method: str, after: bool = False, kinds: Any = _CHANNELS) -> Death:
    def options(button: Button) -> dict[str, Any]:
        return {"dataset": Samples(), "worker_init_fn": Patched(button, kinds, method, after)}

    transport = "arena" if kinds is not _CHANNELS else "auto"
    return Death(options, transport, owes=method != "receive" and (method, after) != ("send", True))


WHEN: dict[str, Death] = {
    "fetching": Death(lambda button: {"dataset": Samples(button)}),
    "the first sample": Death(lambda button: {"dataset": Samples(button, 0)}),
    "the last sample": Death(lambda button: {"dataset": Samples(button, LENGTH - 1)}),
    "collating": Death(
        lambda button: {
            "dataset": Samples(),
            "collate_fn": Pressing(button, torch.utils.data.default_collate),
        }
    ),
    "worker_init_fn": Death(
        lambda button: {"dataset": Samples(), "worker_init_fn": AtStart(button)}, owes=False
    ),
    "receiving the dataset": Death(lambda button: {"dataset": Received(button)}, owes=False),
    "taking a task": within("receive", after=True),
    "about to take one": within("receive"),
    "having noted it": within("note", after=True),
    "about to send": within("send"),
    "having sent": within("send", after=True),
    "writing to the arena": within("give", after=True, kinds=(Arena,)),
    "a stream with state": Death(lambda button: {"dataset": Stateful(button)}),
    "a stream that pickles": Death(lambda button: {"dataset": Stream(button)}),
    "a generator": Death(lambda button: {"dataset": Generated(button)}),
    "a map-style stream": Death(lambda button: {"dataset": Remembers(button)}),
}
