"""Who may import whom, and how large things may grow."""

from __future__ import annotations

import ast
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

#: within core, each may see only those before it (and errors)
CORE = [
    "words", "task", "streams", "events", "seeds", "order", "plan", "cursor", "budget", "homes",
    "phases", "window", "places", "schedule", "fields", "snapshot",
]  # fmt: skip

#: what a package may see of the others
LAYERS = {
    "core": {"errors"},
    "transport": {"saving.codecs", "saving.picklers", "core.streams", "core.task"},
    "worker": {
        "core",
        "core.streams",
        "core.task",
        "core.seeds",
        "transport",
        "dtypes",
        "errors",
        "randomness",
        "datapipes",
        "stateful",
    },
    "pool": {
        "transport.cargo",
        "transport.forks",
        "transport.frames",
        "transport.limits",
        "transport.lines",
        "worker",
    },
    # of what runs a loader they see nothing: a look into a file must not need it
    "commands": {
        "bench.subject",
        "core.snapshot",
        "errors",
        "files",
        "testing",
        "values",
        "version",
    },
}


def modules(folder: Path = HOUSE) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """What a module imports, ours without the package's name; not what is for types only."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    here = path.relative_to(HOUSE).with_suffix("").parts
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if not node.level:
                yield node.module or ""
                continue
            base = [*here[: len(here) - node.level], *(node.module or "").split(".")]
            name = ".".join(part for part in base if part)
            yield (
                f".{name}" if node.module else f".{'.'.join([name, node.names[0].name]).strip('.')}"
            )


@pytest.mark.parametrize("path", modules(HOUSE / "core"), ids=lambda path: path.stem)
def test_the_core_is_pure_and_looks_only_back(path: Path) -> None:
    for name in imports(path):
        assert name.split(".")[0] not in IMPURE, f"{path.name} imports {name}"
        if name.startswith(".core."):
            assert CORE.index(name.removeprefix(".core.")) < CORE.index(path.stem)
        elif name.startswith("."):
            assert name == ".errors"


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "core"])
def test_a_layer_sees_only_those_below_it(layer: str) -> None:
    for path in modules(HOUSE / layer):
        for name in imports(path):
            if not name.startswith(".") or name[1:].split(".")[0] == layer:
                continue
            ours = name[1:]
            allowed = {ours, ours.split(".")[0]} & LAYERS[layer]
            assert allowed, f"{layer}/{path.name} imports {ours}"


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


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(HOUSE)))
def test_modules_and_functions_fit_a_glance(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            body = node.end_lineno - node.lineno + 1  # type: ignore[operator]
            body -= (ast.get_docstring(node, clean=False) or "").count("\n") + 1
            assert body <= 46, f"{path.name}:{node.lineno} {node.name} has {body} lines"
