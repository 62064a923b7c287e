"""Feedback, flush and the live iterator, as a program uses them, and the errors of misuse."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from zoo.listeners import (
    Generated,
    Picklable,
    PileIterator,
    Sending,
    SendingStream,
    Stateful,
    Weights,
)

from picklable_loader import DataLoader, ShuffleBuffer, from_json, send_feedback, to_json
from picklable_loader.errors import CannotSaveError, LoaderWarning, UsageError
from picklable_loader.saving.states.notes import note_of, notes_as_plain, objects_of


class Counting(Sending):
    count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def make(num_workers: int = 0, sampler: Any = None, **options: Any) -> DataLoader[Any]:
    given = {"batch_size": 4, "sampler": sampler or Stateful(), "seed": 5, **options}
    return DataLoader(Sending(), num_workers=num_workers, **given)


# --- the live iterator ---------------------------------------------------------------------------


def test_the_iterator_is_ahead_by_what_was_drawn_and_not_delivered() -> None:
    iterator = iter(make(2, prefetch_budget=3))
    next(iterator)
    assert (iterator.step, iterator.drawn) == (1, 3)
    assert iterator.get_sampler_iter().given == 12  # type: ignore[attr-defined]


@pytest.mark.parametrize("set_later", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_budget_of_one_draws_nothing_before_it_is_asked(
    num_workers: int, set_later: bool
) -> None:
    class Silent(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            for self.given in range(1, 13):
                yield self.given

    budget = {"prefetch_budget": 1} if num_workers else {}
    sampler = Silent()
    iterator = iter(make(num_workers, sampler, **budget))
    if set_later:
        iterator.prefetch_budget = 1
    for step in range(3):
        assert iterator.drawn == iterator.step == step
        next(iterator)
        assert sampler.given == 4 * (step + 1)


def test_a_changed_sampler_counts_at_once_after_flush() -> None:
    iterator = iter(make(2, prefetch_budget=3))
    next(iterator)
    weights: Any = iterator.get_sampler_iter()
    weights.weights[33] = 1000.0
    assert iterator.flush() == 2
    assert iterator.drawn == iterator.step == 1
    assert 33 in next(iterator)[:, 0]


def test_the_live_iterator_of_a_resumed_pass_has_its_saved_state() -> None:
    iterator = iter(make(2, prefetch_budget=3))
    next(iterator), next(iterator)
    again = make(2, prefetch_budget=3)
    again.load_state_dict(iterator.state_dict())
    found: Any = iter(again).get_sampler_iter()
    live: Any = iterator.get_sampler_iter()
    assert found.weights == live.weights and found.given == live.given


class Itself(Weights, Sampler[int]):
    """A sampler that is its own iterator."""

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        Weights.__init__(self)
        return self


class Closing(Picklable):
    """Its iterator cannot be pickled, and so not be compared."""

    def __iter__(self) -> Iterator[int]:
        iterator = Weights()
        iterator.closure = lambda: 0  # type: ignore[attr-defined]
        return iterator


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("kind", [Picklable, Stateful, Itself, Closing])
def test_a_change_of_the_live_iterator_is_in_a_state_or_the_save_is_refused(
    kind: Any, held: bool, num_workers: int
) -> None:
    """The program may hold the iterator (``held``), and change it at any later step."""

    def made() -> DataLoader[Any]:
        return make(num_workers, kind(), prefetch_budget=3 if num_workers else None)

    iterator = iter(made())
    next(iterator)
    live: Any = iterator.get_sampler_iter()
    if held:
        next(iterator)
    live.weights[33] = 1000.0
    iterator.flush()
    for step in range(2):
        try:
            state = iterator.state_dict()
        except CannotSaveError as error:
            assert kind is not Stateful and "get_sampler_iter" in str(error)
        else:
            assert kind is Stateful
            again = made()
            again.load_state_dict(state)
            assert next(iter(again)).tolist() == next(copy.copy(iterator)).tolist()
        if kind in (Picklable, Stateful):
            again = pickle.loads(pickle.dumps(iterator))
            assert next(again).tolist() == next(copy.copy(iterator)).tolist()
        next(iterator)


@pytest.mark.parametrize("kind", [Picklable, Stateful, Itself, Generated])
def test_a_look_at_the_live_iterator_leaves_the_pass_savable(kind: Any) -> None:
    iterator = iter(make(sampler=kind()))
    for _ in range(4):
        next(iterator)
        iterator.get_sampler_iter()
        again = make(sampler=kind())
        again.load_state_dict(iterator.state_dict())
    assert next(iter(again)).tolist() == next(iterator).tolist()


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": range(40)}])
def test_an_order_that_is_computed_has_no_iterator(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="a class of your own"):
        iter(DataLoader(Sending(), 4, **options)).get_sampler_iter()


# --- flush ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": range(40)}])
def test_flush_of_torchs_order_loses_nothing_and_changes_nothing(
    num_workers: int, options: dict[str, Any]
) -> None:
    options = {**options, "num_workers": num_workers}
    whole = [batch.tolist() for batch in DataLoader(Sending(), 4, seed=3, **options)]
    iterator, seen = iter(DataLoader(Sending(), 4, seed=3, **options)), []
    for batch in iterator:
        seen.append(batch.tolist())
        iterator.flush()
    assert seen == whole
    with pytest.raises(UsageError, match="needs an epoch under way"):
        iterator.flush()


@pytest.mark.parametrize("shard", [None, (0, 2)])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_with_drop_last_a_pass_and_its_copies_hold_to_the_batch_size_that_it_began_with(
    num_workers: int, shard: Any
) -> None:
    """So do torch's: BatchSampler makes the batches of a pass of one size."""
    options = {"drop_last": True, "shuffle": True, "seed": 3, "shard": shard}
    loader = DataLoader(Sending(), 2, num_workers=num_workers, **options)
    iterator: Any = iter(loader)
    first = next(iterator).tolist()
    loader.batch_sampler.batch_size = 5  # type: ignore[union-attr]
    iterator.flush()
    by_pickle, by_copy = pickle.loads(pickle.dumps(iterator)), copy.copy(iterator)
    fresh = DataLoader(Sending(), 2, **options)
    fresh.load_state_dict(iterator.state_dict())
    said = [each.remaining for each in (iterator, by_pickle, by_copy)]
    expected = [batch.tolist() for batch in iterator]
    assert [first, *expected] == [batch.tolist() for batch in DataLoader(Sending(), 2, **options)]
    assert said == [len(expected)] * 3
    for again in (by_pickle, by_copy, iter(fresh)):
        assert [batch.tolist() for batch in again] == expected
    for epoch in (loader, by_pickle.loader, by_copy.loader):
        assert {len(batch) for batch in epoch} == {5}, "the next pass has the new size"


@pytest.mark.parametrize("shard", [None, (0, 2)])
@pytest.mark.parametrize("save", [pickle.dumps, lambda iterator: iterator.state_dict()])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_a_save_warns_of_batches_ahead_that_a_resume_would_cut_in_another_size(
    steps: int, save: Any, shard: Any
) -> None:
    options: Any = {"num_workers": 1, "prefetch_budget": 2, "seed": 3, "shard": shard}
    iterator = iter(loader := DataLoader(range(40), 2, **options))
    next(iterator)
    save(iterator)
    assert loader.batch_sampler is not None
    loader.batch_sampler.batch_size = 3  # type: ignore[attr-defined]
    for _ in range(steps):
        next(iterator)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        save(iterator)
    assert len(given) == (steps < 2) and all("Call flush()" in str(each.message) for each in given)
    iterator.flush()
    state, rest = iterator.state_dict(), [batch.tolist() for batch in iterator]
    again = DataLoader(range(40), 3, **options)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == rest


def test_flush_asks_an_order_again_whose_batch_size_was_changed() -> None:
    loader = DataLoader(Sending(), 4, shuffle=True, seed=3, num_workers=2, prefetch_budget=3)
    iterator = iter(loader)
    first = next(iterator)
    assert loader.batch_sampler is not None
    loader.batch_sampler.batch_size = 6  # type: ignore[attr-defined]
    assert iterator.flush() == 3
    rest = [*iterator]
    assert [len(batch) for batch in rest] == [6] * 6
    assert sorted(torch.cat([first, *rest])[:, 0].tolist()) == list(range(40))


@pytest.mark.parametrize(
    "loader, needed",
    [
        (lambda: DataLoader(SendingStream(), 2), "a map-style dataset"),
        (lambda: DataLoader(Counting(), 2), "a dataset without a state of its own"),
        (lambda: make(seeding="worker"), 'another seeding than "worker"'),
        (lambda: DataLoader(Sending(), 4, num_workers=2, in_order=False), "in_order=True"),
    ],
)
def test_flush_is_refused_where_batches_cannot_be_undone(loader: Any, needed: str) -> None:
    with pytest.raises(UsageError, match=f"flush\\(\\) needs ({needed})"):
        iter(loader()).flush()


def test_what_put_back_raises_gives_nothing_up() -> None:
    class Stubborn(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(20))

        def put_back(self, batches: list[Any]) -> None:
            raise ZeroDivisionError(len(batches))

    iterator = iter(make(2, Stubborn(), prefetch_budget=3))
    seen = [next(iterator)]
    with pytest.raises(ZeroDivisionError, match="3"):
        iterator.flush()
    assert torch.cat([*seen, *iterator])[:, 0].tolist() == list(range(20))


# --- feedback ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
def test_feedback_of_a_stream_comes_with_its_batch(num_workers: int) -> None:
    iterator = iter(DataLoader(SendingStream(), 3, num_workers=num_workers))
    for step, _ in enumerate(iterator):
        assert iterator.feedback == [f"number {3 * step + at}" for at in range(3)]


class Finds:
    """Says each number that it reads; it finds its position by reading, or is given it."""

    def __init__(self, reads: bool) -> None:
        self.reads, self.at = reads, 0

    def __iter__(self) -> Finds:
        return self

    def __next__(self) -> int:
        if self.at == 40:
            raise StopIteration
        self.at += 1
        send_feedback(self.at)
        return self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self.reads:
            for _ in range(state["at"]):
                next(self)
        self.at = state["at"]


class Found(IterableDataset[int]):
    def __init__(self, reads: bool) -> None:
        self.reads = reads

    def __iter__(self) -> Iterator[int]:
        return Finds(self.reads)


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("by", ["its own reading", "a buffer's reading"])
def test_a_stream_that_sends_feedback_may_find_its_position_by_reading(
    by: str, num_workers: int
) -> None:
    def loader() -> DataLoader[Any]:
        own = by == "its own reading"
        stream = Found(True) if own else ShuffleBuffer(Found(False), size=6, state="rebuild")
        return DataLoader(stream, 4, num_workers=num_workers, seed=1, snapshot_every_n_steps=1)

    def heard(iterator: Any) -> list[Any]:
        return [(batch.tolist(), iterator.feedback) for batch in iterator]

    whole = heard(iter(loader()))
    for step in range(len(whole)):
        iterator = iter(loader())
        for _ in range(step):
            next(iterator)
        again = loader()
        again.load_state_dict(iterator.state_dict())
        iterator.close()
        assert heard(iter(again)) == whole[step:]


class Talkative(Sending):
    def __getitem__(self, index: int) -> torch.Tensor:
        send_feedback(bytes(2**20 - 100))
        return torch.zeros(1)


class Piled(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        self.pile = list(range(20))
        while self.pile:
            yield self.pile.pop(0)

    def put_back(self, batches: list[int]) -> None:
        self.pile[:0] = batches


class Unopened(Exception):
    """Pickle takes it, and calls ``__init__`` with one argument when it opens it."""

    def __init__(self, index: str, why: str) -> None:
        super().__init__(f"{index}: {why}")


class Remarks(Dataset[int]):
    """Feedback that is large, odd, or of a thread."""

    def __init__(self, remark: Any) -> None:
        self.remark = remark

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        if self.remark == "thread":
            helper = threading.Thread(target=send_feedback, args=("from a thread",))
            helper.start()
            helper.join()
        elif index == 1:
            send_feedback(self.remark)
        return index


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "remark, said",
    [
        (bytes(2**20), "a bytes of 1,048,5.. bytes"),
        (lambda: 0, "a function, which cannot be pickled"),
        (Unopened("index", "why"), "a Unopened, which cannot be pickled, or not opened again"),
        ({"a": [(1, Unopened("index", "why"))]}, "a dict, which cannot be pickled, or not opened"),
    ],
    ids=["large", "lambda", "an exception", "within containers"],
)
def test_bad_feedback_is_an_error_of_its_sample_and_the_pass_goes_on(
    num_workers: int, remark: Any, said: str
) -> None:
    iterator = iter(DataLoader(Remarks(remark), 1, num_workers=num_workers))
    assert next(iterator).tolist() == [0]
    with pytest.raises(UsageError, match=said):
        next(iterator)
    assert next(iterator).tolist() == [2]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_thread_of_the_dataset_may_send_feedback(num_workers: int) -> None:
    iterator = iter(DataLoader(Remarks("thread"), 3, num_workers=num_workers))
    next(iterator)
    assert iterator.feedback == ["from a thread"] * 3


def collate_with_a_remark(samples: list[int]) -> list[int]:
    send_feedback({"worker": get_worker_info() is not None})
    return samples


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collate_fn_may_send_feedback(num_workers: int) -> None:
    loader = DataLoader(range(4), 2, num_workers=num_workers, collate_fn=collate_with_a_remark)
    iterator = iter(loader)
    next(iterator)
    assert iterator.feedback == [{"worker": num_workers > 0}]


def test_a_batch_without_samples_takes_no_feedback_along() -> None:
    class Bad(Sending):
        def __getitem__(self, index: int) -> torch.Tensor:
            sample = super().__getitem__(index)
            if index < 4:
                raise ValueError(index)
            return sample

    with pytest.warns(UserWarning, match="skipped"):
        iterator = iter(DataLoader(Bad(), 4, on_error="skip"))
        next(iterator)
    assert iterator.feedback == [4, 5, 6, 7]


class SomeBad(Sending):
    """Each sample sends feedback, also the bad ones."""

    def __init__(self, *bad: int) -> None:
        super().__init__()
        self.bad = bad

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = super().__getitem__(index)
        if index in self.bad:
            raise ValueError(index)
        return sample


class SomeBadInBulk(SomeBad):
    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


class SomeBadInAStream(IterableDataset[torch.Tensor]):
    def __init__(self, *bad: int) -> None:
        self.data, self.at = SomeBad(*bad), 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.at = 0
        return self

    def __next__(self) -> torch.Tensor:
        if self.at == 12:
            raise StopIteration
        self.at += 1
        return self.data[self.at - 1]


def remarked(error: Exception, index: Any) -> torch.Tensor:
    send_feedback(f"replaced {index}")
    return torch.tensor([30.0, 0.0])


@pytest.mark.filterwarnings("ignore:.*skipped")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("kind", [SomeBad, SomeBadInBulk, SomeBadInAStream])
def test_a_bad_sample_takes_no_feedback_along(kind: Any, num_workers: int) -> None:
    iterator = iter(DataLoader(kind(2, 5), 4, num_workers=num_workers, on_error="skip"))
    for batch in iterator:
        assert iterator.feedback == [int(index) for index in batch[:, 0]]
    assert iterator.finished
    iterator = iter(DataLoader(kind(2), 4, num_workers=num_workers, on_error=remarked))
    next(iterator)
    assert iterator.feedback == [0, 1, "replaced 2", 3]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_there_is_no_feedback_without_a_batch(num_workers: int) -> None:
    iterator = iter(DataLoader(SomeBad(5, 22), 4, num_workers=num_workers))
    for step in range(10):
        if step in (1, 5):
            with pytest.raises(ValueError):
                next(iterator)
            assert iterator.feedback == []
        elif step == 7:
            assert iterator.skip(1) == 1 and iterator.feedback == []
        else:
            next(iterator)
            assert iterator.feedback == [*range(4 * step, 4 * step + 4)]
    with pytest.raises(StopIteration):
        next(iterator)
    assert iterator.feedback == []


def test_feedback_that_only_its_giver_can_open_is_an_error_that_names_it() -> None:
    notes = [pickle.dumps(3), b"cno_such_module\nThing\n."]
    with pytest.raises(UsageError, match="feedback cannot be opened.*no_such_module"):
        objects_of(notes)
    with pytest.raises(CannotSaveError, match="feedback.*no_such_module"):
        notes_as_plain(notes, live=False)


@pytest.mark.parametrize("per_sample", [False, True])
def test_batch_at_gives_a_converted_batch_again_and_leaves_the_feedback(per_sample: bool) -> None:
    def halved(batch: torch.Tensor) -> torch.Tensor:
        send_feedback("converted")
        return batch.half()

    seeding: Any = "sample" if per_sample else "batch"
    loader = DataLoader(Sending(), 4, shuffle=True, seed=1, convert=halved, seeding=seeding)
    iterator = iter(loader)
    first, _ = next(iterator), next(iterator)
    feedback = iterator.feedback
    again = loader.batch_at(0)
    assert again.dtype is torch.float16 and torch.equal(again, first)
    assert iterator.feedback == feedback and feedback[-1] == "converted"


def test_send_feedback_outside_of_a_loader_says_so() -> None:
    with pytest.raises(UsageError, match="none is being fetched here"):
        Sending()[3]


def of_torch(base: Any, *arguments: Any) -> Any:
    """A sampler of torch's, of a subclass that listens and does nothing else."""
    heard: list[Any] = []

    class Listening(base):  # type: ignore[misc]
        def receive(self, step: int, objs: list[Any]) -> None:
            heard.append([step, *objs])

    sampler = Listening(*arguments)
    return sampler, base(*arguments), heard


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "base, arguments",
    [
        (RandomSampler, (range(12),)),
        (SequentialSampler, (range(12),)),
        (SubsetRandomSampler, (range(12),)),
        (WeightedRandomSampler, ([1.0] * 12, 12)),
        (BatchSampler, (range(12), 4, False)),
    ],
)
def test_a_subclass_of_torchs_samplers_that_listens_is_heard_and_draws_as_torchs(
    base: Any, arguments: tuple[Any, ...], num_workers: int
) -> None:
    sampler, plain, heard = of_torch(base, *arguments)
    batched = base is BatchSampler

    def batches(sampler: Any) -> Any:
        order = {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": 4}
        torch.manual_seed(1)
        return iter(DataLoader(Sending(), num_workers=num_workers, **order))

    iterator, said = batches(sampler), []
    for step, batch in enumerate(iterator):
        indices = [int(index) for index in batch[:, 0]]
        iterator.tell("a remark")
        said.append([step, *indices, "a remark"])
    assert heard == said
    expected = [[int(index) for index in batch[:, 0]] for batch in batches(plain)]
    assert [indices for _, *indices, _ in said] == expected


def test_torchs_batch_sampler_passes_feedback_on_to_the_sampler_in_it() -> None:
    sampler = Generated()
    iterator = iter(DataLoader(Sending(), batch_sampler=BatchSampler(sampler, 4, False), seed=1))
    sent = next(iterator)[:, 0].tolist()
    iterator.tell(0.5)
    next(iterator)
    assert sampler.heard == [[0, *sent, 0.5]]


@pytest.mark.parametrize("base, arguments", [(RandomSampler, (range(12),)), (BatchSampler, ())])
def test_a_subclass_of_torchs_samplers_may_take_batches_back(
    base: Any, arguments: tuple[Any, ...]
) -> None:
    class Taking(base):  # type: ignore[misc]
        taken: list[Any] = []

        def put_back(self, batches: list[Any]) -> None:
            self.taken += batches

    batched = base is BatchSampler
    sampler = Taking(*(arguments or (range(12), 4, False)))
    order = {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": 4}
    iterator = iter(DataLoader(Sending(), num_workers=2, prefetch_budget=2, seed=1, **order))
    next(iterator)
    assert iterator.flush() == 2 and len(sampler.taken) == 2


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_tell_needs_a_batch_a_listener_and_an_epoch(options: dict[str, Any]) -> None:
    iterator = iter(make(2, **options))
    with pytest.raises(UsageError, match="none was delivered"):
        iterator.tell(1)
    next(iterator)
    with pytest.raises(UsageError, match="tell.. was given a function, which cannot be pickled"):
        iterator.tell(lambda: 0)
    for _ in iterator:
        pass
    with pytest.raises(UsageError, match="this one is over, or closed"):
        iterator.tell(1)
    silent = iter(DataLoader(Sending(), 4, shuffle=True))
    next(silent)
    with pytest.raises(UsageError, match="RandomSampler, or its iterator, a method receive"):
        silent.tell(1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_feedback_about_one_batch_is_bounded(num_workers: int) -> None:
    iterator, large = iter(make(num_workers)), bytes(2**20 - 100)
    next(iterator)
    with pytest.raises(UsageError, match="tell.. was given more than 16,777,216 bytes"):
        for _ in range(17):
            iterator.tell(large)
    greedy = iter(DataLoader(Talkative(), 20, num_workers=num_workers))
    with pytest.raises(UsageError, match="send_feedback.. was given more than 16,777,216 bytes"):
        next(greedy)


class Deaf(RandomSampler):
    """Torch's sampler, with feedback that it makes nothing of: its state is a replay."""

    def __init__(self) -> None:
        super().__init__(range(40))

    def receive(self, step: int, objs: list[Any]) -> None:
        pass


def test_too_much_feedback_for_a_replay_is_the_reason_that_is_given() -> None:
    iterator = iter(make(0, Deaf()))
    for _ in range(5):
        next(iterator)
        for _ in range(15):
            iterator.tell(bytes(2**20 - 100))
    next(iterator)
    with pytest.raises(
        CannotSaveError, match="received.* 78,6.* bytes .* at most 67,108,864 .*dict"
    ):
        iterator.state_dict()
    next(iterator)  # it goes on


class OfPickle(Sampler[int]):
    """A pickle has its iterator, and a state has to replay it."""

    def __iter__(self) -> Iterator[int]:
        return _DeafIterator()


class _DeafIterator:
    taken = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self.taken += 1
        return self.taken

    def receive(self, step: int, objs: list[Any]) -> None:
        pass


@pytest.mark.parametrize("seed", [None, 3])
def test_so_is_a_pickle_that_it_went_on_from_because_of_that(seed: int | None) -> None:
    iterator = iter(DataLoader(range(40), 2, sampler=OfPickle(), seed=seed))
    for _ in range(5):
        next(iterator)
        for _ in range(15):
            iterator.tell(bytes(2**20 - 100))
    next(iterator)
    again = pickle.loads(pickle.dumps(iterator))
    assert torch.equal(next(again), next(iterator))
    with pytest.raises(CannotSaveError, match="went on from a pickle of itself"):
        again.state_dict()


def test_a_state_that_grows_with_its_feedback_is_warned_of_once_and_goes_on_exactly() -> None:
    iterator = iter(make(0, Deaf()))
    for _ in range(3):
        next(iterator), iterator.tell(bytes(2**20 - 100))
    with pytest.warns(LoaderWarning, match="replay: 2,097,0.. bytes so far.* state_dict and"):
        iterator.state_dict()
    next(iterator)
    state = iterator.state_dict()
    again = make(0, Deaf())
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in iterator]


def test_single_indices_are_put_back_as_well() -> None:
    """With ``batch_size=None`` a batch is an index."""
    options = {"batch_size": None, "num_workers": 2, "prefetch_budget": 3}
    iterator = iter(DataLoader(range(20), sampler=Piled(), **options))
    seen = [int(next(iterator))]
    assert iterator.flush() == 3
    again = DataLoader(range(20), sampler=Piled(), **options)
    again.load_state_dict(iterator.state_dict())
    assert [*seen, *map(int, again)] == [*seen, *map(int, iterator)] == list(range(20))


class Tray(PileIterator):
    """It notes what it is offered, and gives a new index after it."""

    heard: Any = ()

    def put_back(self, batches: list[Any]) -> None:
        self.heard = [copy.deepcopy(batches)]
        self.pile[:0] = [*(index for batch in batches for index in batch), 19]


class Trays(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return Tray(list(range(20)))


@pytest.mark.parametrize(
    "kind, shard", [(Trays, None), (Trays, (1, 2)), (Picklable, None), (Stateful, None)]
)
@pytest.mark.parametrize("by", [copy.deepcopy, lambda state: from_json(to_json(state)), None])
def test_a_state_has_the_tail_that_drop_last_leaves_and_flush_offers(
    by: Any, kind: Any, shard: Any
) -> None:
    size = 3 if shard is None else 4

    def made() -> DataLoader[Any]:
        options = {"batch_size": size, "drop_last": True, "prefetch_budget": 99, "shard": shard}
        return make(1, kind(), **options)

    def rest(iterator: Any) -> Any:
        given_up = iterator.flush()
        heard = [*iterator.get_sampler_iter().heard]
        return given_up, heard, [batch.tolist() for batch in iterator]

    iterator = iter(made())
    next(iterator)
    if by is None:
        again = pickle.loads(pickle.dumps(iterator))
    else:
        loader = made()
        loader.load_state_dict(by(iterator.state_dict()))
        again = iter(loader)
    later = pickle.loads(pickle.dumps(again))  # it is saved once more before it moves
    expected = rest(iterator)
    assert 0 < len(expected[1][-1][-1]) < size * (1 if shard is None else 2), "the tail was offered"
    assert rest(again) == rest(later) == expected


def test_what_was_told_is_copied_and_may_be_changed_afterwards() -> None:
    iterator, losses = iter(make(2)), [1.0]
    next(iterator)
    iterator.tell(losses)
    losses[0] = 2.0
    live: Any = iterator.get_sampler_iter()
    live.receive = lambda step, objs: live.heard.append([step, *objs])
    next(iterator)
    assert live.heard[-1][-1] == [1.0]


@pytest.mark.parametrize("wants_grad", [False, True])
def test_a_view_of_a_large_tensor_counts_and_travels_alone(wants_grad: bool) -> None:
    class Table(Sending):
        def __init__(self) -> None:
            self.difficulty = torch.arange(1_000_000.0, requires_grad=wants_grad)

        def __getitem__(self, index: int) -> int:
            send_feedback({"difficulty": [self.difficulty[index]]})
            return index

    loader = DataLoader(Table(), 4, sampler=Stateful(), seed=5)
    iterator = iter(loader)
    batch = next(iterator)
    found = [sent["difficulty"][0] for sent in iterator.feedback]
    assert [int(each) for each in found] == batch.tolist()
    assert all(each.untyped_storage().nbytes() == each.element_size() for each in found)
    assert all(each.requires_grad == wants_grad for each in found)
    iterator.tell(0.5 + loader.dataset.difficulty[7].detach())
    iterator.tell(torch.zeros(1_000_000)[::250_000].sum())
    iterator.tell(torch.zeros(1_000_000)[7])


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


PLAIN = {
    "losses": torch.rand(32),
    "a loss with its graph": torch.rand(3, requires_grad=True).square().sum(),
    "no number": torch.tensor([float("nan"), -0.0, float("-inf")]),
    "nothing": torch.empty(3, 0, 2, requires_grad=True),
    "bools": torch.tensor([[True], [False]]),
    "bfloat16": torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
    "complex": torch.tensor([1 - 2j, complex(-0.0, float("nan"))]),
    "a part": torch.arange(12).view(3, 4)[1:2],
    "inference": torch.inference_mode()(lambda: torch.rand(2, 2))(),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_tensor_comes_back_bit_for_bit_and_torch_does_not_pickle_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = PLAIN[kind].clone()
    if PLAIN[kind].is_leaf:
        given = given.detach().requires_grad_(PLAIN[kind].requires_grad)
    monkeypatch.delattr(torch.Tensor, "__reduce_ex__")  # it takes 100 µs
    note = note_of({"losses": [given, given]}, "tell()")
    monkeypatch.undo()
    with torch.no_grad():
        found, again = objects_of([note])[0]["losses"]
    assert given.untyped_storage().resizable() and found.untyped_storage().resizable()
    assert found is again and type(found) is torch.Tensor and bits(found) == bits(given)
    assert (found.dtype, found.shape) == (given.dtype, given.shape)
    assert (found.requires_grad, found.is_leaf) == (given.requires_grad, True)
    assert found.untyped_storage().nbytes() == len(bits(given))


class Losses(torch.Tensor):
    pass


def named() -> torch.Tensor:
    tensor: Any = torch.rand(3)
    tensor.title = "losses"
    return tensor  # type: ignore[no-any-return]


OTHERS: dict[str, Callable[[], torch.Tensor]] = {
    "a class of its own": lambda: torch.rand(3).as_subclass(Losses),
    "a parameter": lambda: torch.nn.Parameter(torch.rand(3)),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.rand(3), 0.1, 0, torch.quint8),
    "nested": lambda: torch.nested.nested_tensor([torch.rand(2), torch.rand(3)]),
    "without data": lambda: torch.rand(3, device="meta"),
    "a transposed one": lambda: torch.rand(3, 4).t(),
    "an overlapping one": lambda: torch.rand(1).expand(3),
    "a conjugate": lambda: torch.tensor([1 - 2j]).conj(),
    "one with an attribute": named,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OTHERS)
def test_any_other_tensor_comes_back_as_torch_pickles_it(kind: str) -> None:
    given = OTHERS[kind]()
    expected = pickle.loads(pickle.dumps(given))
    found = objects_of([note_of(given, "tell()")])[0]
    assert (type(found), str(found), vars(found)) == (type(expected), str(expected), vars(expected))
    if not given.is_nested and given.layout is torch.strided:
        assert found.stride() == expected.stride() and found.is_conj() == expected.is_conj()


def read_only() -> np.ndarray:
    array = np.arange(3)
    array.flags.writeable = False
    return array


ARRAYS: list[Any] = [
    *(np.arange(3).astype(kind) for kind in "?bhilqBHILQefdgFDG"),
    *(np.dtype(kind).type(1) for kind in "?bhilqBHILQefdgFDG"),
    np.array([[np.nan, -0.0], [np.inf, 1.5]], np.float32),
    np.array(1.5),
    np.arange(6.0)[2:4],
]
OTHER_ARRAYS: list[Any] = [
    np.arange(6.0).reshape(2, 3).T,
    np.arange(6)[::2],
    np.arange(3, dtype=">i4"),
    np.empty((0, 2)),
    np.array(["one", "three"]),
    np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    np.array(["2020-01-01"], "M8[D]"),
    np.arange(3).view(np.matrix),
    read_only(),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [*ARRAYS, *OTHER_ARRAYS], ids=repr)
def test_arrays_and_numbers_of_numpy_come_back_as_pickle_gives_them_and_faster(given: Any) -> None:
    note = note_of([given, given], "tell()")
    expected, (found, again) = pickle.loads(pickle.dumps(given, 5)), objects_of([note])[0]
    assert found is again and type(found) is type(given) and found.dtype == expected.dtype
    assert found.dtype.char == given.dtype.char and found.tobytes("A") == expected.tobytes("A")
    assert found.shape == expected.shape and str(found.flags) == str(expected.flags)
    if any(given is each for each in ARRAYS):
        assert b"numpy" not in note, "pickle finds no function of numpy's, which takes 10 µs"


def test_what_receive_raises_comes_with_the_next_batch_and_the_pass_goes_on() -> None:
    class Fragile(Stateful):
        pass

    iterator = iter(make(2, Fragile(), prefetch_budget=2))
    batches = [next(iterator)]
    iterator.tell("no number")
    with pytest.raises(TypeError):
        [batches.append(batch) for batch in iterator]  # type: ignore[func-returns-value]
    batches += [*iterator]
    assert len(batches) == 11


class Flaky:
    """Indices from 0; its fifth one raises before it comes."""

    def __init__(self) -> None:
        self.given, self.failed = 0, False

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.given == 4 and not self.failed:
            self.failed = True
            raise OSError("not yet")
        if self.given == 20:
            raise StopIteration
        self.given += 1
        return self.given - 1

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


class OnceFlaky(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return Flaky()


@pytest.mark.parametrize("before", [0, 1, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_skip_stops_where_the_sampler_raises_which_next_shows(
    num_workers: int, before: int
) -> None:
    """It raised, and lost what it had passed over by then: the step was one of earlier batches."""
    iterator = iter(make(num_workers, OnceFlaky(), batch_size=2))
    for _ in range(before):
        next(iterator)
    assert iterator.skip(5) == 2 - before and iterator.step == 2
    again = make(num_workers, OnceFlaky(), batch_size=2)
    with pytest.warns(LoaderWarning, match="raised OSError.*next.. has not raised it yet"):
        again.load_state_dict(iterator.state_dict())
    with pytest.raises(OSError, match="not yet"):
        next(iterator)
    rest = [batch[:, 0].tolist() for batch in iterator]
    assert rest == [[at, at + 1] for at in range(4, 20, 2)]
    assert [batch[:, 0].tolist() for batch in again] == rest


def test_feedback_that_no_state_can_hold_is_named_when_it_is_saved() -> None:
    iterator = iter(make(2))
    next(iterator)
    iterator.tell(complex)
    with pytest.raises(CannotSaveError, match="feedback"):
        iterator.state_dict()
    pickle.dumps(iterator)


@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize("by", [copy.deepcopy, lambda state: from_json(to_json(state))])
def test_a_tensor_comes_back_with_its_gradient_required_or_not(by: Any, wants_grad: bool) -> None:
    heard: list[Any] = []

    class Taking(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(12))

        def receive(self, step: int, objs: list[Any]) -> None:
            heard.extend(obj for obj in objs if isinstance(obj, torch.Tensor))

    iterator = iter(make(sampler=Taking()))
    next(iterator)
    iterator.tell(torch.tensor([1.5], requires_grad=wants_grad))
    again = make(sampler=Taking())
    again.load_state_dict(by(iterator.state_dict()))
    heard.clear()
    next(iter(again))
    (found,) = heard
    assert found.requires_grad is wants_grad and found.tolist() == [1.5]


@pytest.mark.parametrize(
    "options, named",
    [
        ({"in_order": False}, "in_order=False"),
        ({"shard": (0, 2)}, "shard="),
    ],
)
def test_a_listener_is_refused_where_more_than_the_budget_decides(
    options: dict[str, Any], named: str
) -> None:
    with pytest.raises(UsageError, match=f"cannot be combined with {named}"):
        next(iter(make(2, Picklable(), **options)))


def test_the_budget_of_a_listener_does_not_grow() -> None:
    iterator = iter(make(2))
    for _ in iterator:
        assert iterator.prefetch_budget == 4 if not iterator.finished else True
