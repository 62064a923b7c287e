"""The readers of files that docs/files.md shows: saved at every step, they go on exactly.

They are taken from the page, as a module, since a pickle finds classes by their module's name.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from laws.observe import go_on, lists, saved_at_every_step
from PIL import Image
from test_docs import ROOT, blocks
from zoo.datasets import as_they_are

from picklable_loader import DataLoader

page = ROOT / "docs" / "files.md"
readers: Any = ModuleType("readers_of_the_page")
sys.modules[readers.__name__] = readers
for _, code in blocks(page):
    if "class Files(" in code or "(Files):" in code:
        exec(compile(code, page, "exec"), vars(readers))

#: a dataset, and all of its samples
Made = tuple[Any, list[Any]]
Kind = Callable[[], Made]

#: samples in each file: none in one, and fewer files than some resumes have workers
SIZES = [5, 0, 4, 7]


@pytest.fixture(autouse=True)
def a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def paths() -> list[str]:
    return [f"{at}.data" for at in range(len(SIZES))]


# --- datasets over files, and what they hold -----------------------------------------------------


def lines() -> Made:
    texts = [[f"{at}.{n} lïne" for n in range(size)] for at, size in enumerate(SIZES)]
    for path, text in zip(paths(), texts):
        Path(path).write_text("".join(line + "\n" for line in text), encoding="utf-8")
    return readers.Lines(paths()), sum(texts, [])


def records() -> Made:
    made = [[{"at": at, "n": n} for n in range(size)] for at, size in enumerate(SIZES)]
    for path, rows in zip(paths(), made):
        good = [json.dumps(row) for row in rows]
        # Broken ones at the start, at the end, and in between; one is no UTF-8.
        broken = [b'{"at": 1,\n', b"\xff\xfe\n", b"\n"]
        whole = b"".join(row.encode() + b"\n" + broken[n % 3] for n, row in enumerate(good))
        Path(path).write_bytes(broken[0] + whole)
    return readers.Records(paths()), sum(made, [])


def chunks() -> Made:
    for at, size in enumerate(SIZES):
        np.arange(at * 100, at * 100 + size, dtype=np.float64).tofile(f"{at}.data")
    numbers = [float(at * 100 + n) for at, size in enumerate(SIZES) for n in range(size)]
    return readers.Chunks(paths(), 2), numbers


def pictures() -> Made:
    made = []
    for at, size in enumerate(SIZES):
        with tarfile.open(f"{at}.data", "w") as tar:
            for n in range(size):
                name = f"{at}-{n}.{'png' if n % 2 else 'jpeg'}"
                encoded = picture(at, n, name.split(".")[1])
                member = tarfile.TarInfo(name)
                member.size = len(encoded)
                tar.addfile(member, io.BytesIO(encoded))
                made.append([name, np.array(Image.open(io.BytesIO(encoded))).tolist()])
    return readers.Pictures(paths()), made


def pixels(at: int, n: int) -> Any:
    return np.random.default_rng((at, n)).integers(0, 256, (4, 5, 3), dtype=np.uint8)


def picture(at: int, n: int, form: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(at, n)).save(buffer, form)
    return buffer.getvalue()


# --- saving and going on -------------------------------------------------------------------------

KINDS = [lines, records, chunks, pictures]


def loader(dataset: Any, num_workers: int, drop_last: bool = False) -> DataLoader[Any]:
    options: dict[str, Any] = {"seed": 0, "snapshot_every_n_steps": 1, "num_workers": num_workers}
    if isinstance(dataset, readers.Chunks):
        return DataLoader(dataset, batch_size=None, **options)
    return DataLoader(dataset, 3, collate_fn=as_they_are, drop_last=drop_last, **options)


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.EmptyEpochWarning")
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_every_save_goes_on_exactly(kind: Kind, num_workers: int, drop_last: bool) -> None:
    dataset, _ = kind()
    batches, saves = saved_at_every_step(iter(loader(dataset, num_workers, drop_last)))
    for step, others in (*((step, 0) for step in range(len(saves))), (2, 2), (3, 3)):
        for door, save in saves[step].items():
            again = go_on(save, loader(dataset, others, drop_last))
            assert lists(again) == batches[step:], (step, others, door)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_sample_comes_once(kind: Kind, num_workers: int) -> None:
    dataset, samples = kind()
    batches = lists(loader(dataset, num_workers))
    assert sorted(sum(batches, []), key=str) == sorted(samples, key=str)


def test_without_workers_samples_come_as_they_stand_in_the_files() -> None:
    for kind in KINDS:
        dataset, samples = kind()
        assert sum(lists(loader(dataset, 0)), []) == samples


def test_batches_are_filled_up_where_records_are_broken() -> None:
    dataset, samples = records()
    assert [len(batch) for batch in loader(dataset, 0)] == [3] * 5 + [1]


def test_png_pictures_have_the_very_pixels_that_were_drawn() -> None:
    dataset, _ = pictures()
    found = {name: image for batch in loader(dataset, 2) for name, image in batch}
    assert found["3-5.png"].numpy().tobytes() == pixels(3, 5).tobytes()


def test_a_resume_reads_nothing_that_comes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, samples = lines()
    iterator = iter(loader(dataset, 0))
    next(iterator), next(iterator), next(iterator)
    state = iterator.state_dict()

    for path in paths()[:2]:
        Path(path).unlink()
    text = Path(paths()[2]).read_bytes()
    passed = len("".join(line + "\n" for line in samples[5:9]).encode())
    Path(paths()[2]).write_bytes(b"?" * passed + text[passed:])
    again = loader(dataset, 0)
    again.load_state_dict(state)
    assert sum(lists(again), []) == samples[9:]
