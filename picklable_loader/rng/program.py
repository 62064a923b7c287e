"""The program's own generators, as a part of a state that is put back only on request."""

from __future__ import annotations

from typing import Any

import torch

from ..core.fields import check_fields
from ..errors import SYMPTOMS, DamagedStateError, Difference, StateMismatch, UsageError
from .generators import (
    RNGS,
    Isolated,
    capture_all,
    generator_to_text,
    restore_all,
    states_from_text,
    states_to_text,
)
from .process_rank import rank_and_world
from .text import unpack_words


def capture_program() -> dict[str, Any]:
    """The states of the program's generators: torch's, NumPy's, Python's, and each CUDA device's.

    Returns:
        A plain dict, for example ``{"torch": "low:...", ..., "cuda": [], "rank": [0, 1]}``.
    """
    with Isolated.undone():
        found: dict[str, Any] = states_to_text(capture_all())
    used = torch.cuda.is_initialized()
    cuda = [generator_to_text(each) for each in torch.cuda.default_generators] if used else []
    return {**found, "cuda": cuda, "rank": [*rank_and_world()]}


class ProgramStates:
    """Saved states of the program's generators, checked; `restore` puts them back.

    Args:
        saved: what `capture_program` has given; None if a state has none.

    Raises:
        UsageError: there are none.
        StateMismatch: they are another rank's, or of another number of CUDA devices.
        DamagedStateError: one of them is no state.
    """

    def __init__(self, saved: Any) -> None:
        if saved is None:
            raise UsageError(
                "restore_rng=True needs the program's random number generators, which are not in "
                "what was saved: save it with save_rng=True. A state of all ranks, from "
                "merge_states or gather_state_dict, has none, as each rank has its own: save "
                "those next to it, for each rank"
            )
        if type(saved) is not dict or saved.keys() != {*RNGS, "cuda", "rank"}:
            raise DamagedStateError("program", f"{[*RNGS, 'cuda', 'rank']}", saved)
        check_fields(saved, "program", "program.")
        if saved["rank"] != (here := [*rank_and_world()]):
            unlike = Difference("rank", here, saved["rank"])
            raise StateMismatch([unlike], "Each rank has generators of its own: save one a rank.")
        self._states = states_from_text({name: saved[name] for name in RNGS})
        try:
            self._cuda = [torch.tensor([*unpack_words(text)]).byte() for text in saved["cuda"]]
        except SYMPTOMS:
            raise DamagedStateError("program.cuda", "states", saved["cuda"]) from None
        if self._cuda and len(self._cuda) != (devices := torch.cuda.device_count()):
            unlike = Difference("CUDA devices", devices, len(self._cuda))
            raise StateMismatch([unlike], "Pass restore_rng=False, and seed the generators.")

    def restore(self) -> None:
        """Put the program's generators at the saved states."""
        with Isolated.turn:
            restore_all(self._states)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
