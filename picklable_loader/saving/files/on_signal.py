"""``save_on_signal``: the checkpoint of a job that is about to be preempted."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from ...errors import UsageError, warn
from ...rng.process_rank import has_group, rank_and_world
from .checkpoint import save

_DEFAULT = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


class save_on_signal:
    """A context in which a signal has a checkpoint written, between two steps of a training.

    Call it at the end of each step. Once a signal has come, the call writes the checkpoint and
    returns True::

        with save_on_signal("checkpoint.pt", make_checkpoint) as stop:
            for batch in loader:
                train(batch)
                if stop():
                    break

    The checkpoint is written once. More signals change nothing, also while it is written. A signal
    that comes after the last call is served when the context ends, unless it ends by an exception:
    a step may then be half done. Afterwards the earlier handlers are back. A process that is forked
    meanwhile, such as a worker, has them from the start, and writes nothing.

    Several ranks have to leave at the same step, and one of them writes. So each passes its
    ``stop.received`` to the others, and all call ``stop.save()``::

        with save_on_signal("checkpoint.pt" if rank == 0 else None, make_checkpoint) as stop:
            for batch in loader:
                train(batch)
                signalled = torch.tensor(int(stop.received is not None))
                torch.distributed.all_reduce(signalled, op=torch.distributed.ReduceOp.MAX)
                if signalled:
                    stop.save()
                    break

    In a process group of several ranks ``stop()`` is refused. A signal that comes after the last
    step is not served there: the other ranks have not heard of it.

    Args:
        path: of the file; see `save`. None: this rank calls ``make_checkpoint`` as the others do,
            for example because that gathers their states, and writes nothing.
        make_checkpoint: gives what is saved, for example a dict of states.
        signals: that ask for a checkpoint. Clusters send SIGTERM before they kill a job, or what
            the job has asked for: ``sbatch --signal=USR1@60``.
        save_rng: see `save`.

    Attributes:
        received: the signal that came first, ``signal.SIGTERM`` for example; None: none has come.
        saved: the checkpoint is written, or was made without a path.

    Raises:
        UsageError: this is not the main thread, which alone may handle signals; or it is entered
            within itself.
        FileNotFoundError, TypeError: the folder does not exist, or ``make_checkpoint`` is no
            callable.
        ValueError, TypeError, OSError: Python's, for a signal that cannot be handled.
    """

    __module__ = "picklable_loader"

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        make_checkpoint: Callable[[], Any],
        signals: Iterable[int] = _DEFAULT,
        *,
        save_rng: bool = False,
    ) -> None:
        folder = None if path is None else os.path.dirname(os.path.abspath(path))
        if folder is not None and not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "save_on_signal() needs its folder", folder)
        if not callable(make_checkpoint):
            raise TypeError(f"make_checkpoint should be callable, got {make_checkpoint!r}")
        self._path = path
        self._make = make_checkpoint
        self._save_rng = save_rng
        self._signals = tuple(map(signal.Signals, signals))
        self._before: dict[signal.Signals, Any] = {}
        self.received: signal.Signals | None = None
        self.saved = False

    def __enter__(self) -> save_on_signal:
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "save_on_signal() has to be entered in the main thread, which alone may handle "
                "signals in Python: enter it there, and call it from the training thread"
            )
        if self._before:
            raise UsageError("this save_on_signal() is entered already: make one for each block")
        self.received, self.saved = None, False
        _entered.append(self)
        try:
            for number in self._signals:
                self._before[number] = signal.signal(number, self._note)
        except BaseException:
            self._put_back()
            raise
        return self

    def __call__(self) -> bool:
        """Between two steps: write the checkpoint if a signal has come.

        Returns:
            Whether a signal has come, and the training should end.

        Raises:
            UsageError: there are several ranks.
            Exception: what ``make_checkpoint`` or `save` raises; the next call tries again.
        """
        if _several_ranks():
            raise UsageError(
                "a call of save_on_signal() decides for its own rank, and the others of the "
                "process group would wait for it in vain: reduce `stop.received is not None` over "
                "the ranks at each step, call stop.save() on every rank if one has had a signal, "
                "and pass path=None on all ranks but one, or each rank a path of its own"
            )
        if self.received is None:
            return False
        self.save()
        return True

    def save(self) -> None:
        """Write the checkpoint, unless that was done: for ranks that agree on when."""
        if not self.saved:
            checkpoint = self._make()
            if self._path is not None:
                save(checkpoint, self._path, save_rng=self._save_rng)
            self.saved = True

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None and _several_ranks():
                if self.received is not None and not self.saved:
                    warn(
                        f"signal {self.received} came, and no checkpoint was written: with several "
                        "ranks, call stop.save() on every rank before the block ends"
                    )
            elif kind is None and self._path is not None:
                self()
        finally:
            self._put_back()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = signal.Signals(number)

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            # None: it was not installed by Python, which cannot put it back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}
        if self in _entered:  # not in a forked process
            _entered.remove(self)


def _several_ranks() -> bool:
    return has_group() and rank_and_world()[1] > 1


# --- processes that are forked meanwhile ---------------------------------------------------------

#: the contexts that this process is in
_entered: list[save_on_signal] = []
#: of the thread that forks: what it had blocked before
_forking = threading.local()


def _before_fork() -> None:
    """Let no signal reach the new process before it has its handlers."""
    numbers = {number for each in _entered for number in each._signals}
    _forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.blocked)


def _in_child() -> None:
    for each in reversed([*_entered]):
        each._put_back()
        each.received = None  # the program's own process serves it
    _in_parent()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
