"""Ranks of a process group: they agree on a seed before a pass, or all of them say why not."""

from __future__ import annotations

import io
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from importlib import import_module
from itertools import islice
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from test_docs import blocks
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)
from zoo.samplers import DrawsAsItGoes, OwnTorchGenerator, from_torch
from zoo.streams import SavedWalk

from picklable_loader import DataLoader, ShuffleSampler, load, merge_states, save_on_signal
from picklable_loader.errors import CannotSaveError, LoaderWarning, RanksError, UsageError

N = 22
#: seconds that ranks wait for each other
PATIENCE = 20
#: by test, what a rank does; a function of rank, world and the test's folder
DEEDS: dict[str, Callable[[int, int, Path], Any]] = {}


def deed(act: Callable[[int, int, Path], Any]) -> Callable[[int, int, Path], Any]:
    DEEDS[act.__name__] = act
    return act


def ranks(act: Callable[[int, int, Path], Any], world: int, folder: Path) -> list[Any]:
    """What each rank returns, or the error that it raises; each is a process of its own."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    arguments = (act.__name__, store.port, world, folder)
    start_and_join([get_context("forkserver").Process(target=lead, args=arguments)])
    return [pickle.loads((folder / f"{rank}").read_bytes()) for rank in range(world)]


def lead(name: str, port: int, world: int, folder: Path) -> None:
    """Start the ranks, by fork: each finds imported what takes seconds to import."""
    if "training" in name:
        import_module("torch._dynamo")  # as DistributedDataParallel does
    fork = get_context("fork")
    arguments = [(name, port, world, folder, rank) for rank in range(world)]
    start_and_join([fork.Process(target=be_a_rank, args=each) for each in arguments])


def start_and_join(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)


def be_a_rank(name: str, port: int, world: int, folder: Path, rank: int) -> None:
    patience = timedelta(seconds=1 if "missing" in name else PATIENCE)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    answer(name, folder)


def answer(name: str, folder: Path) -> None:
    """Write what this rank returns, or the error that it raises, into the test's folder."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    try:
        result = DEEDS[name](rank, world, folder)
    except RanksError as error:
        result = error
    (folder / f"{rank}").write_bytes(pickle.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def ranks_of_torchrun(act: Callable[[int, int, Path], Any], world: int, folder: Path) -> list[Any]:
    """The same under torchrun itself: each rank imports all, which takes seconds."""
    words = ["torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    path = {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", *words, __file__, act.__name__, str(folder)],
        env={**os.environ, **path, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return [pickle.loads((folder / f"{rank}").read_bytes()) for rank in range(world)]


@pytest.fixture(autouse=True, scope="module")
def the_first_store_has_been_made() -> None:
    """It opens a pipe that the process has from then on."""
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def loader(**options: Any) -> Any:
    return DataLoader(
        cast(Any, range(N)), **{"batch_size": 2, "shuffle": True, "shard": "auto", **options}
    )


def ids(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


# --- agreement -----------------------------------------------------------------------------------


def test_a_process_that_stands_for_all_ranks_asks_none() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        assert ids(loader(seed=3)) == ids(loader(seed=3, shard=(1, 2)))
        with pytest.raises(UsageError, match="pass seed="):
            next(iter(loader()))
    finally:
        dist.destroy_process_group()


@deed
def two_epochs(rank: int, world: int, folder: Path) -> Any:
    shared = loader(num_workers=rank % 2)
    return shared.seed, [ids(shared) for _ in range(2)], shared.seed


def test_ranks_take_the_seed_of_rank_0_and_share_each_epoch(tmp_path: Path) -> None:
    found = ranks(two_epochs, 3, tmp_path)
    assert [before for before, _, _ in found] == [None] * 3
    [seed] = {after for _, _, after in found}
    for epoch in range(2):
        read: list[int] = sum((sum(batches[epoch], []) for _, batches, _ in found), [])
        assert len(read) == 24 and {*read} == {*range(N)}
    alone = loader(shard=(0, 1), seed=seed)
    torch.manual_seed(0)
    again = loader(shard=(0, 1))
    assert ids(alone) == ids(again), "rank 0 draws it as a loader on its own does"


#: collectives of torch
COLLECTIVES = ("all_gather", "all_gather_object", "all_reduce", "barrier", "broadcast",
               "broadcast_object_list", "gather_object", "reduce", "scatter")  # fmt: skip


@deed
def exchanges(rank: int, world: int, folder: Path) -> Any:
    """By sampler: how often ranks have exchanged something before, and while, batches come."""
    agreement, calls = import_module("picklable_loader.loader.agreement"), 0
    compare_ranks = agreement.compare_ranks

    def counted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        return compare_ranks(*args)

    agreement.compare_ranks = counted
    originals = {name: getattr(dist, name) for name in COLLECTIVES}
    for name in COLLECTIVES:
        setattr(dist, name, None)
    found: dict[str, list[list[int]]] = {"shuffled": [], "custom": []}
    for kind, counts in found.items():
        options: Any = {"shuffle": True}
        if kind == "custom":
            options = {"shuffle": None, "sampler": DrawsAsItGoes(from_torch), "seed": 1}
        shared = loader(num_workers=2, persistent_workers=True, **options)
        for _ in range(3):
            calls, by_step = 0, []
            for _ in shared:
                by_step.append(calls)
            counts.append(by_step)
    for name, original in originals.items():
        setattr(dist, name, original)
    return found


def test_ranks_exchange_something_before_an_epoch_and_nothing_within(tmp_path: Path) -> None:
    for found in ranks(exchanges, 2, tmp_path):
        assert found["shuffled"] == [[1] * 6] * 3
        assert found["custom"] == [[2] * 3] * 3, "and the first indices of a sampler nobody knows"


@deed
def saved_and_resumed(rank: int, world: int, folder: Path) -> Any:
    iterator = iter(loader())
    first = [next(iterator).tolist() for _ in range(2)]
    if rank == 0:
        torch.save(iterator.state_dict(), folder / "state")
    dist.barrier()
    rest = ids(iterator)
    again = loader()
    again.load_state_dict(torch.load(folder / "state", weights_only=True))
    assert ids(again) == rest
    return first


def test_the_state_that_rank_0_has_saved_restores_all_ranks_and_any_number(tmp_path: Path) -> None:
    seen: list[int] = sum(sum(ranks(saved_and_resumed, 2, tmp_path), []), [])
    state = torch.load(tmp_path / "state", weights_only=True)
    for rank in range(3):
        other = loader(shard=(rank, 3), shard_tail="uneven")
        other.load_state_dict(state)
        seen += sum(ids(other), [])
    assert sorted(seen) == [*range(N)]


@deed
def in_a_mesh(rank: int, world: int, folder: Path) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return ids(loader(shard=mesh["dp"]))


@deed
def pickled_in_a_mesh(rank: int, world: int, folder: Path) -> Any:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    made = loader(shard=mesh["dp"])
    iterator = iter(made)
    next(iterator)
    for value in (made, iterator):
        for save in (pickle.dumps, lambda value: torch.save({"it": value}, io.BytesIO())):
            with pytest.raises(CannotSaveError, match=r"DeviceMesh.*state_dict\(\)"):
                save(value)
    other = loader(shard=mesh["dp"])
    other.load_state_dict(made.state_dict())
    return ids(other) == ids(iterator)


def test_a_mesh_belongs_to_its_job_and_is_not_pickled(tmp_path: Path) -> None:
    assert ranks(pickled_in_a_mesh, 2, tmp_path) == [True, True]


def test_ranks_that_differ_in_another_dimension_of_a_mesh_read_the_same(tmp_path: Path) -> None:
    first, same, second, same_again = ranks(in_a_mesh, 4, tmp_path)
    assert first == same != second == same_again
    assert sorted(sum(first + second, [])) == [*range(N)]


@deed
def one_state_a_rank(rank: int, world: int, folder: Path) -> Any:
    """Ranks whose batches come out of order each have a state of their own."""
    options: dict[str, Any] = {"num_workers": 2, "in_order": False, "collate_fn": _slowly}
    iterator = iter(loader(**options))
    seen = [next(iterator) for _ in range(3)]
    state = iterator.state_dict()
    iterator.close()
    again = loader(**options)
    again.load_state_dict(state)
    return state["rank"], sum([*seen, *again], [])


def _slowly(samples: list[int]) -> list[int]:
    if 1 in samples:
        threading.Event().wait(0.3)
    return samples


def test_ranks_out_of_order_each_go_on_from_their_own_state(tmp_path: Path) -> None:
    found = ranks(one_state_a_rank, 2, tmp_path)
    assert [rank for rank, _ in found] == [[0, 2], [1, 2]]
    assert sorted(found[0][1] + found[1][1]) == [*range(N)]


# --- disagreement --------------------------------------------------------------------------------


@deed
def another_batch_size(rank: int, world: int, folder: Path) -> Any:
    return ids(loader(batch_size=2 + rank // 2))


@deed
def another_seed(rank: int, world: int, folder: Path) -> Any:
    return ids(loader(seed=rank // 2))


@deed
def another_epoch(rank: int, world: int, folder: Path) -> Any:
    shared = loader()
    if rank == 2:
        shared.set_epoch(3)
    return ids(shared)


@deed
def a_state_on_one_rank(rank: int, world: int, folder: Path) -> Any:
    shared = loader(seed=1)
    if rank == 2:
        iterator = iter(loader(seed=1, shard=(0, 1)))
        next(iterator)
        shared.load_state_dict(iterator.state_dict())
    return ids(shared)


@deed
def another_generator(rank: int, world: int, folder: Path) -> Any:
    sampler = OwnTorchGenerator()
    sampler.rng.manual_seed(rank // 2)
    return ids(loader(sampler=sampler, shuffle=None))


@deed
def another_shuffle(rank: int, world: int, folder: Path) -> Any:
    return ids(loader(sampler=ShuffleSampler(N, seed=rank // 2), shuffle=None))


@deed
def another_replacement(rank: int, world: int, folder: Path) -> Any:
    sampler = WeightedRandomSampler([1.0] * N, N, replacement=rank == 2)
    return ids(loader(sampler=sampler, shuffle=None, seed=1))


@deed
def another_tail_of_a_batch_sampler(rank: int, world: int, folder: Path) -> Any:
    groups = BatchSampler(range(N), 5, drop_last=rank == 2)
    return ids(loader(batch_sampler=groups, batch_size=1, shuffle=None, seed=1))


@deed
def another_hidden_generator(rank: int, world: int, folder: Path) -> Any:
    _HIDDEN.seed(rank // 2)
    return ids(loader(sampler=DrawsAsItGoes(_hidden), shuffle=None))


_HIDDEN = random.Random()


def _hidden(size: int) -> int:
    return _HIDDEN.randrange(size)


@deed
def shares_twice(rank: int, world: int, folder: Path) -> Any:
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("dp",))
    return ids(loader(shard="auto" if rank else _Liar(mesh["dp"])))


class _Liar:
    """A mesh that gives rank 0 the share of rank 1."""

    ndim = 1

    def __init__(self, mesh: Any) -> None:
        self.size = mesh.size

    def get_local_rank(self) -> int:
        return 1


@deed
def another_order_of_loaders(rank: int, world: int, folder: Path) -> Any:
    first, second = loader(), loader()
    return ids(second if rank == 2 else first)


@deed
def a_state_of_another_moment(rank: int, world: int, folder: Path) -> Any:
    found = []
    for part in range(2):
        iterator = iter(streams(shard=(part, 2), seed=1))
        if rank != 2:
            next(iterator)
        found.append(iterator.state_dict())
    shared = streams(seed=1)
    shared.load_state_dict(merge_states(found))
    return ids(shared)


class Attributed(Sampler[int]):
    """A sampler with attributes that its order does not depend on, as far as anybody can see."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __iter__(self) -> Iterator[int]:
        return iter(range(N))

    def __len__(self) -> int:
        return N


@deed
def other_indices(rank: int, world: int, folder: Path) -> Any:
    own = rank == 2
    large = torch.zeros(5000)
    large[2500] = own
    sampler = Attributed(
        start=int(own), groups=[0, int(own)], pair=(1, int(own)), numpy=np.int64(own),
        options={"verbose": own, "first": int(own)}, weights=large, array=large.numpy(),
    )  # fmt: skip
    return ids(loader(sampler=sampler, shuffle=None, seed=1))


@deed
def another_split(rank: int, world: int, folder: Path) -> Any:
    torch.manual_seed(rank == 2)
    part, _ = random_split(range(N), [N - 4, 4])  # type: ignore[arg-type]
    return ids(DataLoader(part, batch_size=2, shard="auto", seed=1))


@deed
def another_split_within(rank: int, world: int, folder: Path) -> Any:
    parts = [Subset(Numbers(), [0, 1, 2]), Subset(Numbers(), [3, 4 + (rank == 2)])]
    return ids(DataLoader(ConcatDataset(parts), batch_size=2, shard="auto", seed=1))


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        return index


@deed
def other_notes(rank: int, world: int, folder: Path) -> Any:
    sampler = Attributed(
        verbose=rank == 0, began=rank * 0.5, log=f"rank{rank}.log", name=b"%d" % rank,
        device=torch.device("cpu", rank), dtype=(torch.float32, torch.float64)[rank % 2],
        path=Path(f"{rank}"), flag=np.bool_(rank), seconds=np.float32(rank),
        options={"verbose": rank == 0, "seed": 4}, others={"verbose": rank == 0, "log": open},
        nothing=None if rank else "text", classes=set([0, 8] if rank else [8, 0]),
        frozen=[frozenset([0, 8] if rank else [8, 0])],
    )  # fmt: skip
    return ids(loader(sampler=sampler, shuffle=None, seed=1))


def test_ranks_may_have_other_flags_floats_texts_and_devices_in_their_samplers(
    tmp_path: Path,
) -> None:
    found = ranks(other_notes, 2, tmp_path)
    read: list[int] = sum((sum(batches, []) for batches in found), [])
    assert sorted(read) == [*range(N)]


DIFFERENT: dict[Callable[[int, int, Path], Any], set[str]] = {
    another_batch_size: {"batch_size"},
    another_seed: {"seed"},
    another_epoch: {"epoch"},
    a_state_on_one_rank: {"step", "position"},
    another_generator: {"sampler.rng"},
    other_indices: {
        f"sampler.{name}"
        for name in ("start", "groups", "pair", "numpy", "options", "weights", "array")
    },
    another_shuffle: {"sampler"},
    another_replacement: {"sampler"},
    another_tail_of_a_batch_sampler: {"drop_last"},
    another_split: {"dataset.indices"},
    another_split_within: {"dataset.dataset[1].indices"},
    another_hidden_generator: {"the sampler's first indices"},
    another_order_of_loaders: {"loader with shard= and without seed="},
    a_state_of_another_moment: {"step of all ranks", "batches by stream"},
    shares_twice: {"share"},
}


@deed
def all_that_differ(rank: int, world: int, folder: Path) -> Any:
    """One after the other: an error leaves ranks and process group as they were."""
    errors = []
    for act in DIFFERENT:
        with pytest.raises(RanksError) as raised:
            act(rank, world, folder)
        errors.append(pickle.loads(pickle.dumps(raised.value)))
    return errors


def test_ranks_that_differ_name_the_difference_on_every_rank(tmp_path: Path) -> None:
    for names, *errors in zip(DIFFERENT.values(), *ranks(all_that_differ, 3, tmp_path)):
        for error in errors:
            assert names <= error.differences.keys(), error
            assert str(error) == str(errors[0])
        if names == {"batch_size"}:
            assert errors[0].differences == {"batch_size": {"2": [0, 1], "3": [2]}}
            assert "batch_size: 2 on 2 ranks (0, 1), 3 on rank 2" in str(errors[0])


@deed
def each_is_missing_once(rank: int, world: int, folder: Path) -> Any:
    errors, shared = [], loader()
    for missing in (1, 0):
        if rank != missing:
            with pytest.raises(RanksError) as raised:
                ids(shared)
            errors.append(raised.value)
        dist.barrier()
    return errors, ids(shared)


def test_a_rank_that_does_not_come_is_named_on_every_other_and_may_come_later(
    tmp_path: Path,
) -> None:
    found = ranks(each_is_missing_once, 3, tmp_path)
    for rank, (errors, _) in enumerate(found):
        assert [error.missing for error in errors] == [[m] for m in (1, 0) if m != rank]
    assert "missing: rank 1" in str(found[0][0][0])
    assert len(sum(sum((batches for _, batches in found), []), [])) == 24


# --- training ------------------------------------------------------------------------------------


@deed
def training(rank: int, world: int, folder: Path) -> Any:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: list[list[int]] = []
    shared = loader(seed=3, batch_size=4 // world)
    start = folder / "checkpoint"
    if start.exists():
        saved = torch.load(start, weights_only=True)
        model.load_state_dict(saved["model"])
        shared.load_state_dict(saved["loader"])
    for batch in shared:
        optimizer.zero_grad()
        model(batch[:, None].float()).sum().backward()
        optimizer.step()
        seen.append(batch.tolist())
        if rank == 0 and len(seen) == 3 and not start.exists():
            checkpoint = {"model": model.state_dict(), "loader": shared.state_dict()}
            torch.save(checkpoint, start)
    return seen


def test_training_goes_on_on_other_ranks_with_the_same_samples_in_each_step(tmp_path: Path) -> None:
    def steps(world: int) -> list[list[int]]:
        found = ranks(training, world, tmp_path)
        return [sorted(sum(step, [])) for step in zip(*found)]

    whole = steps(2)
    assert steps(1) == whole[3:]
    assert steps(4)[:-1] == whole[3:-1]  # the last one is padded for so many ranks


@deed
def uneven_training(rank: int, world: int, folder: Path) -> Any:
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    steps = 0
    with model.join():
        for batch in loader(seed=3, batch_size=4, shard_tail="uneven"):
            model(batch[:, None].float()).sum().backward()
            steps += 1
    return steps


def test_uneven_ranks_train_within_torchs_join(tmp_path: Path) -> None:
    assert ranks(uneven_training, 5, tmp_path) == [2, 2, 1, 1, 1]


# --- streams -------------------------------------------------------------------------------------


class Unequal(IterableDataset[torch.Tensor]):
    """Streams of 9, 2, 7, 0, 5 and 1 samples."""

    def stream_length(self, stream: int, streams: int) -> int:
        return [9, 2, 7, 0, 5, 1, 0][stream]

    def __iter__(self) -> Iterator[torch.Tensor]:
        info: Any = get_worker_info()
        first, count = 100.0 * info.id, self.stream_length(info.id, info.num_workers)
        return SavedWalk([torch.tensor([first + at]) for at in range(count)])


def streams(**options: Any) -> Any:
    return DataLoader(Unequal(), **{"batch_size": 2, "num_streams": 6, "shard": "auto", **options})


@deed
def training_on_streams(rank: int, world: int, folder: Path) -> Any:
    steps = {}
    for tail in ("pad", "drop", "uneven"):
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        together = model.join() if tail == "uneven" else nullcontext()
        with together:
            batches = streams(shard_tail=tail, num_workers=rank % 2)
            for steps[tail], batch in enumerate(batches, 1):  # noqa: B007
                model(batch).sum().backward()
    return steps


def test_no_rank_waits_for_one_that_has_no_more_data(tmp_path: Path) -> None:
    found = ranks(training_on_streams, 3, tmp_path)
    # of ranks 0, 1 and 2: streams 0 and 3, 1 and 4, 2 and 5
    assert [each["pad"] for each in found] == [5, 5, 5]
    assert [each["drop"] for each in found] == [4, 4, 4]
    assert [each["uneven"] for each in found] == [5, 4, 5]


@deed
def gathered(rank: int, world: int, folder: Path) -> Any:
    made = streams(shard_tail="uneven")
    iterator = iter(made)
    seen = ids(islice(iterator, min(rank, 1) * 2))
    whole = made.gather_state_dict()
    if rank == 0:
        torch.save(whole, folder / "state")
    return seen, whole


def test_each_rank_gets_the_state_of_all_and_another_number_of_them_goes_on(tmp_path: Path) -> None:
    found = ranks(gathered, 3, tmp_path)
    whole = found[0][1]
    assert all(state == whole for _, state in found)
    read = [sample for seen, _ in found for batch in seen for sample in batch]
    for rank in range(2):
        made = streams(shard=(rank, 2), shard_tail="uneven")
        made.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        read += sum(ids(made), [])
    every = [[100.0 * at + x] for at, n in enumerate([9, 2, 7, 0, 5, 1]) for x in range(n)]
    assert sorted(read) == every


@deed
def gathered_from_a_rank_that_cannot_save(rank: int, world: int, folder: Path) -> Any:
    made = streams(shard_tail="uneven")
    if rank == 1:
        made.state_dict = lambda **_: {}["state"]
    try:
        return made.gather_state_dict()
    except Exception as error:
        return error


def test_a_state_that_one_rank_cannot_save_is_an_error_on_all(tmp_path: Path) -> None:
    errors = ranks(gathered_from_a_rank_that_cannot_save, 2, tmp_path)
    assert [type(error) for error in errors] == [CannotSaveError, KeyError]
    assert "the state of rank 1 cannot be saved: KeyError" in str(errors[0])


@deed
def one_is_missing_from_a_gathering(rank: int, world: int, folder: Path) -> Any:
    made, other, errors = streams(seed=1), streams(seed=2), []
    iterator = iter(made)
    next(iterator)
    if rank != 1:
        with pytest.raises(RanksError) as raised:
            made.gather_state_dict()
        errors.append(raised.value)
    dist.barrier()
    with pytest.raises(RanksError) as raised:
        iter(other) if rank == 1 else made.gather_state_dict()
    return [*errors, raised.value], made.gather_state_dict()["step"]


def test_a_rank_that_does_not_gather_is_named_on_every_other(tmp_path: Path) -> None:
    found = ranks(one_is_missing_from_a_gathering, 3, tmp_path)
    assert [[error.missing for error in errors] for errors, _ in found] == [
        [[1], []],
        [[]],
        [[1], []],
    ]
    for errors, step in found:
        said = {"'gather_state_dict()'": [0, 2], "absent": [1]}
        assert errors[-1].differences["call"] == said
        assert step == 3


@deed
def streams_that_differ(rank: int, world: int, folder: Path) -> Any:
    errors = []
    for options in {"num_streams": 6 + rank}, {"shard_tail": ["drop", "pad"][rank]}:
        with pytest.raises(RanksError) as raised:
            iter(streams(**{"num_streams": 6, **options}, seed=1))
        errors.append(raised.value)
    state = streams(seed=1, shard=(0, 1)).state_dict()
    made = streams(seed=1)
    if rank:
        state = merge_states([state])
        first = iter(streams(seed=1, shard=(0, 1)))
        next(first)
        state = first.state_dict()
    made.load_state_dict(state)
    with pytest.raises(RanksError) as raised:
        next(iter(made))
    return [*errors, raised.value]


def test_ranks_whose_streams_differ_name_the_difference(tmp_path: Path) -> None:
    for several, tail, resumed in ranks(streams_that_differ, 2, tmp_path):
        assert several.differences["num_streams"] == {"6": [0], "7": [1]}
        assert {"shard_tail", "batches"} <= tail.differences.keys()
        assert "goes on from a state" in resumed.differences


# --- checkpoints of torch.distributed.checkpoint -----------------------------------------------
# It takes 50 MB and two seconds to import, and each fork copies them: only these ranks import it.


@deed
def checkpointed(rank: int, world: int, folder: Path) -> Any:
    import torch.distributed.checkpoint as dcp

    from picklable_loader.integrations.dcp import LoaderState

    loaders = {"streams": streams(shard_tail="uneven"), "map": loader(batch_size=12 // world)}
    alone: Any = DataLoader(cast(Any, range(9)), 2)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    content: Any = {name: LoaderState(each) for name, each in loaders.items()}
    content["model"] = model.state_dict()
    found = sorted(folder.glob("step*"))
    if found:
        dcp.load(content, checkpoint_id=found[-1])
    iterators = {name: iter(each) for name, each in loaders.items()}
    seen = {name: sum(ids(islice(each, 1)), []) for name, each in iterators.items()}
    path = folder / f"step{len(found)}"
    if world == 2:
        dcp.async_save(content, checkpoint_id=path).result()
    else:
        dcp.save(content, checkpoint_id=path)
    content = {"alone": LoaderState(alone)}
    next(iter(alone)) if rank else None
    dcp.save(content, checkpoint_id=folder / "each")
    again: Any = DataLoader(cast(Any, range(9)), 2)
    dcp.load({"alone": LoaderState(again)}, checkpoint_id=folder / "each")
    assert again.state_dict() == alone.state_dict()
    rest = {name: sum(ids(each), []) for name, each in iterators.items()} if world == 1 else {}
    return seen, rest


def test_a_checkpoint_of_all_ranks_goes_on_on_4_2_3_and_1_of_them(tmp_path: Path) -> None:
    read: dict[str, list[Any]] = {"streams": [], "map": []}
    for world in (4, 2, 3, 1):
        for seen, rest in ranks(checkpointed, world, tmp_path):
            for name, samples in [*seen.items(), *rest.items()]:
                read[name] += samples
    every = [[100.0 * at + x] for at, n in enumerate([9, 2, 7, 0, 5, 1]) for x in range(n)]
    assert sorted(read["streams"]) == every
    assert {*read["map"]} == {*range(N)}


@deed
def training_on_checkpoints(rank: int, world: int, folder: Path) -> Any:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    from picklable_loader.integrations.dcp import LoaderState

    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data: Any = [torch.tensor([at / 60]) for at in range(60)]
    made = DataLoader(data, 12 // world, shuffle=True, seed=3, shard="auto", at_epoch_end="next")
    found = sorted(folder.glob("after*"))

    def content() -> dict[str, Any]:
        learnt, moments = get_state_dict(model, optimizer)
        return {"model": learnt, "optimizer": moments, "loader": LoaderState(made)}

    if found:
        saved = content()
        dcp.load(saved, checkpoint_id=found[-1])
        parts = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
        set_state_dict(model, optimizer, **parts)
    # DCP writes in a thread: with the group of the gradients, each would get messages of the other.
    apart, writing, losses = dist.new_group(backend="gloo"), None, list[float]()
    while made.epoch < 2:
        for x in made:
            loss = (model(x) - 3 * x + 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach() / world
            dist.all_reduce(mean)
            losses.append(mean.item())
            if world in (2, 4) and len(losses) == 3:
                path = folder / f"after{len(found)}"
                if world == 4:
                    dcp.save(content(), checkpoint_id=path)
                    return losses
                writing = dcp.async_save(content(), checkpoint_id=path, process_group=apart)
            if writing is not None and len(losses) == 5:  # it has trained while that was written
                writing.result()
                return losses[:3]
    return losses


@pytest.mark.timeout(800)  # nine processes import torch; 300 s were too few on a busy machine
def test_a_training_goes_on_from_checkpoints_on_4_2_and_3_ranks_with_the_same_losses(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole").mkdir()
    [whole] = ranks(training_on_checkpoints, 1, tmp_path / "whole")
    losses: list[float] = []
    for world in (4, 2, 3):
        found = ranks_of_torchrun(training_on_checkpoints, world, tmp_path)
        assert all(each == found[0] for each in found)
        losses += found[0]
    assert losses == pytest.approx(whole, abs=1e-6)
    assert len(whole) == 10 and whole[-1] < whole[0] / 2


# --- preemption: the program of docs/checkpoints.md ----------------------------------------------


def of_the_page() -> dict[str, Any]:
    """The functions of the page's program for several ranks."""
    names = {"os": os, "torch": torch, "load": load, "save_on_signal": save_on_signal}
    page = Path(__file__).parents[2] / "docs" / "checkpoints.md"
    [code] = [code for _, code in blocks(page) if "def job_of_rank" in code]
    exec(code, names)
    return names


def preempted(folder: Path, rank: int, made: Any, kind: str, who: str) -> list[Any]:
    """The job, signalled at its fourth step and gone on with; what the rank has read."""
    path, read, page = folder / f"{kind}, {who}", list[Any](), of_the_page()
    job, signalled = page["job_of_rank"], page["signalled"]

    def train(batch: torch.Tensor) -> None:
        read.append(batch.tolist())
        if len(read) == 4 and who in ("all ranks", f"rank {rank}", f"rank {rank}, then all"):
            os.kill(os.getpid(), signal.SIGTERM)

    def then_all(stop: save_on_signal) -> bool:
        found: bool = signalled(stop)
        if found and who == "rank 1, then all":
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    page["signalled"] = then_all
    before = signal.getsignal(signal.SIGTERM)
    assert not job(path, made(), train) and len(read) == 4
    assert signal.getsignal(signal.SIGTERM) is before
    dist.barrier()  # rank 0 has written
    written = path.stat()
    assert job(path, made(), train)
    assert path.stat().st_mtime_ns == written.st_mtime_ns
    return read


@deed
def preempted_jobs(rank: int, world: int, folder: Path) -> Any:
    writers: list[Any] = []
    checkpoint = import_module("picklable_loader.saving.files.on_signal")
    save = checkpoint.save
    checkpoint.save = lambda *a, **options: [writers.append(rank), save(*a, **options)]
    kinds = {
        "map-style": lambda: loader(seed=1, num_workers=1),
        "streams": lambda: streams(seed=1, batch_size=1),
    }
    for kind, made in kinds.items():
        whole = made()
        expected = [batch.tolist() for _ in range(3) for batch in whole]
        for who in ("all ranks", "rank 0", "rank 1", "rank 1, then all"):
            assert preempted(folder, rank, made, kind, who) == expected, (kind, who)
    return writers


def test_a_preempted_job_of_ranks_is_written_once_by_rank_0_and_goes_on(tmp_path: Path) -> None:
    assert ranks(preempted_jobs, 2, tmp_path) == [[0] * 8, []]


@deed
def alone_at_the_end(rank: int, world: int, folder: Path) -> Any:
    """A signal after the last step, and a call that decides for one rank."""
    path = folder / "checkpoint" if rank == 0 else None
    made = streams(seed=1)
    with pytest.warns(LoaderWarning, match="15 came, and no checkpoint was written"):
        with save_on_signal(path, made.gather_state_dict) as stop:
            with pytest.raises(UsageError, match="on every rank"):
                stop()
            os.kill(os.getpid(), signal.SIGTERM)
    return stop.received, stop.saved, (folder / "checkpoint").exists()


def test_a_rank_neither_decides_nor_writes_by_itself(tmp_path: Path) -> None:
    assert ranks(alone_at_the_end, 2, tmp_path) == [(signal.SIGTERM, False, False)] * 2


# --- who has no part -----------------------------------------------------------------------------


@deed
def rank_2_has_no_part(rank: int, world: int, folder: Path) -> Any:
    mesh, group = DeviceMesh("cpu", [0, 1]), dist.new_group([0, 1])
    shared, errors = loader(seed=1), []
    next(iter(shared))
    if rank < 2:
        return shared.gather_state_dict(group=group) == shared.state_dict()
    for act in (lambda: loader(shard=mesh), lambda: shared.gather_state_dict(group=group)):
        with pytest.raises(UsageError, match="rank 2") as raised:
            act()
        errors.append(str(raised.value))
    return errors


def test_a_rank_outside_of_a_mesh_or_a_group_is_named(tmp_path: Path) -> None:
    one, other, errors = ranks(rank_2_has_no_part, 3, tmp_path)
    assert one and other
    assert "DeviceMesh that rank 2 is not in" in errors[0] and "which is not in" in errors[1]


@deed
def distributed_in_a_checkpoint(rank: int, world: int, folder: Path) -> Any:
    import torch.distributed.checkpoint as dcp

    from picklable_loader.integrations.dcp import LoaderState

    sampler: Any = DistributedSampler(cast(Any, range(N)), drop_last=True, seed=3)
    made: Any = DataLoader(cast(Any, range(N)), 2, sampler=sampler, seed=1)
    if world == 3:
        dcp.load({"loader": LoaderState(made)}, checkpoint_id=folder / "saved")
    iterator = iter(made)
    seen = sum(ids(islice(iterator, 2 if world == 2 else None)), [])
    if world == 2:
        dcp.save({"loader": LoaderState(made)}, checkpoint_id=folder / "saved")
    with pytest.raises(TypeError, match="got a LoaderIterator. Of an iterator, pass its loader"):
        LoaderState(iterator)  # type: ignore[arg-type]
    return seen


def test_a_distributed_sampler_in_a_checkpoint_of_2_ranks_goes_on_on_3(tmp_path: Path) -> None:
    read = sum(ranks(distributed_in_a_checkpoint, 2, tmp_path), [])
    read += sum(ranks(distributed_in_a_checkpoint, 3, tmp_path), [])
    assert len(read) == len({*read}) >= N - 3


if __name__ == "__main__":  # under torchrun
    import torch.distributed.nn  # before the group: see docs/distributed.md

    dist.init_process_group("gloo")
    answer(sys.argv[1], Path(sys.argv[2]))
