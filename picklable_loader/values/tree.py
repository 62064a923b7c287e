"""Tree: a state as somebody gives it, looked through before anything else is done with it.

A state is JSON and tensors. Torch's safe reader builds more than that (bytearrays, parameters,
ordered dicts), and other programs' dicts hold anything; all of it is refused here, by its exact
type, before something is copied, compared or called.
"""

from __future__ import annotations

from typing import Any

import torch

from ..arrays import whole
from ..errors import DamagedStateError
from ..plain import DEEPEST, SCALARS

__all__ = ["copied"]


def copied(state: Any) -> Any:
    """A copy of a state as somebody gives it, made of plain containers, numbers, text and tensors.

    It takes time in proportion to what is there, whatever stands within what.

    Raises:
        DamagedStateError: something else is in it; a part of it stands in two places; or it is
            nested too deep. The text names the path.
    """
    root: list[Any] = [None]
    seen: set[Any] = set()
    waiting: list[tuple[Any, Any, Any, Any, int]] = [(state, root, 0, None, 0)]
    while waiting:
        part, owner, place, path, level = waiting.pop()
        kind = type(part)
        if kind in SCALARS:
            owner[place] = part
            continue
        if kind not in (dict, list, torch.Tensor):
            raise DamagedStateError(_text(path), "a plain value", part)
        if level > DEEPEST:
            raise DamagedStateError(_text(path), f"nested {DEEPEST} levels deep at most", part)
        identity = _identity(part, path) if kind is torch.Tensor else id(part)
        if identity in seen:
            raise DamagedStateError(_text(path), "a part that stands in one place only", part)
        seen.add(identity)
        if kind is torch.Tensor:
            owner[place] = part.detach().clone()
        elif kind is list:
            owner[place] = made = [None] * len(part)
            waiting += [(p, made, at, (path, at), level + 1) for at, p in enumerate(part)]
        elif set(map(type, part)) <= {str}:
            owner[place] = named = dict.fromkeys(part)
            waiting += [(p, named, name, (path, name), level + 1) for name, p in part.items()]
        else:
            raise DamagedStateError(_text(path), "a dict whose keys are text", part)
    return root[0]


def _identity(tensor: torch.Tensor, path: Any) -> Any:
    """What two tensors have in common that share memory."""
    try:
        whole(tensor)
    except ValueError as error:
        raise DamagedStateError(_text(path), f"no {error}", tuple(tensor.shape)) from None
    return "storage", tensor.untyped_storage().data_ptr() or id(tensor)


def _text(path: Any) -> str:
    """A path, given as a name and, before it, the path of what has it."""
    names: list[str] = []
    while path is not None:
        path, name = path
        names.append(f"[{name}]" if type(name) is int else f".{name}"[:80])
    return "".join(reversed(names)).lstrip(".")[:200] or "state"
