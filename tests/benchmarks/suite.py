"""All workloads, in the order of the table."""

from __future__ import annotations

from collections.abc import Sequence

from . import feedback, native, ranks, saving, sizes, skew, starting, streaming, throughput
from .workload import Workload

__all__ = ["WORKLOADS", "choose"]

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for module in (throughput, skew, saving, feedback, streaming, starting, sizes, ranks, native)
    for workload in module.WORKLOADS
}


def choose(only: Sequence[str], quick: bool) -> list[Workload]:
    """The workloads that are asked for; all of them if none is.

    Args:
        only: names.
        quick: leave out what is heavy, unless it is named.

    Raises:
        ValueError: there is no workload of that name.
    """
    unknown = [name for name in only if name not in WORKLOADS]
    if unknown:
        raise ValueError(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if only:
        return [WORKLOADS[name] for name in WORKLOADS if name in only]
    return [workload for workload in WORKLOADS.values() if not (quick and workload.heavy)]
