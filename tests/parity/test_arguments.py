"""Arguments: what they default to, what is refused and with which words, what may change later."""

from __future__ import annotations

import copy
import enum
import inspect
import multiprocessing
import pickle
import threading
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    default_convert,
)
from zoo.datasets import Numbers

from picklable_loader.errors import UsageError

from .datasets import Stream
from .sides import (
    AS_TORCH,
    OURS,
    TORCH,
    Loader,
    Make,
    assert_parity,
    outcome,
    rng_states,
)


class Unsized(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


class NotASampler:
    pass


def raise_if_called(worker_id: int) -> None:
    raise AssertionError("there is no worker")


class FailsMidway(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        yield from range(5)
        raise OSError("the list of files is gone")


SIX = Numbers(6)
STREAM = Stream((6, 6))
IN_BATCHES = [[0, 1], [2, 3]]

REFUSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "negative workers": (SIX, {"num_workers": -1}),
    "workers as text": (SIX, {"num_workers": "2"}),
    "workers as None": (SIX, {"num_workers": None}),
    "negative timeout": (SIX, {"timeout": -1}),
    "timeout as text": (SIX, {"timeout": "1"}),
    "prefetch without workers": (SIX, {"prefetch_factor": 2}),
    "prefetch of zero without workers": (SIX, {"prefetch_factor": 0}),
    "negative prefetch": (SIX, {"prefetch_factor": -1, "num_workers": 1}),
    "persistent without workers": (SIX, {"persistent_workers": True}),
    "batch size of zero": (SIX, {"batch_size": 0}),
    "negative batch size": (SIX, {"batch_size": -3}),
    "batch size as fraction": (SIX, {"batch_size": 2.0}),
    "batch size as text": (SIX, {"batch_size": "2"}),
    "batch size as truth": (SIX, {"batch_size": True}),
    "batch size of numpy's": (SIX, {"batch_size": np.int64(2)}),
    "drop_last of numpy's": (SIX, {"drop_last": np.bool_(True)}),
    "drop_last as number": (SIX, {"drop_last": 1}),
    "drop_last as text": (SIX, {"drop_last": "yes"}),
    "drop_last as None": (SIX, {"drop_last": None}),
    "drop_last without batches": (SIX, {"batch_size": None, "drop_last": True}),
    "sampler and shuffle": (SIX, {"sampler": [0], "shuffle": True}),
    "batch_sampler and batch_size": (
        SIX,
        {"batch_sampler": IN_BATCHES, "batch_size": 2},
    ),
    "batch_sampler and no batch_size": (
        SIX,
        {"batch_sampler": IN_BATCHES, "batch_size": None},
    ),
    "batch_sampler and shuffle": (SIX, {"batch_sampler": IN_BATCHES, "shuffle": True}),
    "batch_sampler and sampler": (SIX, {"batch_sampler": IN_BATCHES, "sampler": [0]}),
    "batch_sampler and drop_last": (
        SIX,
        {"batch_sampler": IN_BATCHES, "drop_last": True},
    ),
    "shuffling nothing": (Numbers(0), {"shuffle": True}),
    "shuffling nothing, unbatched": ([], {"shuffle": True, "batch_size": None}),
    "shuffling the unsized": (Unsized(), {"shuffle": True}),
    "shuffling None": (None, {"shuffle": True}),
    "shuffled stream": (STREAM, {"shuffle": True}),
    "stream shuffled by number": (STREAM, {"shuffle": 1}),
    "stream with sampler": (STREAM, {"sampler": range(3)}),
    "stream with batch_sampler": (STREAM, {"batch_sampler": IN_BATCHES}),
    "stream with both": (STREAM, {"sampler": range(3), "batch_sampler": IN_BATCHES}),
    "stream, drop_last without batches": (
        STREAM,
        {"batch_size": None, "drop_last": True},
    ),
    "context without workers": (SIX, {"multiprocessing_context": "fork"}),
    "context object without workers": (
        SIX,
        {"multiprocessing_context": multiprocessing.get_context("fork")},
    ),
    "unknown context": (SIX, {"multiprocessing_context": "knife", "num_workers": 1}),
    "empty context": (SIX, {"multiprocessing_context": "", "num_workers": 1}),
    "context as number": (SIX, {"multiprocessing_context": 5, "num_workers": 1}),
    "context as truth": (SIX, {"multiprocessing_context": True, "num_workers": 1}),
    "context as module": (
        SIX,
        {"multiprocessing_context": multiprocessing, "num_workers": 1},
    ),
    "context as bytes": (SIX, {"multiprocessing_context": b"fork", "num_workers": 1}),
    "unknown argument": (SIX, {"num_worker": 1}),
    "two mistakes": (SIX, {"num_workers": -1, "timeout": -1}),
    "three mistakes": (SIX, {"timeout": -1, "prefetch_factor": 1, "batch_size": 0}),
    "wrong batch size and context": (
        SIX,
        {"batch_size": 0, "multiprocessing_context": "fork"},
    ),
}

REFUSED_AT_THE_FIRST_BATCH: dict[str, tuple[Any, dict[str, Any]]] = {
    "timeout without workers": (SIX, {"timeout": 1}),
    "prefetch of zero": (SIX, {"prefetch_factor": 0, "num_workers": 1}),
    "workers as fraction": (SIX, {"num_workers": 1.5}),
    "no length": (Unsized(), {}),
    "no length, unbatched": (Unsized(), {"batch_size": None}),
    "no dataset": (None, {}),
    "not a sampler": (SIX, {"sampler": NotASampler()}),
    "not a sampler, unbatched": (SIX, {"sampler": NotASampler(), "batch_size": None}),
    "not a batch sampler": (SIX, {"batch_sampler": NotASampler()}),
    "batches that are numbers": (SIX, {"batch_sampler": [0, 1]}),
    "a sampler class": (SIX, {"sampler": SequentialSampler}),
    "an index too large": ([1, 2, 3], {"sampler": [7]}),
    "not a generator": (SIX, {"generator": 5}),
    "not a generator, shuffling": (SIX, {"generator": 5, "shuffle": True}),
    "collate_fn that is no function": (SIX, {"collate_fn": 5}),
    "what cannot be collated": ([object()], {}),
    "batches of unequal length": ([[1], [1, 2]], {"batch_size": 2}),
    "weights that are too few": (
        SIX,
        {"sampler": torch.utils.data.WeightedRandomSampler([1.0, 0.5], 3, replacement=False)},
    ),
}


@pytest.mark.parametrize("dataset, kwargs", REFUSED.values(), ids=REFUSED)
def test_what_torch_refuses_is_refused_in_its_words(dataset: Any, kwargs: dict[str, Any]) -> None:
    error = assert_parity(lambda make: outcome(lambda: make(dataset, **kwargs)))
    assert issubclass(error[0], Exception)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch's __del__
@pytest.mark.parametrize(
    "dataset, kwargs",
    REFUSED_AT_THE_FIRST_BATCH.values(),
    ids=REFUSED_AT_THE_FIRST_BATCH,
)
def test_what_torch_finds_wrong_at_the_first_batch_is_found_in_its_words(
    dataset: Any, kwargs: dict[str, Any]
) -> None:
    error = assert_parity(lambda make: outcome(lambda: next(iter(make(dataset, **kwargs)))))
    assert issubclass(error[0], Exception)


ODD_BUT_TAKEN: dict[str, dict[str, Any]] = {
    "workers as truth": {"num_workers": True},
    "workers of numpy's": {"num_workers": np.int64(1)},
    "workers as 0.0": {"num_workers": 0.0},
    "batch size as enum": {"batch_size": enum.IntEnum("Size", {"SMALL": 4}).SMALL},
    "shuffle as text": {"shuffle": "yes"},
    "shuffle as None": {"shuffle": None},
    "timeout as truth": {"timeout": True, "num_workers": 1},
    "timeout as fraction": {"timeout": 59.5, "num_workers": 1},
    "prefetch of numpy's": {"prefetch_factor": np.int64(3), "num_workers": 1},
    "persistent as number": {"persistent_workers": 1, "num_workers": 1},
    "in_order as None": {"in_order": None, "num_workers": 1},
    "in_order without workers": {"in_order": False},
    "worker_init_fn without workers": {"worker_init_fn": raise_if_called},
    "prefetch as None": {"prefetch_factor": None, "num_workers": 1},
    "sampler that is false": {"sampler": []},
    "everything by default": {
        "sampler": None,
        "batch_sampler": None,
        "generator": None,
    },
}


@pytest.mark.parametrize("kwargs", ODD_BUT_TAKEN.values(), ids=ODD_BUT_TAKEN)
def test_what_torch_takes_without_complaint_is_taken(kwargs: dict[str, Any]) -> None:
    def observe(make: Make) -> Any:
        loader = make(SIX, **{"batch_size": 4, **kwargs})
        return list(loader), list(loader), len(loader), rng_states()

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_of_the_samplers_own_reaches_the_consumer(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        seen: list[Any] = []

        def consume() -> None:
            loader = make(SIX, 2, sampler=FailsMidway(), num_workers=num_workers)
            seen.extend(iter(loader))

        error = outcome(consume)
        return error, seen if num_workers == 0 else None

    assert_parity(observe)


def test_a_loader_without_dataset_is_a_type_error_as_any_call_with_too_few_arguments() -> None:
    assert_parity(lambda make: outcome(make))


def test_a_call_with_too_many_positional_arguments_is_a_type_error() -> None:
    assert_parity(lambda make: outcome(lambda: make(*[SIX] * 14))[0])


@pytest.mark.unpinned
def test_torchs_parameters_come_first_in_torchs_order_with_torchs_defaults() -> None:
    theirs, ours = (
        inspect.signature(loader.__init__).parameters.values() for loader in (TORCH, OURS)
    )

    def outline(parameters: Any) -> list[Any]:
        return [(p.name, p.kind, p.default) for p in parameters]

    assert outline(ours)[: len(theirs)] == outline(theirs)
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours)[len(theirs) :])


@pytest.mark.unpinned
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"batch_size": 3, "shuffle": True},
        {"batch_size": None},
        {"batch_size": None, "shuffle": True, "generator": torch.Generator()},
        {"batch_sampler": IN_BATCHES},
        {"sampler": range(3), "drop_last": True},
        {"sampler": range(3), "shuffle": False},
        {"num_workers": 2, "timeout": 3.5, "worker_init_fn": print},
        {"num_workers": 1, "prefetch_factor": 5, "persistent_workers": True},
        {"collate_fn": default_convert, "in_order": False},
        {"pin_memory": True, "pin_memory_device": "cuda"},
    ],
    ids=lambda kwargs: ", ".join(kwargs) or "none",
)
def test_every_attribute_of_torchs_loader_is_there_and_has_its_value(
    kwargs: dict[str, Any],
) -> None:
    theirs, ours = TORCH(SIX, **kwargs), OURS(SIX, **kwargs)
    for name, expected in vars(theirs).items():
        found = getattr(ours, name)
        if isinstance(expected, Sampler):
            assert type(found) is type(expected)
            assert len(found) == len(expected)
        else:
            assert found == expected, name
    for name in ("multiprocessing_context", "_auto_collation"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours._index_sampler in (ours.sampler, ours.batch_sampler)


def test_a_random_samplers_generator_is_the_loaders() -> None:
    generator = torch.Generator()
    loader: Any = OURS(SIX, shuffle=True, generator=generator)
    assert loader.sampler.generator is generator
    assert loader.batch_sampler.sampler is loader.sampler
    assert loader.dataset is SIX


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_a_start_method_by_name_or_as_object_becomes_the_same_context(
    context: str,
) -> None:
    def observe(make: Make) -> Any:
        given = (context, torch.multiprocessing.get_context(context))
        loaders: Any = [make(SIX, num_workers=1, multiprocessing_context=c) for c in given]
        return [loader.multiprocessing_context.get_start_method() for loader in loaders]

    assert assert_parity(observe) == [context, context]


@pytest.mark.parametrize("value", ["fork", "knife", 5, None])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_context_is_checked_when_it_is_set_later_as_well(num_workers: int, value: Any) -> None:
    def observe(make: Make) -> Any:
        loader = make(SIX, num_workers=num_workers)
        error = outcome(lambda: setattr(loader, "multiprocessing_context", value))
        return error, loader.multiprocessing_context

    assert_parity(observe)


@pytest.mark.parametrize(
    "name",
    [
        "batch_size",
        "batch_sampler",
        "sampler",
        "drop_last",
        "dataset",
        "persistent_workers",
    ],
)
def test_what_torch_fixes_at_construction_cannot_be_set_later(name: str) -> None:
    def observe(make: Make) -> Any:
        loader = make(SIX)
        before = getattr(loader, name)
        error = outcome(lambda: setattr(loader, name, before))
        return error, getattr(loader, name) is before

    assert assert_parity(observe)[1]


def test_a_subclass_is_named_when_its_attribute_cannot_be_set() -> None:
    def observe(make: Any) -> Any:
        mine = type("MyLoader", (make,), {})
        return outcome(lambda: setattr(mine(SIX), "batch_size", 5))

    assert "MyLoader" in assert_parity(observe)[1]


def tens(samples: list[int]) -> list[int]:
    return [10 * sample for sample in samples]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_may_be_set_later_counts_from_the_next_iter(num_workers: int) -> None:
    def observe(make: Make) -> Any:
        loader = make(SIX, 2, shuffle=True, num_workers=num_workers)
        seen: list[Any] = [list(loader)]
        loader.collate_fn = tens
        seen.append(list(loader))
        loader.generator = torch.Generator().manual_seed(3)
        seen += [list(loader), rng_states([loader.generator])]
        loader.num_workers, loader.prefetch_factor = (1 - num_workers), (
            2 - 2 * num_workers or None
        )
        seen.append(list(loader))
        return seen, rng_states([loader.generator])

    assert_parity(observe)


def test_what_is_set_later_is_not_seen_by_an_iterator_that_is_under_way() -> None:
    def observe(make: Make) -> Any:
        loader = make(SIX, 2)
        iterator = iter(loader)
        first = next(iterator)
        loader.collate_fn = tens
        return first, list(iterator)

    assert_parity(observe)


def test_a_sampler_that_is_changed_later_counts_from_the_next_iter() -> None:
    def observe(make: Make) -> Any:
        loader: Any = make(SIX, 2, shuffle=True, collate_fn=list)
        seen = [list(loader)]
        loader.batch_sampler.batch_size = 4
        seen.append(list(loader))
        loader.batch_sampler.drop_last = True
        seen.append(list(loader))
        loader.sampler.generator = torch.Generator().manual_seed(3)
        seen.append(list(loader))
        loader.batch_sampler.sampler = SequentialSampler(range(5))
        seen.append(list(loader))
        return seen, len(loader), rng_states()

    assert_parity(observe)


def test_a_sampler_whose_iter_is_replaced_on_its_class_is_asked_for_its_order() -> None:
    class Mine(SequentialSampler):
        pass

    def observe(make: Make) -> Any:
        Mine.__iter__ = lambda self: iter([2, 0])  # type: ignore[method-assign]
        return list(make(SIX, 2, sampler=Mine(SIX), collate_fn=list))

    assert assert_parity(observe) == [[2, 0]]


LENGTHS: dict[str, Any] = {
    "map": lambda make: make(SIX, 4),
    "map, whole batches": lambda make: make(SIX, 4, drop_last=True),
    "map, no batches": lambda make: make(SIX, None),
    "nothing": lambda make: make([]),
    "sampler": lambda make: make(SIX, 4, sampler=range(9)),
    "batch sampler": lambda make: make(SIX, batch_sampler=IN_BATCHES),
    "random": lambda make: make(SIX, 4, sampler=RandomSampler(SIX, num_samples=50)),
    "sampler without length": lambda make: make(SIX, sampler=FailsMidway()),
    "batches without length": lambda make: make(
        SIX, batch_sampler=BatchSampler(FailsMidway(), 2, True)
    ),
    "sampler without length, unbatched": lambda make: make(SIX, None, sampler=FailsMidway()),
    "dataset without length": lambda make: make(Unsized(), 2),
    "stream without length": lambda make: make(STREAM, 2),
    "tensors": lambda make: make(TensorDataset(torch.ones(5, 2)), 2),
}


@pytest.mark.parametrize("build", LENGTHS.values(), ids=LENGTHS)
def test_loaders_and_iterators_have_torchs_length_or_torchs_refusal(build: Any) -> None:
    def observe(make: Make) -> Any:
        loader = build(make)
        iterator = iter(loader)
        lengths = [outcome(lambda: len(loader)), outcome(lambda: len(iterator))]
        outcome(lambda: next(iterator))
        return (
            lengths,
            outcome(lambda: len(iterator)),
            bool(outcome(lambda: bool(loader))),
        )

    assert_parity(observe)


def test_too_many_workers_are_warned_of_in_torchs_words() -> None:
    def observe(make: Make) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            make(SIX, num_workers=10_000)
        return [(w.category, str(w.message)) for w in caught]

    assert len(assert_parity(observe)) == 1


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is there")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("device", ["", "cuda"])
def test_pinning_without_accelerator_is_warned_of_in_torchs_words(
    device: str, num_workers: int
) -> None:
    def observe(make: Make) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loader = make(
                SIX,
                4,
                pin_memory=True,
                pin_memory_device=device,
                num_workers=num_workers,
            )
            batches = list(loader)
        return batches, [(w.category, str(w.message)) for w in caught]

    assert_parity(observe)


def test_a_loader_can_be_subscripted_and_subclassed_by_element_type() -> None:
    class Typed(OURS[int]):  # type: ignore[valid-type, misc]
        pass

    assert list(Typed(SIX, 4, collate_fn=list)) == [[0, 1, 2, 3], [4, 5]]
    assert list(OURS[int](SIX, 4, collate_fn=list)) == [[0, 1, 2, 3], [4, 5]]


def test_it_is_a_torch_loader_to_whoever_asks() -> None:
    assert issubclass(OURS, torch.utils.data.DataLoader)  # type: ignore[arg-type]
    assert isinstance(OURS(SIX), torch.utils.data.DataLoader)
    assert OURS.__name__ == "DataLoader"  # type: ignore[attr-defined]


def test_subclasses_may_set_attributes_before_and_after_the_constructor() -> None:
    def observe(make: Any) -> Any:
        class Mine(make):  # type: ignore[misc]
            kind = "class attribute"

            def __init__(self, *args: Any, label: str, **kwargs: Any) -> None:
                self.label = label
                self.lock = threading.Lock()
                super().__init__(*args, **kwargs)
                self.extra = len(self)

        loader = Mine(SIX, 4, label="train", collate_fn=list)
        loader.later = "set later"
        return list(loader), loader.label, loader.extra, loader.later, loader.kind

    assert_parity(observe)


# Neither side protects the names of its own arguments ("sampler" there, "schedule" here).
NAMES = """
    args bar cache collate config cursor data device driver dtype engine events fetcher group
    index indices iterable iterator job kind length logger loop mode name newest num_batches options
    order path pinned plan pool position queue rank rng run sampler_iter source
    start state stats step stream task tokenizer transform universe window world_size
""".split()


@pytest.mark.parametrize("when", ["before", "after", "on the class"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_subclass_may_give_its_attributes_the_names_that_it_likes(
    num_workers: int, when: str
) -> None:
    def observe(make: Any) -> Any:
        class Mine(make):  # type: ignore[misc]
            if when == "on the class":
                locals().update({name: "mine" for name in NAMES})

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                if when == "before":
                    self.name_all()
                super().__init__(*args, **kwargs)
                if when == "after":
                    self.name_all()

            def name_all(self) -> None:
                for name in NAMES:
                    setattr(self, name, "mine")

        loader = Mine(SIX, 4, shuffle=True, num_workers=num_workers)
        seen = list(loader), list(loader)
        return seen, {name for name in NAMES if getattr(loader, name) != "mine"}

    assert_parity(observe)


def test_subclasses_may_wrap_iteration_and_length() -> None:
    def observe(make: Any) -> Any:
        class Mine(make):  # type: ignore[misc]
            def __iter__(self) -> Iterator[Any]:
                for batch in super().__iter__():
                    yield "wrapped", batch

            def __len__(self) -> int:
                return 2 * super().__len__()

        return list(Mine(SIX, 4, shuffle=True)), len(Mine(SIX, 4)), rng_states()

    assert_parity(observe)


def test_subclasses_may_turn_their_collate_method_into_collate_fn() -> None:
    def observe(make: Any) -> Any:
        class Mine(make):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, collate_fn=self.join, **kwargs)

            def join(self, samples: list[int]) -> str:
                return "-".join(map(str, samples))

        return [list(Mine(SIX, 4, num_workers=n)) for n in (0, 1)]

    assert_parity(observe)


def test_a_loader_rebuilt_from_its_attributes_as_trainers_do_it_is_the_same_loader() -> None:
    def observe(make: Any) -> Any:
        loader = make(SIX, 4, shuffle=True, drop_last=True, collate_fn=list)
        names = inspect.signature(TORCH.__init__).parameters  # type: ignore[misc]
        kwargs = {name: getattr(loader, name) for name in names if hasattr(loader, name)}
        kwargs |= {"batch_size": 1, "sampler": None, "drop_last": False}
        return list(make(**kwargs)), rng_states()

    assert_parity(observe)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, "pickle"])
def test_a_loader_can_be_copied_and_pickled_and_then_iterates_as_before(
    duplicate: Any,
) -> None:
    def observe(make: Make) -> Any:
        loader = make(SIX, 4, shuffle=True, generator=torch.Generator().manual_seed(3))
        first = list(loader)
        if duplicate == "pickle":
            other = pickle.loads(pickle.dumps(loader))
        else:
            other = duplicate(loader)
        return (
            first,
            list(other),
            list(loader),
            rng_states([loader.generator, other.generator]),
        )

    assert_parity(observe)


def test_a_loader_that_was_pickled_still_refuses_what_it_refused() -> None:
    def observe(make: Make) -> Any:
        context = torch.multiprocessing.get_context("fork")
        loader = make(SIX, 4, num_workers=1, multiprocessing_context=context)
        copied = copy.copy(loader)
        errors = [outcome(lambda: setattr(copied, name, 1)) for name in ("batch_size", "dataset")]
        return errors, copied.multiprocessing_context is context, list(copied)

    assert_parity(observe)


class Threads(multiprocessing.context.SpawnContext):
    """A context of threads, as monai's ThreadDataLoader has one."""

    Process = threading.Thread


def test_workers_that_are_no_processes_are_refused_before_they_start() -> None:
    with pytest.raises(UsageError, match="class Thread, which is no process.*num_workers=0"):
        OURS(SIX, num_workers=1, multiprocessing_context=Threads())
    loader = OURS(SIX, num_workers=1)
    with pytest.raises(UsageError, match="class Thread"):
        loader.multiprocessing_context = Threads()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_subclass_may_wrap_the_iterator(num_workers: int) -> None:
    """As the loaders of PyTorch Geometric do, which look features up in the main process."""

    def observe(make: Make) -> Any:
        class Wraps(make):  # type: ignore[misc, valid-type]
            def _get_iterator(self) -> Any:
                return map(lambda batch: ("wrapped", batch), super()._get_iterator())

        loader = Wraps(SIX, 4, num_workers=num_workers)
        return list(loader), list(loader)

    assert_parity(observe)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_collate_fn_may_be_anything_that_can_be_called(num_workers: int) -> None:
    class Collate:
        def __call__(self, samples: list[int]) -> tuple[str, list[int]]:
            return type(samples).__name__, samples

    def observe(make: Make) -> Any:
        functions = [
            Collate(),
            list,
            sum,
            partial(sorted, reverse=True),
            lambda s: s[::-1],
        ]
        return [list(make(SIX, 4, collate_fn=f, num_workers=num_workers)) for f in functions]

    assert_parity(observe)


def test_round_robin_with_torchs_seeding_is_refused_nothing_that_torch_takes() -> None:
    def observe(make: Make) -> Any:
        return list(make(SIX, 4, num_workers=1, prefetch_factor=1, in_order=True, timeout=30.0))

    assert_parity(observe, ours=AS_TORCH)


def test_loaders_of_both_kinds_are_type_compatible() -> None:
    loaders: list[Loader] = [TORCH(SIX, 4), OURS(SIX, 4)]
    assert [len(loader) for loader in loaders] == [2, 2]
