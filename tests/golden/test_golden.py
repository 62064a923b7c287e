"""States that earlier versions have written go on as they did then."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import pytest
import torch
from laws.observe import expected_warnings, seed_everything, seen

from picklable_loader.core.snapshot import VERSION

from .cases import FOLDER, GOLDEN, PICKLED, PICKLES, Golden
from .make import read, record, record_pickle

KEPT = [(case, version) for version in range(1, VERSION + 1) for case in GOLDEN]


def outline(content: Any) -> Any:
    """What is written, but for random states: a spare Gaussian of earlier draws may be in them."""
    if isinstance(content, dict):
        named = {name: outline(value) for name, value in content.items()}
        return {**named, "checksum": ""} if "format" in content else named
    if isinstance(content, list):
        return [outline(value) for value in content]
    if isinstance(content, torch.Tensor):
        return content.shape
    return content if len(str(content)) < 100 else len(content)


@pytest.mark.parametrize(("case", "version"), KEPT, ids=str)
def test_a_kept_state_goes_on_as_it_did(case: Golden, version: int) -> None:
    kept = read(case.path(version))
    seed_everything(99)
    loader = case.make()
    loader.load_state_dict(kept["state"])
    with expected_warnings():
        assert seen(iter(loader)) == kept["rest"]
    assert seen(iter(loader)) == kept["next"]


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_todays_states_are_written_as_the_kept_ones(case: Golden) -> None:
    """A change in what is written needs a new version of the format."""
    assert outline(record(case)) == outline(read(case.path(VERSION)))


def test_every_kept_state_has_its_case() -> None:
    known = {case.path(version) for case, version in KEPT}
    assert {path for path in FOLDER.glob("format_*/*")} == known


def opened(data: bytes) -> tuple[Any, set[str]]:
    """What was pickled, and which classes and functions of ours the pickle names."""
    names = set[str]()

    class Noting(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module.partition(".")[0] == "picklable_loader":
                names.add(f"{module}.{name}")
            return super().find_class(module, name)

    return Noting(io.BytesIO(data)).load(), names


@pytest.mark.parametrize("name", PICKLED)
def test_a_kept_pickle_of_an_iterator_goes_on_as_it_did(name: str) -> None:
    iterator, names = opened((PICKLES / f"{name}.pickle").read_bytes())
    assert seen(iterator) == json.loads((PICKLES / f"{name}.json").read_text())
    assert {"Pickled", name} <= {each.rpartition(".")[2] for each in names}
    # A class that has another name, or module, by now has to be found under this one as well.
    assert opened(record_pickle(name)[0])[1] == names
