"""Generators with several users, loaders, samplers, datasets, the program, and their resumes."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import pickle
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from laws.observe import expected_warnings, plain, seed_everything, seen
from torch.utils.data import Dataset, IterableDataset, RandomSampler, Sampler
from zoo.datasets import Noisy, noise
from zoo.samplers import DrawsAsItGoes, from_numpy, from_torch

from picklable_loader import DataLoader
from picklable_loader.rng.generators import capture_all, restore_all

State = dict[str, Any]


# --- a generator that two loaders share ----------------------------------------------------------


def _shuffled(g: torch.Generator) -> tuple[DataLoader[Any], DataLoader[Any]]:
    return (
        DataLoader(range(12), batch_size=4, shuffle=True, generator=g),
        DataLoader(range(4), batch_size=4, generator=g),
    )


def _many_draws(g: torch.Generator) -> tuple[DataLoader[Any], DataLoader[Any]]:
    data = torch.utils.data
    return (
        DataLoader(range(12), 4, sampler=data.RandomSampler(range(5), True, 12, g)),
        DataLoader(range(4), batch_size=2, shuffle=True, generator=g),
    )


def _beside_workers(g: torch.Generator) -> tuple[DataLoader[Any], DataLoader[Any]]:
    train, valid = _shuffled(g)
    train.num_workers, train.prefetch_factor = 1, 2
    return train, valid


PAIRS = {f.__name__.strip("_"): f for f in (_shuffled, _many_draws, _beside_workers)}
EPOCHS = 3


def run(
    make: Callable[..., Any],
    save_at: int | None = None,
    saved: Any = None,
    valid_first: bool = False,
) -> tuple[list[Any], Any]:
    """Train and validate by turns; states of both loaders after so many batches of either."""
    train, valid = make(torch.Generator().manual_seed(3))
    log: list[Any] = []
    states, steps = None, 0
    if saved is not None:
        log, steps = list(saved["log"]), len(saved["log"])
        pairs = [(train, saved["train"]), (valid, saved["valid"])]
        for loader, state in reversed(pairs) if valid_first else pairs:
            loader.load_state_dict(state)
    begins_in_valid = saved is not None and saved["in_valid"]
    for epoch in range(saved["epoch"] if saved else 0, EPOCHS):
        for name, loader in (("train", train), ("valid", valid)):
            if begins_in_valid and name == "train":
                begins_in_valid = False
                continue
            for batch in loader:
                log.append((epoch, name, batch.tolist()))
                steps += 1
                if steps == save_at:
                    states = {
                        "train": train.state_dict(),
                        "valid": valid.state_dict(),
                        "log": list(log),
                        "epoch": epoch,
                        "in_valid": name == "valid",
                    }
    return log, states


@pytest.mark.parametrize("valid_first", [False, True])
@pytest.mark.parametrize("pair", PAIRS)
def test_states_of_loaders_that_share_a_generator_go_on_together(
    pair: str, valid_first: bool
) -> None:
    make = PAIRS[pair]
    whole, _ = run(make)
    steps = (2, 4, 6) if "workers" in pair else range(1, len(whole))
    for step in steps:
        found, saved = run(make, save_at=step)
        assert found == whole, "saving has disturbed the run"
        with expected_warnings():  # of a pass that has nothing left
            found, _ = run(make, saved=saved, valid_first=valid_first)
        assert found == whole, f"step {step}"


def test_a_generator_is_put_back_when_a_state_is_loaded_and_not_again() -> None:
    given = torch.Generator().manual_seed(3)
    loader = DataLoader(range(12), 4, shuffle=True, generator=given)
    iterator = iter(loader)
    next(iterator)
    state, left = loader.state_dict(), given.get_state()
    list(iterator)
    given.manual_seed(8)
    loader.load_state_dict(state)
    assert torch.equal(given.get_state(), left)
    given.manual_seed(9)
    again = iter(loader)
    next(again)
    assert torch.equal(given.get_state(), torch.Generator().manual_seed(9).get_state())


def test_a_state_that_was_loaded_and_not_begun_is_saved_with_the_generator_as_it_is_now() -> None:
    given = torch.Generator().manual_seed(3)
    loader = DataLoader(range(12), 4, shuffle=True, generator=given)
    loader.load_state_dict(loader.state_dict())
    given.manual_seed(8)
    other = DataLoader(range(12), 4, shuffle=True, generator=torch.Generator())
    for state in (loader.state_dict(), pickle.loads(pickle.dumps(loader)).state_dict()):
        other.load_state_dict(state)
        assert torch.equal(other.generator.get_state(), given.get_state())


def test_an_unpickled_iterator_gives_a_state_with_its_generators() -> None:
    loader = DataLoader(range(12), 4, shuffle=True, generator=torch.Generator().manual_seed(3))
    iterator = iter(loader)
    next(iterator)
    state = pickle.loads(pickle.dumps(iterator)).state_dict()
    assert state == iterator.state_dict()


# --- neither a seed nor a generator --------------------------------------------------------------


def _restored_before(rng: torch.Tensor, load: Callable[[], None]) -> None:
    torch.set_rng_state(rng)
    load()


def _restored_after(rng: torch.Tensor, load: Callable[[], None]) -> None:
    load()
    torch.set_rng_state(rng)


#: what programs do with torch's global generator as they go on
WAYS: dict[str, Any] = {"before": _restored_before, "after": _restored_after, "late": None}


def train(
    num_workers: int, dropout: bool, save_at: int | None = None, saved: Any = None, way: str = ""
) -> tuple[list[Any], Any]:
    """The most ordinary program: no seed, no generator, and a validation loader."""
    loader = DataLoader(range(12), 4, shuffle=True, num_workers=num_workers)
    valid = DataLoader(range(4), 2)
    log: list[Any] = []
    kept, late = None, None
    if saved is not None:
        log = list(saved["log"])
        if way == "late":  # as trainers do that pass over batches before
            loader.load_state_dict(saved["state"])
            late = saved["rng"]
        else:
            WAYS[way](saved["rng"], lambda: loader.load_state_dict(saved["state"]))
    for epoch in range(loader.epoch, EPOCHS):
        for batch in loader:
            if late is not None:
                torch.set_rng_state(late)
                late = None
            noise = torch.rand(()).item() if dropout else 0.0
            log.append((epoch, batch.tolist(), noise))
            if len(log) == save_at:
                kept = {
                    "state": loader.state_dict(),
                    "rng": torch.get_rng_state(),
                    "log": list(log),
                }
        list(valid)
    return log, kept


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    "way, dropout",
    [("before", False), ("before", True), ("after", False), ("after", True), ("late", False)],
)
def test_a_program_that_restores_torchs_generator_goes_on_exactly(
    way: str, num_workers: int, dropout: bool
) -> None:
    torch.manual_seed(5)
    whole, _ = train(num_workers, dropout)
    for step in (1, 2, 4):
        torch.manual_seed(5)
        found, saved = train(num_workers, dropout, save_at=step)
        assert found == whole
        torch.manual_seed(99)
        assert train(num_workers, dropout, saved=saved, way=way)[0] == whole, f"step {step}"


@pytest.mark.parametrize("draw", [from_torch, from_numpy])
def test_a_custom_sampler_draws_from_the_programs_generators_if_these_are_restored(
    draw: Callable[[int], int],
) -> None:
    seed_everything(5)
    iterator = iter(DataLoader(range(10), 2, sampler=DrawsAsItGoes(draw)))
    next(iterator)
    state, rng = iterator.state_dict(), torch.get_rng_state()
    numbers = np.random.get_state()
    del iterator

    def go_on() -> list[Any]:
        loader = DataLoader(range(10), 2, sampler=DrawsAsItGoes(draw))
        loader.load_state_dict(state)
        torch.set_rng_state(rng)
        np.random.set_state(numbers)
        found = []
        for batch in loader:
            found.append((batch.tolist(), torch.rand(()).item(), np.random.rand()))
        return found

    first = go_on()
    seed_everything(99)
    assert go_on() == first


def test_a_copy_beside_the_living_original_draws_from_a_private_copy() -> None:
    torch.manual_seed(5)
    iterator = iter(DataLoader(range(12), 4, shuffle=True))
    next(iterator)
    state = iterator.state_dict()
    again = pickle.loads(pickle.dumps(iterator))
    other = DataLoader(range(12), 4, shuffle=True)
    other.load_state_dict(state)
    loaded = iter(other)
    passes = [[each.tolist() for each in it] for it in (iterator, again, loaded)]
    assert passes[0] == passes[1] == passes[2]
    later = [[b.tolist() for b in loader] for loader in (iterator.loader, again.loader, other)]
    assert later[0] == later[1] == later[2]


# --- a dataset that saves the generator it draws from --------------------------------------------


class SavesTheGenerator(Dataset[Any]):
    """Has torch's global generator in its state, as torchdata's own test datasets have."""

    def __init__(self) -> None:
        self.count = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return [index, self.count, torch.rand(()).item()]

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "rng": torch.get_rng_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        torch.set_rng_state(state["rng"])


@pytest.mark.parametrize("every", [1, 2, 4, 100])
@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True},
        {"sampler": RandomSampler(range(5), num_samples=12)},
        {"sampler": DrawsAsItGoes(from_torch)},
        {"shuffle": True, "seed": 3},
    ],
    ids=["shuffle", "permutations", "as it goes", "seed"],
)
def test_a_dataset_that_saves_the_generator_goes_on_exactly_under_torchs_seeding(
    options: dict[str, Any], every: int
) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(
            SavesTheGenerator(),
            2,
            seeding="worker",
            collate_fn=list,
            snapshot_every_n_steps=every,
            **options,
        )

    seed_everything(1)
    loader = make()
    states, batches = [loader.state_dict()], []
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            states.append(loader.state_dict())
    for step, state in enumerate(states):
        seed_everything(99)
        again = make()
        again.load_state_dict(state, at_epoch_end="next")
        found = [batch for _ in range(again.epoch, 2) for batch in again]
        assert found == batches[step:], f"step {step}"


# --- several loaders that draw from the global generators ----------------------------------------


class MixesAll(Sampler[int]):
    """Draws its order from all three global generators."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.size).tolist()
        random.shuffle(order)
        return iter(np.random.permutation(order).tolist())


def _neither() -> list[DataLoader[Any]]:
    return [DataLoader(Noisy(n), 3, shuffle=True, collate_fn=list) for n in (7, 4)]


def _samplers_that_draw_as_well() -> list[DataLoader[Any]]:
    return [
        DataLoader(Noisy(n), 3, sampler=MixesAll(n), collate_fn=list, generator=torch.Generator())
        for n in (7, 4)
    ]


def _datasets_that_draw_as_well() -> list[DataLoader[Any]]:
    return [
        DataLoader(Noisy(7), 3, shuffle=True, generator=torch.Generator(), **_IN_TORCHS_WAY),
        DataLoader(Noisy(4), 3, **_IN_TORCHS_WAY),
    ]


def _beside_one_with_a_seed() -> list[DataLoader[Any]]:
    train, _ = _neither()
    return [train, DataLoader(Noisy(4), 3, shuffle=True, collate_fn=list, seed=1)]


_IN_TORCHS_WAY: dict[str, Any] = {"collate_fn": list, "seeding": "worker"}
_TEAMS = (
    _neither,
    _samplers_that_draw_as_well,
    _datasets_that_draw_as_well,
    _beside_one_with_a_seed,
)
TEAMS = {f.__name__.strip("_"): f for f in _TEAMS}


class Trainer:
    """Trains and validates by turns, with dropout, and restores the generators after a crash."""

    def __init__(self, make: Callable[[], list[DataLoader[Any]]]) -> None:
        self.loaders = make()
        self.epoch = self.turn = 0

    def batches(self) -> Iterator[Any]:
        for self.epoch in range(self.epoch, EPOCHS):
            for self.turn in range(self.turn, 2):
                for batch in self.loaders[self.turn]:
                    yield self.epoch, self.turn, plain(batch), noise()
            self.turn = 0

    def save(self) -> Any:
        states = [loader.state_dict() for loader in self.loaders]
        numbers = torch.get_rng_state(), np.random.get_state(), random.getstate()
        return self.epoch, self.turn, states, numbers

    def load(self, saved: Any, order: tuple[int, ...]) -> None:
        self.epoch, self.turn, states, (of_torch, of_numpy, of_python) = saved
        for what in order:
            if what < 2:
                self.loaders[what].load_state_dict(states[what])
                continue
            torch.set_rng_state(of_torch)
            np.random.set_state(of_numpy)
            random.setstate(of_python)


@pytest.mark.filterwarnings("ignore:the pass that a state had begun .* is left after one batch")
@pytest.mark.parametrize("again", ["a fresh program", "the same loaders"])
@pytest.mark.parametrize("team", TEAMS)
def test_all_loaders_draw_from_the_restored_generators_whoever_draws_first(
    team: str, again: str
) -> None:
    """States and generators are restored in any order, and saved again soon after that."""
    seed_everything(5)
    whole = list(Trainer(TEAMS[team]).batches())
    orders = itertools.cycle(itertools.permutations(range(3)))
    with expected_warnings():  # of a pass that has nothing left
        for first, second in itertools.product((0, 1, 3, 4, 5, 6), (0, 1, 2, 3, 5)):
            seed_everything(5)
            trainer, found = Trainer(TEAMS[team]), []
            for count in (first, second):
                found += itertools.islice(trainer.batches(), count)
                saved = trainer.save()
                if again == "a fresh program":
                    trainer = Trainer(TEAMS[team])
                    seed_everything(99)
                else:
                    list(itertools.islice(trainer.batches(), 4))
                trainer.load(saved, next(orders))
            assert found + list(trainer.batches()) == whole, (first, second)


def test_a_loader_that_is_gone_makes_no_more_draws() -> None:
    """So its copy has the program's generators, and does not wait for the garbage collector."""

    def make() -> DataLoader[Any]:
        return DataLoader(range(12), 4, shuffle=True)

    def begin() -> tuple[DataLoader[Any], Any]:
        seed_everything(5)
        loader = make()
        iterator = iter(loader)
        next(iterator)
        return loader, iterator

    def go_on(loader: DataLoader[Any], rest: Any) -> list[Any]:
        list(rest), torch.rand(3)  # dropout
        return [batch.tolist() for batch in loader]

    expected = go_on(*begin())
    gc.disable()
    try:
        loader, iterator = begin()
        state = loader.state_dict()
        del loader, iterator
        again = make()
        again.load_state_dict(state)
        assert go_on(again, again) == expected
    finally:
        gc.enable()


# --- a global generator in an attribute ----------------------------------------------------------


class HoldsTorchs:
    def __init__(self) -> None:
        self.generator = torch.default_generator

    def __call__(self) -> float:
        return torch.rand((), generator=self.generator).item()


class HoldsNumpys:
    """As scipy and scikit-learn do: ``check_random_state(None)``."""

    def __init__(self) -> None:
        self.random_state = np.random.mtrand._rand  # type: ignore[attr-defined]

    def __call__(self) -> float:
        return float(self.random_state.rand())


def closure(rng: random.Random) -> Callable[[], float]:
    return lambda: rng.random()


DRAWS: dict[str, Callable[[], Any]] = {
    "torch": HoldsTorchs,
    "numpy": HoldsNumpys,
    "numpy's method": lambda: partial(np.random.normal, 0, 1),
    "python's method": lambda: random.random,
    "a closure": lambda: closure(random._inst),  # type: ignore[attr-defined]
}


class DrawsBy(Dataset[float]):
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> float:
        return index + self.draw()


class ReadsBy:
    """An iterator that is pickled."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw, self.left = draw, 12

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> float:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left + self.draw()


class StreamBy(IterableDataset[float]):
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __iter__(self) -> Iterator[float]:
        return ReadsBy(self.draw)


class OrderBy(Sampler[int]):
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 12

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(range(12), key=[self.draw() for _ in range(12)].__getitem__))


class OneByOneBy(OrderBy):
    """Its iterator is pickled."""

    def __iter__(self) -> Iterator[int]:
        return IndicesBy(self.draw)


class IndicesBy(ReadsBy):
    def __next__(self) -> int:  # type: ignore[override]
        return int(abs(super().__next__()))


def by_torch_save(content: Any) -> Any:
    file = io.BytesIO()
    torch.save(content, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


KINDS: dict[str, Callable[..., DataLoader[Any]]] = {
    "map": lambda draw, **more: DataLoader(DrawsBy(draw), 3, **more),
    "stream": lambda draw, **more: DataLoader(StreamBy(draw), 3, **more),
    "streams": lambda draw, **more: DataLoader(StreamBy(draw), 3, num_streams=2, **more),
    "collate_fn": lambda draw, **more: DataLoader(
        range(12), 3, collate_fn=lambda batch: [each + draw() for each in batch], **more
    ),
    "sampler": lambda draw, **more: DataLoader(range(12), 3, sampler=OrderBy(draw), **more),
    "sampler's iterator": lambda draw, **more: DataLoader(
        range(24), 3, sampler=OneByOneBy(draw), **more
    ),
}
COPIED: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda it: pickle.loads(pickle.dumps({"it": it}))["it"],
    "cloudpickle": lambda it: pickle.loads(cloudpickle.dumps([it]))[0],
    "torch.save": by_torch_save,
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("codec", ["auto", "cloudpickle"])
@pytest.mark.parametrize("by", COPIED)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("draw", DRAWS)
def test_a_copy_of_what_holds_a_global_generator_draws_from_the_global_one(
    draw: str, kind: str, by: str, codec: Any, seed: int | None
) -> None:
    """It drew from a copy of the generator, which nobody seeds."""
    seed_everything(3)
    iterator = iter(KINDS[kind](DRAWS[draw](), codec=codec, seed=seed))
    next(iterator)
    program = capture_all()
    with expected_warnings():
        again = COPIED[by](iterator)
    assert capture_all() == program
    expected = [seen(iterator), seen(iter(iterator.loader))]
    restore_all(program)
    with expected_warnings():
        assert [seen(again), seen(iter(again.loader))] == expected


@pytest.mark.parametrize("kind", ["map", "stream", "streams", "collate_fn"])
def test_a_spawned_worker_draws_from_its_global_generators_as_a_forked_one(kind: str) -> None:
    def batches(**more: Any) -> list[Any]:
        draws = [each() for each in DRAWS.values()]
        loader = KINDS[kind](lambda: sum(each() for each in draws), seed=1, **more)
        return seen(iter(loader))

    at_hand = batches(num_workers=0)
    assert batches(num_workers=1) == at_hand
    assert batches(num_workers=1, multiprocessing_context="spawn") == at_hand


@pytest.mark.parametrize("draw", DRAWS)
def test_streams_in_one_process_draw_from_its_global_generators(draw: str) -> None:
    def batches(workers: int) -> list[Any]:
        loader = KINDS["streams"](DRAWS[draw](), seed=1, num_workers=workers)
        return [seen(iter(loader)) for _ in range(2)]

    assert batches(0) == batches(1) == batches(2)


def shuffled_by(generator: torch.Generator | None, of_sampler: Any) -> DataLoader[Any]:
    sampler = RandomSampler(range(12), generator=of_sampler)
    return DataLoader(range(12), 3, sampler=sampler, generator=generator)


@pytest.mark.parametrize("by_sampler", [False, True])
@pytest.mark.parametrize("by_loader", [False, True])
@pytest.mark.parametrize("save", ["pickle", "state"])
def test_torchs_global_generator_by_name_is_the_global_generator(
    save: str, by_loader: bool, by_sampler: bool
) -> None:
    """A pickle had a copy of it where it was named, and its state where it was not."""
    shared = torch.default_generator
    given = shared if by_loader else None, shared if by_sampler else None
    iterator = iter(shuffled_by(*given))
    next(iterator)
    if save == "pickle":
        again = pickle.loads(pickle.dumps(iterator))
    else:
        loader = shuffled_by(*given)
        loader.load_state_dict(iterator.state_dict())
        again = iter(loader)
    program = capture_all()
    copied = seen(again), seen(iter(again.loader))
    assert again.loader.generator is given[0] and again.loader.sampler.generator is given[1]
    restore_all(program)
    assert copied == (seen(iterator), seen(iter(iterator.loader)))
