"""``to_device=`` on devices that every machine has; tests/gpu has those of CUDA."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from picklable_loader import DataLoader
from picklable_loader.errors import UsageError


class Noisy(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return {"image": torch.rand(3), "index": index, "name": str(index)}


def doubled(batch: Any) -> Any:
    return {**batch, "image": 2 * batch["image"] + torch.rand(3)}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_on_the_device_and_states_do_not_change(workers: int) -> None:
    def made(**options: Any) -> Any:
        return iter(DataLoader(Noisy(), 4, num_workers=workers, seed=3, **options))

    plain, moved = made(), made(to_device="meta")
    for _ in range(3):
        expected, found = next(plain), next(moved)
        assert found["image"].device.type == found["index"].device.type == "meta"
        assert found["name"] == expected["name"]
        assert plain.state_dict() == moved.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_device_convert_draws_the_same_numbers_after_a_resume(workers: int) -> None:
    options: Any = {"seed": 3, "to_device": "cpu", "device_convert": doubled}
    before = torch.get_rng_state()
    expected = [each["image"] for each in DataLoader(Noisy(), 4, **options)]
    iterator = iter(DataLoader(Noisy(), 4, num_workers=workers, **options))
    found = [next(iterator)["image"] for _ in range(2)]
    found += [each["image"] for each in pickle.loads(pickle.dumps(iterator))]
    assert all(map(torch.equal, expected, found)) and len(found) == 6
    assert torch.equal(torch.get_rng_state(), before)


def test_a_device_that_is_not_here_is_named_by_the_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("CUDA is here")
    with pytest.raises(UsageError, match="to_device='cuda' needs a CUDA device"):
        next(iter(DataLoader(Noisy(), to_device="cuda")))


class FailsAtFirst:
    """Its ``to`` raises when it is called first, as where memory is short."""

    def __init__(self, index: int) -> None:
        self.index, self.failed = index, index != 2

    def to(self, *arguments: Any, **options: Any) -> int:
        if not self.failed:
            self.failed = True
            raise ValueError("no room")
        return self.index


def first(samples: list[int]) -> FailsAtFirst:
    return FailsAtFirst(samples[0])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_can_only_be_moved_at_the_second_try_does_not_come_for_ever(
    workers: int,
) -> None:
    data: Any = range(5)
    loader = DataLoader(data, num_workers=workers, to_device="cpu", collate_fn=first)
    iterator, found = iter(loader), []
    for _ in range(7):
        try:
            found.append(next(iterator, "end"))
        except ValueError:
            found.append("error")
    assert found == [0, 1, "error", "error", 3, 4, "end"]


@pytest.mark.parametrize(
    "device, kind", [("cudda", ValueError), (True, TypeError), (0.5, TypeError)]
)
def test_what_is_no_device_is_refused_at_once(device: Any, kind: Any) -> None:
    with pytest.raises(kind, match="to_device should be"):
        DataLoader(Noisy(), to_device=device)


def test_device_convert_needs_a_device() -> None:
    with pytest.raises(UsageError, match="device_convert= needs to_device="):
        next(iter(DataLoader(Noisy(), device_convert=doubled)))
