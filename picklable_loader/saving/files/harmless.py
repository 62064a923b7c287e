"""Names that torch's safe reader builds by itself, from 2.6 on: values, and nothing else."""

from __future__ import annotations

import torch

_STORAGES = {f"{kind.__module__}.{kind.__name__}" for kind in torch._storage_classes}
_DTYPES = {f"torch.{name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)}

#: module and name
BUILT_BY_TORCH = (
    _STORAGES
    | _DTYPES
    | set(
        "_codecs.encode builtins.bytearray builtins.complex builtins.set collections.Counter "
        "collections.OrderedDict torch.Size torch.Tensor torch._tensor._rebuild_from_type_v2 "
        "torch._utils._rebuild_parameter torch._utils._rebuild_qtensor torch.device "
        "torch._utils._rebuild_sparse_tensor torch._utils._rebuild_tensor_v2 "
        "torch.nn.parameter.Parameter torch.serialization._get_layout".split()
    )
)
