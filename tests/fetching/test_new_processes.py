"""spawn and forkserver: workers for what a notebook, a prompt or a bare script defines."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, get_worker_info
from zoo.datasets import Made

from picklable_loader import DataLoader
from picklable_loader.errors import CannotLoadError, CannotSaveError
from picklable_loader.fetching.transport.payload import Payload

METHODS = pytest.mark.parametrize("method", ["spawn", "forkserver"])

_PROGRAM = textwrap.dedent("""
    import collections, sys, torch
    from picklable_loader import DataLoader
    print("the program runs")

    Batch = collections.namedtuple("Batch", "values")

    class Nest:
        class Batch(Batch):
            pass

    class Trouble(Exception):
        pass

    class Typed(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            if index == 11:
                raise Trouble("number 11")
            return helped(index)

    def helped(index):
        return index * FACTOR + torch.rand(()) * 0

    FACTOR = 10
    loader = DataLoader(
        Typed(), 3, num_workers=1, multiprocessing_context=sys.argv[1],
        collate_fn=lambda samples: Nest.Batch(Batch(torch.stack(samples))),
        worker_init_fn=lambda worker: None,
    )
    it = iter(loader)
    found = [next(it) for _ in range(3)]
    assert all(type(batch) is Nest.Batch and type(batch.values) is Batch for batch in found)
    print([batch.values.values.tolist() for batch in found])
    try:
        next(it)
    except Trouble:
        print("the exception is the program's")
    it.close()
    """)

_EXPECTED = """the program runs
[[0.0, 10.0, 20.0], [30.0, 40.0, 50.0], [60.0, 70.0, 80.0]]
the exception is the program's
"""


def run(command: list[str], **more: Any) -> str:
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, **more
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@METHODS
def test_a_script_without_a_guard_has_workers_and_runs_once(method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_PROGRAM)
    assert run([str(script), method]) == _EXPECTED


@pytest.mark.costly
@METHODS
@pytest.mark.parametrize("name", ["program.py", "package/__main__.py"])
def test_so_has_a_module_that_is_run(method: str, name: str, tmp_path: Path) -> None:
    script = tmp_path / name
    script.parent.mkdir(exist_ok=True)
    script.write_text(_PROGRAM)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    module = name.removesuffix(".py").removesuffix("/__main__")
    assert run(["-m", module, method], env={**os.environ, "PYTHONPATH": path}) == _EXPECTED


@METHODS
def test_a_script_with_a_guard_is_run_by_its_workers_as_ever(method: str, tmp_path: Path) -> None:
    head, body = _PROGRAM.split("loader = DataLoader(")
    guarded = 'if __name__ == "__main__":\n' + textwrap.indent(
        f"loader = DataLoader({body}", "    "
    )
    script = tmp_path / "script.py"
    script.write_text(head + guarded)
    found = run([str(script), method]).splitlines()
    assert [row for row in found if row != "the program runs"] == _EXPECTED.splitlines()[1:]
    assert found.count("the program runs") > 1


@pytest.mark.costly
@METHODS
@pytest.mark.parametrize("way", ["-c", "-"])
def test_classes_that_were_typed_in_reach_the_workers(method: str, way: str) -> None:
    if way == "-":
        assert run(["-", method], input=_PROGRAM) == _EXPECTED
    else:
        assert run(["-c", _PROGRAM, method]) == _EXPECTED


def test_a_worker_never_collects_what_its_fork_server_has_imported() -> None:
    """The first full collection would copy it: 80 ms of a worker's start."""
    program = (
        "import gc\n"
        "from picklable_loader import DataLoader\n"
        "frozen = lambda samples: gc.get_freeze_count()\n"
        "loader = DataLoader([1, 2], 1, num_workers=2, collate_fn=frozen,\n"
        "                    multiprocessing_context='forkserver')\n"
        "print(min(loader) > 100_000, gc.get_freeze_count())\n"
    )
    assert run(["-c", program]).split() == ["True", "0"]


class Counted(Dataset[Any]):
    """Tells how often it was pickled; its samples say where it is read."""

    pickled = 0

    def __init__(self) -> None:
        self.rows = np.arange(200_000.0)
        self.data = torch.arange(200_000.0)
        self.shared = torch.zeros(4).share_memory_()

    def __getstate__(self) -> dict[str, Any]:
        type(self).pickled += 1
        return self.__dict__

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        info = get_worker_info()
        assert info is not None
        self.shared[info.id] += 1
        before, self.rows[0] = self.rows[0], info.id + 1
        return index, os.getpid(), before in (0, info.id + 1), float(self.data[index])


@pytest.mark.costly
@METHODS
@pytest.mark.parametrize("transport", ["auto", "portable"])
def test_a_dataset_is_pickled_once_for_all_workers(method: str, transport: Any) -> None:
    dataset, Counted.pickled = Counted(), 0
    loader = DataLoader(
        dataset, None, num_workers=2, multiprocessing_context=method, transport=transport
    )
    found = list(loader)
    assert Counted.pickled == 1
    assert [sample[0] for sample in found] == list(range(8))
    assert os.getpid() not in {sample[1] for sample in found}
    assert all(sample[2] for sample in found), "a worker has seen what another one has changed"
    assert [sample[3] for sample in found] == list(range(8))
    assert dataset.rows[0] == 0
    assert dataset.shared.sum() == 8, "memory that was shared before stays shared"


class Held(Dataset[Any]):
    """Tensors of many kinds; a sample says how its worker sees them."""

    def __init__(self) -> None:
        whole = torch.arange(12.0).reshape(3, 4)
        self.views = [whole, whole[0], whole.t(), whole[1:, ::2]]
        self.parts = [torch.nn.Parameter(torch.ones(3)), torch.ones(2, requires_grad=True)]
        self.model = torch.nn.Linear(3, 2)
        self.sparse = [torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()]
        self.marked = [torch.ones(2, dtype=torch.complex64).conj(), torch._neg_view(torch.ones(2))]
        self.quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
        self.typed = [torch.ones(2, dtype=kind) for kind in (torch.bfloat16, torch.uint16)]
        self.typed += [torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2)[:0], torch.tensor(True)]
        self.storage = torch.ones(3)._typed_storage()
        self.nowhere = torch.empty(3, device="meta")

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> str:
        self.views[0][0, 0] = 99  # all of them show it: they have one memory
        parts = [(type(part), part.is_leaf, part.requires_grad) for part in self.parts]
        return repr((vars(self), [*self.model.parameters()], parts)).replace(hex(id(self)), "")


@pytest.mark.filterwarnings(
    *(f"ignore:{text}:UserWarning" for text in ("Sparse CSR", "TypedStorage is", "torch.quantize"))
)
@METHODS
def test_tensors_of_a_dataset_are_as_in_a_forked_worker(method: str) -> None:
    """Torch's loader loses a quantized tensor's scale, and a conjugated view's sign."""
    dataset = Held()
    [expected] = DataLoader(dataset, None, num_workers=1, multiprocessing_context="fork")
    [found] = DataLoader(dataset, None, num_workers=1, multiprocessing_context=method)
    assert found == expected


class Adds(Dataset[Any]):
    """Each sample adds to a tensor; and there are tensors of 24 and of 16 million bytes."""

    def __init__(self) -> None:
        self.sum, self.many = torch.zeros(1), [torch.tensor([number]) for number in range(600)]
        self.large, self.less = torch.ones(6_000_000), torch.ones(4_000_000)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        self.sum += 1
        number = int(self.many[100 * index])
        return number, float(self.sum), self.large.is_shared(), self.less.is_shared()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_tensor_that_workers_change_is_their_own_and_there_may_be_hundreds(method: str) -> None:
    """Torch has all of them in shared memory, and a fork server takes 250 at most."""
    dataset = Adds()
    loader = DataLoader(
        dataset, None, num_workers=2, multiprocessing_context=method, schedule="round_robin"
    )
    numbers, sums, large, less = zip(*loader)
    assert list(numbers) == [0, 100, 200, 300, 400, 500]
    assert list(sums) == [1, 1, 2, 2, 3, 3]
    assert dataset.sum == 0 and not dataset.sum.is_shared()
    assert set(large) == {method != "fork"} and set(less) == {False}


class Queued(Dataset[Any]):
    def __init__(self, context: Any) -> None:
        self.queue, self.lock = context.Queue(), context.Lock()

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        with self.lock:
            self.queue.put(index)
        return index


@METHODS
def test_what_only_goes_to_a_process_goes_to_each_of_them(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    dataset = Queued(context)
    assert len(list(DataLoader(dataset, 2, num_workers=2, multiprocessing_context=context))) == 3
    assert sorted(dataset.queue.get(timeout=60) for _ in range(6)) == list(range(6))
    dataset.queue.close()
    dataset.queue.join_thread()


class Compiled:
    """As functions of Cython: the class has an attribute ``__module__``, which is no text."""

    def __reduce__(self) -> Any:
        return Compiled, ()


Compiled.__module__ = property(lambda self: __name__)  # type: ignore[assignment]


def test_an_object_whose_class_has_no_module_reaches_the_workers() -> None:
    assert not isinstance(Compiled.__module__, str)
    dataset = Made(lambda index: (index, Compiled.__name__))
    dataset.compiled = Compiled()  # type: ignore[attr-defined]
    loader = DataLoader(dataset, 3, num_workers=1, multiprocessing_context="spawn")
    assert loader.codec == "auto" and len(list(loader)) == len(loader)


@METHODS
def test_workers_that_die_are_replaced_with_lambdas_as_well(method: str, tmp_path: Path) -> None:
    sign = tmp_path / "die"
    sign.touch()

    def deadly(index: int) -> int:
        if index == 2 and sign.exists():
            sign.unlink()
            os._exit(3)
        return index

    loader = DataLoader(Made(deadly), None, num_workers=1, multiprocessing_context=method)
    with pytest.warns(UserWarning, match="exit code 3"):
        assert list(loader) == [0, 1, 2, 3]


@METHODS
@pytest.mark.parametrize(
    "make, codec, said",
    [
        (lambda: (n for n in range(3)), "auto", "generator"),
        (lambda: lambda index: index, "pickle", 'codec="auto"'),
    ],
)
def test_what_cannot_be_sent_is_named_with_its_path(
    make: Any, codec: Any, said: str, method: str
) -> None:
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": method}
    loader = DataLoader(Made(make()), codec=codec, **options)
    with pytest.warns(UserWarning, match="Got pickle error when attempting to start a worker"):
        with pytest.raises(CannotSaveError, match=rf"loader\.dataset\.make.*{said}"):
            next(iter(loader))


def test_cargo_is_the_same_where_there_is_no_memory_to_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    things = {"rows": np.arange(1000.0), "text": "x" * 100_000, "call": lambda value: value + 1}
    cargo = pickle.loads(pickle.dumps(Payload(things, ("cloudpickle",))))
    again = cargo.open()
    assert np.array_equal(again["rows"], things["rows"]) and again["text"] == things["text"]
    assert again["call"](1) == 2
    again["rows"][0] = 7  # what a worker has been given is its own


class NotHere(Dataset[int]):
    """Opens something that only the program's own process can open."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if os.getpid() != self.pid:
            raise ConnectionError("no database here")


@pytest.mark.costly
@METHODS
@pytest.mark.parametrize("transport", ["arena", "portable"])
def test_what_a_worker_cannot_open_is_an_error_of_the_programs(method: str, transport: Any) -> None:
    workers = 1 if method == "spawn" else 2  # which takes seconds
    loader = DataLoader(
        NotHere(), num_workers=workers, multiprocessing_context=method, transport=transport
    )
    iterator = iter(loader)
    for _ in range(2):
        with pytest.raises(CannotLoadError, match="ConnectionError: no database here"):
            next(iterator)
    assert iterator.step == 0
    loader.multiprocessing_context = "fork"
    assert torch.cat(list(loader)).tolist() == list(range(8))


class Thirds(Dataset[torch.Tensor]):
    def __init__(self) -> None:
        self.offset = torch.zeros(())

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.offset + torch.tensor(index / 3)


@pytest.fixture
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_program_s_default_dtype_is_that_of_its_workers(method: str) -> None:
    here = next(iter(DataLoader(Thirds(), 4)))
    context: Any = {"num_workers": 1, "multiprocessing_context": method}
    there = next(iter(DataLoader(Thirds(), 4, **context)))
    assert here.dtype == there.dtype == torch.float64
    assert torch.equal(here, there)


_COLLECTED = textwrap.dedent("""
    import gc, sys
    from picklable_loader import DataLoader

    class Collector:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return gc.isenabled(), gc.get_freeze_count() > 10_000

    if __name__ == "__main__":
        options = {"num_workers": 1, "multiprocessing_context": sys.argv[1], "collate_fn": tuple}
        print(*DataLoader(Collector(), None, **options), gc.get_freeze_count())
    """)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_collections_visit_what_was_imported_in_no_new_process_but_in_the_program(
    method: str, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(_COLLECTED)
    assert run([str(script), method]) == f"(True, {method != 'fork'}) 0\n"
