"""Batches for a device: in pinned memory, or copied ahead to the device."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data._utils.pin_memory import pin_memory

from ...core.events import Arrived
from ...errors import UsageError, fails_again, warn
from ...rng.generators import Isolated, seed_all
from ..transport.messages import Answer
from ..worker.on_error import Thinned

#: values without a tensor
_PLAIN = (str, bytes, int, float, complex, type(None), np.ndarray, np.generic)


def pin(batch: Any) -> Any:
    """The batch in pinned memory, by torch's function: tensors that are pinned stay as they are.

    Where no accelerator has such memory, the batch stays as it is.
    """
    accelerator = None
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type == "mps":
        return batch  # torch does not pin there either (its issue 86060)
    return pin_memory(batch, accelerator.type)


def warn_about_pinning(device: str) -> None:
    """Warn where torch does, for a loader with ``pin_memory=True``.

    Args:
        device: the loader's ``pin_memory_device``.
    """
    if device:
        warn(
            "pin_memory_device is deprecated, the current accelerator will be used as the device,"
            f"ignore pin_memory_device='{device}'.",
            UserWarning,
        )
    if not torch.accelerator.is_available():
        warn(
            "'pin_memory' argument is set as true but no accelerator is found, then device pinned "
            "memory won't be used.",
            UserWarning,
        )


def on_cuda(device: Any) -> bool:
    """``to_device`` names a CUDA device."""
    return device is not None and torch.device(device).type == "cuda"


class _Copy(NamedTuple):
    """A batch whose copy to the device was begun; ``ready`` is the event behind it."""

    batch: Any
    tensors: list[torch.Tensor]
    ready: Any


class _Unknown(Exception):
    """A batch has an object whose tensors cannot be found."""


class DeviceCopies:
    """Copies batches to a device, those that wait for delivery ahead of it.

    A copy ahead changes no position: the batch is still one that the workers have made and nobody
    has got. It runs on a CUDA stream of its own, and the consumer's stream waits for its event.

    Args:
        device: where to, for example ``"cuda"``: the device that is current when `deliver` is
            called first. On a device other than CUDA, batches are copied when they are delivered.
        ahead: batches that are copied and not delivered, at most, from 0.
        convert: is given each batch on the device, and returns the one that is delivered.
        seed_of: the seed of a step, for random numbers that ``convert`` draws.

    Raises:
        UsageError: the device is a CUDA device, and there is none; or it is None.
    """

    def __init__(
        self,
        device: Any,
        ahead: int,
        convert: Callable[[Any], Any] | None,
        seed_of: Callable[[int], int],
    ) -> None:
        if device is None:
            raise UsageError(
                "device_convert= needs to_device=, which says where batches are when it is called. "
                'For batches in main memory pass convert=, or to_device="cpu"'
            )
        self._device = torch.device(device)
        self._cuda = on_cuda(device)
        if self._cuda and not torch.cuda.is_available():
            raise UsageError(
                f"to_device={str(device)!r} needs a CUDA device, and torch.cuda.is_available() is "
                "False here: pass to_device=None, or a device that this machine has"
            )
        self._ahead, self._convert, self._seed_of = ahead, convert, seed_of
        #: the stream of the copies has waited for the consumer's, once
        self._begun = False
        #: False: a batch was an object whose tensors cannot be found; none is copied ahead any more
        self._all_known = True

    def deliver(self, batch: Any, step: int) -> Any:
        """The batch on the device; the consumer's stream waits until it is there.

        Raises:
            Exception: whatever its objects, or ``convert``, raise.
        """
        if not self._cuda:
            return self._converted(_moved(batch, self._device), step)
        self._choose()
        if type(batch) is not _Copy and self._all_known:
            try:
                batch = self._copied(batch, step)
            except _Unknown:
                self._all_known = False
        if type(batch) is not _Copy:  # unknown memory must not leave the consumer's stream
            return self._converted(_moved(pin(batch), self._device), step)
        consumer = torch.cuda.current_stream(self._device.index)
        consumer.wait_event(batch.ready)
        for tensor in batch.tensors:
            tensor.record_stream(consumer)
        return batch.batch

    def copy_ahead(self, answers: Mapping[int, Answer]) -> None:
        """Begin to copy what waits for delivery, the next steps first."""
        if not self._cuda or not self._all_known:
            return
        free = self._ahead
        for step in sorted(answers):
            answer = answers[step]
            if answer.kind is not Arrived or free <= 0:
                return
            thinned = type(answer.payload) is Thinned
            batch = answer.payload.batch if thinned else answer.payload
            if type(batch) is not _Copy:
                answer.register()
                try:
                    batch = self._copied(batch, step)
                except torch.OutOfMemoryError:  # there may be room when it is delivered
                    return
                except Exception:
                    if fails_again(self._copied, batch, step):
                        return  # so will its delivery, which raises
                    raise
                answer.payload = Thinned(batch, answer.payload.skipped) if thinned else batch
            free -= 1

    def _copied(self, batch: Any, step: int) -> _Copy:
        list(_tensors_of(batch))  # nothing is begun for a batch that is not known
        stream = _stream_of(self._device)
        if not self._begun:  # `convert` may use tensors that the consumer's stream still makes
            stream.wait_stream(torch.cuda.current_stream(self._device.index))
            self._begun = True
        with torch.cuda.stream(stream):  # its device is the current one there, too
            moved = self._converted(_moved(pin_memory(batch, "cuda"), self._device), step)
            tensors = list(_tensors_of(moved))
            ready = torch.cuda.Event()
            ready.record(stream)
        return _Copy(moved, tensors, ready)

    def _choose(self) -> None:
        """Take the current device if none is named; a program may have set it since."""
        if self._device == torch.device("cuda"):
            self._device = torch.device("cuda", torch.cuda.current_device())

    def _converted(self, batch: Any, step: int) -> Any:
        convert = self._convert
        if convert is None:
            return batch
        seed = self._seed_of(step)
        own = [torch.cuda.default_generators[self._device.index]] if self._cuda else []

        def converted() -> Any:
            seed_all(seed)
            for generator in own:
                generator.manual_seed(seed)
            return convert(batch)

        before = [generator.get_state() for generator in own]
        try:  # when a batch is converted depends on the workers' speed
            return Isolated.run(converted)
        finally:
            for generator, state in zip(own, before):
                generator.set_state(state)


@cache
def _stream_of(device: torch.device) -> Any:
    """The stream of all copies ahead: torch caches memory by stream, so each would have its own."""
    return torch.cuda.Stream(device)


def _moved(data: Any, device: torch.device) -> Any:
    """A batch on a device, with containers as torch's ``pin_memory`` makes them."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, PackedSequence):  # one of its tensors is always in main memory
        to: Any = data.to
        return to(device, non_blocking=True)
    if isinstance(data, _PLAIN):
        return data
    if isinstance(data, Mapping):
        items = {key: _moved(value, device) for key, value in data.items()}
        if isinstance(data, MutableMapping):
            same = copy.copy(data)  # it may have attributes
            same.update(items)
            return same
        return type(data)(items)  # type: ignore[call-arg]
    if isinstance(data, tuple):
        moved = [_moved(each, device) for each in data]
        return type(data)(*moved) if hasattr(data, "_fields") else type(data)(moved)
    if isinstance(data, list):
        some = copy.copy(data)
        some[:] = [_moved(each, device) for each in data]
        return some
    return data.to(device, non_blocking=True) if hasattr(data, "to") else data


def _tensors_of(data: Any) -> Iterator[torch.Tensor]:
    """All tensors of a batch on a GPU; _Unknown if it has objects that may hold others."""
    if isinstance(data, torch.Tensor):
        if data.is_cuda:  # a PackedSequence has one that must not be
            yield data
    elif isinstance(data, _PLAIN):
        return
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from _tensors_of(value)
    elif isinstance(data, Sequence):
        for each in data:
            yield from _tensors_of(each)
    else:
        raise _Unknown
