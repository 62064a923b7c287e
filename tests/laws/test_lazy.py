"""Law 4: loading starts no process, draws no number, reads no data; the first next does."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
from zoo.datasets import Noisy

from .cases import ALL, CUSTOM, DATASETS, SEEKABLE, Case
from .codecs import COPY, JSON, PICKLES, STATES
from .observe import expected_warnings, random_states, seed_everything, seen_next


def traces() -> tuple[Any, ...]:
    """What starting, drawing or reading would change."""
    return len(multiprocessing.active_children()), Noisy.reads, random_states()


@pytest.mark.inline
@pytest.mark.parametrize("case", ALL, ids=str)
def test_saving_and_unpickling_leave_no_trace(case: Case) -> None:
    seed_everything(1)
    iterator = iter(case.make())
    for _ in range(2):
        for codec in (*PICKLES, COPY):
            before = traces()
            loaded = codec.load(codec.save(iterator), case.make)
            assert (loaded.step, loaded.epoch) == (iterator.step, iterator.epoch)
            assert repr(loaded) and loaded.remaining == iterator.remaining
            assert repr(loaded.state_dict()) == repr(loaded.state_dict())
            assert traces() == before, codec
        try:
            seen_next(iterator)
        except StopIteration:
            break


@pytest.mark.inline
@pytest.mark.parametrize("case", ALL, ids=str)
def test_loading_a_state_leaves_no_trace(case: Case) -> None:
    seed_everything(1)
    iterator = iter(case.make())
    seen_next(iterator)
    for codec in (*STATES, JSON) if case.json else STATES:
        before = traces()
        saved = codec.save(iterator)
        loader = case.make()
        assert traces() == before, codec
        if isinstance(saved, dict):
            loader.load_state_dict(saved)
            assert loader.state_dict() and loader.epoch == 0
            assert traces() == before, codec


@pytest.mark.parametrize("case", [SEEKABLE[3], CUSTOM[0], DATASETS[0], DATASETS[-1]], ids=str)
def test_workers_start_with_the_first_next(case: Case) -> None:
    iterator = iter(case.make(2))
    seen_next(iterator)
    saved = PICKLES[0].save(iterator)
    iterator.close()
    before = traces()
    assert before[0] == 0
    loaded = PICKLES[0].load(saved, case.make)
    assert traces() == before
    with expected_warnings():
        seen_next(loaded)
    assert len(multiprocessing.active_children()) == 2


@pytest.mark.parametrize("num_workers", [1, 2])
def test_saving_asks_no_worker(num_workers: int) -> None:
    """Workers are stopped meanwhile: whoever asks one waits for ever."""
    iterator = iter(SEEKABLE[3].make(num_workers))
    seen_next(iterator)
    workers = multiprocessing.active_children()
    assert len(workers) == num_workers
    _signal(workers, "SIGSTOP")
    saved = [PICKLES[0].save(iterator), STATES[0].save(iterator)]
    _signal(workers, "SIGCONT")
    assert all(saved)


def _signal(processes: list[Any], name: str) -> None:
    import os
    import signal

    for process in processes:
        os.kill(process.pid, getattr(signal, name))
