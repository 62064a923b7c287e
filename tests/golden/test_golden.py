"""States that earlier versions have written go on as they did then."""

from __future__ import annotations

import io
import json
import pickletools
import sys
import zipfile
from importlib import import_module
from typing import Any

import pytest
import torch
from laws.observe import expected_warnings, seed_everything, seen

from picklable_loader.core.snapshot import VERSION
from picklable_loader.saving.pickles import opened

from .cases import FOLDER, GOLDEN, PICKLED, Golden, GoldenPickle
from .make import read, record, record_pickle

KEPT = [(case, version) for version in range(1, VERSION + 1) for case in GOLDEN]


def outline(content: Any) -> Any:
    """What is written, but for random states: a spare Gaussian of earlier draws may be in them.

    The checksum of a batch (``seen``) came later, and a state may lack it.
    """
    if isinstance(content, dict):
        named = {name: outline(value) for name, value in content.items() if name != "seen"}
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


@pytest.mark.parametrize("case", [case for case in GOLDEN if case.written], ids=str)
def test_todays_states_are_written_as_the_kept_ones(case: Golden) -> None:
    """A change in what is written needs a new version of the format."""
    assert outline(record(case)) == outline(read(case.path(VERSION)))


def test_every_kept_state_has_its_case() -> None:
    known = {case.path(version) for case, version in KEPT}
    assert {path for path in FOLDER.glob("format_*/*")} == known


@pytest.mark.parametrize("case", PICKLED, ids=str)
def test_a_kept_pickle_of_an_iterator_goes_on_as_it_did(case: GoldenPickle) -> None:
    kept = json.loads(case.path.with_suffix(".json").read_text())
    if case.holds_code and kept["python"] != list(sys.version_info[:2]):
        pytest.skip("only the Python that has written code can read it")
    with expected_warnings():
        assert seen(case.loads(case.path.read_bytes())) == kept["rest"]


def names_in(data: bytes) -> set[str]:
    """The classes and functions of ours that a pickle names, and pickles within it."""
    if data.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            return names_in(file.read(next(n for n in file.namelist() if n.endswith("data.pkl"))))
    names, texts = set[str](), list[str]()
    for opcode, argument, _ in pickletools.genops(data):
        if isinstance(argument, str) and opcode.name != "GLOBAL":
            texts.append(argument)
        if opcode.name == "GLOBAL":
            names.add(str(argument).replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":  # the texts may come from the memo
            names.update(f"{module}.{name}" for module in texts for name in texts)
        elif isinstance(argument, bytes) and argument[:2] in _PICKLES:
            names |= names_in(argument)
    return {name for name in names if _is_ours(name)}


#: how a pickle begins; the code of a function may begin with the first byte alone
_PICKLES = [bytes([0x80, protocol]) for protocol in range(2, 6)]


def _is_ours(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    if module.partition(".")[0] != "picklable_loader":
        return False
    try:
        return hasattr(import_module(module), attribute)
    except ImportError:
        return False


NAMED = ("picklable_loader", "picklable_loader.errors", opened.__name__)


@pytest.mark.parametrize("kind", ["kept", "new"])
@pytest.mark.parametrize("case", PICKLED, ids=str)
def test_pickles_name_public_classes_and_opened_only(case: GoldenPickle, kind: str) -> None:
    """So nothing that acts is in a pickle, and any other module may move."""
    data = case.path.read_bytes() if kind == "kept" else record_pickle(case)[0]
    modules = {name.rpartition(".")[0] for name in names_in(data)}
    assert "picklable_loader" in modules and modules <= set(NAMED)
