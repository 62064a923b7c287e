"""Who may import whom, and how large things may grow."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent / "picklable_loader"

IMPURE = {
    "torch", "numpy", "multiprocessing", "threading", "queue", "os", "time", "random", "logging",
    "socket", "datetime", "uuid", "secrets", "sys", "subprocess", "asyncio", "signal", "ctypes",
}  # fmt: skip

#: what a function may import, as the package works without it
OPTIONAL = {"matplotlib", "rich", "tqdm"}

#: each folder sees itself and those before it
ORDER = [
    "errors", "core", "rng", "saving.states", "saving.pickles", "saving.files", "saving",
    "datasets", "orders", "fetching.transport", "fetching.worker", "fetching.pool",
    "fetching.engine", "fetching", "epoch", "loader", "testing", "integrations", "tools",
]  # fmt: skip

#: they only say where the public names are
ABOVE_ALL = {"", "__main__"}

MOST_ENTRIES = 12


def modules(folder: Path = HOUSE) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(HOUSE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in modules()}


def all_imports(path: Path) -> Iterator[str]:
    """Of ours, the modules without the package's name, ``.core.plan``; of others, their names.

    Those for types and those within functions are among them.
    """
    here = path.relative_to(HOUSE).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level], *(node.module or "").split(".")]
            name = ".".join(part for part in base if part)
            for alias in node.names:
                inner = f"{name}.{alias.name}".strip(".")
                yield f".{inner if inner in NAMES else name}"


def ours(path: Path) -> set[str]:
    return {name[1:] for name in all_imports(path) if name.startswith(".")}


def rank(name: str) -> int:
    """The number of the folder that a module is in."""
    found = [at for at, folder in enumerate(ORDER) if f"{name}.".startswith(f"{folder}.")]
    assert found, f"{name} is in no folder of ORDER"
    return found[0]


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_a_folder_sees_only_those_before_it(path: Path) -> None:
    name = name_of(path)
    if name in ABOVE_ALL:
        return
    for other in ours(path) - ABOVE_ALL:
        assert rank(other) <= rank(name), f"{name} imports {other}"


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {name_of(path): ours(path) - {""} for path in modules() if name_of(path)}
    graphlib.TopologicalSorter(graph).prepare()


def test_the_root_has_few_entries() -> None:
    entries = {path.relative_to(HOUSE).parts[0] for path in modules()}
    entries -= {"__init__.py", "__main__.py"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)
    assert {entry.removesuffix(".py") for entry in entries} <= {f.split(".")[0] for f in ORDER}


@pytest.mark.parametrize("path", modules(HOUSE / "core"), ids=lambda path: path.stem)
def test_the_core_is_pure(path: Path) -> None:
    for name in all_imports(path):
        assert name.split(".")[0] not in IMPURE, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "folder", [name for name in ORDER if name not in ("loader", "testing", "integrations", "tools")]
)
def test_nobody_below_the_loader_takes_a_loader(folder: str) -> None:
    for path in modules(HOUSE / folder.replace(".", "/")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.arg):
                assert node.arg != "loader", f"{name_of(path)}:{node.lineno}"
            if isinstance(node, ast.Attribute):
                assert node.attr != "_pl", f"{name_of(path)}:{node.lineno}"


def test_only_optional_dependencies_are_imported_within_functions() -> None:
    for path in modules():
        if path.parent.name == "demo":
            continue  # its modules need the demo's extra, which the command names if it is missing
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                inside = [n for n in ast.walk(function) if isinstance(n, ast.Import)]
                inside += [n for n in ast.walk(function) if isinstance(n, ast.ImportFrom)]
                inside = [n for n in inside if not _of_an_extra(n)]
                assert not inside, f"{path.name}:{function.lineno} imports within a function"


def _of_an_extra(found: ast.Import | ast.ImportFrom) -> bool:
    names = (
        [found.module or ""] if isinstance(found, ast.ImportFrom) else [a.name for a in found.names]
    )
    level = getattr(found, "level", 0)
    return not level and all(name.split(".")[0] in OPTIONAL for name in names)


def test_no_module_is_called_after_nothing() -> None:
    vague = {"utils", "util", "common", "misc", "helpers", "manager"}
    assert not vague & {path.stem for path in modules()}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_modules_and_functions_fit_a_glance(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            body = node.end_lineno - node.lineno + 1  # type: ignore[operator]
            body -= (ast.get_docstring(node, clean=False) or "").count("\n") + 1
            assert body <= 46, f"{path.name}:{node.lineno} {node.name} has {body} lines"
