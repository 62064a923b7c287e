"""``python -m mutants``: plant faults in ``core/``, one at a time, and run ``tests/core``.

A fault is a flipped comparison, a number that is one too large, a condition that is cut in half, or
a call that is left out. One that no test notices survives: write the test, or name it in `SAME`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import os
import random
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[2]

#: faults that mean the same as the code itself: the module, the line, what was done
SAME = {
    # a task that is taken back is in no window, so that the steps are never equal
    (
        "window.py",
        "in_turn = not entries or next(reversed(entries)) < step",
        "next(reversed(entries)) < step -> next(reversed(entries)) <= step",
    ),
    # what is sorted is sorted once more
    (
        "window.py",
        "in_turn = not entries or next(reversed(entries)) < step",
        "not entries or next(reversed(entries)) < step -> not entries",
    ),
    # then none is to be forgotten
    (
        "deliveries.py",
        "if len(last) > self._remember:",
        "len(last) > self._remember -> len(last) >= self._remember",
    ),
    # all streams before one that has given batches have ended
    (
        "positions.py",
        "while len(found) > self._placement.streams and not found[-1].given:",
        "len(found) > self._placement.streams and (not found[-1].given) -> "
        "len(found) > self._placement.streams",
    ),
    # any numbers as large do
    *(
        ("streams.py", line, what)
        for line, what in (
            ("_REPEATED = 2**60", "2 -> 3"),
            ("_REPEATED = 2**60", "60 -> 61"),
            ("_FROM_ONE_TO_THE_NEXT = 2**32", "2 -> 3"),
            ("_FROM_ONE_TO_THE_NEXT = 2**32", "32 -> 33"),
        )
    ),
    ("plan.py", "_STRIDE = 4096", "4096 -> 4097"),
    ("plan.py", "MOST_ASIDE = 10_000", "10000 -> 10001"),
    # a batch as large as the largest so far changes nothing
    ("budget.py", "if size > self.largest:", "size > self.largest -> size >= self.largest"),
    (
        "schedule.py",
        "if event.bytes > self._budget.largest:",
        "event.bytes > self._budget.largest -> event.bytes >= self._budget.largest",
    ),
    # the policy's budget is at least as large
    *((module, "most: int = 0", "0 -> 1") for module in ("budget.py", "events.py")),
    # one stream does not move either
    (
        "schedule.py",
        "self._placement = Placement(policy.workers, plan.streams if positions else 0, "
        "policy.moving)",
        "0 -> 1",
    ),
    # `outline` copies these events as they are
    (
        "schedule.py",
        "light = kind is Wanted or (",
        "kind is Wanted or (kind is Arrived and event.state is None and (not event.notes)) -> "
        "kind is Wanted",
    ),
    # nobody reads it
    (
        "placement.py",
        "fewest, _, least = min(found, default=(share, 0, None))",
        "0 -> 1",
    ),
    # no rank has either as its name
    (
        "snapshot.py",
        "rank = int(name) if len(name) < 10 and name.isdecimal() else -1",
        "1 -> 2",
    ),
    # no batches are taken then
    ("plan.py", "while passed < wanted:", "passed < wanted -> passed <= wanted"),
    # four times the bytes of a batch
    ("budget.py", "return expected > 0 and held + waiting * expected < most", "0 -> 1"),
    # a loader always gives the number
    ("budget.py", "most_deaths: int = 3", "3 -> 4"),
    # a moving average over 17 batches says as well which stream is the slow one
    ("placement.py", "_RECENT = 16", "16 -> 17"),
}

# An example that fails is enough, the smallest one takes long. A slow machine notices no fault. The
# examples are always the same, so that a survivor is one tomorrow.
hypothesis.settings.register_profile(
    "mutants",
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    deadline=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)
# Without tests/conftest.py, which starts processes.
_OPTIONS = (
    "-q -s -p no:cacheprovider --confcutdir=tests/core --timeout=0 "
    "--hypothesis-profile=mutants -W ignore::pytest.PytestAssertRewriteWarning tests/core"
)
#: Nine of ten faults are noticed by few examples of each test: so many, and seconds of a processor
#: after which a fault has a test run for ever. The others are tried with all examples.
_FEW, _SHORT, _LONG = 10, 20, 300
#: where Hypothesis has the settings of a test
_SETTINGS = "_hypothesis_internal_use_settings"
#: bytes; a fault may draw tasks without end
_MOST_MEMORY = 4 << 30

_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def changed(node: ast.AST) -> ast.AST | None:
    """The node with a fault; None if there is none for it."""
    fault = copy.deepcopy(node)
    match fault:
        case ast.Compare(ops=[operator, *_]) if type(operator) in _FLIPPED:
            fault.ops[0] = _FLIPPED[type(operator)]()
        case ast.BoolOp(values=[first, *_]):
            return first
        case ast.BinOp(op=ast.Add()):
            fault.op = ast.Sub()
        case ast.BinOp(op=ast.Sub()):
            fault.op = ast.Add()
        case ast.Constant(value=int(number)) if type(number) is int:
            fault.value = number + 1
        case ast.Expr(value=ast.Call()):
            return ast.Pass()
        case _:
            return None
    return fault


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Each part of a module that can have a fault: its parent, and where it is in that."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if name in ("annotation", "returns"):
                continue
            for at, part in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(part, ast.AST) and changed(part) is not None:
                    yield parent, name, at


class Planted(NamedTuple):
    """A fault: the code of its module with it, and its name."""

    module: Path
    tree: ast.Module
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.module.name}:{self.line}: {self.what}"

    @property
    def same(self) -> bool:
        """It is named in `SAME`."""
        line = self.module.read_text().splitlines()[self.line - 1].strip()
        return (self.module.name, line, self.what) in SAME


def planted(module: Path, number: int) -> Planted:
    """A module with one fault."""
    tree = ast.parse(module.read_text())
    parent, name, at = list(places(tree))[number]
    held = getattr(parent, name)
    part = held if at is None else held[at]
    fault = changed(part)
    assert fault is not None
    before = ast.unparse(part)
    if at is None:
        setattr(parent, name, fault)
    else:
        held[at] = fault
    what = f"{before} -> {ast.unparse(fault)}"
    return Planted(module, ast.fix_missing_locations(tree), part.lineno, what)


# --- in a forked process -------------------------------------------------------------------------


def transplant(planted: Planted) -> None:
    """Give the functions and constants of a module, which is imported already, those of a fault."""
    module = importlib.import_module(f"picklable_loader.core.{planted.module.stem}")
    faulty = ModuleType(module.__name__)
    faulty.__package__ = module.__package__
    sys.modules[module.__name__] = faulty  # dataclasses look there
    exec(compile(planted.tree, str(planted.module), "exec"), vars(faulty))
    sys.modules[module.__name__] = module
    found = [*_transplanted(module, faulty, module.__name__)]
    assert found, f"{planted} cannot be planted"


def _transplanted(holder: Any, faulty: Any, home: str) -> Iterator[str]:
    for name, new in vars(faulty).items():
        old = vars(holder).get(name)
        if isinstance(holder, ModuleType) and getattr(new, "__module__", home) != home:
            continue  # imported
        if isinstance(new, property) and isinstance(old, property):
            old, new = old.fget, new.fget
        elif isinstance(new, staticmethod) and isinstance(old, staticmethod):
            old, new = old.__func__, new.__func__  # __new__ of a NamedTuple
        if isinstance(new, FunctionType) and isinstance(old, FunctionType):
            yield from _changed_function(old, new)
        elif isinstance(new, type) and isinstance(old, type):
            yield from _transplanted(old, new, home)
        elif _plain(new) and new != old:
            setattr(holder, name, new)
            yield name


def _changed_function(old: FunctionType, new: FunctionType) -> Iterator[str]:
    if old.__code__ != new.__code__:
        old.__code__ = new.__code__
        yield old.__name__
    defaults = tuple(
        now if _plain(now) else before
        for now, before in zip(new.__defaults__ or (), old.__defaults__ or (), strict=True)
    )
    if old.__defaults__ and defaults != old.__defaults__:
        old.__defaults__ = defaults
        yield old.__name__


def _plain(value: Any) -> bool:
    return type(value) in (int, float, str, bool, bytes)


def noticed(planted: Planted | None, tests: list[Any], few: bool) -> bool:
    """Whether a test fails with a fault; what it prints is of no use."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_SHORT if few else _LONG,) * 2)
    if planted is not None:
        transplant(planted)
    for at, test in enumerate(tests):
        if few and (known := _settings_of(test.obj)):
            fewer = hypothesis.settings(known, max_examples=min(known.max_examples, _FEW))
            setattr(test.obj, _SETTINGS, fewer)
        following = tests[at + 1] if at + 1 < len(tests) else None
        test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
        if test.session.testsfailed:
            return True
    return False


def _settings_of(test: Any) -> Any:
    """Those of a test of Hypothesis; None: it is another."""
    return getattr(test, _SETTINGS, None)


# --- in the program ------------------------------------------------------------------------------


class Mutants:
    """A plugin of pytest, which runs the tests once for each fault."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.status = 2

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        options = self.options
        core = (ROOT / "picklable_loader" / "core").glob("*.py")
        modules = sorted(m for m in core if any(name in m.stem for name in options.only))
        known = [(m, at) for m in modules for at, _ in enumerate(places(ast.parse(m.read_text())))]
        chosen = random.Random(options.seed).sample(known, min(options.count, len(known)))
        faults = [planted(*each) for each in chosen]
        others = [each for each in faults if not each.same]
        if not [*self._survivors([None], session.items)]:
            print("tests/core fails without a fault")
            return True
        alive = 0
        for each in self._survivors(others, session.items):
            print(each, flush=True)
            alive += 1
        print(
            f"{len(others)} of {len(known)} possible faults were planted, {alive} not noticed; "
            f"{len(faults) - len(others)} more mean the same"
        )
        self.status = 1 if alive else 0
        return True

    def _survivors(
        self, faults: Iterable[Planted | None], tests: list[Any]
    ) -> Iterator[Planted | None]:
        """Those that no test notices."""
        running: dict[int, tuple[Planted | None, bool]] = {}
        waiting = [(fault, True) for fault in faults]
        while waiting or running:
            if waiting and len(running) < self.options.jobs:
                fault, few = waiting.pop()
                if not (child := os.fork()):  # it finds all tests imported
                    try:
                        found = noticed(fault, _in_order(fault, tests), few)
                    except BaseException:
                        found = True
                    os._exit(found)
                running[child] = fault, few
                continue
            child, status = os.wait()
            fault, few = running.pop(child)
            if status == 0 and few:
                waiting.append((fault, False))
            elif status == 0:
                yield fault


def _in_order(planted: Planted | None, tests: list[Any]) -> list[Any]:
    """The module's own tests first, then those of Hypothesis: ten examples do notice most."""
    own = f"test_{planted.module.stem}" if planted else ""
    return sorted(tests, key=lambda test: (test.path.stem != own, not _settings_of(test.obj)))


def main() -> int:
    parser = argparse.ArgumentParser("python -m mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="how many faults (30)")
    parser.add_argument("--seed", type=int, default=0, help="chooses them (0)")
    parser.add_argument("--only", nargs="*", default=[""], help="modules, for example window plan")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried at once (2)")
    os.chdir(ROOT)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    mutants = Mutants(parser.parse_args())
    pytest.main(_OPTIONS.split(), [mutants])
    return mutants.status


if __name__ == "__main__":
    sys.exit(main())
