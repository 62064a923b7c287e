"""Converters: smaller numbers in nested samples and batches, and what does not fit is an error."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from picklable_loader import DataLoader, DtypeConverter, KeyBasedDtypeConverter
from picklable_loader.testing.compare import difference


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Item:
    image: Any
    name: str


def batch() -> dict[str, Any]:
    return {
        "image": torch.rand(2, 3),
        "more": [{"mask": np.ones(4, np.int64), "label": torch.tensor([1, 2])}],
        "point": Point(np.float64(0.5), "text"),
        "item": Item(torch.rand(2), "name"),
    }


def test_all_tensors_and_arrays_are_converted_however_they_are_nested() -> None:
    found = DtypeConverter("float16")(batch())
    assert found["image"].dtype is torch.float16 and found["item"].image.dtype is torch.float16
    assert found["more"][0]["mask"].dtype == np.float16
    assert type(found["point"]) is Point and found["point"].x.dtype == np.float16
    assert found["point"].y == "text" and found["item"].name == "name"


def test_keys_are_found_at_any_depth_and_the_rest_stays() -> None:
    given = batch()
    found = KeyBasedDtypeConverter({"image": torch.float16, "mask": np.uint8, "label": "int16"})(
        given
    )
    assert found["image"].dtype is torch.float16
    assert found["more"][0]["mask"].dtype == np.uint8
    assert found["more"][0]["label"].dtype is torch.int16
    assert found["item"].image is given["item"].image


def test_mappings_keep_their_class() -> None:
    given = OrderedDict(a=torch.ones(1))
    assert type(DtypeConverter("int8")(given)) is OrderedDict


FITS: list[tuple[Any, str, bool]] = [
    (70_000, "int16", False),
    (32_767, "int16", True),
    (-1, "uint8", False),
    (2**31, "int32", False),
    (2, "bool", False),
    (1, "bool", True),
    (2049, "float16", False),
    (2048, "float16", True),
    (70_000, "float16", False),
    (1e6, "float16", False),
    (0.1, "float16", True),
    (1e-9, "float16", True),
    (float("inf"), "float16", True),
    (float("nan"), "float16", True),
    (float("nan"), "int32", False),
    (float("inf"), "int64", False),
    (0.5, "int32", False),
    (3.0, "int32", True),
    (2.0**40, "int32", False),
    (2.0**63, "int64", False),
    (1e39, "float32", False),
    (1 + 2j, "float32", False),
]


@pytest.mark.parametrize("make", [torch.tensor, np.array, lambda values: np.array(values)[0]])
@pytest.mark.parametrize("value, dtype, fits", FITS)
def test_what_does_not_fit_is_an_error_that_names_key_value_and_range(
    value: Any, dtype: str, fits: bool, make: Any
) -> None:
    kind = {"dtype": torch.float64} if make is torch.tensor and type(value) is float else {}
    sample = {"label": make([value], **kind)}
    converter = KeyBasedDtypeConverter({"label": dtype})
    if fits:
        converter(sample)
        return
    with pytest.raises(ValueError) as caught:
        converter(sample)
    said = str(caught.value)
    assert "batch['label']" in said and str(value) in said and f"{dtype} does not hold" in said
    DtypeConverter(dtype, check=False)(sample) if type(value) is not complex else None


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["int8", "int16", "int32", "uint8"]))
def test_whole_numbers_fit_exactly_where_they_are_in_range(value: int, dtype: str) -> None:
    info = torch.iinfo(getattr(torch, dtype))
    for numbers in (torch.tensor([value]), np.array([value])):
        if info.min <= value <= info.max:
            assert int(DtypeConverter(dtype)(numbers)[0]) == value
        else:
            with pytest.raises(ValueError, match="does not hold"):
                DtypeConverter(dtype)(numbers)


def test_a_key_that_no_batch_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="'lable', and the batch has no such key"):
        KeyBasedDtypeConverter({"lable": "int16"})({"label": torch.ones(1)})
    KeyBasedDtypeConverter({"lable": "int16"}, check=False)({"label": torch.ones(1)})


@pytest.mark.parametrize("dtype", ["no type", "nn", "float17", object])
def test_a_type_that_torch_lacks_is_refused_at_once(dtype: Any) -> None:
    with pytest.raises(ValueError, match="number type of torch's"):
        DtypeConverter(dtype)


def test_bfloat16_needs_tensors() -> None:
    assert DtypeConverter(torch.bfloat16)(torch.ones(1)).dtype is torch.bfloat16
    with pytest.raises(ValueError, match="numpy has no bfloat16"):
        DtypeConverter("bfloat16")(np.ones(1))


# --- in a loader ---------------------------------------------------------------------------------


class Labelled:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((3,), index / 7), "label": index if index < 9 else 70_000}


SMALL = KeyBasedDtypeConverter({"image": "float16", "label": "int16"})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_convert_applies_in_the_worker_after_collating(num_workers: int) -> None:
    loader = DataLoader(Labelled(), 3, num_workers=num_workers, convert=SMALL, seed=1)
    iterator = iter(loader)
    first = next(iterator)
    assert first["image"].dtype is torch.float16 and first["label"].tolist() == [0, 1, 2]
    again = pickle.loads(pickle.dumps(iterator))
    assert difference(next(iterator), next(again), "batch") is None
    next(iterator)
    with pytest.raises(ValueError, match=r"batch\['label'\] has the value 70000, which int16"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_convert_is_no_part_of_collate_fn_and_needs_a_callable() -> None:
    loader = DataLoader(Labelled(), 3, convert=SMALL)
    assert loader.collate_fn is DataLoader(Labelled(), 3).collate_fn and loader.convert is SMALL
    with pytest.raises(TypeError, match="convert should be a callable"):
        DataLoader(Labelled(), convert="float16")  # type: ignore[arg-type]


def test_convert_applies_to_single_samples_too() -> None:
    loader = DataLoader(Labelled(), batch_size=None, convert=DtypeConverter("float32", check=False))
    assert next(iter(loader))["image"].dtype is torch.float32
