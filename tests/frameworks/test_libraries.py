"""Datasets, transforms and loops of libraries: who is exact with which."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import Server
from .table import Options, Table

RUNS = "frameworks.library_runs"

#: the table's columns
_LOADERS: dict[str, Options] = {
    "this loader": {"loader": "ours"},
    "no `seed=`": {"loader": "ours without seed"},
    "the library's, or torch's": {"loader": "torch"},
    "torchdata": {"loader": "torchdata"},
}


_OTHERS = ["the library's, or torch's", "torchdata"]


def _of(library: str, **options: object) -> Options:
    return {"library": library, "checkpoint": 13, **options}


#: the table's rows
_CASES: dict[str, Options] = {
    "Hugging Face datasets, map-style": _of("hf map"),
    "Hugging Face datasets, streamed": _of("hf stream"),
    "the same, `ShuffleBuffer` or `.shuffle(seed=)`": _of("hf shuffled"),
    "webdataset, `.shuffle()`": _of("webdataset"),
    "LitData": _of("litdata", checkpoint=[3, 13], no=_OTHERS[1:]),
    "LitData, the page's class": _of("litdata counted", checkpoint=[3, 13], no=_OTHERS),
    "MosaicML streaming, the page's class": _of("mosaic", checkpoint=[3, 13], no=_OTHERS[1:]),
    "PyTorch Geometric": _of("pyg"),
    "torchvision v2": _of("torchvision"),
    "albumentations": _of("albumentations"),
    "monai": _of("monai"),
    "timm's `PrefetchLoader`": _of("timm", checkpoint=[13, 20]),
    "ignite's `Engine`": {"checkpoint": 13, "train": "ignite", "no": _OTHERS[:1]},
}

_CORE = ("Hugging Face datasets, map-style", "monai")

LIBRARIES = Table("Libraries of data", "train", _LOADERS, _CASES, _CORE)


@pytest.mark.parametrize(("case", "loader"), LIBRARIES.cells())
def test_a_resume_is_as_the_table_says(
    server: Server, tmp_path: Path, case: str, loader: str
) -> None:
    found = LIBRARIES.found(server, tmp_path, case, loader)
    assert found == LIBRARIES.documented(case, loader)


def test_a_worker_does_not_wait_for_those_that_have_ended(server: Server, tmp_path: Path) -> None:
    """Two workers give 6 batches each. After 11 of these one stream has ended."""
    options = {"library": "uneven mosaic", "loader": "ours", "workers": 2}
    assert server.compare("train", tmp_path, 11, **options) == "exact"
