"""``python -m mutants``: plant faults in a copy of the package, one at a time, and run the tests.

A fault is a flipped comparison, a number that is one too large, a condition that is cut in half, or
a call that is left out. One that no test notices survives: write the test, or name it in `SAME`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]

#: faults that mean the same as the code itself: the module, the line, what was done
SAME = {
    # a task that is taken back is in no window, so that the steps are never equal
    (
        "window.py",
        "in_turn = not entries or next(reversed(entries)) < step",
        "next(reversed(entries)) < step -> next(reversed(entries)) <= step",
    ),
    # a batch as large as the largest so far changes nothing
    ("budget.py", "if size > self.largest:", "size > self.largest -> size >= self.largest"),
    # four times the bytes of a batch
    ("budget.py", "return expected > 0 and held + waiting * expected < most", "0 -> 1"),
    # a loader always gives the number
    ("budget.py", "most_deaths: int = 3", "3 -> 4"),
    # a moving average over 17 batches says as well which stream is the slow one
    ("placement.py", "_RECENT = 16", "16 -> 17"),
    # a loader's own fingerprint always gives the samples of a step
    (
        "snapshot.py",
        "fits = steps == count * apart and samples == steps * (per_step or 1)",
        "1 -> 2",
    ),
    # the number is that of whole numbers only
    *(
        ("snapshot.py", f'"{name}": ({kind}, 0, {optional}),', "0 -> 1")
        for name, kind, optional in (
            ("fits", "dict", False),
            ("window", "list", False),
            ("order", "dict", True),
            ("sampler", "dict", False),
            ("rng", "dict", False),
            ("workers", "dict", False),
        )
    ),
}

# an example that fails is enough, the smallest one takes long
hypothesis.settings.register_profile(
    "mutants", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)
_OPTIONS = (
    "-q -x -p no:cacheprovider --timeout=60 --hypothesis-profile=mutants "
    "-W ignore::pytest.PytestAssertRewriteWarning"
)

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


def planted(source: str, number: int) -> tuple[str, int, str]:
    """A module with one fault, its line, and what was done."""
    tree = ast.parse(source)
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
    return (
        ast.unparse(ast.fix_missing_locations(tree)),
        part.lineno,
        f"{before} -> {ast.unparse(fault)}",
    )


def survives(module: Path, number: int) -> str | None:
    """What was done, if no test noticed it; for a process of its own, which it changes."""
    source = module.read_text()
    faulty, line, what = planted(source, number)
    if (module.name, source.splitlines()[line - 1].strip(), what) in SAME:
        return None
    with tempfile.TemporaryDirectory() as folder:
        for name in ("picklable_loader", "tests"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("*.pyc"))
        shutil.copy(ROOT / "setup.cfg", folder)
        Path(folder, module.relative_to(ROOT)).write_text(faulty)
        os.chdir(folder)
        sys.path[:0] = [folder, str(Path(folder, "tests"))]
        sys.dont_write_bytecode = True
        # a fault that lets a test run for ever is noticed by the time limit
        status = pytest.main([*_OPTIONS.split(), "tests/core"])
        os.chdir(ROOT)
    return f"{module.name}:{line}: {what}" if status == pytest.ExitCode.OK else None


def _silent() -> None:
    """What pytest prints of each fault is of no use to anybody."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def main() -> int:
    parser = argparse.ArgumentParser("python -m mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="how many faults (30)")
    parser.add_argument("--seed", type=int, default=0, help="chooses them (0)")
    parser.add_argument("--only", nargs="*", default=[""], help="modules, for example window plan")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried at once (2)")
    options = parser.parse_args()
    core = (ROOT / "picklable_loader" / "core").glob("*.py")
    modules = sorted(m for m in core if any(name in m.stem for name in options.only))
    known = [(m, at) for m in modules for at, _ in enumerate(places(ast.parse(m.read_text())))]
    chosen = random.Random(options.seed).sample(known, min(options.count, len(known)))
    # Forked processes find pytest, Hypothesis and torch imported, and nothing of the package.
    fork = multiprocessing.get_context("fork")
    with fork.Pool(options.jobs, _silent, maxtasksperchild=1) as pool:
        alive = [name for name in pool.starmap(survives, chosen, chunksize=1) if name is not None]
    print(f"{len(chosen)} of {len(known)} possible faults were planted, {len(alive)} not noticed")
    print("\n".join(alive))
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
