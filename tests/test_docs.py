"""Every Python block of the README and the docs runs.

The blocks of a page run one after the other, in one fresh process and a temporary directory.
Blocks that open with ```python no-run are not run.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_layers import rank

from picklable_loader import DataLoader, errors
from picklable_loader.epoch.options import OPTIONS

ROOT = Path(__file__).parent.parent
HOUSE = ROOT / "picklable_loader"
_LIMIT_S = 240
#: torchdata's workers would run the page once more under Python 3.14, whose default is forkserver
_FORK = "import multiprocessing; multiprocessing.set_start_method('fork')\n"
#: their `__init__.py` says which names are public
PUBLIC_FOLDERS = {"testing/__init__.py", "integrations/cpp/__init__.py"}


def blocks(page: Path, opening: str = "```python") -> list[tuple[int, str]]:
    """The blocks of a page that open with a line, each with its first line's number."""
    found: list[tuple[int, str]] = []
    inside: list[str] | None = None
    start = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if inside is None and line.strip() == opening:
            inside, start = [], number + 1
        elif inside is not None and line.strip() == "```":
            found.append((start, "\n".join(inside)))
            inside = None
        elif inside is not None:
            inside.append(line)
    assert inside is None, f"{page.name}: the block at line {start} does not end"
    return found


def program(page: Path, opening: str = "```python") -> str:
    """One script of all blocks; errors name the page and its line."""
    return "\n".join(
        f"exec(compile({chr(10) * (start - 1) + code!r}, {str(page)!r}, 'exec'), globals())"
        for start, code in blocks(page, opening)
    )


def run(
    page: Path,
    folder: Path,
    opening: str = "```python",
    limit_s: float = _LIMIT_S,
    before: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a page's blocks in a fresh process, after some lines of the test's own."""
    script = folder / "page.py"
    script.write_text(before + program(page, opening))
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=limit_s,
    )


def anchors(page: Path) -> set[str]:
    """What a page's headings are called in links."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PAGES = [ROOT / "README.md", HOUSE / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_python_blocks_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = blocks(page, "```cpp")
    if sources and not shutil.which("c++"):
        pytest.skip("no C++ compiler: apt install g++ runs this test")
    for _, source in sources:
        (tmp_path / source.split()[1]).write_text(source)  # it begins with: // its name
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run(page, tmp_path, before=_FORK if page.name == "migrating.md" else "")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_functions_and_classes_name_what_is_there(page: Path) -> None:
    for name, path in re.findall(r"\[`([\w.]+)`\]\(([^)\s]+\.py)\)", page.read_text()):
        if name.endswith(".py"):
            continue
        *_, last = name.split(".")
        known = rf"^ *(?:def|class) {last}\b|^{last}\b.* = "
        assert re.search(known, (page.parent / path).read_text(), re.MULTILINE), f"{name} in {path}"


def tree() -> list[str]:
    """The paths in the tree of the package's README."""
    text = (HOUSE / "README.md").read_text().partition("## The tree")[2]
    found: list[str] = []
    folders: list[str] = []
    for line in text.split("```")[1].splitlines():
        if line:
            depth = (len(line) - len(line.lstrip())) // 2
            folders = [*folders[:depth], line.split()[0]]
            found.append("".join(folders))
    return found


def test_the_tree_has_every_file_and_the_folders_in_their_order() -> None:
    files = [path for path in tree() if path.endswith(".py")]
    there = {str(path.relative_to(HOUSE)) for path in HOUSE.rglob("*.py")}
    described = {path for path in there if not path.endswith("/__init__.py")}
    assert sorted(path for path in files if path not in PUBLIC_FOLDERS) == sorted(described)
    assert len(files) == len(set(files))
    names = [path.removesuffix(".py").replace("/", ".") for path in files]
    ranks = [rank(name) for name in names if name not in ("__init__", "__main__")]
    assert ranks == sorted(ranks)


def rows(page: str) -> dict[str, list[str]]:
    """The cells of a page's tables, by the name in the first one."""
    lines = (ROOT / "docs" / page).read_text().splitlines()
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines if line[:3] == "| `"]
    return {first.split("`")[1]: rest for first, *rest in cells}


def test_the_page_of_arguments_has_each_with_its_default() -> None:
    ours = inspect.signature(DataLoader).parameters.items()
    found = {name: cells[0] for name, cells in rows("arguments.md").items()}
    assert found == {
        name: f"`{parameter.default!r}`".replace("'", '"')
        for name, parameter in ours
        if name in OPTIONS
    }


def test_the_page_of_errors_has_each_error_and_warning() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    ours = {each.__name__ for each in classes if issubclass(each, (Exception, Warning))}
    assert rows("errors.md").keys() == ours


def prose(page: Path) -> list[str]:
    """The lines of a page outside of code and tables."""
    parts = page.read_text().split("```")[::2]
    return [line for part in parts for line in part.splitlines() if not line.startswith("|")]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_prose_fit_a_screen(page: Path) -> None:
    assert [line for line in prose(page) if len(line) > 170] == []


def test_readme_and_tutorial_show_python() -> None:
    assert len(blocks(ROOT / "README.md")) >= 3
    assert len(blocks(ROOT / "docs" / "tutorial.md")) >= 10


def test_an_error_in_a_block_names_the_page_and_the_line(tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\n```python\nprint(x)\nassert x == 2\n```\n")
    done = run(page, tmp_path)
    assert done.returncode == 1
    assert done.stdout == "1\n"
    assert f'File "{page}", line 9' in done.stderr


def test_a_block_that_says_so_is_not_run(tmp_path: Path) -> None:
    page = tmp_path / "quiet.md"
    page.write_text("```python no-run\nraise ValueError\n```\n```sh\nmake demo\n```\n")
    assert blocks(page) == []
