"""Progress bars: the right total, and the right place after a resume."""

from __future__ import annotations

import io
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from laws.observe import seen
from torch.utils.data import Dataset, IterableDataset
from zoo.datasets import Noisy

from picklable_loader import DataLoader, progress
from picklable_loader.errors import UsageError

tqdm = pytest.importorskip("tqdm")


def make(num_workers: int = 0, **more: Any) -> DataLoader[Any]:
    """Five batches."""
    return DataLoader(Noisy(), batch_size=2, seed=1, num_workers=num_workers, **more)


def shown(screen: io.StringIO) -> list[str]:
    """The places that a bar has shown, one after the other."""
    found = re.findall(r"(\d+/\d+|\d+it) ", screen.getvalue())
    return [place for before, place in zip([""] + found, found) if place != before]


def go(over: Any, **options: Any) -> tuple[list[str], Any]:
    """What a bar shows of a pass, and the bar."""
    screen = io.StringIO()
    bar = progress(over, tqdm.tqdm, file=screen, mininterval=0, miniters=1, **options)
    for _ in bar:
        pass
    return shown(screen), bar


ALL = ["0/5", "1/5", "2/5", "3/5", "4/5", "5/5"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_pass_begins_where_it_was_saved(num_workers: int) -> None:
    iterator = iter(make(num_workers))
    for step in range(6):
        saved, state = pickle.dumps(iterator), iterator.state_dict()
        assert go(pickle.loads(saved))[0] == ALL[step:]
        loader = make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an epoch in which nothing is left
            loader.load_state_dict(state)
            assert go(loader)[0] == ALL[step:]
        next(iterator, None)


def test_a_loader_is_shown_from_its_start_in_every_epoch() -> None:
    loader = make()
    for _ in range(2):
        places, bar = go(loader)
        assert (places, bar.n, bar.total) == (ALL, 5, 5)
    assert loader.epoch == 2


def test_a_bar_gives_the_batches_and_is_an_ordinary_one() -> None:
    bar = progress(make(), tqdm.tqdm, file=io.StringIO(), desc="training")
    assert isinstance(bar, tqdm.tqdm) and bar.desc.startswith("training")
    bar.set_postfix(loss=1)
    assert [batch.tolist() for batch in bar] == seen(iter(make()))


def test_a_bar_that_is_left_stands_at_the_batches_that_are_done() -> None:
    iterator = iter(make())
    bar = progress(iterator, tqdm.tqdm, file=io.StringIO())
    for _ in bar:
        if iterator.step == 3:
            break
    assert (bar.n, iterator.step) == (2, 3)
    assert go(iterator)[0] == ["3/5", "4/5", "5/5"]


class Bad(Dataset[int]):
    """Samples 2 to 5, and 8 and 9, cannot be read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index in (2, 3, 4, 5, 8, 9):
            raise ValueError(index)
        return index


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.SkippedWarning")
def test_batches_that_have_lost_all_samples_count() -> None:
    places, bar = go(DataLoader(Bad(), batch_size=2, on_error="skip"))
    assert places == ["0/5", "1/5", "4/5", "5/5"]
    assert bar.n == bar.total == 5


def test_batches_that_are_passed_over_count() -> None:
    iterator = iter(make())
    bar = progress(iterator, tqdm.tqdm, file=io.StringIO(), mininterval=0)
    taken = []
    for _ in bar:
        taken.append(bar.n)
        iterator.skip(1)
    assert taken == [0, 2, 4] and bar.n == 5


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def test_without_a_length_it_counts_up() -> None:
    places, bar = go(DataLoader(Endless(), batch_size=4))
    assert places == ["0it", "1it", "2it", "3it"] and bar.total is None


def test_plain_tqdm_has_the_right_total_and_begins_where_it_is_told() -> None:
    iterator = iter(make())
    seen(iterator, 3)
    screen = io.StringIO()
    bar = tqdm.tqdm(iterator, initial=iterator.step, file=screen, mininterval=0, miniters=1)
    assert len(list(bar)) == 2
    found = re.findall(r"\d+/\d+", screen.getvalue())
    assert (found[0], found[-1], bar.total) == ("3/5", "5/5", 5)


def test_an_exception_closes_the_bar_and_goes_on_to_the_program() -> None:
    bar = progress(DataLoader(Bad()), tqdm.tqdm, file=io.StringIO())
    with pytest.raises(ValueError, match="2"):
        list(bar)
    assert bar.n == 2 and bar.disable  # tqdm's word for closed


def test_other_things_are_for_tqdm_itself() -> None:
    with pytest.raises(TypeError, match="got a list"):
        progress([1, 2])  # type: ignore[arg-type]


def test_without_tqdm_it_says_what_to_install(without: Callable[[str], None]) -> None:
    without("tqdm")
    with pytest.raises(UsageError, match=r"pip install 'picklable-loader\[progress\]'"):
        progress(make())
