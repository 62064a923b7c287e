"""Who may import whom, and how large things may grow."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent / "picklable_loader"

#: what `core` may import besides itself and `errors`: nothing that acts
PURE = {
    "__future__", "collections", "dataclasses", "enum", "hashlib", "itertools", "operator",
    "typing",
}  # fmt: skip

#: what a function may import, as the package works without it
OPTIONAL = {"matplotlib", "tqdm"}

#: each folder sees itself and those before it
ORDER = [
    "errors", "core", "rng", "saving.states", "saving.pickles", "saving.files", "saving",
    "datasets", "orders", "fetching.transport", "fetching.worker", "fetching.pool",
    "fetching.engine", "fetching", "epoch", "loader.display", "loader", "testing",
    "integrations.cpp", "integrations", "tools.table", "tools.bench", "tools.commands",
    "tools.demo", "tools",
]  # fmt: skip

#: they only say where the public names are
ABOVE_ALL = {"", "__main__"}
#: programs use the public names, and the package's version
USE_PUBLIC_NAMES = {"tools.demo.train", "tools.commands.doctor"}

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
            yield from map(_relative, (alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level], *(node.module or "").split(".")]
            name = ".".join(part for part in base if part)
            if not node.level:
                name = _relative(node.module or "")
                if not name.startswith("."):
                    yield name
                    continue
                name = name[1:]
            for alias in node.names:
                inner = f"{name}.{alias.name}".strip(".")
                yield f".{inner if inner in NAMES else name}"


def _relative(name: str) -> str:
    """A module of ours by the name within the package: ``picklable_loader.core`` is ``.core``."""
    package, _, rest = name.partition(".")
    return f".{rest}" if package == HOUSE.name else name


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
    above = ABOVE_ALL if name in USE_PUBLIC_NAMES else set[str]()
    for other in ours(path) - above:
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
        known = name.startswith(".") or name.split(".")[0] in PURE
        assert known, f"{path.name} imports {name}"


@pytest.mark.parametrize("folder", ORDER[: ORDER.index("loader")])
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
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
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


def test_no_module_of_ours_is_imported_by_a_text() -> None:
    for path in modules():
        if name_of(path) in ABOVE_ALL:
            continue  # their tables of names are the public ones
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                text = ast.unparse(node.args[0])
                assert HOUSE.name not in text and "__name__" not in text, f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    "planted",
    [
        "import picklable_loader.loader.loader",
        "from picklable_loader.loader.loader import DataLoader",
        "from picklable_loader import DataLoader",
        "from .. import DataLoader",
        "from ..loader import loader",
        "if TYPE_CHECKING:\n    from ..loader.loader import DataLoader",
        "async def act() -> None:\n    from ..loader.loader import DataLoader",
    ],
)
def test_an_import_of_a_later_folder_is_noticed_however_it_is_written(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = tmp_path / HOUSE.name
    (house / "core").mkdir(parents=True)
    path = house / "core" / "plan.py"
    path.write_text(planted)
    monkeypatch.setattr(f"{__name__}.HOUSE", house)
    with pytest.raises(AssertionError):
        test_a_folder_sees_only_those_before_it(path)


def test_no_module_is_called_after_nothing() -> None:
    vague = {"utils", "util", "common", "misc", "helpers", "manager"}
    assert not vague & {path.stem for path in modules()}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_modules_and_functions_fit_a_glance(path: Path) -> None:
    text = path.read_text()
    # Cut by concept: 400 lines are for orientation, and no reason to write shorter lines.
    assert text.count("\n") <= 450
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            body = node.end_lineno - node.lineno + 1  # type: ignore[operator]
            body -= (ast.get_docstring(node, clean=False) or "").count("\n") + 1
            assert body <= 46, f"{path.name}:{node.lineno} {node.name} has {body} lines"
