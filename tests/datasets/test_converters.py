"""Converters: smaller numbers in nested samples and batches, and what does not fit is an error."""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Iterator, MutableMapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

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


class OfSplit(dict[str, Any]):
    """A dict whose first argument is not its items."""

    def __init__(self, split: str, **items: Any) -> None:
        super().__init__(**items)
        self.split = split


class Attributes(dict[str, Any]):
    """A dict whose items are its attributes, too."""

    def __init__(self, *args: Any, **items: Any) -> None:
        super().__init__(*args, **items)
        self.__dict__ = self


class Encoding(UserDict[str, Any]):
    """A mapping with more than its items, as Hugging Face's tokenizers give."""

    def __init__(self, data: Any, words: Any = None) -> None:
        super().__init__(data)
        self.words = words


class Named(list[Any]):
    """A list with an attribute."""

    name: str


class Shares(MutableMapping[str, Any]):
    """A mapping whose copy has the same dict."""

    def __init__(self, items: Any) -> None:
        self.items_of = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.items_of[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.items_of[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_of[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_of)

    def __len__(self) -> int:
        return len(self.items_of)


class NoSecond(Shares):
    """A mapping that nobody can build from items alone."""

    def __init__(self, items: Any, more: Any) -> None:
        super().__init__(items)


def mappings() -> list[Any]:
    items = {"a": torch.ones(1), "b": "text"}
    factory: defaultdict[str, Any] = defaultdict(list, items)
    attribute = Encoding(items, words=[0, 1])
    return [
        *(OrderedDict(items), factory, OfSplit("val", **items), Attributes(items), attribute),
        *(Shares(items), MappingProxyType(items), NoSecond(items, 1)),
    ]


@pytest.mark.parametrize("given", mappings(), ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("convert", [DtypeConverter("int8"), KeyBasedDtypeConverter({"a": "int8"})])
def test_a_mapping_of_any_class_has_all_its_keys_and_its_attributes(
    convert: Any, given: Any
) -> None:
    found = convert(given)
    assert type(found) is (dict if type(given) is NoSecond else type(given))
    assert dict(found) == dict(given) and found["a"].dtype is torch.int8
    assert given["a"].dtype is torch.float32, "the batch that was given has changed"
    for name in ("split", "words", "default_factory"):
        assert getattr(found, name, None) == getattr(given, name, None)
    if type(given) is Attributes:
        assert found.a is found["a"]


def test_a_list_of_any_class_has_its_attributes_and_a_size_stays_one() -> None:
    given = Named([torch.ones(1)])
    given.name = "text"
    found = DtypeConverter("int8")({"list": given, "size": torch.Size([2, 3])})
    assert type(found["list"]) is Named and found["list"].name == "text"
    assert found["list"][0].dtype is torch.int8 and given[0].dtype is torch.float32
    assert found["size"] == torch.Size([2, 3]) and type(found["size"]) is torch.Size


FITS: list[tuple[Any, str, bool]] = [
    (70_000, "int16", False),
    (32_767, "int16", True),
    (2, "bool", False),
    (1e6, "float16", False),
    (0.1, "float16", True),
    (float("nan"), "int32", False),
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


WHOLE = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATING = ["float16", "float32", "float64", "bfloat16", "float8_e5m2", "float8_e4m3fn"]
FLOATING += ["float8_e5m2fnuz", "float8_e4m3fnuz"]
COMPLEX = ["complex64", "complex128"]
EDGES = [2**bits + step for bits in (0, 3, 7, 8, 15, 16, 24, 31, 32, 53) for step in (-1, 0, 1)]
EDGES += [2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
SOME_WHOLE = st.sampled_from(EDGES + [-edge for edge in EDGES[:-3]]) | st.integers(-(2**63), 2**63)
SOME_FLOATS = st.floats() | st.sampled_from(
    [0.5, -0.0, 240.0, 241.0, 448.0, 449.0, 57344.0, 57345.0, 65504.0, 65505.0, 3.5e38]
    + [math.inf, -math.inf]
)


def held(value: int | float, dtype: str) -> bool:
    """Whether a type holds a number, decided with Python's numbers, which have no limits."""
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return value in (0, 1)
    if dtype in WHOLE:
        info = torch.iinfo(kind)
        return math.isfinite(value) and value == int(value) and info.min <= value <= info.max
    if isinstance(value, float):
        infinite = torch.tensor(math.inf).to(kind).to(torch.complex128).real.isinf()
        return (
            abs(value) <= torch.finfo(kind).max
            or math.isnan(value)
            or (math.isinf(value) and bool(infinite))
        )
    result = torch.tensor([value], dtype=of(value)).to(kind).to(torch.complex128).real.item()
    return math.isfinite(result) and int(result) == value


def of(value: int | float) -> torch.dtype:
    if isinstance(value, float):
        return torch.float64
    return torch.int64 if value < 2**63 else torch.uint64


@given(
    st.tuples(st.sampled_from(WHOLE), SOME_WHOLE)
    | st.tuples(st.sampled_from(FLOATING), SOME_FLOATS | SOME_WHOLE.map(float)),
    st.sampled_from(["bool", *WHOLE, *FLOATING, *COMPLEX]),
    st.booleans(),
)
@example(("int64", -1), "uint64", True)
@example(("uint64", 2**63), "int64", False)
@example(("int64", 2**63 - 1), "float64", False)
@example(("float64", 2.0**63), "int64", False)
@example(("float64", 1e300), "complex64", False)
@example(("int64", 2**53 + 1), "complex128", True)
@example(("int8", 9), "float8_e5m2fnuz", False)
@example(("float64", 57345.0), "float8_e5m2fnuz", False)
@example(("float64", 448.0), "float8_e4m3fn", False)
@example(("float64", 449.0), "float8_e4m3fn", True)
@example(("float64", 65505.0), "float16", False)
@example(("float64", math.inf), "float8_e4m3fn", False)
def test_a_value_passes_exactly_if_the_new_type_holds_it(
    source: tuple[str, Any], dtype: str, beside: bool
) -> None:
    name, value = source
    assume(name in FLOATING or held(value, name))
    tensor = torch.tensor([value, 1][: 1 + beside], dtype=of(value)).to(getattr(torch, name))
    if name in FLOATING:
        value = tensor[0].double().item()
    samples: list[Any] = [tensor]
    if {name, dtype}.isdisjoint(FLOATING[3:]):
        samples.append(tensor.numpy())
    for sample in samples:
        if held(value, dtype):
            DtypeConverter(dtype)(sample)
        else:
            with pytest.raises(ValueError, match=f"{dtype} does not hold"):
                DtypeConverter(dtype)(sample)


@pytest.mark.parametrize("name", ["float", "int", "double", "half"])
def test_a_type_has_one_name_for_tensors_and_arrays(name: str) -> None:
    convert = DtypeConverter(name)
    assert str(convert(np.ones(1, np.uint8)).dtype) == str(convert(torch.ones(1)).dtype)[6:]


def test_lengths_and_orders_of_packed_sequences_stay() -> None:
    given = pack_sequence([torch.ones(3), torch.ones(2)])
    found = DtypeConverter("float16")(given)
    assert found.data.dtype is torch.float16 and torch.equal(found.batch_sizes, given.batch_sizes)
    assert found.batch_sizes.dtype is torch.int64


@dataclass(frozen=True)
class Counted:
    image: Any
    size: int = field(init=False)
    scale: InitVar[int] = 2

    def __post_init__(self, scale: int) -> None:
        object.__setattr__(self, "size", len(self.image) * scale)
        object.__setattr__(self, "image", torch.cat([self.image, self.image]))


def test_a_dataclass_is_not_made_a_second_time() -> None:
    given = Counted(torch.ones(3))
    found = DtypeConverter("float16")(given)
    assert found.size == 6 and found.image.shape == (6,) and found.image.dtype is torch.float16
    assert given.image.dtype is torch.float32


def test_a_tensor_whose_values_cannot_be_read_is_named() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(ValueError, match=r"batch\['edges'\] is a tensor whose values cannot"):
        DtypeConverter("float16")({"edges": sparse})
    assert DtypeConverter("float16", check=False)(sparse).dtype is torch.float16


@pytest.mark.parametrize(
    ("dtype", "fits", "wrong"),
    [
        ("int16", [5, -32_768, True, 7.0], [70_000, 0.5, float("nan"), 2**70, 1j]),
        ("uint64", [2**64 - 1], [2**64, -1]),
        ("uint8", [255], [256, -1]),
        ("bool", [0, 1.0], [2, 0.5]),
        ("float16", [0.1, 2048, float("inf")], [1e6, 2049, 1j]),
        ("bfloat16", [0.1, 1e38], [257, 3.4e38]),
        ("complex64", [1j, 0.1], [complex(1e39, 0)]),
    ],
)
def test_a_python_number_of_a_key_stays_one_if_the_type_holds_it(
    dtype: str, fits: list[Any], wrong: list[Any]
) -> None:
    small = KeyBasedDtypeConverter({"label": dtype})
    for number in fits:
        found = small({"label": number, "other": [1e9]})
        assert found["label"] is number and found["other"] == [1e9]
    for number in wrong:
        for nested, path in (
            (number, "batch['label']"),
            ([{"n": number}], "batch['label'][0]['n']"),
        ):
            with pytest.raises(ValueError) as raised:
                small({"label": nested})
            assert str(raised.value).startswith(f"{path} has the value ")
            assert f", which {dtype} does not hold" in str(raised.value)
        assert KeyBasedDtypeConverter({"label": dtype}, check=False)({"label": number}) is not None
    assert DtypeConverter(dtype)({"label": wrong}) == {"label": wrong}, "all else has no key"


def test_a_key_that_no_batch_has_is_an_error() -> None:
    with pytest.raises(ValueError, match="'lable', and the batch has no such key"):
        KeyBasedDtypeConverter({"lable": "int16"})({"label": torch.ones(1)})
    KeyBasedDtypeConverter({"lable": "int16"}, check=False)({"label": torch.ones(1)})


@pytest.mark.parametrize(
    "dtype", ["no type", "nn", "float17", object, "qint8", None, "float8_e8m0fnu"]
)
def test_a_type_that_torch_lacks_is_refused_at_once(dtype: Any) -> None:
    with pytest.raises(ValueError, match="number type of torch's"):
        DtypeConverter(dtype)


@pytest.mark.parametrize("parts", [(math.nan, 1e300), (1e300, math.nan), (math.inf, -1e300)])
def test_each_part_of_a_complex_number_has_to_fit(parts: tuple[float, float]) -> None:
    for sample in (
        torch.tensor([complex(*parts)], dtype=torch.complex128),
        np.array([complex(*parts)]),
    ):
        with pytest.raises(ValueError, match="complex64 does not hold"):
            DtypeConverter("complex64")(sample)
        DtypeConverter("complex64", check=False)(sample)


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
