"""Batches in memory that the GPU reads without a copy."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader
from picklable_loader.fetching.engine import device
from picklable_loader.fetching.transport import page_lock
from picklable_loader.fetching.transport.page_lock import Fence, registered_bytes

from .on_gpu import OnGpu

LARGE = 1 << 20
CYCLES = 200_000_000  # of the GPU: about a tenth of a second


class Numbered(Dataset[Any]):
    """Samples full of their own index."""

    def __init__(self, count: int = 60) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((LARGE,), float(index))


def test_a_fence_passes_when_work_of_every_stream_is_done() -> None:
    for stream in (
        torch.cuda.current_stream(),
        torch.cuda.Stream(),
        torch.cuda.Stream(priority=-1),
    ):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
        fence = Fence()
        assert not fence.passed()
        stream.synchronize()
        assert fence.passed()


def test_no_fence_disturbs_a_graph_that_is_captured() -> None:
    graph, number = torch.cuda.CUDAGraph(), torch.zeros((), device="cuda")
    with torch.cuda.graph(graph):
        number += 1
        with pytest.raises(page_lock.NotNow):
            Fence()
        number += 1
    graph.replay()
    assert number.item() == 2


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_batches_are_pinned_without_a_copy(start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    came, pinned = [], device.pin

    def noted(batch: Any) -> Any:
        made = pinned(batch)
        came.append((batch.is_pinned(), batch.data_ptr() == made.data_ptr()))
        return made

    monkeypatch.setattr("picklable_loader.epoch.driver.pin", noted)
    context: Any = {"num_workers": 2, "multiprocessing_context": start}
    for number, batch in enumerate(DataLoader(Numbered(8), 2, pin_memory=True, **context)):
        assert batch.is_pinned()
        assert batch.to("cuda", non_blocking=True).sum().item() == (4 * number + 1) * LARGE
    assert came == [(True, True)] * 4


def test_memory_is_written_again_only_when_the_gpu_has_read_it() -> None:
    loader = DataLoader(Numbered(120), 2, num_workers=3, pin_memory=True)
    side, copies = torch.cuda.Stream(), []
    for batch in loader:
        with torch.cuda.stream(side):  # the copy waits for a long kernel before it
            torch.cuda._sleep(CYCLES // 20)
            copies.append(batch[:, ::4096].contiguous().clone())  # of the host: what must arrive
            copies.append(batch.to("cuda", non_blocking=True))
        del batch
    torch.cuda.synchronize()
    for was, copy in zip(copies[::2], copies[1::2]):
        assert torch.equal(copy[:, ::4096].cpu(), was)
        assert (copy == copy[:, :1]).all()


def test_a_loader_in_a_forked_worker_says_why_it_cannot_pin() -> None:
    torch.zeros(1, device="cuda")
    with pytest.raises(RuntimeError, match="(?s)initialization error.*pin_memory=False"):
        next(iter(DataLoader(Nests(), num_workers=1, multiprocessing_context="fork")))


class Nests(Numbered):
    def __getitem__(self, index: int) -> torch.Tensor:
        batch: torch.Tensor = next(iter(DataLoader(Numbered(3), pin_memory=True)))
        return batch


def test_registered_memory_is_given_back() -> None:
    before = registered_bytes()
    loader = DataLoader(Numbered(30), 2, num_workers=2, pin_memory=True)
    iterator = iter(loader)
    batch = next(iterator)
    assert registered_bytes() > before
    del iterator, loader
    gc.collect()
    assert batch.is_pinned() and batch.eq(torch.tensor([[0.0], [1.0]])).all()
    del batch
    gc.collect()
    assert registered_bytes() == before


def test_over_the_limit_torch_pins_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    before = registered_bytes()
    monkeypatch.setattr(page_lock, "most_bytes", lambda: 0)
    for number, batch in enumerate(DataLoader(Numbered(8), 2, num_workers=2, pin_memory=True)):
        assert registered_bytes() == before
        assert batch.is_pinned() and batch[0, 0] == 2 * number


def test_without_the_drivers_interface_torch_pins_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_lock, "_library", lambda: None)
    for number, batch in enumerate(DataLoader(Numbered(8), 2, num_workers=2, pin_memory=True)):
        assert batch.is_pinned() and batch[1, -1] == 2 * number + 1


@pytest.mark.parametrize("start", ["", "spawn", "forkserver"])
def test_tensors_on_the_gpu_come_from_processes_that_may_use_it(start: str) -> None:
    script = Path(__file__).with_name("on_gpu.py")  # a process: CUDA's file for others stays open
    command = [sys.executable, str(script), start]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == [f"cuda [[{n}.0, {n}.0, {n}.0]]" for n in range(4)]


def test_a_forked_worker_that_uses_the_gpu_says_how_to_start_workers_instead() -> None:
    torch.zeros(1, device="cuda")
    with pytest.raises(
        RuntimeError, match="(?s)re-initialize CUDA in forked.*multiprocessing_context"
    ):
        next(iter(DataLoader(OnGpu(), num_workers=1, multiprocessing_context="fork")))
