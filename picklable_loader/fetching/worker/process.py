"""The main function of a worker process, and what signals do to it.

It dies with the loader, ignores Ctrl-C, and dumps its stacks on a signal.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import select
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch.multiprocessing
from torch._C import _set_worker_signal_handlers

from ...errors import CannotLoadError
from ..transport.channels import WorkersEnd
from ..transport.payload import Payload
from .fetch import Job
from .hooks import end
from .loop import serve
from .replica import WorkerConfig

#: asks a worker where it is; one that programs seldom use
STACK_SIGNAL = getattr(signal, "SIGRTMAX", signal.SIGUSR2)


def work(line: WorkersEnd, job: Job | Payload, config: WorkerConfig, life: Any, stack: Any) -> None:
    """Serve until the loader closes its end; die with it, if it dies.

    A payload holds the job and worker_init_fn. ``stack`` is the pipe to dump stacks to, on signal.
    """
    die_with(life)
    leave_ctrl_c_to_the_loader()
    if stack is not None:
        faulthandler.register(STACK_SIGNAL, file=stack.fileno(), all_threads=True)
    torch.multiprocessing._set_thread_name("pt_data_worker")  # what `top` shows, as under torch
    torch.set_default_dtype(config.default_dtype)
    # Prints a line when the process dies of SIGBUS, SIGSEGV and the like.
    _set_worker_signal_handlers()
    try:
        todo: Job | Exception = job  # type: ignore[assignment]  # unless it is a payload
        if isinstance(job, Payload):
            try:
                todo, init = job.open()
                config = replace(config, worker_init_fn=init)
            except Exception as error:  # whatever people's __setstate__ raises
                traceback.print_exc()
                todo = CannotLoadError(
                    f"DataLoader worker (pid {os.getpid()}): what it was given (dataset, "
                    "collate_fn, ...)",
                    f"{type(error).__name__}: {error}; its traceback is in stderr",
                    "Workers that are spawned, or come from a fork server, unpickle it: fix what "
                    'is raised there, or say multiprocessing_context="fork", which copies the '
                    "process instead",
                )
        with suppress(EOFError):  # nobody wants what was being sent
            serve(line.open(), todo, config)
        if isinstance(todo, Job) and todo.exit_fn is not None:
            end(todo.exit_fn, config.worker)
    except (EOFError, KeyboardInterrupt):
        pass  # nobody listens any more; and a dataset may raise that itself, as under torch


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
def without_ctrl_c() -> Iterator[None]:
    """Let processes that this thread starts meanwhile hear no Ctrl-C, until they are ready for it.

    A spawned one imports for seconds before it is. A fork server gives its processes its own mask
    instead.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_ctrl_c_to_the_loader() -> None:
    """Go on after Ctrl-C, which reaches all processes of a terminal, or of a notebook's kernel.

    The program decides about it: if that ends, so does this process; if it was interrupted in
    its own code, what is being fetched is still wanted.
    """
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        # Not SIG_IGN, which the programs that a dataset starts would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
