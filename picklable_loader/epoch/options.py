"""The arguments of our loader beyond torch's, as one frozen value that is checked once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import torch

from ..core.checks import check_choice, whole_number
from ..core.seeds import Seeding
from ..core.shard import Tail
from ..fetching.worker.hooks import WorkerStart
from ..fetching.worker.on_error import OnError
from ..saving.pickles.codecs import Codec
from ..saving.pickles.stock import STOCK, check_installed
from .ranks import check_shard

OnTimeout = Literal["raise", "restart"]
Scheduling = Literal["balanced", "round_robin"]
SeedDataset = Literal["auto", "off"] | Callable[[Any, int], object]
AtEpochEnd = Literal["stop", "next"]
Transport = Literal["auto", "arena", "portable"]
CodecWish = Literal["auto", "pickle", "cloudpickle", "dill"] | Codec


@dataclass(frozen=True)
class Options:
    """The arguments of `DataLoader` that torch does not have; see there.

    Raises:
        ValueError: a value is not one of those allowed, or two exclude each other.
        TypeError: a value has the wrong type.
    """

    seed: int | None = None
    seeding: Seeding = "batch"
    schedule: Scheduling | None = None
    seed_hooks: tuple[Callable[[int], object], ...] = ()
    seed_dataset: SeedDataset = "auto"
    at_epoch_end: AtEpochEnd = "stop"
    transport: Transport = "auto"
    prefetch_budget: int | Literal["auto"] | None = None
    prefetch_bytes: int | str | None = None
    num_streams: int | None = None
    snapshot_every_n_steps: int | Literal["auto"] = "auto"
    max_task_deaths: int = 3
    on_timeout: OnTimeout = "raise"
    on_error: OnError = "raise"
    codec: CodecWish = "auto"
    pickle_dataset: bool = True
    pickle_mapped: bool = True
    shard: Any = None
    shard_tail: Tail = "pad"
    remember: int = 1
    with_state: bool = False
    worker_init_fn_arg: Callable[[WorkerStart], Any] | None = None
    worker_exit_fn: Callable[[int], object] | None = None
    convert: Callable[[Any], Any] | None = None
    to_device: Any = None
    device_prefetch: int = 2
    device_convert: Callable[[Any], Any] | None = None

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Options:
        """The options of a pickled loader; it needs no codec here to go on."""
        options = object.__new__(cls)
        # An earlier version has saved fewer, and did not seed datasets.
        vars(options).update({**_DEFAULTS, "seed_dataset": "off", **saved})
        return options

    def changed(self, name: str, value: Any, persistent: bool) -> Options:
        """The options after one has been set; ``persistent`` workers live, with the old value.

        Raises:
            ValueError, TypeError: see `Options`; or the option may not be set any more.
        """
        value = tuple(value) if name == "seed_hooks" else value
        if value == getattr(self, name):
            return self
        if name in _FIXED:
            raise ValueError(
                f"{name} decides the order of the data: it should not be set after the loader was "
                "built. Build a new loader, and load the state into it if there is one"
            )
        if persistent and name not in _OF_THE_MAIN_PROCESS:
            raise ValueError(
                f"{name} should not be set while persistent workers live, which were started with "
                "the old value: set it before the first iter, or build a new loader"
            )
        return replace(self, **{name: value})

    def other_batches(self, now: Options) -> list[str]:
        """The names of options with another value now, on which batches depend."""
        names = OPTIONS - _OF_NO_BATCH
        return sorted(name for name in names if getattr(now, name) != getattr(self, name))

    def __post_init__(self) -> None:
        if self.seed is not None:
            object.__setattr__(self, "seed", whole_number("seed", self.seed))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        check_budget(self.prefetch_budget)
        count_bytes(self.prefetch_bytes)
        if self.num_streams is not None:
            whole_number("num_streams", self.num_streams, 1)
        self._check_callable("on_error", ("raise", "skip"), "the exception and the index")
        takes = "the dataset of a process and a seed"
        self._check_callable("seed_dataset", ("auto", "off"), takes)
        check_codec(self.codec)
        every = self.snapshot_every_n_steps
        if every != "auto":
            whole_number("snapshot_every_n_steps", every, 0)
        whole_number("max_task_deaths", self.max_task_deaths, 0)
        whole_number("remember", self.remember, 1)
        whole_number("device_prefetch", self.device_prefetch, 0)
        check_device(self.to_device)
        if self.on_timeout == "restart" and not self.max_task_deaths:
            raise ValueError(
                'on_timeout="restart" needs max_task_deaths from 1: with 0 no worker is replaced'
            )
        object.__setattr__(self, "shard", check_shard(self.shard))
        self._check_seeding()
        self._check_hooks()

    @property
    def by_value(self) -> bool:
        """Classes of ``__main__`` go along in pickles: the codec that was chosen writes them."""
        return not isinstance(self.codec, str) or self.codec in STOCK[1:]

    def _check_callable(self, name: str, texts: tuple[str, str], takes: str) -> None:
        """Raise ValueError unless an option is one of two texts, or a callable that takes that."""
        if not callable(found := getattr(self, name)) and found not in texts:
            one, other = texts
            raise ValueError(
                f'{name} should be "{one}", "{other}" or a callable that takes {takes}, got '
                f"{name}={found!r}"
            )

    def _check_hooks(self) -> None:
        for name in ("worker_init_fn_arg", "worker_exit_fn", "convert", "device_convert"):
            if not callable(found := getattr(self, name)) and found is not None:
                raise TypeError(f"{name} should be a callable or None, got {found!r}")
        hooks: Iterable[Any] = self.seed_hooks
        for hook in hooks:
            if not callable(hook):
                raise TypeError(f"seed_hooks should hold callables, got {hook!r}")

    def _check_seeding(self) -> None:
        if self.seeding == "worker" and self.shard is not None:
            raise ValueError(
                'seeding="worker" cannot be combined with shard=: a state would hold the random '
                'numbers of one rank\'s workers. Use seeding="batch" or "sample"'
            )
        if self.seeding == "worker" and self.num_streams is not None:
            raise ValueError(
                'seeding="worker" has one stream for each worker: num_streams cannot be given'
            )
        if self.seeding == "worker" and self.schedule == "balanced":
            raise ValueError(
                'seeding="worker" needs schedule="round_robin": a worker\'s random numbers run on '
                "from batch to batch, so that each batch must stay with its worker"
            )


_DEFAULTS = {field.name: field.default for field in fields(Options)}
#: names of all options
OPTIONS = frozenset(_DEFAULTS)

_CHOICES = {
    "seeding": get_args(Seeding),
    "schedule": (*get_args(Scheduling), None),
    "at_epoch_end": get_args(AtEpochEnd),
    "transport": get_args(Transport),
    "with_state": (False, True),
    "on_timeout": get_args(OnTimeout),
    "shard_tail": get_args(Tail),
}

#: states and the source of random numbers depend on them from the first epoch on
_FIXED = ("seed", "num_streams")

#: no worker is started with them
_OF_THE_MAIN_PROCESS = (
    *("at_epoch_end", "codec", "pickle_dataset", "pickle_mapped"),
    *("remember", "with_state", "worker_init_fn_arg"),
    *("to_device", "device_prefetch", "device_convert"),
)

#: batches do not depend on them
_OF_NO_BATCH = {
    *("schedule", "at_epoch_end", "transport", "prefetch_budget", "prefetch_bytes", "remember"),
    *("snapshot_every_n_steps", "max_task_deaths", "on_timeout", "worker_exit_fn"),
    *("codec", "pickle_dataset", "pickle_mapped", "to_device", "device_prefetch"),
}


def check_budget(budget: Any) -> None:
    """Raise ValueError or TypeError unless it is "auto", None, or a whole number from 1."""
    if budget in ("auto", None):
        return
    if isinstance(budget, str):
        raise ValueError(f'prefetch_budget should be "auto" or from 1, got {budget!r}')
    whole_number("prefetch_budget", budget, 1)


def check_device(device: Any) -> None:
    """Raise ValueError or TypeError unless it is None or one that ``torch.device`` takes."""
    if device is None:
        return
    try:
        if isinstance(device, bool):
            raise TypeError
        torch.device(device)
    except (RuntimeError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            'to_device should be a torch.device, its name such as "cuda:0", or None, got '
            f"{device!r}"
        ) from None


def check_codec(codec: Any) -> None:
    """Raise ValueError or TypeError unless it is one, or its name; UsageError if it is missing."""
    if isinstance(codec, type):
        raise TypeError(f"codec should be an instance, got the class {codec.__qualname__}")
    if isinstance(codec, str) or not all(
        callable(getattr(codec, name, None)) for name in ("dumps", "loads")
    ):
        check_choice("codec", codec, ("auto", *STOCK))
        if codec in STOCK:
            check_installed(codec)


def count_bytes(text: Any) -> int | None:
    """The bytes that ``prefetch_bytes`` asks for: a number or text such as "512MiB"; None for None.

    Raises:
        ValueError: it is negative, or no such text.
        TypeError: it is neither.
    """
    if text is None:
        return None
    if isinstance(text, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B\s*", text, re.IGNORECASE)
        if found is None:
            raise ValueError(f'prefetch_bytes should be like "512MiB", got {text!r}')
        number, prefix, binary = found.groups()
        base = 1024 if binary else 1000
        return int(float(number) * base ** "_KMGT".index(prefix.upper() or "_"))
    return whole_number("prefetch_bytes", text, 0)
