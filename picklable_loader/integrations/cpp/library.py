"""Libraries of bound classes, as modules that other processes can import, too.

The classes of a script or a notebook are in ``__main__``, which is another module in each process.
Pickles name such a class by a module ``...cpp.library_tiles_2f726f6f74....tiles``: the name of the
extension, the path of its library in hex, and what is in it. Importing this package makes such
names known.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ...errors import CannotLoadError, LoaderError, UsageError

#: A pickle of a subclass that is in a notebook names it, and the module that pybind11 says it is in
#: does not exist.
pybind11_type: Any = type(torch._C.FutureType)
pybind11_type.__module__ = __name__
pybind11_type.__doc__ = "The class of all classes that pybind11 binds, torch's and ours."

_PREFIX = f"{__package__}.library_"
_NAME = re.compile(re.escape(_PREFIX) + r"\w+_(?:[0-9a-f]{2})+")
_imported: dict[Path, ModuleType] = {}
#: held while a library is imported: a second import at the same time would find half a module
_importing: dict[str, threading.RLock] = {}
#: how the dynamic linker says that a file is no library, or not all of one
_DAMAGED = re.compile("invalid ELF header|file too short|cannot read file data|ELF load command")


class Extension(ModuleType):
    """An imported extension. A function in a notebook that uses it is pickled with its name."""

    def __reduce__(self) -> Any:
        library = next(path for path, module in _imported.items() if module is self)
        return import_module, (_name_of(library),)


def imported(library: Path) -> ModuleType:
    """The extension in a library's file; once it is imported, the same again.

    Raises:
        ImportError: it cannot be.
        LoaderError: it binds a class that cannot be bound, or is for another version of torch.
    """
    with _importing.setdefault(str(library), threading.RLock()):
        return _imported.get(library) or _import(library)


def is_damaged(error: ImportError, library: Path) -> bool:
    """The import has failed as the file is no library; not one that it needs."""
    text = str(error)
    return text.startswith(f"{library}: ") and _DAMAGED.search(text) is not None


def _import(library: Path) -> ModuleType:
    name = library.parent.name
    # pybind11 has one module for each name in a process. What it makes is pickled by this name,
    # which can be imported: its classes, enums, errors and submodules.
    unique = f"{_name_of(library)}.{name}"
    loader = ExtensionFileLoader(unique, str(library))
    spec = spec_from_file_location(unique, library, loader=loader)
    assert spec is not None
    made = module_from_spec(spec)
    try:
        loader.exec_module(made)
    except ImportError as error:
        if isinstance(error.__cause__, LoaderError):  # of check_binding
            raise error.__cause__ from None
        raise
    made.__name__, made.__class__ = name, Extension
    made.__module__ = unique  # by which pybind11 pickles functions; that of the class otherwise
    sys.modules[_name_of(library)] = sys.modules[unique] = _imported[library] = made
    return made


def put_into(module: str, extension: ModuleType) -> None:
    """Make an extension's classes those of a module.

    A class that no ``bind_...`` has bound is one of the module's if nothing else there has its
    name. Otherwise pickles go on to name the library's file.

    Raises:
        UsageError: the module has something else under the name of a bound class.
    """
    there, is_main = vars(sys.modules[module]), module in ("__main__", "__mp_main__")
    name, classes = extension.__name__, [*filter(is_bound, vars(extension).values())]
    for cls in classes:
        other = there.get(cls.__name__, cls)
        # a newer build of the extension replaces the older one's
        if not is_bound(other) or not (is_main or extension_of(other) == name):
            raise UsageError(
                f"{module} has another {cls.__name__} than the class of the extension {name}, and "
                "pickles would find that one. Give one of the two another name"
            )
    for cls in [*classes, *_others(extension)]:
        other = there.get(cls.__name__, cls)
        if is_bound(cls) or other is cls or _is_of(name, other):
            there[cls.__name__] = cls
            if not is_main:  # which is another one in other processes
                _move(cls, module)


def _others(extension: ModuleType) -> list[Any]:
    """Its own classes that no ``bind_...`` has bound: enums, errors, those of py::class_."""
    types = [thing for thing in vars(extension).values() if isinstance(thing, type)]
    return [cls for cls in types if cls.__module__ == extension.__module__ and not is_bound(cls)]


def _is_of(name: str, thing: Any) -> bool:
    return isinstance(thing, type) and extension_of(thing) == name


def _move(cls: Any, module: str) -> None:
    inner = [thing for thing in vars(cls).values() if isinstance(thing, type)]
    for each in [cls, *(each for each in inner if each.__module__ == cls.__module__)]:
        each.__module__ = module


def is_bound(thing: Any) -> bool:
    """It is a class of C++, and no subclass of one."""
    return "_built_by" in getattr(thing, "__dict__", ())


def extension_of(cls: Any) -> str | None:
    """The name of the extension with a bound class; None where `imported` has not imported it."""
    named = ((path, vars(module).get(cls.__name__)) for path, module in [*_imported.items()])
    return next((path.parent.name for path, found in named if found is cls), None)


def _name_of(library: Path) -> str:
    return f"{_PREFIX}{library.parent.name}_{str(library).encode().hex()}"


class _Libraries(MetaPathFinder, Loader):
    """Imports libraries by these names."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        return ModuleSpec(name, self) if _NAME.fullmatch(name) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        library = Path(bytes.fromhex(spec.name.rpartition("_")[2]).decode())
        try:
            return self._under(spec.name, _built_anew(library) or imported(library))
        except (ImportError, OSError) as error:
            raise CannotLoadError(
                f"an object of the C++ extension {library.parent.name}",
                f"its library cannot be imported: {error}",
                "Build the library here, with load(..., module=__name__) in a module that can be "
                "imported, and is no notebook or script: pickles then name that module",
            ) from error

    def exec_module(self, module: ModuleType) -> None:
        """It is imported already."""

    def _under(self, name: str, extension: ModuleType) -> ModuleType:
        """The extension, whose submodules are known under this name, too."""
        own = extension.__module__.rpartition(".")[0]
        for known, module in [*sys.modules.items()]:
            if known.startswith(f"{own}."):
                sys.modules[name + known[len(own) :]] = module
        return extension


def _built_anew(library: Path) -> ModuleType | None:
    """The program's own build of the same sources: it may have changed them since."""
    folder, key = library.parent, library.stem.partition("-")[0]
    own = [path for path in _imported if path.parent == folder and path.stem.startswith(f"{key}-")]
    return _imported[own[-1]] if own else None


sys.meta_path.append(_Libraries())
