"""The notebooks run in real kernels, and say what they are to say."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from zoo.processes import processes_with

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
_LIMIT_S = 240
_GRACE_S = 10
_MARK = "PICKLABLE_LOADER_NOTEBOOK"


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return found


def output(program: str, folder: Path, *arguments: str) -> str:
    """What a program beside this file prints, which starts kernels; none of them is left."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    mark = uuid.uuid4().hex
    places = {name: str(folder / ".jupyter") for name in _JUPYTER}
    environment = {**os.environ, **places, "PYTHONPATH": str(ROOT), _MARK: mark}
    environment.pop("MPLBACKEND", None)  # the kernel's own is the one that is shown
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "docs" / program), *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + _GRACE_S
    while left := processes_with(mark):  # Python's resource tracker ends a moment after its program
        assert time.monotonic() < deadline, left
    return done.stdout


def ran(name: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What a copy of a notebook shows, run in a folder of its own, by the tags of its cells."""
    result = folder / "result.ipynb"
    output("kernels.py", folder, str(ROOT / "docs" / "notebooks" / name), str(result))
    shown: dict[str, list[dict[str, Any]]] = {}
    for cell in cells(result):
        for tag in cell["metadata"].get("tags", []):
            shown.setdefault(tag, []).extend(cell["outputs"])
    return shown


_JUPYTER = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")


def text(outputs: list[dict[str, Any]]) -> str:
    """What cells have printed."""
    return "".join("".join(each["text"]) for each in outputs if each.get("name") == "stdout")


def pictures(outputs: list[dict[str, Any]]) -> set[str]:
    """The kinds of things that are shown."""
    return {kind for each in outputs for kind in each.get("data", {})}


def test_an_iterator_goes_on_in_another_kernel(tmp_path: Path) -> None:
    shown = ran("restart.ipynb", tmp_path)
    first, second = (text(shown[tag]) for tag in ("start", "restart"))
    assert re.fullmatch(r"kernel \d+\n", first) and re.fullmatch(r"kernel \d+\n", second)
    assert first != second
    assert text(shown["save"]) == "saved after step 12 of 25\n"
    assert text(shown["result"]) == "13 of 13 losses are equal, to the last bit\n"
    assert len(set(json.loads((tmp_path / "expected.json").read_text()))) == 13
    for tag, words in ("save", "running"), ("load", "before its start"):
        assert words in str(shown[tag]) and "text/html" in pictures(shown[tag])
    bars = [each["data"]["text/plain"] for each in shown["result"] if "data" in each]
    assert "12/25" in str(bars), "the bar begins where the iterator stands"
    assert text(shown["next"]) == "epoch 1 begins\n"


def test_a_sampler_that_listens_goes_on_with_what_it_has_heard(tmp_path: Path) -> None:
    shown = ran("dynamic_sampler.ipynb", tmp_path)
    assert text(shown["save"]) == "20 steps, saved, and 40 steps more\n"
    for name in ("samples", "losses", "weights"):
        assert f"40 steps; same {name}, to the last bit: True\n" in text(shown["result"])
    assert "image/png" in pictures(shown["plot"])
    [heard] = re.findall(r"step (\d+) is the first one with other samples", text(shown["heard"]))
    assert 5 < int(heard) <= 5 + 4, "that was not heard before it was said, or too late"


def test_a_dataset_is_checked_mended_and_read_by_spawned_workers(tmp_path: Path) -> None:
    shown = ran("your_own_dataset.ipynb", tmp_path)
    assert text(shown["fault"]).startswith("repeatability differs")
    assert "current_seed()" in text(shown["fault"])
    assert re.search(r"\d+ resumes from 2 steps .* went on exactly", text(shown["mended"]))
    assert "pid" in str(shown["spawn"]) and "5 of 10 batches" in str(shown["spawn"])
    assert text(shown["result"]) == "5 of 5 batches are equal\n"
    assert "image/png" in pictures(shown["plot"])


@pytest.mark.parametrize("num_workers", ["0", "2"])
def test_a_kernel_that_is_interrupted_goes_on_with_the_next_batch(
    num_workers: str, tmp_path: Path
) -> None:
    said = output("interrupted.py", tmp_path, num_workers)
    assert said.split() == "KeyboardInterruptat the next one 16 15 True True".split()


def test_each_notebook_has_a_test_and_is_named_in_the_docs() -> None:
    tested = Path(__file__).read_text()
    page = (ROOT / "docs" / "notebooks.md").read_text()
    assert len(NOTEBOOKS) >= 3
    for notebook in NOTEBOOKS:
        assert f'ran("{notebook.name}"' in tested
        assert f"notebooks/{notebook.name}" in page


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_kept_without_what_a_run_leaves(notebook: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    assert set(content["metadata"]) == {"kernelspec", "language_info"}
    for cell in content["cells"]:
        assert set(cell["metadata"]) <= {"tags"}
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
