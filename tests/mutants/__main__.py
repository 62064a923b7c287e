"""``python -m mutants``: plant faults in a copy of the package, one at a time, and run the tests.

A fault is a flipped comparison, a number that is one too large, a condition that is cut in half, or
a call that is left out. One that no test notices survives: write the test, or name it in `SAME`.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: faults that mean the same as the code itself: the module, the line, what was done
SAME = {
    # a task that is taken back is in no window, so that the steps are never equal
    (
        "window.py",
        "in_turn = not entries or next(reversed(entries)) < step",
        "next(reversed(entries)) < step -> next(reversed(entries)) <= step",
    ),
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


def survives(copied: Path, module: Path, number: int) -> str | None:
    """What was done, if no test noticed it."""
    target = copied / module.relative_to(ROOT)
    source = module.read_text()
    faulty, line, what = planted(source, number)
    if (module.name, source.splitlines()[line - 1].strip(), what) in SAME:
        return None
    target.write_text(faulty)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/core"]
    paths = os.pathsep.join(map(str, (copied, copied / "tests")))
    quick = {"PYTHONPATH": paths, "HYPOTHESIS_PROFILE": "quick"}
    try:
        run = subprocess.run(
            command, cwd=copied, env={**os.environ, **quick}, capture_output=True, timeout=300
        )
    except subprocess.TimeoutExpired:
        return None  # it runs for ever, which a time limit notices
    finally:
        target.write_text(source)
    return f"{module.name}:{line}: {what}" if run.returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser("python -m mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=30, help="how many faults (30)")
    parser.add_argument("--seed", type=int, default=0, help="chooses them (0)")
    options = parser.parse_args()
    modules = sorted((ROOT / "picklable_loader" / "core").glob("*.py"))
    known = [(m, at) for m in modules for at, _ in enumerate(places(ast.parse(m.read_text())))]
    chosen = random.Random(options.seed).sample(known, min(options.count, len(known)))
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder)
        for name in ("picklable_loader", "tests"):
            shutil.copytree(ROOT / name, copied / name)
        shutil.copy(ROOT / "setup.cfg", copied)
        alive = [name for each in chosen if (name := survives(copied, *each)) is not None]
    print(f"{len(chosen)} of {len(known)} possible faults were planted, {len(alive)} not noticed")
    print("\n".join(alive))
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
