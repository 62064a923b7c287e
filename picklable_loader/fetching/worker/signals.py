"""Signals of a worker: it dies with the loader, and ignores Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None  # type: ignore[assignment]

#: asks a worker where it is; one that programs seldom use
STACK_SIGNAL = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))


def die_with(end: Any) -> None:
    """Let this process die with the loader, whose lifeline has this end."""
    if not hasattr(fcntl, "F_SETSIG"):
        return
    try:
        # Workers that were forked share their end, with one owner. This opens one of its own.
        own = os.open(f"/proc/self/fd/{end.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    end.close()
    fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(own, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    line = select.poll()
    line.register(own)
    if line.poll(0):
        os._exit(1)  # it was gone before that


@contextmanager
def deaf() -> Iterator[None]:
    """Let processes that this thread starts meanwhile hear no Ctrl-C, until they are ready for it.

    A spawned one imports for seconds before it is. A fork server's has the server's ears instead.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_ctrl_c_to_the_loader() -> None:
    """Go on after Ctrl-C, which reaches all processes of a terminal, or of a notebook's kernel.

    What it means is up to the program: if that ends, so does this process; if it was interrupted in
    its own code, what is being fetched is still wanted.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Not SIG_IGN, which the programs that a dataset starts would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
