"""Equality as strict as a consumer could notice: types, layouts, bits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def assert_identical(found: Any, expected: Any, path: str = "it") -> None:
    """Fail at the first place where `found` differs from `expected`, and name it."""
    assert type(found) is type(expected), f"{path} is {found!r}, should be {expected!r}"
    for kind, compare in _COMPARISONS:
        if isinstance(expected, kind):
            return compare(found, expected, path)
    if dataclasses.is_dataclass(expected):
        return assert_identical(vars(found), vars(expected), path)
    assert found == expected, f"{path} is {found!r}, should be {expected!r}"


def _tensors(found: torch.Tensor, expected: torch.Tensor, path: str) -> None:
    for name in ("dtype", "layout", "device", "is_nested", "requires_grad", "is_leaf"):
        _attribute(found, expected, name, path)
    if expected.is_nested:
        return assert_identical(list(found.unbind()), list(expected.unbind()), f"{path}.unbind()")
    _attribute(found, expected, "shape", path)
    if expected.layout is torch.strided:
        return _strided(found, expected, path)
    for part in _PARTS[expected.layout]:
        assert_identical(getattr(found, part)(), getattr(expected, part)(), f"{path}.{part}()")


def _strided(found: torch.Tensor, expected: torch.Tensor, path: str) -> None:
    for name in ("stride", "is_conj", "is_neg"):
        here, there = getattr(found, name)(), getattr(expected, name)()
        assert here == there, f"{path}.{name}() is {here}, should be {there}"
    here, there = (_bytes(tensor) for tensor in (found, expected))
    assert here == there, f"{path} is {found}, should be {expected}"


def _bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().as_subclass(torch.Tensor)
    flat = plain.flatten()
    # One element counts as contiguous whatever its stride is.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().tobytes()


def _arrays(found: np.ndarray, expected: np.ndarray, path: str) -> None:
    for name in ("dtype", "shape"):
        _attribute(found, expected, name, path)
    for flag in ("WRITEABLE", "C_CONTIGUOUS", "F_CONTIGUOUS"):
        assert found.flags[flag] == expected.flags[flag], f"{path}.flags[{flag!r}] differs"
    if expected.dtype.hasobject:
        return assert_identical(found.tolist(), expected.tolist(), f"{path}.tolist()")
    assert found.tobytes() == expected.tobytes(), f"{path} is {found}, should be {expected}"


def _sequences(found: Any, expected: Any, path: str) -> None:
    for place, (here, there) in enumerate(zip(found, expected)):
        assert_identical(here, there, f"{path}[{place}]")
    assert len(found) == len(expected), f"{path} has {len(found)} items, not {len(expected)}"


def _mappings(found: Mapping[Any, Any], expected: Mapping[Any, Any], path: str) -> None:
    assert list(found) == list(expected), f"{path} has {list(found)}, should have {list(expected)}"
    for key in expected:
        assert_identical(found[key], expected[key], f"{path}[{key!r}]")


def _storages(found: torch.UntypedStorage, expected: torch.UntypedStorage, path: str) -> None:
    assert found.tolist() == expected.tolist(), f"{path} holds other bytes"


def _floats(found: float, expected: float, path: str) -> None:
    same = found == expected or (math.isnan(found) and math.isnan(expected))
    assert same, f"{path} is {found!r}, should be {expected!r}"


def _attribute(found: Any, expected: Any, name: str, path: str) -> None:
    here, there = getattr(found, name), getattr(expected, name)
    assert here == there, f"{path}.{name} is {here}, should be {there}"


_PARTS = {
    torch.sparse_coo: ("is_coalesced", "_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
}

_COMPARISONS: list[tuple[Any, Callable[[Any, Any, str], None]]] = [
    (torch.Tensor, _tensors),
    (np.ndarray, _arrays),
    (torch.UntypedStorage, _storages),
    (
        torch.Size,
        lambda found, expected, path: _floats(hash(found), hash(expected), path),
    ),
    ((list, tuple), _sequences),
    (Mapping, _mappings),
    (float, _floats),
]
