"""Arrays and tensors as values of a state, rebuilt from a description that is checked.

A description names each type by NumPy's own short name, ``"<i8"``. So no array is of objects, and
no module is imported by a name in it.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import Any

import numpy as np
import torch


class NotPlain(TypeError):
    """A value that no state can hold."""


#: The types of tensors that pickle can read again. Torch 2.13 writes others (uint16, float8), too.
READABLE = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
}  # fmt: skip
#: by their bytes a number, the types of whole numbers that replace the others
_BY_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def encode_array(array: Any) -> Any:
    with suppress(TypeError):  # numbers that torch has not
        if array.dtype.kind in "biufc" and array.dtype.isnative:
            tensor = torch.from_numpy(array.copy())
            if tensor.dtype in READABLE:
                return tensor
    if array.dtype.hasobject or array.dtype.kind not in "biufcSUMmV":
        raise NotPlain(f"an array of {array.dtype}")
    described = _encode_dtype(array.dtype)
    if decode_dtype(described) != array.dtype:
        raise NotPlain(f"an array of {array.dtype}")
    return [described, list(array.shape), b64encode(array.tobytes()).decode()]


def decode_array(form: Any) -> Any:
    if type(form) is torch.Tensor:
        return whole(form).detach().numpy().copy()
    name, shape, data = form
    array = np.frombuffer(b64decode(data, validate=True), decode_dtype(name))
    return array.reshape(_counts(shape)).copy()


def encode_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    """The fields of its form: ``value``, and where needed ``dtype`` and ``requires_grad``.

    A tensor of a type that pickle cannot read becomes whole numbers with the same bytes: one of
    uint16 is ``{"value": <int16 tensor>, "dtype": "uint16"}``.
    """
    form: dict[str, Any] = {"requires_grad": True} if tensor.requires_grad else {}
    try:
        made = whole(tensor.detach().resolve_conj().resolve_neg().clone())
        if made.dtype not in READABLE:
            form["dtype"] = str(made.dtype).removeprefix("torch.")
            made = made.view(_BY_SIZE[made.itemsize])
    except ValueError as error:
        raise NotPlain(str(error)) from None
    except RuntimeError as error:  # a quantized one, for example
        raise NotPlain(f"a tensor that cannot be copied ({error})") from None
    return {"value": made, **form}


def decode_tensor(form: dict[str, Any]) -> torch.Tensor:
    """The tensor of such a form, which may be damaged (SYMPTOMS); shares nothing with it."""
    if type(form["value"]) is not torch.Tensor:
        raise TypeError("no tensor")
    made, wants_grad = whole(form["value"]).detach().clone(), form.get("requires_grad", False)
    if "dtype" in form:
        made = made.view(TORCH_DTYPES[form["dtype"]])
    if type(wants_grad) is not bool:
        raise TypeError("a tensor requires a gradient, or not")
    return made.requires_grad_(wants_grad)


# --- types ---------------------------------------------------------------------------------------


def _encode_dtype(dtype: np.dtype[Any]) -> Any:
    """Its name; for records, each field's name, offset and type, and the size of all."""
    if dtype.fields is not None:
        named = [(name, *dtype.fields[name][:2]) for name in dtype.names or ()]
        fields = [[name, offset, _encode_dtype(kind)] for name, kind, offset in named]
        return {"fields": fields, "size": dtype.itemsize}
    if dtype.subdtype is not None:
        return [_encode_dtype(dtype.subdtype[0]), list(dtype.subdtype[1])]
    if not _DTYPE.fullmatch(dtype.str):
        raise NotPlain(f"an array of {dtype}")
    return dtype.str


#: numbers, text, bytes and times, as numpy writes their types: "<i8", "<U3", "<M8[ns]"
_DTYPE = re.compile(r"[<>|]([biufcSUV][0-9]{1,9}|[mM]8(\[[0-9]{0,9}[a-zA-Z]{1,8}\])?)")


def decode_dtype(form: Any) -> np.dtype[Any]:
    """The type of a description; every name in it is one of `_DTYPE`."""
    if type(form) is str and _DTYPE.fullmatch(form):
        return np.dtype(form)
    if type(form) is list:
        kind, shape = form
        return np.dtype((decode_dtype(kind), _counts(shape)))
    if type(form) is not dict:
        raise ValueError(f"no array is of {form!r}")
    names, offsets, kinds = map(list, zip(*form["fields"], strict=True))
    formats, (size,) = [decode_dtype(kind) for kind in kinds], _counts([form["size"]])
    ends = [at + each.itemsize for at, each in zip(_counts(offsets), formats, strict=True)]
    if max(ends) > size or {type(name) for name in names} != {str}:
        raise ValueError(f"no record of {size} bytes has fields up to {max(ends)}")
    made: Any = {"names": names, "offsets": offsets, "formats": formats, "itemsize": size}
    found: np.dtype[Any] = np.dtype(made)
    return found


def _counts(numbers: Any) -> tuple[int, ...]:
    if type(numbers) is not list or any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"no sizes: {numbers!r}")
    return tuple(numbers)


#: by name; getattr of torch would import modules
TORCH_DTYPES: dict[str, torch.dtype] = {
    name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)
}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that has memory for each of its numbers: 2**40 of them may be views of one."""
    dense = tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested)
    if not dense or tensor.device.type == "meta":
        raise ValueError("a tensor that is sparse, quantized, nested, or without data")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError("a tensor of more numbers than it has memory for")
    return tensor


def bytes_of(tensor: torch.Tensor) -> bytes:
    """The numbers of a dense tensor on any device, one after the other."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()
