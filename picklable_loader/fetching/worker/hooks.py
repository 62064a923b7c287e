"""People's functions for a worker's start and its end (pytorch issue 13023)."""

from __future__ import annotations

import os
import reprlib
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ...errors import UsageError, warn
from ...rng.generators import Isolated, seed_all


@dataclass(frozen=True)
class WorkerStart:
    """A worker that is about to start, as ``worker_init_fn_arg`` sees it in the main process.

    A process that reads several streams serves each of them as one of torch's workers would, so
    there is one of these for each stream. The numbers are those of ``get_worker_info()``.

    Attributes:
        dataset: the main process's own.
        sampler_iter: the live iterator of a sampler of your own; None with torch's samplers, whose
            order is computed, and with iterable-style data.
        num_workers: how many workers there are; streams, if the data is read in streams. With
            ``shard=`` they are those of all ranks.
        worker_id: the number of this one, from 0.
        base_seed: the worker's seed is this plus its number.
        epoch: number of the epoch at hand, from 0. Persistent workers serve later ones, too: their
            argument must not depend on it, as a resume starts them in a later one.
        rank: of this process, from 0.
        world_size: number of ranks.
    """

    __module__ = "picklable_loader"

    dataset: Any
    sampler_iter: Iterator[Any] | None
    num_workers: int
    worker_id: int
    base_seed: int
    epoch: int
    rank: int
    world_size: int


def argument(make: Callable[[WorkerStart], Any], start: WorkerStart) -> Any:
    """The second argument of ``worker_init_fn``; UsageError if it cannot be made.

    Workers may start at any time, so the program's generators must not notice what this draws.
    """

    def seeded() -> Any:
        seed_all(start.base_seed + start.worker_id)
        return make(start)

    try:
        return Isolated.run(seeded)
    except Exception as error:
        raise UsageError(
            f"worker_init_fn_arg has raised {type(error).__name__}: {error}, in the main process, "
            f"for worker {start.worker_id}. The worker was not started. Call iter or next again"
        ) from error


def check_arguments(given: Mapping[int, Any], method: str) -> None:
    """Raise UsageError if a new process cannot be given what ``worker_init_fn_arg`` has returned.

    Args:
        given: by the worker's number, its argument.
        method: that starts the process, for example "spawn".
    """
    for worker, each in given.items():
        try:
            ForkingPickler.dumps(each)
        except RuntimeError:  # locks and queues are pickled only while a process starts
            return
        except Exception as error:
            raise UsageError(
                f"worker_init_fn_arg has returned {reprlib.repr(each)} for worker {worker}, which "
                f"cannot be pickled ({error}), and the start method {method!r} needs that: return "
                'plain values, or use multiprocessing_context="fork". Then call iter or next again'
            ) from error


def end(worker_exit_fn: Callable[[int], object], worker: int) -> None:
    """Call it in a worker that ends; a failure is a warning, which the worker prints."""
    try:
        worker_exit_fn(worker)
    except Exception:
        warn(
            f"worker_exit_fn has failed in DataLoader worker {worker} (pid {os.getpid()}):\n"
            f"{traceback.format_exc()}",
        )
