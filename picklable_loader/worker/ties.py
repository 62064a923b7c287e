"""Ties: what a worker owes to the loader's life: it ends with it, and tells where it is stuck."""

from __future__ import annotations

import faulthandler
import os
import select
import signal
from typing import Any

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None  # type: ignore[assignment]

__all__ = ["STACK_SIGNAL", "hold", "tell_when_asked"]

#: asks a worker where it is; one that programs seldom use
STACK_SIGNAL = getattr(signal, "SIGRTMAX", getattr(signal, "SIGUSR2", None))


def hold(end: Any) -> None:
    """Let this process die with the loader.

    Args:
        end: the end of the loader's lifeline that it was given.
    """
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


def tell_when_asked(end: Any) -> None:
    """Let this process tell where it is; the end must be kept."""
    if STACK_SIGNAL is not None and hasattr(faulthandler, "register"):
        faulthandler.register(STACK_SIGNAL, file=end.fileno(), all_threads=True)
