"""The laws under the other start methods, and in a process that knows nothing."""

from __future__ import annotations

import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .cases import CUSTOM, DATASETS, OPTIONS, SEEKABLE
from .codecs import PICKLES, STATES
from .observe import epochs, seed_everything, seen, seen_next

CASES = {case.name: case for case in (*SEEKABLE, *CUSTOM, *DATASETS, *OPTIONS)}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("name", ["shuffle, generator", "shuffles in place lazily"])
def test_start_methods_deliver_the_same_and_are_saved_alike(name: str, method: str) -> None:
    case = CASES[name]
    seed_everything(1)
    expected = epochs(case, case.make(), 1)[0]
    seed_everything(1)
    iterator = iter(case.make(1, multiprocessing_context=method))
    found: list[Any] = []
    for step, _ in enumerate(expected):
        for codec in (PICKLES[0], STATES[0]):
            loaded = codec.load(codec.save(iterator), case.make)
            assert loaded.loader.num_workers == (1 if codec is PICKLES[0] else 0)
            loaded.loader.num_workers = 0
            assert seen(loaded) == expected[step:], (codec, step)
        found.append(seen_next(iterator))
    assert found == expected
    assert seen(iterator) == []


def test_a_pickle_made_under_spawn_goes_on_under_spawn() -> None:
    case = CASES["more than all, generator"]
    seed_everything(1)
    expected = epochs(case, case.make(), 1)[0]
    seed_everything(1)
    iterator = iter(case.make(1, multiprocessing_context="spawn"))
    seen(iterator, 3)
    saved = PICKLES[0].save(iterator)
    iterator.close()
    assert seen(PICKLES[0].load(saved, case.make)) == expected[3:]


_RESUME = """
import pickle, sys, warnings
from laws.observe import expected_warnings, seen
from laws.test_start_methods import CASES
with open(sys.argv[1], "rb") as file:
    saves = pickle.load(file)
differing = []
with expected_warnings():
    for name, step, saved, rest, later in saves:
        if isinstance(saved, bytes):
            iterator = pickle.loads(saved)
        else:
            loader = CASES[name].make()
            loader.load_state_dict(saved)
            iterator = iter(loader)
        if seen(iterator, len(rest)) != rest or seen(iter(iterator.loader), len(later)) != later:
            differing.append((name, step, type(saved)))
print(differing)
"""


@pytest.mark.inline
def test_a_fresh_process_goes_on_from_every_step(tmp_path: Path) -> None:
    saves = []
    doors = itertools.cycle((PICKLES[0], STATES[0]))
    for name, case in CASES.items():
        seed_everything(1)
        expected, later = epochs(case, case.make(), 2)
        seed_everything(1)
        iterator = iter(case.make())
        for step in range(len(expected)):
            saves.append((name, step, next(doors).save(iterator), expected[step:], later))
            seen_next(iterator)
    file = tmp_path / "saves"
    file.write_bytes(pickle.dumps(saves))
    folder = str(Path(__file__).parents[1])
    path = os.pathsep.join([folder, *(entry for entry in sys.path if entry)])
    done = subprocess.run(
        [sys.executable, "-c", _RESUME, str(file)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.stderr == "" and done.stdout == "[]\n"
