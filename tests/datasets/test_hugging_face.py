"""Datasets of Hugging Face's, streaming and map-style, with the real library."""

from __future__ import annotations

import io
import json
import pickle
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from laws.observe import go_on, lists, saved_at_every_step

from picklable_loader import (
    DataLoader,
    Interleave,
    KeyBasedDtypeConverter,
    ShuffleBuffer,
    current_seed,
)
from picklable_loader.errors import EmptyEpochWarning, ReplayWarning

#: rows in each file
SIZES = [7, 8, 5, 9]
ROWS = [100 * at + n for at, size in enumerate(SIZES) for n in range(size)]


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("hugging_face")
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("HF_DATASETS_OFFLINE", "1")
        patch.setenv("HF_HOME", str(folder / "home"))
        patch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))
        pytest.importorskip("datasets")
        patch.chdir(folder)
        for at, size in enumerate(SIZES):
            rows = [{"n": 100 * at + n, "text": f"{at}.{n}"} for n in range(size)]
            Path(f"{at}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        yield


# --- datasets ------------------------------------------------------------------------------------


def rows(files: int = len(SIZES)) -> Any:
    from datasets import load_dataset

    paths = [f"{at}.jsonl" for at in range(files)]
    return load_dataset("json", data_files=paths, streaming=True, split="train")


def with_square(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "square": row["n"] ** 2}


def is_even(row: dict[str, Any]) -> bool:
    return bool(row["n"] % 2 == 0)


def mapped() -> Any:
    return rows().map(with_square).with_format("torch")


def with_squares(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "square": [n**2 for n in columns["n"]]}


def batch_mapped() -> Any:
    return rows().map(with_squares, batched=True, batch_size=4)


def filtered() -> Any:
    return rows().filter(is_even)


def of_a_table() -> Any:
    from datasets import Dataset

    return Dataset.from_list([{"n": n} for n in ROWS]).to_iterable_dataset(num_shards=4)


def of_a_table_in_torchs_format() -> Any:
    return of_a_table().with_format("torch")


def of_a_table_with_noise_in_each_row() -> Any:
    return of_a_table().map(with_noise)


def in_a_buffer() -> Any:
    return ShuffleBuffer(rows(), size=6, seed=1)


def in_a_buffer_that_rereads() -> Any:
    return ShuffleBuffer(rows(), size=6, seed=1, state="rebuild")


def interleaved() -> Any:
    return Interleave([rows(2), rows().skip(15)], weights=[1, 2], seed=1)


def shuffled() -> Any:
    return rows().shuffle(seed=3, buffer_size=6)


# --- saving and going on -------------------------------------------------------------------------


def numbers(batch: list[dict[str, Any]]) -> list[int]:
    assert all("square" not in row or row["square"] == row["n"] ** 2 for row in batch)
    return [int(row["n"]) for row in batch]


def loader(dataset: Any, num_workers: int = 0, **options: Any) -> DataLoader[Any]:
    options = {"collate_fn": numbers, **options}
    return DataLoader(dataset, 3, num_workers=num_workers, seed=0, **options)


EXACT = [mapped, batch_mapped, filtered, in_a_buffer, in_a_buffer_that_rereads, interleaved]
EXACT += [of_a_table, of_a_table_in_torchs_format, of_a_table_with_noise_in_each_row]


@pytest.mark.filterwarnings(f"ignore::{EmptyEpochWarning.__module__}.EmptyEpochWarning")
@pytest.mark.costly
@pytest.mark.parametrize("streams, every", [(None, 1), (None, 3), (2, "auto")])
@pytest.mark.parametrize("make", EXACT)
def test_every_save_goes_on_exactly_and_so_do_later_epochs(
    make: Callable[[], Any], streams: int | None, every: int | str
) -> None:
    options: dict[str, Any] = {"num_streams": streams, "snapshot_every_n_steps": every}
    whole = loader(make(), **options)
    epochs = [list(whole) for _ in range(3)]
    for epoch in range(2):
        run = loader(make(), **options)
        for _ in range(epoch):
            list(run)
        batches, saves = saved_at_every_step(iter(run))
        assert batches == epochs[epoch], "saving has disturbed the run"
        for step, doors in enumerate(saves):
            door = ("pickle", "state")[(epoch + step) % 2]  # each in one of the epochs
            again = go_on(doors[door], loader(make(), **options))
            assert list(again) == batches[step:], (epoch, step)
            if step % 4 < 2:
                assert list(again.loader) == epochs[epoch + 1], (epoch, step)


@pytest.mark.parametrize("make", [mapped, in_a_buffer])
def test_what_two_workers_have_saved_goes_on_over_any_number(make: Callable[[], Any]) -> None:
    batches, saves = saved_at_every_step(iter(loader(make(), 2)))
    for step in (1, 5):
        for save, others in zip(saves[step].values(), (0, 2)):
            assert list(go_on(save, loader(make(), others))) == batches[step:]


def test_each_row_comes_once() -> None:
    for make in (mapped, in_a_buffer, in_a_buffer_that_rereads):
        assert sorted(sum(loader(make(), num_streams=2), [])) == ROWS


def test_streams_without_a_file_end_at_once() -> None:
    batches, saves = saved_at_every_step(iter(loader(mapped(), num_streams=6)))
    assert sorted(sum(batches, [])) == ROWS
    for step in (1, 5, len(batches) - 1):
        for save in saves[step].values():
            assert list(go_on(save, loader(mapped()))) == batches[step:]


def test_a_state_between_epochs_begins_the_next_one_at_its_start() -> None:
    run = loader(mapped())
    list(run)
    state = run.state_dict()
    expected = list(run)
    again = loader(mapped())
    again.load_state_dict(state)
    assert list(again) == expected
    assert sorted(sum(expected, [])) == ROWS


def test_with_persistent_workers_the_epochs_after_a_resume_are_whole() -> None:
    iterator = iter(loader(mapped(), 2))
    next(iterator), next(iterator)
    again = loader(mapped(), 2, persistent_workers=True)
    again.load_state_dict(iterator.state_dict())
    assert len(sum(again, [])) == len(ROWS) - 6
    for _ in range(2):
        assert sorted(sum(again, [])) == ROWS


def test_a_state_that_the_program_has_loaded_counts_in_every_epoch_as_it_does_by_itself() -> None:
    first = rows()
    iterator = iter(first)
    seen = [next(iterator)["n"] for _ in range(4)]
    dataset = rows()
    dataset.load_state_dict(first.state_dict())
    run = loader(dataset)
    left = [n for n in ROWS if n not in seen]
    assert [sum(run, []) for _ in range(2)] == [left, left]
    again = iter(run)
    next(again)
    again = pickle.loads(pickle.dumps(again))
    assert sum(again, []) == left[3:]
    assert sum(again.loader, []) == left


def test_a_loader_that_is_told_the_epoch_tells_it_again() -> None:
    def make() -> DataLoader[Any]:
        run = loader(ShuffleBuffer(rows(), size=6), num_streams=2)
        run.set_epoch(4)
        return run

    expected = list(make())
    iterator = iter(make())
    next(iterator), next(iterator)
    again = loader(ShuffleBuffer(rows(), size=6), num_streams=2)
    again.load_state_dict(iterator.state_dict())
    assert list(again) == expected[2:]


# --- their own shuffle ---------------------------------------------------------------------------


def test_shuffled_rows_all_come_over_workers() -> None:
    batches = list(loader(shuffled(), 2))
    assert sorted(sum(batches, [])) == ROWS
    assert sum(batches, []) != ROWS


@pytest.mark.filterwarnings(f"ignore::{EmptyEpochWarning.__module__}.EmptyEpochWarning")
@pytest.mark.filterwarnings(f"ignore::{ReplayWarning.__module__}.ReplayWarning")
@pytest.mark.parametrize("options", [{}, {"num_streams": 2}, {"num_streams": 2, "num_workers": 1}])
def test_their_shuffle_is_exact_by_replay(options: dict[str, Any]) -> None:
    """Its state would lose what is in the buffer."""
    batches, saves = saved_at_every_step(iter(loader(shuffled(), **options)))
    for step, doors in enumerate(saves):
        for save in doors.values():
            assert list(go_on(save, loader(shuffled(), **options))) == batches[step:], step


def test_that_it_will_be_replayed_is_told_at_the_first_save() -> None:
    iterator = iter(loader(shuffled().map(with_square)))
    next(iterator)
    with pytest.warns(ReplayWarning, match="lacks the samples in the buffer of its shuffle"):
        iterator.state_dict()
    next(iterator)
    state = iterator.state_dict()  # warnings are errors
    list(iterator)
    again = loader(shuffled().map(with_square))
    again.load_state_dict(state)
    with pytest.warns(ReplayWarning, match="2 batches.*without a shuffle of its own"):
        next(iter(again))


# --- functions with noise ------------------------------------------------------------------------


def with_noise(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "noise": [random.random(), torch.rand(()).item()]}


def with_noises(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "noise": [random.random() for _ in columns["n"]]}


def with_noise_of_its_seed(columns: dict[str, Any]) -> dict[str, Any]:
    noise = random.Random(current_seed())
    return {**columns, "noise": [noise.random() for _ in columns["n"]]}


def with_late_noise(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "noise": [random.random() if n > 200 else 0.0 for n in columns["n"]]}


def some(columns: dict[str, Any]) -> list[bool]:
    return [random.random() < 0.7 for _ in columns["n"]]


def with_noise_from_row_5_on(row: dict[str, Any]) -> dict[str, Any]:
    return with_noise(row) if row["n"] % 100 >= 5 else {**row, "noise": [0.0]}


def generated(function: Callable[[Any], Any] = dict) -> Any:
    """Rows of a generator of the program's, which a resume reads again from its shard's start."""
    from datasets import IterableDataset

    def samples(shards: list[int]) -> Iterator[Any]:
        for at in shards:
            yield from (function({"n": 100 * at + n}) for n in range(SIZES[at]))

    return IterableDataset.from_generator(samples, gen_kwargs={"shards": [0, 1]})


def of_an_archive() -> Any:
    """Rows of a reader of the library's that has no tables; it draws nothing."""
    from datasets import load_dataset

    with tarfile.open("rows.tar", "w") as archive:
        for n in range(20):
            member = tarfile.TarInfo(f"{n:02}.json")
            text = json.dumps({"n": n}).encode()
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return load_dataset("webdataset", data_files="rows.tar", streaming=True, split="train")


def arrow_with_noise(columns: Any) -> Any:
    import pyarrow

    noise = pyarrow.array([random.random() for _ in range(len(columns))])
    return columns.append_column("noise", noise)


NOISY: dict[str, Callable[[], Any]] = {
    "map": lambda: rows().map(with_noise),
    "batched map": lambda: rows().map(with_noises, batched=True, batch_size=4),
    "the batch's seed": lambda: rows().map(with_noise_of_its_seed, batched=True, batch_size=4),
    "only later rows": lambda: rows().map(with_late_noise, batched=True, batch_size=4),
    "batched filter": lambda: rows().filter(some, batched=True, batch_size=4),
    "arrow": lambda: rows().with_format("arrow").map(arrow_with_noise, batched=True, batch_size=4),
    "in torch's format": lambda: NOISY["batched map"]().with_format("torch"),
    "of a table": lambda: of_a_table().map(with_noises, batched=True, batch_size=4),
    "of a table, arrow": lambda: of_a_table()
    .with_format("arrow")
    .map(arrow_with_noise, batched=True, batch_size=4),
    "in a buffer": lambda: ShuffleBuffer(NOISY["batched map"](), size=6, seed=1),
    "a generator": lambda: generated(with_noise),
    "a generator, only later rows": lambda: generated(with_noise_from_row_5_on),
    "a generator, mapped": lambda: generated(with_noise).map(with_square),
    "a generator in a buffer": lambda: ShuffleBuffer(generated(with_noise), size=6, seed=1),
    "generators in turn": lambda: Interleave(
        [generated(with_noise), generated(with_noise)], seed=1
    ),
}


def plain(samples: list[dict[str, Any]]) -> str:
    return repr(samples)


@pytest.mark.filterwarnings(f"ignore::{EmptyEpochWarning.__module__}.EmptyEpochWarning")
@pytest.mark.filterwarnings(f"ignore::{ReplayWarning.__module__}.ReplayWarning")
@pytest.mark.parametrize("options", [{}, {"num_streams": 2}, {"num_streams": 2, "num_workers": 1}])
@pytest.mark.parametrize("name", NOISY)
@pytest.mark.costly
def test_noise_of_their_functions_is_the_same_after_every_save(
    name: str, options: dict[str, Any]
) -> None:
    """They call a function again for samples that another batch has begun with."""
    options = {"collate_fn": plain, **options}
    batches, saves = saved_at_every_step(iter(loader(NOISY[name](), **options)))
    assert batches == list(loader(NOISY[name](), **options)), "no resume could be exact"
    for step, doors in enumerate(saves):
        for save in doors.values():
            assert list(go_on(save, loader(NOISY[name](), **options))) == batches[step:], step


def masked(samples: list[dict[str, Any]]) -> str:
    return repr([(sample["square"], random.random()) for sample in samples])


def test_noise_of_the_collate_fn_needs_no_replay() -> None:
    batches, saves = saved_at_every_step(iter(loader(batch_mapped(), collate_fn=masked)))
    for step, save in enumerate(saves[:-1]):  # a warning would be an error
        again = go_on(save["state"], loader(batch_mapped(), collate_fn=masked))
        assert list(again) == batches[step:], step


def n_with_noise(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["json"]["n"], "noise": random.random()}


@pytest.mark.parametrize(
    "make",
    [generated, lambda: of_an_archive().map(n_with_noise)],
    ids=["a generator without noise", "a map with noise over an archive"],
)
def test_what_draws_nothing_when_it_is_read_again_goes_on_without_a_replay(
    make: Callable[[], Any],
) -> None:
    batches, saves = saved_at_every_step(iter(loader(make(), collate_fn=plain)))
    for step, save in enumerate(saves[:-1]):  # a warning would be an error
        again = go_on(save["state"], loader(make(), collate_fn=plain))
        assert list(again) == batches[step:], step


# --- map-style -----------------------------------------------------------------------------------


def table(form: str | None) -> Any:
    from datasets import Dataset

    rows = [{"ids": [n, n + 1, n + 2], "mask": [1, 1, n % 2], "label": n} for n in range(22)]
    return Dataset.from_list(rows).with_format(form)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_a_table_goes_on_in_mid_epoch_with_its_format_and_converted_values(
    form: str, workers: int
) -> None:
    small = KeyBasedDtypeConverter({"ids": "int32", "mask": "uint8", "label": "int16"})
    expected_types = {"ids": torch.int32, "mask": torch.uint8, "label": torch.int16}

    def make(num_workers: int) -> DataLoader[Any]:
        return DataLoader(
            table(form), 4, shuffle=True, seed=0, convert=small, num_workers=num_workers
        )

    run = make(workers)
    batches, saves = saved_at_every_step(iter(run))
    assert sorted(n for batch in batches for n in batch["label"]) == [*range(22)]
    later = [*run]
    for batch in later:
        assert {name: column.dtype for name, column in batch.items()} == expected_types
    for step, save in enumerate(saves[:-1]):
        assert lists(go_on(save["pickle"], make(workers))) == batches[step:], step
        other = make(2 - workers)
        assert lists(go_on(save["state"], other)) == batches[step:], step
        assert lists(other) == lists(later), step


def test_a_loader_leaves_the_generator_of_their_names_of_caches_alone() -> None:
    from datasets import fingerprint

    for make in (lambda: table(None), of_a_table):
        names = set()
        for _ in range(3):
            assert sum(loader(make(), collate_fn=len)) >= 22
            names.add(fingerprint.generate_random_fingerprint())
        assert len(names) == 3


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_a_table_is_read_once_a_batch(form: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, read = table(form), []
    kind = type(dataset)
    whole, single = kind.__getitems__, kind.__getitem__

    def counted(self: Any, keys: list[int]) -> Any:
        read.append(list(keys))
        return whole(self, keys)

    def one(self: Any, key: Any) -> Any:
        assert isinstance(key, list), f"the row {key} is read alone"
        return single(self, key)

    monkeypatch.setattr(kind, "__getitems__", counted)
    monkeypatch.setattr(kind, "__getitem__", one)
    run: DataLoader[Any] = DataLoader(dataset, 4, shuffle=True, seed=0)
    labels = [[int(n) for n in batch["label"]] for batch in run]
    assert read == labels
    read.clear()
    iterator = iter(run)
    next(iterator)
    again: DataLoader[Any] = DataLoader(table(form), 4, shuffle=True, seed=0)
    again.load_state_dict(iterator.state_dict())
    read.clear()
    rest = [[int(n) for n in batch["label"]] for batch in again]
    assert read == rest and len(rest) == 5
