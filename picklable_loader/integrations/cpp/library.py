"""Libraries of bound classes, as modules that other processes can import, too.

The classes of a script or a notebook are in ``__main__``, which is another module in each process.
Pickles name such a class by a module ``...cpp.library_tiles_2f726f6f74...``: the name of the
extension, and the path of its library in hex. Importing this package makes such names known.
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

from ...errors import CannotLoadError, LoaderError

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
    unique = f"{library.stem}.{name}"  # pybind11 has one module for each name in a process
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
    for cls in filter(is_bound, vars(made).values()):
        cls.__module__ = _name_of(library)
    sys.modules[_name_of(library)] = _imported[library] = made
    return made


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
            return _built_anew(library) or imported(library)
        except (ImportError, OSError) as error:
            raise CannotLoadError(
                f"an object of the C++ extension {library.parent.name}",
                f"its library cannot be imported: {error}",
                "Build the library here, with load(..., module=__name__) in a module that can be "
                "imported, and is no notebook or script: pickles then name that module",
            ) from error

    def exec_module(self, module: ModuleType) -> None:
        """It is imported already."""


def _built_anew(library: Path) -> ModuleType | None:
    """The program's own build of the same sources: it may have changed them since."""
    folder, key = library.parent, library.stem.partition("-")[0]
    own = [path for path in _imported if path.parent == folder and path.stem.startswith(f"{key}-")]
    return _imported[own[-1]] if own else None


sys.meta_path.append(_Libraries())
