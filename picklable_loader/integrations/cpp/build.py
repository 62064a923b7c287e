"""Builds an extension and imports it: one call of the compiler, and a folder of libraries.

torch.utils.cpp_extension.load is not used: its folders do not name the version of torch, it does
not notice a changed header, and a build that is killed leaves a lock that all later loads wait for.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import torch

from ...errors import CannotLoadError, LoaderError, UsageError
from .library import imported, is_damaged, put_into

_HEADERS = Path(__file__).parent / "include"
_TORCH = Path(torch.__file__).parent
_STANDARD = "-std=c++20"
_FLAGS = ["-O2", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-shared"]
# also where pybind11 is included before torch_data.h
_FLAGS += ["-DPYBIND11_ASSERT_GIL_HELD_INCREF_DECREF"]
_LIBRARIES = ["-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]
#: in the environment, what a compiler reads
_VARIABLES = ("CXX", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")
#: a flag with a folder that begins in the current one: "-Iinclude", or "include" after "-I"
_RELATIVE = re.compile(r"-(I|L|isystem|iquote)=?[^/]|[^-/]")
#: the first line of a compiler or linker that is no warning, nor what one is about
_ERROR = re.compile("^.*(?:error:|undefined reference|cannot find -l).*", re.MULTILINE)
#: of a compiler's messages, the most characters that an error has
_MOST_TEXT = 4000
#: builds in a row during which somebody saved a source or header
_MOST_TRIES = 3


@dataclass(eq=False, repr=False)
class BuildError(LoaderError, RuntimeError):
    """An extension cannot be built.

    Attributes:
        name: the extension.
        reason: what was expected, and what was found.
        advice: the way out.
    """

    name: str
    reason: str
    advice: str

    def __str__(self) -> str:
        return f"the extension {self.name} cannot be built: {self.reason}\n{self.advice}."


def include() -> str:
    """The folder of ``picklable_loader/torch_data.h``, for ``include_dirs`` of a ``setup.py``."""
    return str(_HEADERS)


def load(
    name: str,
    sources: Iterable[str | os.PathLike[str]],
    module: str | None = None,
    extra_cflags: Sequence[str] = (),
    extra_ldflags: Sequence[str] = (),
    build_directory: str | os.PathLike[str] | None = None,
    verbose: bool = False,
) -> ModuleType:
    """Build an extension if there is none yet of these sources, and import it.

    A library fits one version of torch and Python, one set of flags, and the content of its
    sources and of the headers that they include. For any other it is built again. One that fits is
    imported without a compiler.

    Args:
        name: the module's name; the sources have ``PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)``.
        sources: C++ files.
        module: the caller's ``__name__``. Bound classes become classes of that module, and
            pickles and new processes find them there. None, or the ``__name__`` of a script or
            notebook: pickles name the library's file, which only this machine has.
        extra_cflags: for the compiler, for example ``["-O3"]``.
        extra_ldflags: for the linker, for example ``["-ljpeg"]``.
        build_directory: where libraries are; None: ``~/.cache/picklable_loader/cpp``.
        verbose: print the compiler's command and messages.

    Returns:
        The imported extension.

    Raises:
        BuildError: there is no compiler, it is too old, the sources have errors or no module of
            that name, or the folder cannot be written to.
        CannotLoadError: there is a library, which cannot be imported for now.
        UsageError: the module already has something else under the name of a class, or was not
            imported; or ``sources`` or flags are no list.
    """
    files = _checked(name, sources, module)
    for which, given in ("extra_cflags", extra_cflags), ("extra_ldflags", extra_ldflags):
        if isinstance(given, str):
            raise UsageError(f"{which} should be a list such as ['-O3'], got {given!r}")
    flags = [*_FLAGS, _STANDARD, *extra_cflags]
    build = _Build(name, files, flags, list(extra_ldflags), _folder(build_directory) / name)
    extension = _imported_or_built(build, verbose)
    if module is not None:
        put_into(module, extension)
    return extension


def _checked(
    name: str, sources: Iterable[str | os.PathLike[str]], module: str | None
) -> list[Path]:
    if not isinstance(name, str) or not (name.isidentifier() and name.isascii()):
        raise UsageError(
            f"name should be one that Python can import, such as 'crops', got {name!r}"
        )
    if module is not None and module not in sys.modules:
        raise UsageError(
            f"module should be the caller's __name__, got {module!r}, which is no module"
        )
    is_list = isinstance(sources, Iterable) and not isinstance(sources, str | os.PathLike)
    files = [Path(each).resolve() for each in sources] if is_list else []
    if not files:
        raise UsageError(f"sources should be a list such as ['crops.cpp'], got {sources!r}")
    return files


def _imported_or_built(build: _Build, verbose: bool) -> ModuleType:
    found, damaged = build.found(), None
    if found is not None:
        try:
            damaged = found.stat().st_ino
            return imported(found)
        except ImportError as error:
            if not is_damaged(error, found):
                raise CannotLoadError(
                    f"the extension {build.name}",
                    f"its library {found} cannot be imported: {_with_cause(error)}",
                    "Repair that. If a library that it was built with has changed, delete it",
                ) from error
    try:
        return imported(build.made(verbose, damaged))
    except ImportError as error:
        raise BuildError(
            build.name,
            f"expected a library that can be imported, found: {_with_cause(error)}",
            f"One of the sources needs PYBIND11_MODULE(TORCH_EXTENSION_NAME, m), and its module is "
            f"{build.name}. Where a symbol is missing, name its library in extra_ldflags",
        ) from error


def _with_cause(error: ImportError) -> str:
    cause = error.__cause__
    return f"{error}" if cause is None else f"{error}: {type(cause).__name__}: {cause}"


def _folder(chosen: str | os.PathLike[str] | None) -> Path:
    if chosen is not None:
        return Path(chosen).resolve()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "picklable_loader" / "cpp"


@dataclass(frozen=True)
class _Build:
    """One extension, from its sources to its library."""

    name: str
    sources: list[Path]
    cflags: list[str]
    ldflags: list[str]
    folder: Path

    def found(self) -> Path | None:
        """The library, if there is one whose sources and headers are as they are now."""
        try:
            headers = json.loads(self._headers.read_text())
            library = self._library(headers)
        except (OSError, ValueError, TypeError):  # there is none, or it is damaged
            return None
        return library if library.exists() else None

    def made(self, verbose: bool, damaged: int | None = None) -> Path:
        """The library, built by this process or another one; none with the damaged one's inode."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder / "lock"):
                found = self.found()
                is_good = found is not None and found.stat().st_ino != damaged
                return found if found and is_good else self._built(verbose)
        except OSError as error:
            raise BuildError(
                self.name,
                f"expected a folder for the library, found: {error}",
                "Pass build_directory=, a folder that can be written to",
            ) from error

    def _built(self, verbose: bool) -> Path:
        compiler = _compiler(self.name)
        # A killed process has left it; its compiler may still write there.
        for left in self.folder.glob("build-*"):
            shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(prefix="build-", dir=self.folder) as work:
            made = Path(work) / "made.so"
            for _ in range(_MOST_TRIES):
                headers = self._dependencies(compiler)
                library = self._library_now(headers)
                self._compile(compiler, made, verbose)
                if library == self._library_now(headers):  # no file was saved meanwhile
                    os.replace(made, library)
                    known = made.with_suffix(".json")
                    known.write_text(json.dumps(headers))
                    os.replace(known, self._headers)
                    return library
        raise BuildError(
            self.name,
            f"expected files that stay as they are, found changes in {_MOST_TRIES} builds",
            "Call load when nothing writes to the sources and their headers",
        )

    def _library_now(self, headers: list[str]) -> Path:
        try:
            return self._library(headers)
        except OSError as error:
            raise BuildError(
                self.name,
                f"expected the files that the compiler reads, found: {error}",
                "Call load when nothing moves the sources and their headers",
            ) from error

    def _compile(self, compiler: list[str], made: Path, verbose: bool) -> None:
        libraries = [f"-L{_TORCH / 'lib'}", f"-Wl,-rpath,{_TORCH / 'lib'}", *_LIBRARIES]
        done = self._run(
            [*compiler, *self._for_sources(), "-o", str(made), *libraries, *self.ldflags]
        )
        if not made.exists():
            raise BuildError(
                self.name,
                f"{shlex.join(compiler)} ended without an error, and made no library",
                "Set CXX to a C++ compiler",
            )
        if verbose:
            print(shlex.join(done.args), done.stderr, sep="\n")

    def _dependencies(self, compiler: list[str]) -> list[str]:
        """All files that the library is made of, but for the system's and torch's."""
        rules = self._run([*compiler, *self._for_sources(), "-M"]).stdout
        system = _folders_of_the_system(compiler)
        read = [path for path in _files_of(rules) if not path.startswith(system)]
        # -M names no objects, and nothing that only the linker reads
        given = [*self.sources, *_files_in([*self.cflags, *self.ldflags])]
        return sorted({*read, *(str(path.resolve()) for path in given)})

    def _for_sources(self) -> list[str]:
        return [
            *self.cflags,
            f"-DTORCH_EXTENSION_NAME={self.name}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            f"-I{_HEADERS}",
            *[f"-isystem{path}" for path in _system_headers()],
            *map(str, self.sources),
        ]

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(
                self.name,
                f"{command[0]} ended with {done.returncode}:\n{_errors_in(done.stderr)}",
                f"The errors are those of the sources; this prints all of them:\n"
                f"{shlex.join(command)}",
            )
        return done

    @property
    def _key(self) -> str:
        """The digest of the flags and versions, which the sources do not say."""
        parts = [
            *[torch.__version__, str(torch.version.git_version)],  # nightlies share versions
            *[str(sysconfig.get_config_var("SOABI")), str(_TORCH), str(_HEADERS)],
            *[self.name, *map(str, self.sources), *self.cflags, "", *self.ldflags],
            *[os.environ.get(variable, "") for variable in _VARIABLES],
        ]
        if any(_RELATIVE.match(flag) for flag in (*self.cflags, *self.ldflags)):
            parts.append(os.getcwd())
        return _digest("\0".join(parts).encode())

    @property
    def _headers(self) -> Path:
        return self.folder / f"{self._key}.json"

    def _library(self, headers: list[str]) -> Path:
        """Its name has the content: a process that has loaded one can load a newer one, too."""
        content = b"".join(_digest(Path(path).read_bytes()).encode() for path in headers)
        return self.folder / f"{self._key}-{_digest(content)}.so"


def _errors_in(messages: str) -> str:
    """The messages, where they are long from the first error on."""
    found = None if len(messages) <= _MOST_TEXT else _ERROR.search(messages)
    return messages[found.start() if found else 0 :][:_MOST_TEXT]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A lock that ends with its process, however that ends."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _files_of(rules: str) -> list[str]:
    """The files in a compiler's rules for make, one rule for each source."""
    words = re.findall(r"(?:\\[ \t]|\S)+", rules.replace("\\\n", " "))
    return sorted({str(Path(_from_make(word)).resolve()) for word in words if word[-1] != ":"})


def _from_make(word: str) -> str:
    """A path as it was; make's own escapes are none of a shell's."""
    # backslashes are doubled before a space that one more escapes
    word = re.sub(r"(\\*)\\([ \t])", lambda found: found[1][len(found[1]) // 2 :] + found[2], word)
    return re.sub(r"\\([#:])", r"\1", word).replace("$$", "$")


def _files_in(flags: list[str]) -> Iterator[Path]:
    """The files that flags name: a library, one of flags, one of symbols; -lname in their -L."""
    folders = [
        Path(flag[2:] or after) for flag, after in zip(flags, [*flags[1:], ""]) if flag[:2] == "-L"
    ]
    for flag in flags:
        named = [Path(part) for part in re.split("[,=@]", flag) if part]
        if flag.startswith("-l"):
            named = [folder / f"lib{flag[2:]}.a" for folder in folders]
        yield from filter(Path.is_file, named)


def _folders_of_the_system(compiler: list[str]) -> tuple[str, ...]:
    """Where headers are that change with the system only; -M names a thousand of them."""
    program = Path(shutil.which(compiler[0]) or "/usr/bin/c++").resolve()
    found = [Path(path) for path in _system_headers()]
    for prefix in {Path("/usr"), Path("/usr/local"), program.parents[1]}:
        found += [prefix / "include", *prefix.glob("lib*/gcc*"), *prefix.glob("lib*/*llvm*")]
        found += [*prefix.glob("lib*/clang*"), prefix / "lib" / "linux"]  # Debian 14's own links
    return tuple(f"{folder.resolve()}{os.sep}" for folder in found)


def _system_headers() -> list[str]:
    found = _TORCH / "include"
    api = found / "torch" / "csrc" / "api" / "include"
    return [str(found), str(api), sysconfig.get_paths()["include"]]


def _compiler(name: str) -> list[str]:
    """The command of a compiler that knows the standard."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    candidates: list[list[str]] = [chosen] if chosen else [["c++"], ["g++"], ["clang++"]]
    found = next((each for each in candidates if shutil.which(each[0])), None)
    if found is None:
        raise BuildError(
            name,
            f"expected a C++ compiler, found none of {', '.join(each[0] for each in candidates)}",
            "Install one (apt install g++), or set CXX to its path",
        )
    probe = [*found, _STANDARD, "-fsyntax-only", "-x", "c++", "-"]
    program = "#include <concepts>\nstatic_assert(std::same_as<int, int>);\n"
    done = subprocess.run(probe, input=program, capture_output=True, text=True, check=False)
    if done.returncode:
        version = subprocess.run([*found, "--version"], capture_output=True, text=True, check=False)
        raise BuildError(
            name,
            f"expected a compiler for C++20, found {version.stdout.partition(chr(10))[0]!r}: "
            f"{_errors_in(done.stderr)}",
            "Install g++ 11 or clang 14, or later, and set CXX to its path",
        )
    return found
