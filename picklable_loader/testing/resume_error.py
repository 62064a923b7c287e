"""A resume that differs: the error that says what, where, and why that usually happens."""

from __future__ import annotations

from dataclasses import dataclass

from .compare import difference
from .recorder import Trace


@dataclass(eq=False, repr=False)
class ResumeError(AssertionError):
    """A resumed loader did not go on as the uninterrupted one.

    Attributes:
        where: at which step, epoch, codec and worker count it was saved and resumed.
        what: what differed first: ``"repeatability"``, ``"order"``, ``"content"``, ``"length"``,
            ``"state"`` or ``"codec"``.
        difference: the first difference, expected and found.
        why: why that usually happens, and what to do.
    """

    where: str
    what: str
    difference: str
    why: str

    def __post_init__(self) -> None:
        self.args = self.where, self.what, self.difference, self.why

    def __str__(self) -> str:
        return f"{self.what} differs, {self.where}:\n  {self.difference}\n{self.why}"


BUG = "This is a bug of picklable_loader: please report it."
CODEC = (
    "The codec itself cannot load what it has saved. Leave it out with codecs=, and do not use it "
    "for these classes."
)
ORDER = (
    "The samples come in another order. Usually the sampler seeds itself anew (from the clock or "
    "the operating system) in __iter__, has a state_dict or a load_state_dict that forgets its "
    "position, or keeps state in an object that cannot be replayed. Pass seed= to the DataLoader, "
    "give the sampler a generator of its own, or give its iterator state_dict and load_state_dict."
)
CONTENT = (
    "The indices are the same, the samples are not. Usually the dataset draws from a generator "
    "that the loader does not know of (a numpy Generator, a library's own): seed it from "
    "picklable_loader.current_seed(), or register seed_hooks=. Or it keeps something from sample "
    "to sample (a counter, a cache): compute it from the index instead. Or it looks at the "
    "worker's number. Or the values are next to equal: torch computes in several threads in this "
    "process and in one thread in a worker, which rounds otherwise; call torch.set_num_threads(1). "
    "Or it goes through a set, which has another order in another process or after a pickle: sort "
    "it. Or a stream finds its position by reading again in its first next(), behind the batch's "
    "seed: read again within load_state_dict, or within iter()."
)
LENGTH = (
    "The epoch has another number of batches. Usually the sampler's iteration depends on something "
    "that is not saved, or its state_dict counts what was drawn ahead."
)


def compare_runs(expected: list[Trace], found: list[Trace], where: str) -> None:
    for epoch, (one, other) in enumerate(zip(expected, found)):
        try:
            compare(one, other, f"{where}, epoch {epoch}")
        except ResumeError as error:
            raise ResumeError(error.where, "repeatability", error.difference, error.why) from None


def compare(expected: Trace, found: Trace, where: str) -> None:
    for step, ((indices, batch), (other_indices, other)) in enumerate(zip(expected, found)):
        place = f"{where}, {step} batches later"
        unlike = difference(indices, other_indices, "indices")
        if unlike:
            raise ResumeError(place, "order", unlike, ORDER)
        unlike = difference(batch, other, "batch")
        if unlike:
            raise ResumeError(place, "content", unlike, CONTENT)
    if len(expected) != len(found):
        unlike = f"expected {len(expected)} batches, found {len(found)}"
        raise ResumeError(where, "length", unlike, LENGTH)
