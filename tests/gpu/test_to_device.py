"""``to_device="cuda"``: batches that are copied ahead."""

from __future__ import annotations

import pickle
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset, IterableDataset

from picklable_loader import DataLoader

Pair = namedtuple("Pair", "image label")


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return Pair(torch.rand(70_000) + index, {"index": index, "name": str(index)})


class NoisyStream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        for index in range(40):
            yield Pair(torch.rand(70_000) + index, {"index": index, "name": str(index)})


class Box:
    """An object with tensors that no container shows."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, *arguments: Any, **options: Any) -> Box:
        return Box(self.tensor.to(*arguments, **options))


def boxed(samples: Any) -> Any:
    return Box(torch.stack([each.image for each in samples]))


def packed(samples: Any) -> Any:
    return pack_sequence([each.image[: 100 - each.label["index"]] for each in samples])


def flipped(batch: Any) -> Any:
    image = batch.image * 2
    return batch._replace(image=image + torch.rand(1, device=image.device) + torch.rand(1).item())


def same(one: Any, other: Any) -> bool:
    equal = torch.equal(one.image.cpu(), other.image.cpu())
    return equal and one.label["name"] == other.label["name"]


@pytest.mark.filterwarnings("ignore::picklable_loader.errors.ReplayWarning")
@pytest.mark.parametrize("data", [Noisy, NoisyStream])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ahead", [0, 2])
def test_batches_and_states_are_those_of_a_loader_without_a_device(
    data: Any, workers: int, ahead: int
) -> None:
    def made(**options: Any) -> Any:
        return DataLoader(data(), 4, num_workers=workers, seed=3, **options)

    plain, device = iter(made()), iter(made(to_device="cuda", device_prefetch=ahead))
    for _ in range(5):
        expected, found = next(plain), next(device)
        assert type(found) is Pair and found.image.device.type == "cuda"
        assert found.label["index"].device.type == "cuda" and same(expected, found)
        states = plain.state_dict(), device.state_dict()
        assert states[0] == states[1]
    resumed = pickle.loads(pickle.dumps(device))
    for expected in plain:
        for iterator in (device, resumed):
            assert same(expected, next(iterator))


def test_batches_that_wait_are_copied_ahead() -> None:
    iterator = iter(DataLoader(Noisy(), 4, num_workers=2, seed=3, to_device="cuda"))
    next(iterator)
    while iterator.stats().waiting < 3:
        pass
    next(iterator)
    answers = iterator._driver._engine.answers
    ahead = [type(answers[step].payload).__name__ for step in sorted(answers)]
    assert ahead[:2] == ["_Copy", "_Copy"] and "_Copy" not in ahead[2:]


@pytest.mark.parametrize("workers, ahead", [(0, 2), (2, 0), (2, 1), (3, 4)])
def test_random_numbers_of_device_convert_depend_on_the_step_alone(
    workers: int, ahead: int
) -> None:
    def batches(**options: Any) -> Any:
        made: Any = {"seed": 3, "to_device": "cuda", "device_convert": flipped, **options}
        return iter(DataLoader(Noisy(), 4, **made))

    torch.cuda.manual_seed(1)
    torch.cuda.set_rng_state(before := torch.cuda.get_rng_state())
    iterator = batches(num_workers=workers, device_prefetch=ahead)
    expected = batches()
    for _ in range(4):
        assert same(next(expected), next(iterator))
    resumed = pickle.loads(pickle.dumps(iterator))
    for each in expected:
        assert same(each, next(resumed))
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize("collate", [boxed, packed])
@pytest.mark.parametrize("workers", [0, 2])
def test_objects_that_have_a_method_to_are_moved_by_it(collate: Any, workers: int) -> None:
    def batches(**options: Any) -> Any:
        made = DataLoader(Noisy(), 4, num_workers=workers, seed=3, collate_fn=collate, **options)
        return [each.data if collate is packed else each.tensor for each in made]

    for plain, moved in zip(batches(), batches(to_device="cuda"), strict=True):
        assert moved.device.type == "cuda" and torch.equal(plain, moved.cpu())


class Refuses(Box):
    def to(self, *arguments: Any, **options: Any) -> Any:
        raise ValueError(f"refused {self.tensor[0].item()}")


class Some(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        tensor = torch.tensor([float(index)])
        return Refuses(tensor) if index == 2 else tensor


def test_a_batch_whose_copy_raises_is_lost_alone() -> None:
    iterator = iter(DataLoader(Some(), None, num_workers=2, to_device="cuda"))
    assert [next(iterator).item() for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="refused 2"):
        next(iterator)
    assert [each.item() for each in iterator] == [3, 4, 5]


def test_a_consumer_that_is_slow_gets_its_own_batches() -> None:
    """Device memory of a dropped batch is not written to while the consumer still reads it."""
    sums, expected = [], []
    for batch in DataLoader(Noisy(), 2, num_workers=3, seed=3, to_device="cuda"):
        torch.cuda._sleep(20_000_000)
        sums.append(batch.image.double().sum())
        expected.append(2 * batch.label["index"].double().sum() / 2 * 70_000)
        del batch
    for found, least in zip(sums, expected, strict=True):
        assert 0.45 * 140_000 < (found - least).item() < 0.55 * 140_000


def test_cudas_generators_come_back_with_restore_rng() -> None:
    loader = DataLoader(Noisy(), 4, seed=3)
    next(iterator := iter(loader))
    torch.cuda.manual_seed(8)
    torch.rand(3, device="cuda")
    state = iterator.state_dict(save_rng=True)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(9)
    again = DataLoader(Noisy(), 4, seed=3)
    again.load_state_dict(state, restore_rng=True)
    assert torch.equal(torch.rand(3, device="cuda"), expected)
