"""What a loader and an iterator say of themselves, in a line and on a card, and what they weigh."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from laws.cases import four_batches as make
from laws.observe import random_states, seed_everything, seen
from torch.utils.data import Dataset, IterableDataset, RandomSampler, WeightedRandomSampler
from zoo.datasets import Noisy

from picklable_loader import DataLoader
from picklable_loader.fetching.engine.stats import Stats, WorkerStats
from picklable_loader.loader.display.describe import (
    Description,
    in_one_line,
)
from picklable_loader.loader.display.html import card
from picklable_loader.saving.pickles.size import Weight, in_words, weigh


def weight_of(loader: DataLoader[Any]) -> Weight:
    return weigh(loader.__dict__, loader.dataset, loader._pl.saved())


WORKERS = pytest.mark.parametrize("num_workers", [0, 2])


# --- in one line ---------------------------------------------------------------------------------


def test_a_loader_says_what_it_is_and_where_its_newest_iterator_stands() -> None:
    loader = make()
    assert repr(loader).startswith(
        "<DataLoader: dataset Noisy of 10 samples, batches of 3, order RandomSampler, seed 7, "
        "epoch 0, 0 of 4 batches delivered, num_workers=0, pickles to about "
    )
    iterator = iter(loader)
    next(iterator)
    assert "epoch 0, 1 of 4" in repr(loader)
    state = iterator.state_dict()
    seen(iterator)
    assert "epoch 1, 0 of 4" in repr(loader)
    loader.load_state_dict(state)
    assert "epoch 0, 1 of 4" in repr(loader) and "goes on from a state" in repr(loader)


def test_an_iterator_says_how_busy_its_workers_are() -> None:
    loader = make(2)
    iterator = iter(loader)
    assert repr(iterator).startswith("<LoaderIterator: epoch 0, 0 of 4 batches delivered, num_w")
    assert "busy" in repr(iterator) and "running" in repr(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    assert "busy" not in repr(again) and "before its start" in repr(again)
    seen(iterator)
    assert "4 of 4 batches delivered" in repr(iterator) and "finished" in repr(iterator)
    iterator = iter(loader)
    iterator.close()
    assert "epoch 1, 0 of 4" in repr(iterator) and "closed" in repr(iterator)


def test_a_class_of_the_users_goes_by_its_name() -> None:
    class Mine(DataLoader[Any]):
        pass

    assert repr(Mine(Noisy())).startswith("<Mine: dataset Noisy")


@pytest.mark.parametrize("more", [{}, {"seed": None}, {"seeding": "worker", "seed": None}])
@WORKERS
def test_to_look_changes_nothing(num_workers: int, more: dict[str, Any]) -> None:
    def begun() -> Any:
        seed_everything(3)
        return iter(make(num_workers, **more))

    undisturbed, iterator = seen(begun()), begun()
    found = []
    for _ in range(4):
        saved, before = repr(iterator.state_dict()), random_states()
        for _ in range(3):
            assert "of 4 batches" in repr(iterator) and "of 4 batches" in repr(iterator.loader)
            assert "of 4 batches" in iterator._repr_html_() + iterator.loader._repr_html_()
        assert (repr(iterator.state_dict()), random_states()) == (saved, before)
        found += seen(iterator, 1)
    iterator.close()
    assert len(found) == 4 and found == undisturbed


def test_to_look_at_what_was_unpickled_starts_nothing() -> None:
    again = pickle.loads(pickle.dumps(iter(make(2, persistent_workers=True))))
    assert "not started" in again._repr_html_() and repr(again)
    assert again._driver.run is None and again._position.run is None


def test_a_forked_copy_can_be_looked_at_and_takes_nothing_from_its_program() -> None:
    iterator = iter(make(2))
    pid = os.fork()
    if not pid:
        try:
            told = [repr(iterator) for _ in range(100)]
            os._exit(0 if "running" in told[-1] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert seen(iterator) == seen(iter(make()))


class Promising(IterableDataset[int]):
    """It says that it has three samples, and has six."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def test_to_look_at_a_stream_is_not_to_ask_for_its_length() -> None:
    """Torch warns from then on if there is more than was promised; warnings are errors here."""
    loader = DataLoader(Promising(), batch_size=1)
    for look in (repr(loader), loader._repr_html_()):
        assert "0 of 3 batches" in look
    assert len(list(loader)) == 6


class Hostile(Dataset[int]):
    def __len__(self) -> int:
        return 1 // self.nothing

    nothing = 1

    def __getitem__(self, index: int) -> int:
        return index

    def __repr__(self) -> str:
        raise AssertionError("nobody asks for this")

    __reduce_ex__ = __repr__  # type: ignore[assignment]


def test_whatever_the_dataset_does_there_is_something_to_see() -> None:
    loader = DataLoader(Hostile())
    iterator = iter(loader)
    Hostile.nothing = 0
    try:
        for told in (repr(loader), repr(iterator), loader._repr_html_(), iterator._repr_html_()):
            assert "epoch 0" in told and "batches delivered" in told
    finally:
        Hostile.nothing = 1


def test_a_loader_that_is_not_built_yet_can_be_printed() -> None:
    loader: Any = DataLoader.__new__(DataLoader)
    assert repr(loader) == "<DataLoader: num_workers=0>"
    assert "DataLoader" in loader._repr_html_()


# --- what it weighs ------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("more", [{}, {"seed": None}, {"seeding": "worker"}])
def test_the_weight_is_that_of_a_pickle(num_workers: int, more: dict[str, Any]) -> None:
    iterator = iter(make(num_workers, **more))
    next(iterator)
    told, true = iterator._pl_description().weight, len(pickle.dumps(iterator))
    assert told is not None and told.left_out == ("Noisy",) and not told.more
    assert 0.7 * true < told.bytes < 1.1 * true
    of_it, whole = iterator.loader._pl_description().weight, len(pickle.dumps(iterator.loader))
    assert of_it is not None and 0.7 * whole < of_it.bytes < 1.1 * whole
    iterator.close()


def test_large_tensors_and_arrays_are_weighed_and_not_copied() -> None:
    weights = torch.ones(10**6, dtype=torch.float64)
    sampler = WeightedRandomSampler(weights, 10)  # type: ignore[arg-type]
    told = weight_of(DataLoader(range(10**6), sampler=sampler))  # type: ignore[arg-type]
    assert told.left_out == ("range",) and 8_000_000 < told.bytes < 8_003_000


def test_a_sampler_with_more_objects_than_can_be_looked_at_weighs_more_than_those() -> None:
    indices = [float(index) for index in range(30_000)]
    loader = DataLoader(range(3), sampler=indices)  # type: ignore[arg-type]
    told = weight_of(loader)
    assert told.more and told.bytes >= 40_000
    assert str(told).startswith("over ")


class Collate:
    """Its pickling would tell."""

    pickled = 0

    def __call__(self, batch: list[Any]) -> list[Any]:
        return batch

    def __reduce__(self) -> Any:
        Collate.pickled += 1
        return Collate, ()


class Mine(RandomSampler):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))

    def __getstate__(self) -> Any:
        raise AssertionError("it is not to be pickled")


def test_nothing_of_the_users_is_pickled() -> None:
    loader = make(collate_fn=Collate())
    told = iter(loader)._pl_description().weight
    assert told is not None and told.left_out == ("Noisy", "Collate")
    assert str(told).endswith("without Noisy and Collate")
    assert Collate.pickled == 0
    iterator = iter(make(shuffle=None, sampler=Mine(Noisy())))
    next(iterator)
    told = iterator._pl_description().weight
    assert told is not None and told.left_out == ("Noisy", "Mine")


@pytest.mark.parametrize(
    "count, words",
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 kB"),
        (9_960, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1.0 MB"),
        (23 * 10**9, "23 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_bytes_in_words(count: int, words: str) -> None:
    assert in_words(count) == words


# --- on a card -----------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Text and tags of a page; every tag that opens is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags, self._open = "", set[str](), list[str]()
        self.attributes: dict[str, list[str]] = {}
        self.feed(page)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self._open.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


STATS = Stats(
    workers=(WorkerStats(11, 1, 3.0, 1.0, 0), WorkerStats(12, 1500, 0.0, 0.0, 0)),
    waited_s=1.25,
    waiting=2,
    waiting_bytes=3_000_000,
    under_way=1,
    skipped=3,
)
SHOWN = Description(
    "LoaderIterator", "running", 2, 30, 120, (("order", "R"),), 2, STATS, Weight(1, False, ())
)


def test_a_card_shows_all_that_there_is_to_say() -> None:
    page = Reader(card(SHOWN))
    for text in (
        "LoaderIterator", "running", "epoch 2, 30 of 120", "25%", "75% busy", "1 batch, pid 11",
        "1,500 batches, pid 12", "waited 1.2 s; 2 ready (3.0 MB), 1 under way", "3 left out",
        "about 1 bytes",
    ):  # fmt: skip
        assert text in page.text
    assert page.attributes["aria-valuenow"] == ["25", "75", "0"]


@pytest.mark.parametrize(
    "description",
    [
        SHOWN,
        Description("Loader"),
        replace(SHOWN, total=None, stats=None),
        replace(SHOWN, total=0, workers=0),
        replace(SHOWN, step=500, weight=None),
        replace(SHOWN, stats=Stats(workers=STATS.workers * 40), workers=80),
    ],
)
def test_a_card_is_small_and_of_one_piece(description: Description) -> None:
    html = card(description)
    page = Reader(html)
    assert len(html) < 8000
    assert page.tags <= {"div", "span", "b"}
    assert set(page.attributes) <= {"style", "role", "aria-label", "aria-valuenow"}
    assert "url(" not in html and "color:inherit" in html
    assert all(float(value) <= 100 for value in page.attributes.get("aria-valuenow", []))


def test_names_are_text_and_no_markup() -> None:
    evil = '<img src=x onerror="alert(1)">&'
    left_out = Weight(1, False, (evil,))
    shown = replace(SHOWN, name=evil, doing=evil, settings=((evil, evil),), weight=left_out)
    page = Reader(card(shown))
    assert page.text.count(evil) == 5 and "img" not in page.tags


def test_eight_workers_are_shown_and_the_others_counted() -> None:
    text = Reader(card(replace(SHOWN, stats=Stats(workers=STATS.workers * 5), workers=10))).text
    assert "worker 7" in text and "worker 8" not in text and "and 2 more" in text


def test_a_line_leaves_out_what_is_not_known() -> None:
    assert in_one_line(Description("It")) == "<It: num_workers=0>"
    assert in_one_line(replace(SHOWN, weight=None)) == (
        "<LoaderIterator: epoch 2, 30 of 120 batches delivered, num_workers=2, running, "
        "workers 75% busy>"
    )


def test_another_thread_may_look_while_batches_are_taken() -> None:
    iterator = iter(make(2))
    told: list[str] = []
    for _ in iterator:
        thread = threading.Thread(target=lambda: told.append(iterator._repr_html_()))
        thread.start()
        thread.join()
    assert len(told) == 4 and "100%" in told[-1]
