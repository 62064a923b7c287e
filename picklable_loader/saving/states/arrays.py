"""NumPy's arrays as values of a state, rebuilt from a description that is checked.

A description names each type by NumPy's own short name, ``"<i8"``. So no array is of objects, and
no module is imported by a name in it.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from typing import Any

import numpy as np
import torch


class NotPlain(TypeError):
    """A value that no state can hold."""


def encode_array(array: Any) -> Any:
    try:
        if array.dtype.kind in "biufc" and array.dtype.isnative:
            return torch.from_numpy(array.copy())
    except TypeError:  # numbers that torch has not
        pass
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
