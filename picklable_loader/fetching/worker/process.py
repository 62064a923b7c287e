"""The main function of a worker process."""

from __future__ import annotations

import faulthandler
import os
import traceback
from dataclasses import replace
from typing import Any

import torch.multiprocessing
from torch._C import _set_worker_signal_handlers

from ...errors import CannotLoadError
from ..transport.channels import WorkersEnd
from ..transport.payload import Payload
from .fetch import Job
from .loop import refuse, serve
from .replica import WorkerConfig
from .signals import STACK_SIGNAL, die_with, leave_ctrl_c_to_the_loader


def work(line: WorkersEnd, job: Job | Payload, config: WorkerConfig, life: Any, stack: Any) -> None:
    """Serve until the loader closes its end; die with it, if it dies.

    A payload holds the job and worker_init_fn. ``stack`` is the pipe to dump stacks to, on signal.
    """
    die_with(life)
    leave_ctrl_c_to_the_loader()
    if stack is not None and STACK_SIGNAL is not None and hasattr(faulthandler, "register"):
        faulthandler.register(STACK_SIGNAL, file=stack.fileno(), all_threads=True)
    torch.multiprocessing._set_thread_name("pt_data_worker")  # what `top` shows, as under torch
    # Prints a line when the process dies of SIGBUS, SIGSEGV and the like.
    _set_worker_signal_handlers()
    try:
        todo: Job = job  # type: ignore[assignment]  # unless it is one
        if isinstance(job, Payload):
            try:
                todo, init = job.open()
            except Exception as error:  # whatever people's __setstate__ raises
                traceback.print_exc()
                refusal = CannotLoadError(
                    f"DataLoader worker (pid {os.getpid()}): what it was given (dataset, "
                    "collate_fn, ...)",
                    f"{type(error).__name__}: {error}; its traceback stands in stderr",
                    "Workers that are spawned, or come from a fork server, unpickle it: mend what "
                    'is raised there, or say multiprocessing_context="fork", which copies the '
                    "process instead",
                )
                refuse(line.open(), config.worker, refusal)
                return
            config = replace(config, worker_init_fn=init)
        serve(line.open(), todo, config)
    except (EOFError, KeyboardInterrupt):
        pass  # nobody listens any more; and a dataset may raise that itself, as under torch
