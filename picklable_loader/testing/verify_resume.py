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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cloudpickle
import dill
import numpy as np
import torch
from torch.utils.data import IterableDataset

from ..core.checks import whole_number
from ..errors import OrderMismatch, StateMismatch
from ..loader.loader import DataLoader
from ..saving.pickles.picklers import dump_with
from .compare import difference
from .recorder import Trace, recorded, trace
from .resume_error import BUG, CODEC, ORDER, ResumeError, compare, compare_runs

MakeLoader = Callable[..., DataLoader[Any]]
_DRAWS = (
    "But the batches depend on what the program draws from the global generators (dropout, another "
    "loader): pass seed= to the DataLoader, or save_rng=True and restore_rng=True with the state."
)
_CHILD_LIMIT_S = 600


@dataclass(frozen=True)
class Report:
    """The comparisons that `verify_resume` has made.

    Attributes:
        batches: batches of an uninterrupted epoch.
        steps: after how many batches it was saved; after StopIteration is one more.
        resumes: how many resumes were compared.
        seconds: how long it took.
        note: a condition that the program must meet for that; ``""`` if there is none.
    """

    batches: int
    steps: tuple[int, ...]
    resumes: int
    seconds: float
    note: str = ""

    def __str__(self) -> str:
        found = (
            f"{self.resumes} resumes from {len(self.steps)} steps of an epoch of {self.batches} "
            f"batches went on exactly ({self.seconds:.1f} s)"
        )
        return f"{found}\n{self.note}" if self.note else found


def verify_resume(
    make_loader: MakeLoader,
    *,
    steps: Iterable[int] | None = None,
    codecs: Sequence[str] = ("pickle", "cloudpickle", "deepcopy", "state_dict"),
    num_workers: Sequence[int] = (0, 2),
    fresh_process: bool = True,
    max_steps: int = 12,
    max_batches: int = 1000,
) -> Report:
    """Stop at many steps, resume, and compare order, content and augmentation bit for bit.

    The rest of the epoch and the whole next epoch are compared, in this process, in a fresh one,
    through each codec, and, by ``state_dict``, under other worker counts.

    Args:
        make_loader: builds the loader anew, always in the same way. It is called with
            ``num_workers=`` if it takes that, else without arguments.
        steps: batches after which to stop; None for all of a short epoch, or the first, the last
            and a spread of others. After StopIteration is always one more.
        codecs: of ``"pickle"``, ``"cloudpickle"``, ``"deepcopy"``, ``"state_dict"``, ``"dill"``;
            the last one only if you use it, as it changes some classes of ``__main__``.
        num_workers: worker counts, if ``make_loader`` takes them; the first is the reference, and
            the only one where epochs depend on the count (``seeding="worker"``, iterable-style
            data without ``num_streams``).
        fresh_process: resume in a fresh process as well; on Linux, in one for each resume.
            ``make_loader`` gets there by cloudpickle, before it is called.
        max_steps: how many steps are tried if ``steps`` is None, from 4.
        max_batches: batches of an epoch that are looked at, from 1; a longer or endless one is left
            there.

    Returns:
        The things that were compared.

    Raises:
        ResumeError: something went on differently; the text says what, where, and why that
            usually happens.
        ValueError: a codec is not known, no worker count is given, or a number is too small.
        TypeError: ``make_loader`` returns no DataLoader of this package.
    """
    if unknown := [codec for codec in codecs if codec not in _DUMPS]:
        raise ValueError(f"codecs={unknown!r} are not known: choose from {sorted(_DUMPS)}")
    if not num_workers:
        raise ValueError("num_workers is empty: give the counts to try, for example (0, 2)")
    max_steps = whole_number("max_steps", max_steps, 4)
    max_batches = whole_number("max_batches", max_batches, 1)
    begin = time.perf_counter()
    subject = _Subject(make_loader, max_batches)
    # Before any run, which may change closures, and globals of __main__.
    fresh = dump_with("cloudpickle", subject, lambda _: None, None) if fresh_process else b""
    counts = subject.counts(num_workers)
    expected = subject.uninterrupted(counts[0])
    compare_runs(expected, subject.uninterrupted(counts[0]), "in a second run")
    places = _places(len(expected[0]), steps, max_steps)
    saved_run, saves = subject.save(counts[0], places, codecs)
    compare_runs(expected, saved_run, "in a run that was saved on the way")
    tasks = [
        _Task(step, codec, data, count)
        for (step, codec), data in saves.items()
        for count in (counts if codec == "state_dict" else counts[:1])
    ]
    for task in tasks:
        subject.check(task, expected, "in this process")
    away = [task for task in tasks if _can_travel(task)] if fresh_process else []
    if away:
        _check_in_child(fresh, away, expected)
    note = "" if subject.bears_draws(counts[0], expected) else _DRAWS
    seconds = time.perf_counter() - begin
    return Report(len(expected[0]), tuple(places), len(tasks) + len(away), seconds, note)


# --- running -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    step: int
    codec: str
    data: Any
    num_workers: int | None


def _dump_state(iterator: Any) -> bytes:
    file = io.BytesIO()
    torch.save(iterator.state_dict(), file)
    return file.getvalue()


_DUMPS: dict[str, Callable[[Any], Any]] = {
    "pickle": pickle.dumps,
    "cloudpickle": cloudpickle.dumps,
    "dill": dill.dumps,
    "deepcopy": copy.deepcopy,
    "state_dict": _dump_state,
}
#: by the step and the codec of a save
_Saves = dict[tuple[int, str], Any]


def _can_travel(task: _Task) -> bool:
    if not isinstance(task.data, bytes):
        return False
    # Pickle holds a script's own classes by name, and dill their code without its imports; a
    # fresh process has another __main__.
    return task.codec not in ("pickle", "dill") or b"__main__" not in task.data


@dataclass(frozen=True)
class _Subject:
    """The loader that is looked at, built anew for every run."""

    make_loader: MakeLoader
    most: int

    def make(self, num_workers: int | None) -> DataLoader[Any]:
        arguments = {} if num_workers is None else {"num_workers": num_workers}
        return recorded(self.make_loader(**arguments))

    def counts(self, wanted: Sequence[int]) -> tuple[int | None, ...]:
        """The worker counts to try; None where ``make_loader`` decides."""
        names = inspect.signature(self.make_loader).parameters
        takes = "num_workers" in names or any(p.kind is p.VAR_KEYWORD for p in names.values())
        if not takes:
            return (None,)
        loader = self.make(wanted[0])
        options = loader._pl.options
        fixed = options.seeding == "worker" or (
            isinstance(loader.dataset, IterableDataset) and not options.num_streams
        )
        return tuple(wanted[:1] if fixed else wanted)

    def uninterrupted(self, num_workers: int | None, draws: bool = False) -> list[Trace]:
        _set_generators(0)
        loader = self.make(num_workers)
        epochs = [_drawing(loader) if draws else loader for _ in range(2)]
        return [trace(loader, epoch, self.most) for epoch in epochs]

    def bears_draws(self, num_workers: int | None, expected: list[Trace]) -> bool:
        """A program that draws from the global generators, by dropout say, gets equal batches."""
        try:
            compare_runs(expected, self.uninterrupted(num_workers, draws=True), "")
        except ResumeError:
            return False
        return True

    def save(
        self, num_workers: int | None, places: list[int], codecs: Sequence[str]
    ) -> tuple[list[Trace], _Saves]:
        """A run that is saved at all places, and after StopIteration; and what was saved."""
        _set_generators(0)
        loader = self.make(num_workers)
        saves: _Saves = {}
        iterator = iter(loader)
        seen: Trace = []
        while True:
            if len(seen) in places:  # the iterator's step counts batches that have no sample, too
                saves |= {(len(seen), codec): _DUMPS[codec](iterator) for codec in codecs}
            batch = next(iterator, _END) if len(seen) < self.most else _END
            if batch is _END:
                break
            seen += trace(loader, [batch], 1)
        if len(seen) < self.most:
            saves |= {(-1, codec): _DUMPS[codec](iterator) for codec in codecs}
        return [seen, trace(loader, loader, self.most)], saves

    def check(self, task: _Task, expected: list[Trace], process: str) -> None:
        """Resume one save, and compare the rest of its epoch and the next one."""
        _set_generators(12345)  # whatever the resuming program did before
        place = "after StopIteration" if task.step < 0 else f"after step {task.step}"
        workers = "" if task.num_workers is None else f" and num_workers={task.num_workers}"
        where = f"saved {place}, resumed {process} by {task.codec}{workers}"
        first = [] if task.step < 0 else expected[0][task.step :]
        try:
            loader, rest = self._resume(task, len(first), where)
        except OrderMismatch as error:
            raise ResumeError(where, "order", str(error), ORDER) from error
        compare(first, rest, where)
        compare(expected[1], trace(loader, loader, self.most), f"{where}, in the next epoch")

    def _resume(self, task: _Task, left: int, where: str) -> tuple[DataLoader[Any], Trace]:
        # One more than is left, to see an epoch that does not end; not in one that is left early.
        most = min(left + 1, self.most - max(0, task.step))
        if task.codec == "state_dict":
            state = torch.load(io.BytesIO(task.data), weights_only=True)
            loader = self.make(task.num_workers)
            loader.load_state_dict(state)
            if difference(state, loader.state_dict(), "state"):
                raise ResumeError(where, "state", "another one was read back", BUG)
            return loader, [] if task.step < 0 else trace(loader, _quietly(loader), most)
        iterator = task.data if task.codec == "deepcopy" else _load(task, where)
        try:
            return iterator.loader, trace(iterator.loader, _quietly(iterator), most)
        except StateMismatch as error:  # what it has loaded is not what it has saved
            raise ResumeError(where, "codec", str(error), CODEC) from error


def _set_generators(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _drawing(batches: Iterable[Any]) -> Iterator[Any]:
    """A training that draws from the three generators after each batch."""
    for batch in batches:
        yield batch
        random.random(), np.random.random(), torch.rand(1)


_END = object()


def _load(task: _Task, where: str) -> Any:
    try:
        return (dill.loads if task.codec == "dill" else pickle.loads)(task.data)
    except (TypeError, AttributeError, ImportError) as error:
        raise ResumeError(where, "codec", repr(error), CODEC) from error


def _quietly(batches: Iterable[Any]) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty pass, or a replay, is what is expected
        yield from batches


def _places(batches: int, steps: Iterable[int] | None, most: int) -> list[int]:
    if steps is not None:
        return sorted({step for step in steps if 0 <= step <= batches})
    if batches < most:
        return list(range(batches + 1))
    spread = np.linspace(0, batches, most - 2).round().astype(int).tolist()
    return sorted({0, 1, batches - 1, batches, *spread})


# --- in a fresh process --------------------------------------------------------------------------


def _check_in_child(subject: bytes, tasks: list[_Task], expected: list[Trace]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.write_bytes(subject + cloudpickle.dumps((tasks, expected)))
        # As many threads as here: other ones round otherwise, and the program chooses them.
        threads = torch.get_num_threads()
        code = f"from {__name__} import _child; import sys; _child(sys.argv[1], {threads})"
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


def _child(path: str, threads: int) -> None:
    torch.set_num_threads(threads)
    with open(path, "rb") as file:
        subject, (tasks, expected) = pickle.load(file), pickle.load(file)
    for task in tasks:
        # Each resume begins with empty caches; elsewhere a fork may crash in a system library.
        if sys.platform == "linux":
            given = subject, task, expected, path
            one = get_context("fork").Process(target=_check_alone, args=given)
            one.start()
            one.join()
            if one.exitcode:
                sys.exit(f"a resume ended with exit code {one.exitcode}")
        else:
            _check_alone(subject, task, expected, path)
        if pickle.loads(Path(path).read_bytes()) is not None:
            return


def _check_alone(subject: _Subject, task: _Task, expected: list[Trace], path: str) -> None:
    error = None
    try:
        subject.check(task, expected, "in a fresh process")
    except ResumeError as found:
        error = found
    Path(path).write_bytes(pickle.dumps(error))
