"""Lightning Fabric, and any loop whose checkpoint one rank writes for all: loaders as one entry."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist

from ..epoch.options import AtEpochEnd
from ..errors import UsageError
from ..loader.loader import DataLoader
from ..loader.setup import spec_of
from ..rng.process_rank import has_group, rank_and_world
from ..rng.program import ProgramStates, capture_program
from ..saving.states.merge import merge_states


class LoaderStates:
    """The loaders of all ranks, and the program's generators, as one entry of a checkpoint.

    ``fabric.save(path, {"model": model, "loaders": LoaderStates(train_loader)})`` and
    ``fabric.load`` call `state_dict` and `load_state_dict` on every rank. Tried with Fabric 2.6.6.

    Args:
        loaders: what ``fabric.setup_dataloaders`` has returned, or loaders themselves.
        rng: False: without the program's generators.

    Raises:
        UsageError: one of them is no `DataLoader` of this package.
    """

    def __init__(self, *loaders: Any, rng: bool = True) -> None:
        self._loaders: list[DataLoader[Any]] = [_checked(each) for each in loaders]
        self._rng = rng

    def state_dict(self, behind: int = 0) -> dict[str, Any]:
        """The states of all ranks; a collective operation.

        Args:
            behind: see `DataLoader.state_dict`.

        Returns:
            A plain dict: ``{"ranks": [{"loaders": [...], "program": {...}}, ...]}``.

        Raises:
            CannotSaveError, UsageError: see `DataLoader.state_dict`.
        """
        return self._of_all_ranks(behind, capture_program() if self._rng else None)

    def _of_all_ranks(self, behind: int, program: dict[str, Any] | None) -> dict[str, Any]:
        mine = {
            "loaders": [loader.state_dict(behind=behind) for loader in self._loaders],
            "program": program,
        }
        ranks = [mine]
        if has_group():
            ranks = [mine] * dist.get_world_size()
            dist.all_gather_object(ranks, mine)
        return {"ranks": ranks}

    def load_state_dict(self, state: dict[str, Any], *, epoch_over: bool | None = None) -> None:
        """Have this rank's loaders go on, and put its generators back.

        Args:
            state: what `state_dict` has returned.
            epoch_over: the program has ended its epoch, whether or not each loader has: the next
                ``iter`` begins one. None: ``at_epoch_end`` of each loader decides.

        Raises:
            StateError: see `DataLoader.load_state_dict`.
            UsageError: there were other loaders; or another number of ranks, and a loader has no
                ``shard=``; or the generators were not saved (``rng=False``).
        """
        ranks, (rank, world) = state["ranks"], rank_and_world()
        if len(self._loaders) != (found := len(ranks[0]["loaders"])):
            raise UsageError(f"the checkpoint has {found} loaders, here are {len(self._loaders)}")
        choice: AtEpochEnd | None = "next" if epoch_over else None if epoch_over is None else "stop"
        program, own_states = None, []
        if self._rng and world == len(ranks):
            if ranks[rank]["program"] is None:
                raise UsageError(
                    "the checkpoint has no generators of the program, as it was saved by "
                    "LoaderStates(..., rng=False): load it with rng=False as well"
                )
            program = ProgramStates(ranks[rank]["program"])
        for at, loader in enumerate(self._loaders):
            states = [each["loaders"][at] for each in ranks]
            own = states[rank] if world == len(states) else None
            if loader._pl.options.shard is not None:
                own = of_this_rank(loader, own, partial(list, states))
            if own is None:
                raise UsageError(
                    f"the checkpoint was saved by {len(states)} ranks, here are {world}. Resume "
                    'with as many, or share the data by DataLoader(..., shard="auto"), whose '
                    "states fit any number"
                )
            own_states.append(own)
        for loader, own in zip(self._loaders, own_states, strict=True):
            loader.load_state_dict(own, at_epoch_end=choice)
            if epoch_over and loader._at()[1]:
                iter(loader)  # the pass that was left in its middle
        if program is not None:
            program.restore()


def of_this_rank(
    loader: DataLoader[Any],
    own: dict[str, Any] | None,
    every: Callable[[], list[dict[str, Any]]],
) -> dict[str, Any]:
    """The state from which a rank of a loader with ``shard=`` goes on.

    Args:
        loader: this rank's.
        own: the state of the process of this number; None: there were more or fewer.
        every: gives the states of all processes. Those of a mesh may outnumber the shares.

    Raises:
        RanksError: see `merge_states`.
    """
    here = spec_of(loader).rank
    if own is not None and _share(own) in (None, here):  # None: of all ranks
        return own
    states = every()
    once = {(_share(each), each["step"]): each for each in states if _share(each)}
    ours = [state for (share, _), state in once.items() if share == here]
    return ours[0] if ours else merge_states([*once.values()] or states)


def _share(state: dict[str, Any]) -> tuple[int, ...] | None:
    """The rank that a state is for, and the number of ranks; None: it is for all."""
    rank = state.get("rank")
    return None if rank is None else tuple(rank)


def _checked(given: Any) -> DataLoader[Any]:
    loader = getattr(given, "_dataloader", given)  # as Fabric has wrapped it
    if type(loader).__name__ == "_FabricDataLoader":
        raise UsageError(
            "LoaderStates was tried with Fabric 2.6.6. This version's loaders have no _dataloader: "
            "install that one, or a newer picklable_loader"
        )
    if not isinstance(loader, DataLoader):
        kind = f"{type(loader).__module__}.{type(loader).__qualname__}"
        raise UsageError(
            f"a {kind} has no state that is exact: make it a picklable_loader.DataLoader"
        )
    return loader
