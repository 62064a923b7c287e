"""The arena in use: what a consumer can still see, in whatever way, is never written to again."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from zoo.datasets import Filled, Made, Numbers, as_they_are
from zoo.processes import ForkedChild

import picklable_loader
from picklable_loader import DataLoader
from picklable_loader.fetching.transport import arena as arenas
from picklable_loader.fetching.transport.arena import Arena, ArenaReader, new_memory

#: elements of a float32 sample: a batch of two stands in the arena
SIZE = Filled().size
STEPS = 40

#: seconds that a test waits for what is sure to come
PATIENCE_S = 60.0

METHODS = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
ROOT = Path(picklable_loader.__file__).parents[1]


class Dicts(Filled):
    """Several tensors and an array a sample."""

    def __getitem__(self, index: int) -> Any:
        tensor = super().__getitem__(index)
        return {"x": tensor, "y": [tensor + 0.25, np.full(SIZE, index)], "z": str(index)}


class Cached(Filled):
    """Makes each sample once in a worker, and gives the same object again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 5 not in self.made:
            self.made[index % 5] = self.make(index % 5)
        return self.made[index % 5]

    def make(self, index: int) -> torch.Tensor:
        return super().__getitem__(index)


class CachedBatches(Cached):
    """The same with batches, which the default collate_fn joins."""

    def make(self, index: int) -> torch.Tensor:
        joined: torch.Tensor = torch.utils.data.default_collate([super().make(index)] * 2)
        return joined


def loader(dataset: Any, batch_size: int | None = 2, **options: Any) -> Any:
    options = {"num_workers": 2, "transport": "arena", **options}
    return DataLoader(dataset, batch_size, **options)


def is_batch(batch: Any, step: int) -> bool:
    """It is what the step's batch of `Filled` was, all of it."""
    return torch.equal(batch, torch.tensor([2.0 * step, 2.0 * step + 1])[:, None].expand(2, SIZE))


def is_dict(batch: Any, step: int) -> bool:
    return (
        is_batch(batch["x"], step)
        and is_batch(batch["y"][0] - 0.25, step)
        and is_batch(batch["y"][1].float(), step)
        and batch["z"] == [str(2 * step), str(2 * step + 1)]
    )


def use_up(iterator: Iterator[Any]) -> None:
    """Fetch all that is left, and keep none of it."""
    for _ in iterator:
        pass
    gc.collect()


class Descriptors:
    """How many files of arenas a worker has open."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        return sum("memfd" in os.readlink(link) for link in links if link.is_symlink())


def test_a_forked_worker_has_no_descriptors_of_the_workers_before_it() -> None:
    found = list(loader(Descriptors(), None, num_workers=4, schedule="round_robin"))
    assert len(set(found)) == 1 and found[0] > 0


# --- keeping -------------------------------------------------------------------------------------


@METHODS
def test_all_batches_can_be_kept(method: str) -> None:
    kept = list(loader(Dicts(), multiprocessing_context=method))
    assert len(kept) == STEPS and all(is_dict(batch, step) for step, batch in enumerate(kept))


@pytest.mark.parametrize(
    "part",
    [
        lambda batch: batch["x"],
        lambda batch: batch["y"][0] - 0.25,
        lambda batch: batch["y"][1],
        lambda batch: batch["x"].view(-1).view(2, -1),
        lambda batch: torch.from_numpy(batch["x"].numpy()),
        lambda batch: torch.stack([*batch["x"].unbind()]),
        lambda batch: torch.from_dlpack(batch["x"]),
        lambda batch: batch["x"].detach().requires_grad_().detach(),
    ],
)
def test_one_part_of_each_batch_can_be_kept(part: Callable[[Any], Any]) -> None:
    kept = [part(batch) for batch in loader(Dicts())]
    assert all(is_batch(part.float(), step) for step, part in enumerate(kept))


def test_batches_that_are_saved_for_a_backward_pass_stay() -> None:
    weight = torch.ones(SIZE, requires_grad=True)
    total = sum(((batch * weight) ** 2).sum() for batch in loader(Filled(20)))
    assert isinstance(total, torch.Tensor)
    total.backward()
    assert weight.grad is not None
    assert weight.grad.unique().tolist() == [2.0 * sum(i * i for i in range(20))]


def test_kept_batches_outlive_iterator_and_loader() -> None:
    fed = loader(Filled())
    iterator = iter(fed)
    kept = [next(iterator) for _ in range(10)]
    del fed, iterator
    gc.collect()
    assert not multiprocessing.active_children()
    assert all(is_batch(batch, step) for step, batch in enumerate(kept))
    use_up(iter(loader(Filled())))
    assert all(is_batch(batch, step) for step, batch in enumerate(kept))


def test_two_loaders_at_once_keep_apart() -> None:
    pairs = list(zip(loader(Filled()), loader(Filled())))
    assert all(is_batch(a, step) and is_batch(b, step) for step, (a, b) in enumerate(pairs))
    pairs[3][0].zero_()
    assert is_batch(pairs[3][1], 3)


def test_a_batch_that_is_changed_in_place_changes_no_other() -> None:
    fed = loader(Filled(), persistent_workers=True)
    for _ in range(2):
        kept = []
        for step, batch in enumerate(fed):
            assert is_batch(batch, step)
            batch.fill_(-1)
            if step % 3 == 0:
                kept.append(batch)
        assert all(bool((batch == -1).all()) for batch in kept)


# --- moving --------------------------------------------------------------------------------------


def test_batches_can_be_kept_and_dropped_by_other_threads() -> None:
    wrong: list[int] = []
    boxes: list[list[tuple[int, Any]]] = [[] for _ in range(3)]
    fed = threading.Semaphore(0)

    def consume(box: list[tuple[int, Any]]) -> None:
        for _ in range(STEPS // 4):
            fed.acquire()
            kept = box[-3:]
            wrong.extend(step for step, batch in kept if not is_batch(batch, step))
            del kept
            del box[:1]

    threads = [threading.Thread(target=consume, args=(box,)) for box in boxes]
    for thread in threads:
        thread.start()
    for step, batch in enumerate(loader(Filled())):
        boxes[step % 3].append((step, batch))
        del batch
        fed.release()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert all(is_batch(batch, step) for box in boxes for step, batch in box)


@pytest.mark.parametrize(
    "moved",
    [
        lambda batch: pickle.loads(pickle.dumps(batch)),
        copy.deepcopy,
        copy.copy,
        lambda batch: batch.share_memory_(),
        lambda batch: batch.clone(),
        lambda batch: torch.tensor([]).set_(batch.untyped_storage(), 0, batch.shape),
    ],
    ids=["pickle", "deepcopy", "copy", "share_memory_", "clone", "set_"],
)
def test_what_was_made_of_a_batch_stays(moved: Callable[[Any], Any]) -> None:
    kept = [moved(batch) for batch in loader(Filled())]
    assert all(is_batch(batch, step) for step, batch in enumerate(kept))


# --- other processes -----------------------------------------------------------------------------


def test_a_forked_child_sees_its_batch_while_its_parent_fetches_many_more() -> None:
    iterator = iter(loader(Filled()))
    next(iterator)
    box = [next(iterator)]
    child = ForkedChild(lambda: is_batch(box[0], 1))
    box.clear()
    use_up(iterator)
    assert child.tell()


def test_a_forked_child_sees_its_batch_when_a_second_loader_has_come_and_gone() -> None:
    fed = loader(Filled(), persistent_workers=True)
    iterator = iter(fed)
    box = [next(iterator)]
    child = ForkedChild(lambda: is_batch(box[0], 0))
    box.clear()
    use_up(iter(loader(Filled())))
    use_up(iterator)
    use_up(iter(fed))
    assert child.tell()


@METHODS
def test_a_process_is_given_a_batch_as_its_argument(method: str) -> None:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    iterator = iter(loader(Filled()))
    batch = next(iterator)
    child = context.Process(target=look_at_first, args=(batch, theirs))
    child.start()
    theirs.close()
    del batch
    use_up(iterator)
    ours.send("look")
    assert ours.poll(PATIENCE_S) and ours.recv() is True
    child.join()
    child.close()
    ours.close()


def look_at_first(batch: torch.Tensor, line: Any) -> None:
    line.recv()
    line.send(is_batch(batch, 0))


@pytest.mark.parametrize("persistent_workers", [False, True])
def test_a_validation_loader_may_fork_while_batches_are_alive(persistent_workers: bool) -> None:
    train = loader(Filled(), persistent_workers=True)
    validation = loader(Filled(8), persistent_workers=persistent_workers)
    kept: list[tuple[int, Any]] = []
    for _ in range(2):
        for step, batch in enumerate(train):
            kept = [*kept[-5:], (step, batch)]
            if step % 8 == 3:
                for number, other in enumerate(validation):
                    assert is_batch(other, number)
                del other
            assert all(is_batch(batch, step) for step, batch in kept)


def test_a_dataset_may_be_made_of_batches() -> None:
    iterator = iter(loader(Filled()))
    kept = [next(iterator) for _ in range(6)]
    second = iter(loader(kept, None))
    del kept
    use_up(iterator)
    assert all(is_batch(batch, step) for step, batch in enumerate(second))


def test_children_that_come_and_go_cost_no_descriptors_in_another_arena() -> None:
    """The one drops a batch after each child, the other has one that nobody ever drops."""
    pairs = []
    for _ in range(2):
        fd = new_memory()
        pairs.append((fd, Arena(fd), ArenaReader(fd)))
    (_, writer, reader), (_, other_writer, other_reader) = pairs
    kept = other_reader.open(other_writer.give(np.ones(100_000, np.uint8)))
    counts = []
    for _ in range(20):
        seen = reader.open(writer.give(np.ones(100_000, np.uint8)))
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        del seen
        writer.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
    whole = bool((kept == 1).all())
    del kept, writer, reader, other_writer, other_reader
    close(pairs)
    assert whole and max(counts) <= counts[0] + 2, counts


def close(pairs: list[tuple[int, Arena, ArenaReader]]) -> None:
    for fd, writer, reader in pairs:
        reader.close()
        writer.close()
        os.close(fd)
    pairs.clear()


HOOK = """
import gc, os, sys
sys.path.insert(0, {root!r})
dropped = []
os.register_at_fork(before=dropped.clear)  # before the library's hook, so that it runs after it
import numpy as np
from picklable_loader.fetching.transport.arena import Arena, ArenaReader, new_memory

fd = new_memory()
writer, reader = Arena(fd), ArenaReader(fd)
dropped.append(reader.open(writer.give(np.ones(100_000, np.uint8))))
seen = reader.open(writer.give(np.full(100_000, 5, np.uint8)))
ask, asked = os.pipe()
pid = os.fork()
if not pid:
    os.read(ask, 1)
    os._exit(0 if (seen == 5).all() else 1)
del seen
kept = []
for number in range(10):
    writer.collect()
    kept.append(reader.open(writer.give(np.full(100_000, 100 + number, np.uint8))))
os.write(asked, b"!")
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_batch_that_is_dropped_in_the_middle_of_a_fork_lets_no_other_be_overwritten() -> None:
    command = [sys.executable, "-W", "ignore", "-c", HOOK.format(root=str(ROOT))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("0\n", "")


ORPHANS = """
import os, signal, sys
from picklable_loader import DataLoader

class Pids:
    def __len__(self):
        return 50
    def __getitem__(self, index):
        return os.getpid()

iterator = iter(DataLoader(Pids(), None, num_workers=1, transport="{transport}"))
worker = next(iterator)
bystander = os.fork()
if bystander:
    print(worker, bystander, *os.listdir("/dev/shm"), flush=True)
signal.pause()
"""


@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_workers_end_with_a_killed_parent_though_another_child_of_it_lives_on(
    transport: str,
) -> None:
    program = ORPHANS.format(transport=transport)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE, cwd=ROOT
    )
    with process:
        assert process.stdout is not None
        worker, bystander = map(int, process.stdout.readline().split()[:2])
        watch = os.pidfd_open(worker)
        process.kill()
        gone = bool(select.select([watch], [], [], 10.0)[0])
        os.kill(bystander, 9)
    os.close(watch)
    assert gone


# --- workers that keep things --------------------------------------------------------------------


@pytest.mark.parametrize("kind, batch_size", [(Cached, None), (Cached, 2), (CachedBatches, None)])
def test_a_dataset_may_give_the_same_tensor_again_and_again(
    kind: Any, batch_size: int | None
) -> None:
    options = {"num_workers": 1, "persistent_workers": True, "collate_fn": as_they_are}
    fed = loader(kind(), batch_size, **options)
    kept: list[Any] = [*fed, *fed]
    flat = [tensor for batch in kept for tensor in ([batch] if batch_size is None else batch)]
    assert [tensor.unique().tolist() for tensor in flat] == [
        [float(i % 5)] for _ in range(2) for i in range(2 * STEPS)
    ]
    flat[5].fill_(-1)
    assert flat[10].unique().tolist() == [0.0]


class ForksInTheWorker(Filled):
    """Joins a batch while a forked child of the worker joins another."""

    def __getitem__(self, index: int) -> torch.Tensor:
        sample = super().__getitem__(index)
        pid = os.fork()
        if not pid:
            for _ in range(3):
                torch.utils.data.default_collate([torch.full_like(sample, -1.0)] * 2)
            os._exit(0)
        joined: torch.Tensor = torch.utils.data.default_collate([sample, sample])
        os.waitpid(pid, 0)
        return joined

    def __len__(self) -> int:
        return 10


class ForksWithWhatItMade(ForksInTheWorker):
    def __getitem__(self, index: int) -> torch.Tensor:
        sample = torch.full((self.size,), float(index))
        ready, told = os.pipe()
        pid = os.fork()
        if not pid:
            os.read(ready, 1)
            torch.utils.data.default_collate([torch.full_like(sample, -1.0)] * 2)
            os._exit(0)
        joined: torch.Tensor = torch.utils.data.default_collate([sample, sample])
        os.write(told, b"!")
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(told)
        return joined


@pytest.mark.parametrize("kind", [ForksInTheWorker, ForksWithWhatItMade])
def test_a_child_that_a_worker_forks_writes_to_no_batch_of_the_worker(kind: Any) -> None:
    kept = list(loader(kind(), None, num_workers=1))
    assert [batch.unique().tolist() for batch in kept] == [[float(i)] for i in range(10)]


def test_several_threads_of_a_worker_may_make_batches() -> None:
    fd = new_memory()
    arena = Arena(fd)
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            for turn in range(500):
                first = arena.allocate(70_000 + 9000 * (turn % 5))
                first[:] = number
                second = arena.allocate(70_000)
                second[:] = number
                if not ((first == number).all() and (second == number).all()):
                    wrong.append(number)
                del first, second
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    arena.close()
    os.close(fd)
    assert wrong == []


class Rows:
    """Each sample is a view of one large tensor."""

    def __init__(self) -> None:
        self.all = torch.arange(200 * 30_000, dtype=torch.float32).view(200, -1)

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.all[index]


def test_a_view_does_not_take_the_memory_of_all_that_it_is_a_view_of() -> None:
    data = Rows()
    iterator = iter(loader(data, None, num_workers=1))
    kept = [next(iterator) for _ in range(20)]
    assert all(torch.equal(row, data.all[step]) for step, row in enumerate(kept))
    [worker] = iterator.stats().workers
    assert worker.arena_bytes < 2 * data.all.nbytes, "the whole was sent with each row"


# --- sizes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"schedule": "round_robin"}, {"transport": "portable"}])
def test_a_list_of_indices_may_be_longer_than_any_message(options: dict[str, Any]) -> None:
    batches = list(loader(Numbers(300_000), 100_000, shuffle=True, seed=1, **options))
    assert [len(batch) for batch in batches] == [100_000] * 3
    assert torch.equal(torch.cat(batches).sort().values, torch.arange(300_000))


def test_batches_of_one_come_over() -> None:
    batches = list(loader(Filled(20), 1))
    assert [batch.unique().tolist() for batch in batches] == [[float(i)] for i in range(20)]
    assert [int(batch) for batch in loader(Numbers(99), 1)] == [*range(99)]


@pytest.mark.parametrize("size", [10, 17_000])
def test_a_batch_may_be_of_thousands_of_tensors(size: int) -> None:
    def make(index: int) -> list[torch.Tensor]:
        return [torch.full((size,), float(index + k)) for k in range(3000)]

    kept = list(loader(Made(make, 3), None, num_workers=1))
    for step, batch in enumerate(kept):
        assert [float(tensor[-1]) for tensor in batch] == [float(step + k) for k in range(3000)]


def test_messages_may_be_longer_than_a_socket_holds() -> None:
    def make(index: int) -> list[str]:
        return [f"{index} {k}" * 3 for k in range(100_000)]

    for step, batch in enumerate(loader(Made(make, 4), None, collate_fn=as_they_are)):
        assert batch == make(step)


def test_a_batch_may_take_a_gigabyte() -> None:
    def make(index: int) -> torch.Tensor:
        return torch.full((2**28,), float(index + 1))

    options: dict[str, Any] = {"prefetch_budget": 1, "num_workers": 1}
    [batch] = loader(Made(make, 1), None, **options)
    assert batch.nbytes == 2**30
    assert batch[0] == batch[-1] == batch[2**27] == 1 and batch.sum() > 0


@pytest.mark.unpinned
def test_memory_that_was_kept_is_used_again_or_given_back() -> None:
    fed = loader(Filled(size=10 * SIZE), num_workers=1, persistent_workers=True)
    kept = list(fed)
    del kept
    for _ in range(2 * arenas._SHRINK_EVERY // STEPS + 3):
        use_up(iter(fed))
    [worker] = iter(fed).stats().workers
    assert worker.arena_bytes < STEPS * 2 * 10 * SIZE * 4, "as much as when all were kept"
