"""``verify_resume``: proof that your dataset and sampler resume exactly, or where they do not."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import dill
import numpy as np
import torch

from .likeness import difference
from .loader import DataLoader

__all__ = ["Report", "ResumeError", "verify_resume"]

MakeLoader = Callable[..., DataLoader[Any]]
#: indices and content of each batch of an epoch; the indices are None for iterable-style data
Trace = list[tuple[Any, Any]]

_CHILD_LIMIT_S = 600


class ResumeError(AssertionError):
    """A resumed loader did not go on as the uninterrupted one.

    Attributes:
        where: at which step, epoch, codec and worker count it was saved and resumed.
        what: what differed first: ``"repeatability"``, ``"order"``, ``"content"``, ``"length"``
            or ``"state"``.
        difference: the first difference, expected and found.
        why: why that usually happens, and what to do.
    """

    def __init__(self, where: str, what: str, difference: str, why: str) -> None:
        super().__init__(where, what, difference, why)
        self.where = where
        self.what = what
        self.difference = difference
        self.why = why

    def __str__(self) -> str:
        return f"{self.what} differs, {self.where}:\n  {self.difference}\n{self.why}"


@dataclass(frozen=True)
class Report:
    """What `verify_resume` has compared.

    Attributes:
        batches: batches of an uninterrupted epoch.
        steps: where it was saved; -1 stands for after StopIteration.
        resumes: how many resumes were compared.
        seconds: how long it took.
    """

    batches: int
    steps: tuple[int, ...]
    resumes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.resumes} resumes from {len(self.steps)} places in an epoch of {self.batches} "
            f"batches went on exactly ({self.seconds:.1f} s)"
        )


def verify_resume(
    make_loader: MakeLoader,
    *,
    steps: Iterable[int] | None = None,
    codecs: Sequence[str] = ("pickle", "cloudpickle", "dill", "deepcopy", "state_dict"),
    num_workers: Sequence[int] = (0, 2),
    fresh_process: bool = True,
    max_steps: int = 12,
) -> Report:
    """Stop at many steps, resume, and compare order, content and augmentation bit for bit.

    The rest of the epoch and the whole next epoch are compared, in this process, in a fresh one,
    through each codec, and, by ``state_dict``, under other worker counts.

    Args:
        make_loader: builds the loader anew, always in the same way. It is called with
            ``num_workers=`` if it takes that, else without arguments.
        steps: batches after which to stop; None for all of a short epoch, or the first, the last
            and a spread of others. After StopIteration is always one more.
        codecs: of ``"pickle"``, ``"cloudpickle"``, ``"dill"``, ``"deepcopy"``, ``"state_dict"``.
        num_workers: worker counts, if ``make_loader`` takes them; the first is the reference.
        fresh_process: resume in a fresh process as well. ``make_loader`` gets there by
            cloudpickle.
        max_steps: how many steps are tried if ``steps`` is None, from 4.

    Returns:
        What was compared.

    Raises:
        ResumeError: something went on differently; the text says what, where, and why that
            usually happens.
        ValueError: a codec is not known, or no worker count is given.
    """
    unknown = [codec for codec in codecs if codec not in (*_DUMPS, "deepcopy", "state_dict")]
    if unknown or not num_workers:
        raise ValueError(f"codecs={unknown!r} are not known, or num_workers is empty")
    begin = time.perf_counter()
    counts = tuple(num_workers) if _takes_workers(make_loader) else (None,)
    first = counts[0]
    expected = _uninterrupted(make_loader, first)
    _compare_runs(expected, _uninterrupted(make_loader, first), "in a second run")
    places = _places(len(expected[0]), steps, max_steps)
    saved = _save(make_loader, first, places, codecs)
    _compare_runs(expected, saved.trace, "in a run that was saved on the way")
    tasks = [
        _Task(step, codec, data, count)
        for (step, codec), data in saved.data.items()
        for count in (counts if codec == "state_dict" else (first,))
    ]
    for task in tasks:
        _check(make_loader, task, expected, "in this process")
    away = [task for task in tasks if _can_travel(task)] if fresh_process else []
    if away:
        _check_in_child(make_loader, away, expected)
    seconds = time.perf_counter() - begin
    return Report(len(expected[0]), tuple(places), len(tasks) + len(away), seconds)


# --- running -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    step: int
    codec: str
    data: Any
    num_workers: int | None


@dataclass
class _Saved:
    trace: list[Trace]
    data: dict[tuple[int, str], Any]


_DUMPS: dict[str, Callable[[Any], bytes]] = {
    "pickle": pickle.dumps,
    "cloudpickle": cloudpickle.dumps,
    "dill": dill.dumps,
}


def _can_travel(task: _Task) -> bool:
    if not isinstance(task.data, bytes):
        return False
    # Of a script's own classes pickle keeps the name, and dill the code without what it imports;
    # a fresh process has another __main__.
    return task.codec not in ("pickle", "dill") or b"__main__" not in task.data


class _Recorded:
    """A dataset whose samples say which index they were asked by."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._bulk

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> tuple[Any, Any]:
        return index, self._dataset[index]

    def _bulk(self, indices: Any) -> list[tuple[Any, Any]]:
        return list(zip(indices, self._dataset.__getitems__(indices)))

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)


class _Collate:
    """Collates samples, and keeps their indices beside the batch."""

    def __init__(self, collate_fn: Callable[[Any], Any], batched: bool) -> None:
        self._collate_fn = collate_fn
        self._batched = batched

    def __call__(self, samples: Any) -> tuple[Any, Any]:
        if not self._batched:
            return samples[0], self._collate_fn(samples[1])
        indices = [index for index, _ in samples]
        return indices, self._collate_fn([sample for _, sample in samples])


def _make(make_loader: MakeLoader, num_workers: int | None) -> DataLoader[Any]:
    loader = make_loader() if num_workers is None else make_loader(num_workers=num_workers)
    if not loader._iterable:
        # Torch's loader refuses a dataset that is set later; a sampler keeps the original one.
        loader.__dict__["dataset"] = _Recorded(loader.dataset)
        loader.collate_fn = _Collate(loader.collate_fn, loader.batch_sampler is not None)
    return loader


def _trace(loader: DataLoader[Any], batches: Iterable[Any]) -> Trace:
    return [(None, batch) if loader._iterable else batch for batch in batches]


def _takes_workers(make_loader: MakeLoader) -> bool:
    names = inspect.signature(make_loader).parameters
    return "num_workers" in names or any(p.kind is p.VAR_KEYWORD for p in names.values())


def _uninterrupted(make_loader: MakeLoader, num_workers: int | None) -> list[Trace]:
    _set_generators(0)
    loader = _make(make_loader, num_workers)
    return [_trace(loader, loader) for _ in range(2)]


def _set_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _save(
    make_loader: MakeLoader, num_workers: int | None, places: list[int], codecs: Sequence[str]
) -> _Saved:
    _set_generators(0)
    loader = _make(make_loader, num_workers)
    data: dict[tuple[int, str], Any] = {}
    iterator = iter(loader)
    trace: Trace = []
    while True:
        if iterator.step in places:
            data.update({(iterator.step, c): _dump(iterator, c) for c in codecs})
        batch = next(iterator, _END)
        if batch is _END:
            break
        trace += _trace(loader, [batch])
    data.update({(-1, c): _dump(iterator, c) for c in codecs})
    return _Saved([trace, _trace(loader, loader)], data)


_END = object()


def _dump(iterator: Any, codec: str) -> Any:
    if codec == "deepcopy":
        return copy.deepcopy(iterator)
    if codec != "state_dict":
        return _DUMPS[codec](iterator)
    file = io.BytesIO()
    torch.save(iterator.state_dict(), file)
    return file.getvalue()


def _check(make_loader: MakeLoader, task: _Task, expected: list[Trace], process: str) -> None:
    _set_generators(12345)  # whatever the resuming program did before
    loader, rest = _resume(make_loader, task)
    place = "after StopIteration" if task.step < 0 else f"after step {task.step}"
    workers = "" if task.num_workers is None else f" and num_workers={task.num_workers}"
    where = f"saved {place}, resumed {process} by {task.codec}{workers}"
    first = [] if task.step < 0 else expected[0][task.step :]
    _compare(first, rest, where)
    _compare(expected[1], _trace(loader, loader), f"{where}, in the next epoch")


def _resume(make_loader: MakeLoader, task: _Task) -> tuple[DataLoader[Any], Trace]:
    if task.codec == "state_dict":
        state = torch.load(io.BytesIO(task.data), weights_only=True)
        loader = _make(make_loader, task.num_workers)
        loader.load_state_dict(state)
        if difference(state, loader.state_dict(), "state"):
            raise ResumeError(f"step {task.step}", "state", "another one was read back", _BUG)
        at_end = task.step < 0
        return loader, [] if at_end else _trace(loader, _quietly(loader))
    load = dill.loads if task.codec == "dill" else pickle.loads
    iterator = task.data if task.codec == "deepcopy" else load(task.data)
    return iterator.loader, _trace(iterator.loader, iterator)


def _quietly(loader: DataLoader[Any]) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty pass is what is expected at an epoch's end
        return list(loader)


def _places(batches: int, steps: Iterable[int] | None, most: int) -> list[int]:
    if steps is not None:
        return sorted({step for step in steps if 0 <= step <= batches})
    if batches < most:
        return list(range(batches + 1))
    spread = np.linspace(0, batches, most - 2).round().astype(int).tolist()
    return sorted({0, 1, batches - 1, batches, *spread})


# --- in a fresh process --------------------------------------------------------------------------


def _check_in_child(make_loader: MakeLoader, tasks: list[_Task], expected: list[Trace]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.write_bytes(cloudpickle.dumps((make_loader, tasks, expected)))
        code = "from picklable_loader.testing import _child; import sys; _child(sys.argv[1])"
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        done = subprocess.run(
            [sys.executable, "-c", code, str(work)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=_CHILD_LIMIT_S,
        )
        if done.returncode:
            raise RuntimeError(f"the fresh process has failed:\n{done.stderr}")
        error = pickle.loads(work.read_bytes())
    if error is not None:
        raise error


def _child(path: str) -> None:
    work = Path(path)
    make_loader, tasks, expected = pickle.loads(work.read_bytes())
    error = None
    try:
        for task in tasks:
            _check(make_loader, task, expected, "in a fresh process")
    except ResumeError as found:
        error = found
    work.write_bytes(pickle.dumps(error))


# --- comparing -----------------------------------------------------------------------------------

_BUG = "This is a bug of picklable_loader: please report it."
_ORDER = (
    "The samples come in another order. Usually the sampler seeds itself anew (from the clock or "
    "the operating system) in __iter__, has a state_dict that forgets its position, or keeps "
    "state in an object that cannot be replayed. Pass seed= to the DataLoader, give the sampler a "
    "generator of its own, or give its iterator state_dict and load_state_dict."
)
_CONTENT = (
    "The indices are the same, the samples are not. Usually the dataset draws from a generator "
    "that the loader does not know of (a numpy Generator, a library's own): seed it from "
    "picklable_loader.current_seed(), or register seed_hooks=. Or it keeps something from sample "
    "to sample (a counter, a cache): compute it from the index instead. Or it looks at the "
    "worker's number."
)
_LENGTH = (
    "The epoch has another number of batches. Usually the sampler's iteration depends on something "
    "that is not saved, or its state_dict counts what was drawn ahead."
)


def _compare_runs(expected: list[Trace], found: list[Trace], where: str) -> None:
    for epoch, (one, other) in enumerate(zip(expected, found)):
        try:
            _compare(one, other, f"{where}, epoch {epoch}")
        except ResumeError as error:
            raise ResumeError(error.where, "repeatability", error.difference, error.why) from None


def _compare(expected: Trace, found: Trace, where: str) -> None:
    for step, ((indices, batch), (other_indices, other)) in enumerate(zip(expected, found)):
        place = f"{where}, {step} batches later"
        unlike = difference(indices, other_indices, "indices")
        if unlike:
            raise ResumeError(place, "order", unlike, _ORDER)
        unlike = difference(batch, other, "batch")
        if unlike:
            raise ResumeError(place, "content", unlike, _CONTENT)
    if len(expected) != len(found):
        unlike = f"expected {len(expected)} batches, found {len(found)}"
        raise ResumeError(where, "length", unlike, _LENGTH)
