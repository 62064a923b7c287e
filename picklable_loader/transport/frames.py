"""Frames: a message as one string of bytes.

A request is pickled whole. An answer has a fixed header before its pickled body, so that a body
that cannot be unpickled (a class that does not exist on this side) still says which step failed.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from torch._utils import ExceptionWrapper

from ..core.events import Task
from .tensors import dumps

__all__ = [
    "Answer",
    "Begin",
    "Outcome",
    "Request",
    "encode_answer",
    "encode_request",
    "read_answer",
    "read_request",
]


class Outcome(IntEnum):
    """How a task ended."""

    ARRIVED = 0  # the payload is the batch
    FAILED = 1  # the payload is torch's ExceptionWrapper
    ENDED = 2  # the stream has no more data; no payload


@dataclass(frozen=True, slots=True)
class Begin:
    """An epoch begins."""

    base_seed: int
    #: the epoch to tell the dataset, by its set_epoch
    announced: int | None = None
    #: DataPipes: the seed that all workers share
    shared_seed: int | None = None
    #: states of the global generators to go on with (``seeding="worker"``)
    states: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A task for a worker, and the epoch's beginning if it is the first one."""

    run: int
    task: Task
    begin: Begin | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a task."""

    #: which run of the loader asked; an answer to an earlier run is not awaited any more
    run: int
    step: int
    worker: int
    outcome: Outcome
    payload: Any
    #: the worker's generators afterwards (``seeding="worker"``)
    states: dict[str, Any] | None = None


_HEADER = struct.Struct("<qqiB")


def encode_request(request: Request) -> bytes:
    return dumps(request)


def read_request(frame: bytes) -> Request:
    request: Request = pickle.loads(frame)
    return request


def encode_answer(answer: Answer) -> bytes:
    """An answer as bytes; a payload that cannot be pickled becomes a failure that says so."""
    outcome = answer.outcome
    try:
        body = dumps((answer.payload, answer.states))
    except Exception:
        outcome = Outcome.FAILED
        body = dumps((_failure(answer), answer.states))
    return _HEADER.pack(answer.run, answer.step, answer.worker, outcome) + body


def read_answer(frame: bytes) -> Answer:
    """The answer; a body that cannot be unpickled becomes a failure that says so.

    Raises:
        ConnectionError, FileNotFoundError, EOFError: the worker that keeps a tensor's shared
            memory is gone, perhaps.
    """
    run, step, worker, outcome = _HEADER.unpack_from(frame)
    try:
        payload, states = pickle.loads(memoryview(frame)[_HEADER.size :])
    except (ConnectionError, FileNotFoundError, EOFError):
        raise
    except Exception:
        wrapper = ExceptionWrapper(where="while unpickling what a DataLoader worker had sent")
        return Answer(run, step, worker, Outcome.FAILED, wrapper)
    return Answer(run, step, worker, Outcome(outcome), payload, states)


def _failure(answer: Answer) -> ExceptionWrapper:
    """What is told instead of a payload that cannot be pickled."""
    if answer.outcome is not Outcome.FAILED:
        return ExceptionWrapper(where="while a DataLoader worker pickled a batch")
    # An exception of a class that only exists in the worker: keep its text.
    failure: ExceptionWrapper = answer.payload
    name = failure.exc_type.__name__
    return TextFailure(f"Caught {name} {failure.where}.\nOriginal {failure.exc_msg}")


class TextFailure(ExceptionWrapper):
    """An exception whose class cannot be sent: raised as a RuntimeError with the same text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def reraise(self) -> None:
        raise RuntimeError(self.text)
