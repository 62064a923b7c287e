"""torch.distributed.checkpoint (DCP): loaders in checkpoints that all ranks write together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..loader.loader import DataLoader
from ..loader.setup import spec_of
from ..rng.process_rank import rank_and_world
from ..saving.states.state_json import from_json, to_json

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class LoaderState:
    """A loader as DCP's ``Stateful``: ``dcp.save({"loader": LoaderState(loader)})``.

    DCP loads the keys that the loading program already has. The keys of a loader's state differ
    from step to step, so here the state is one value, as JSON. With ``shard=`` it is that of all
    ranks (`DataLoader.gather_state_dict`), and any number of ranks can load it. So can they with
    torch's ``DistributedSampler``, if the loader has ``seed=`` and delivers in order, and if the
    dataset has no state. Otherwise each rank has a value of its own, and as many ranks must load
    them. Tried with torch 2.13.

    Args:
        loader: its newest iterator is saved; the next ``iter`` goes on from what is loaded.
        group: see `DataLoader.gather_state_dict`.

    Raises:
        TypeError: it is no loader of this package.
    """

    def __init__(self, loader: DataLoader[Any], group: ProcessGroup | None = None) -> None:
        if not isinstance(loader, DataLoader):
            raise TypeError(
                "LoaderState takes a DataLoader of picklable_loader, got a "
                f"{type(loader).__qualname__}. Of an iterator, pass its loader: the state is that "
                "of the newest iterator"
            )
        self._loader = loader
        self._group = group

    def state_dict(self) -> dict[str, str]:
        """The state, as one value; a collective operation with ``shard=``.

        Returns:
            For example ``{"of all ranks": "{...}"}`` or ``{"of rank 0 of 2": "{...}"}``.

        Raises:
            CannotSaveError, RanksError, UsageError: see `DataLoader.gather_state_dict`.
        """
        shared = self._loader._pl.options.shard is not None
        state = self._loader.gather_state_dict(self._group) if shared else self._loader.state_dict()
        return {self._key: to_json(state)}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Have the next ``iter`` go on from what `state_dict` has returned.

        Raises:
            StateError: see `DataLoader.load_state_dict`.
        """
        self._loader.load_state_dict(from_json(state[self._key]))

    @property
    def _key(self) -> str:
        if self._is_one_for_all:
            return "of all ranks"
        rank, world = rank_and_world()
        return f"of rank {rank} of {world}"

    @property
    def _is_one_for_all(self) -> bool:
        """DCP saves one rank's value of a key: may all ranks have that one?"""
        spec = spec_of(self._loader)
        if spec.shared:
            return True
        # Without seed=, each rank draws from its own generators.
        alike = spec.options.seed is not None and spec.options.seeding != "worker"
        return spec.is_distributed and alike and spec.in_order and not spec.streamed
