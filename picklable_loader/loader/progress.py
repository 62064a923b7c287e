"""A tqdm bar over a pass, which begins at the pass's own step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from ..errors import UsageError
from .iterator import LoaderIterator
from .loader import DataLoader
from .setup import batches_of

_T = TypeVar("_T")


def progress(
    over: LoaderIterator[_T] | DataLoader[_T], bar: type[Any] | None = None, **options: Any
) -> Any:
    """A tqdm bar over a pass: it begins at the pass's step, and ends at the epoch's length.

    It counts steps, and not what comes out: after a resume it begins where the pass was saved, and
    batches that have lost all of their samples (``on_error``), or were passed over (``skip``),
    count.

    Args:
        over: an iterator; or a loader, the next pass of which is begun.
        bar: tqdm's class, or one derived from it. None: ``tqdm.auto``, which is a widget in
            notebooks that have ipywidgets, and text elsewhere.
        options: of that class, such as ``desc``; ``initial`` and ``total`` are known here.

    Returns:
        The bar, to be iterated; an instance of ``bar``.

    Raises:
        UsageError: tqdm is not installed.
        TypeError: it is neither a loader nor an iterator of this package.
    """
    kind = _tqdm() if bar is None else bar
    if not isinstance(over, (LoaderIterator, DataLoader)):
        raise TypeError(
            f"progress() goes over a DataLoader of picklable_loader or its iterator, got a "
            f"{type(over).__qualname__}; for anything else call tqdm itself"
        )
    iterator = iter(over)
    known = {"initial": iterator.step, "total": batches_of(iterator.loader)}
    return _counting_steps(kind)(iterator, **{**known, **options})


progress.__module__ = "picklable_loader"  # pickles hold this name


def _tqdm() -> type[Any]:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise UsageError(
            "progress() needs tqdm, which is not installed: "
            "pip install 'picklable-loader[progress]'"
        ) from None
    return tqdm  # type: ignore[no-any-return]


def _counting_steps(kind: type[Any]) -> type[Any]:
    """A kind of bar that shows its iterator's step."""

    class Steps(kind):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            try:
                for batch in self.iterable:
                    # As tqdm does it, a batch counts when the next one is asked for.
                    yield batch
                    self.update(self.iterable.step - self.n)
                self.update(self.iterable.step - self.n)
            finally:
                self.close()

    Steps.__name__, Steps.__qualname__ = kind.__name__, kind.__qualname__
    return Steps
