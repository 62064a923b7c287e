"""cpp.load: when it builds, what it imports without a compiler, and its errors."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import picklable_loader
from picklable_loader import DataLoader, cpp
from picklable_loader.errors import CannotLoadError, UsageError
from picklable_loader.integrations.cpp import BuildError, build, library
from picklable_loader.integrations.cpp.library import _name_of, imported

SOURCE = """
#include <Python.h>
#include "number.h"
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", nullptr, 0, nullptr};
#define JOINED(name) PyInit_##name
#define INIT(name) JOINED(name)
PyMODINIT_FUNC INIT(TORCH_EXTENSION_NAME)() {
  PyObject* made = PyModule_Create(&module);
  PyModule_AddIntConstant(made, "number", NUMBER);
  return made;
}
"""


HERE = Path(__file__).parent
REAL = shutil.which("c++")
#: of a fake compiler: what asks it for something else than a library is for the real one
NOT_TO_BUILD = f'case "$*" in *fsyntax*|*" -M") exec {REAL} "$@";; esac'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It has an extension that is compiled in half a second; libraries go below ``builds``."""
    monkeypatch.chdir(tmp_path)
    Path("tiny.cpp").write_text(SOURCE)
    Path("number.h").write_text("#define NUMBER 1\n")
    return tmp_path


def load(**options: Any) -> Any:
    return cpp.load("tiny", ["tiny.cpp"], build_directory="builds", **options)


def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)


def fake_compiler(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    path = Path("fake-c++").resolve()
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def test_a_library_is_imported_without_a_compiler_and_soon(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load().number == 1
    without_compiler(monkeypatch)
    began = time.process_time()
    again = load()
    assert time.process_time() - began < 0.05
    assert again is load()


def test_a_changed_header_or_flag_gives_a_new_library(folder: Path) -> None:
    first = load()
    (folder / "number.h").write_text("#define NUMBER 2\n")
    assert (first.number, load().number) == (1, 2)
    (folder / "number.h").write_text("#ifndef NUMBER\n#define NUMBER 3\n#endif\n")
    assert (load().number, load(extra_cflags=["-DNUMBER=4"]).number) == (3, 4)


def test_another_torch_has_a_library_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    without_compiler(monkeypatch)
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")
    with pytest.raises(BuildError, match="expected a C.. compiler"):
        load()


def test_without_a_compiler_the_error_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_compiler(monkeypatch)
    with pytest.raises(BuildError, match="(?s)tiny cannot be built.*found none of c.*apt install"):
        load()
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(BuildError, match="found none of /nowhere"):
        load()


def test_a_compiler_that_is_too_old_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = '[ "$1" = --version ] && echo "g++ 4.8" && exit; echo "no -std=c++20" >&2; exit 1'
    fake_compiler(monkeypatch, old)
    with pytest.raises(BuildError, match=r"(?s)C\+\+20, found 'g\+\+ 4.8'.*Install g\+\+ 11"):
        load()


def test_errors_of_the_sources_are_in_the_error(folder: Path) -> None:
    (folder / "number.h").write_text("#error no number\n")
    with pytest.raises(BuildError, match="(?s)tiny cannot be built.*no number"):
        load()


@pytest.mark.parametrize("wrong", ["error: no such type", "undefined reference to f"])
def test_the_error_is_in_the_error_below_any_number_of_warnings(
    folder: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings = 'for n in $(seq 300); do echo "tiny.cpp:$n: warning: unused variable" >&2; done'
    script = f'{NOT_TO_BUILD}; {warnings}; echo "tiny.cpp: {wrong}" >&2; exit 1'
    fake_compiler(monkeypatch, script)
    with pytest.raises(BuildError, match=re.escape(wrong)):
        load()


def test_a_killed_build_hangs_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("begun")
    with monkeypatch.context() as patch:
        fake_compiler(patch, f"{NOT_TO_BUILD}; echo > begun; exec cat begun")
        program = "from test_build import load; load()"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
        building = subprocess.Popen(
            [sys.executable, "-c", program], env=environment, start_new_session=True
        )
        Path("begun").read_text()  # the compiler runs, under the lock
        os.killpg(building.pid, signal.SIGKILL)
        building.wait()
    assert load().number == 1


def test_two_processes_build_it_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_compiler(monkeypatch, f'{NOT_TO_BUILD}; echo >> runs; exec {REAL} "$@"')
    program = "from test_build import load; assert load().number == 1"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
    both = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    assert Path("runs").read_text() == "\n"


def test_a_compiler_that_outlives_a_killed_build_spoils_no_later_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("begun", "go", "finished"):
        os.mkfifo(name)
    # The first one builds the old source and ends in the midst of the second one's build.
    first = f'mkdir first && {{ {REAL} "$@"; cp "$out" old; echo > begun; cat go; cp old "$out"; '
    first += "echo > finished; exit; }"
    second = f'{REAL} "$@"; echo > go; cat finished'
    find = 'for each; do [ "$last" = -o ] && out=$each; last=$each; done'
    fake_compiler(monkeypatch, f"{NOT_TO_BUILD}; {find}; {first}; {second}")
    program = "from test_build import load; load()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
    building = subprocess.Popen([sys.executable, "-c", program], env=environment)
    Path("begun").read_text()
    building.kill()
    building.wait()
    (folder / "number.h").write_text("#define NUMBER 2\n")
    assert load().number == 2
    assert not list(Path("builds").glob("*/build-*"))


def test_a_file_that_is_saved_while_the_compiler_runs_is_compiled_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = 'mkdir changed && echo "#define NUMBER 2" > number.h; exit 0'
    fake_compiler(monkeypatch, f'{NOT_TO_BUILD}; {REAL} "$@" || exit; {change}')
    assert load().number == 2
    always = f'echo >> number.h; exec {REAL} "$@"'
    fake_compiler(monkeypatch, f"{NOT_TO_BUILD}; {always}")
    (folder / "number.h").write_text("#define NUMBER 3\n")
    with pytest.raises(BuildError, match="found changes in 3 builds"):
        load()


def test_each_source_and_its_headers_count(folder: Path) -> None:
    Path("tiny.cpp").write_text(
        SOURCE.replace("NUMBER)", "number())").replace('"number.h"', '"a b$.h"')
    )
    Path("a b$.h").write_text("int number();\n")
    Path("first.cpp").write_text('#include "number.h"\nint number() { return NUMBER; }\n')

    def both() -> int:
        sources = ["first.cpp", "tiny.cpp"]
        return int(cpp.load("tiny", sources, build_directory="builds").number)

    assert both() == 1
    Path("number.h").write_text("#define NUMBER 2\n")
    assert both() == 2
    Path("first.cpp").write_text("int number() { return 3; }\n")
    assert both() == 3
    Path("a b$.h").write_text("inline int number() { return 4; }\n")
    Path("first.cpp").write_text("\n")
    assert both() == 4


LINKED = SOURCE.replace('#include "number.h"', 'extern "C" int number();').replace(
    "NUMBER)", "number())"
)


@pytest.mark.parametrize(
    "how",
    [
        {"extra_cflags": ["-isystem", "apart"]},
        {"extra_cflags": ["-isystemapart"]},
        {"extra_cflags": ["@flags"]},
        {"extra_cflags": ["-include", "apart/number.h"]},
        {"environment": "CPLUS_INCLUDE_PATH"},
        {"sources": ["number.o"]},
        {"extra_ldflags": ["libnumber.a"]},
        {"extra_ldflags": ["-Lapart", "-lnumber"]},
        {"extra_ldflags": ["-L", "apart", "-lnumber"]},
        {"extra_ldflags": ["-Wl,--whole-archive,libnumber.a,--no-whole-archive"]},
    ],
    ids=str,
)
def test_a_library_is_built_again_for_each_file_that_it_is_made_of(
    folder: Path, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("number.h").unlink()
    Path("apart").mkdir()
    linked = "sources" in how or "extra_ldflags" in how
    Path("tiny.cpp").write_text(LINKED if linked else SOURCE.replace('"number.h"', "<number.h>"))
    if "environment" in how:
        monkeypatch.setenv(how["environment"], str(Path("apart").resolve()))
    options = {name: how[name] for name in how if name.startswith("extra_")}
    if options.get("extra_cflags", [""])[0] == "-include":
        Path("tiny.cpp").write_text(SOURCE.replace('#include "number.h"', ""))

    def number(value: int) -> int:
        Path("flags").write_text(f"-DNUMBER={value} -Iempty")
        Path("apart/number.h").write_text(f"#define NUMBER {value}\n")
        if options.get("extra_cflags") == ["@flags"]:
            Path("tiny.cpp").write_text(SOURCE.replace('#include "number.h"', ""))
        Path("number.c").write_text(f"int number() {{ return {value}; }}\n")
        if linked:
            subprocess.run([str(REAL), "-xc", "-fPIC", "-c", "number.c"], check=True)
            subprocess.run(["ar", "rcs", "libnumber.a", "number.o"], check=True)
            shutil.copy("libnumber.a", "apart")
        sources = ["tiny.cpp", *how.get("sources", ())]
        return int(cpp.load("tiny", sources, build_directory="builds", **options).number)

    assert [number(1), number(2), number(2)] == [1, 2, 2]
    assert len([*Path("builds").glob("*/*.so")]) == 2


@pytest.mark.parametrize(
    "name", ["john's", 'a "b"', "a b", "a\\b", "a\\ b", "a$b", "a#b", "a(b)", "ä", "a:b"]
)
def test_sources_may_be_in_any_folder(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(monkeypatch, f'{NOT_TO_BUILD}; echo "it compiles" >&2; exit 1')
    Path(name).mkdir()
    for file in ("tiny.cpp", "number.h"):
        Path(file).rename(Path(name, file))
    read: list[str] = []
    files_of = build._files_of
    monkeypatch.setattr(build, "_files_of", lambda rules: read.extend(files_of(rules)) or read)
    with pytest.raises(BuildError, match="it compiles"):
        cpp.load("tiny", [Path(name, "tiny.cpp")], build_directory="builds")
    assert {str(Path(name, file).resolve()) for file in ("tiny.cpp", "number.h")} <= {*read}


def test_files_that_go_away_are_named_and_not_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_compiler(monkeypatch, f'{NOT_TO_BUILD}; {REAL} "$@"; rm -f number.h; exit 0')
    with pytest.raises(BuildError, match=r"(?s)files that the compiler reads.*number\.h"):
        load()


#: an import of it fails as long as the file "missing" is there
NEEDS = SOURCE.replace("#include <Python.h>", "#include <Python.h>\n#include <unistd.h>").replace(
    "  PyObject* made", '  if (!access("missing", F_OK))\n    {HOW;}\n  PyObject* made'
)


@pytest.mark.parametrize(
    "how",
    [
        'PyImport_ImportModule("no_such_module"); return nullptr',
        'return PyErr_SetString(PyExc_ImportError, "no licence"), nullptr',
    ],
)
def test_a_good_library_whose_import_fails_for_now_is_not_built_again(
    folder: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("tiny.cpp").write_text(NEEDS.replace("HOW", how))
    Path("missing").touch()
    with pytest.raises(BuildError, match="no_such_module|no licence"):
        load()
    without_compiler(monkeypatch)
    (built,) = Path("builds").glob("*/*.so")
    with pytest.raises(CannotLoadError, match="(?s)tiny.*(no_such_module|no licence)"):
        load()
    assert built.exists()
    Path("missing").unlink()
    assert load().number == 1


def test_threads_that_load_at_once_have_the_same_module(folder: Path) -> None:
    program = """
import threading
from picklable_loader.integrations.cpp import library
from test_build import load

found, imports, make = [], [], library.module_from_spec
other = threading.Thread(target=lambda: found.append(load()))

def in_the_midst(spec):
    imports.append(spec)
    if len(imports) == 1:
        other.start()
        other.join(0.5)  # it waits for this import, or imports the library, too
    return make(spec)

library.module_from_spec = in_the_midst
found.append(load())
other.join()
assert len(imports) == 1 and found[0] is found[1] and found[0].number == 1
"""
    load()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)]), "PATH": ""}
    environment.pop("CXX", None)
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_headers_of_the_system_are_no_part_of_it(folder: Path) -> None:
    load()
    (known,) = Path("builds").glob("*/*.json")
    files = json.loads(known.read_text())
    assert sorted(Path(each).name for each in files) == ["number.h", "tiny.cpp"]


@pytest.mark.parametrize("content", [b"", b"no library"])
def test_a_damaged_library_or_list_is_made_anew(folder: Path, content: bytes) -> None:
    program = "from test_build import load; assert load().number == 1"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(HERE)])}
    again = [sys.executable, "-c", program]
    subprocess.run(again, env=environment, check=True)
    for damaged in [*Path("builds").glob("*/*.so"), *Path("builds").glob("*/*.json")]:
        damaged.unlink()
        damaged.write_bytes(content or b"null")
        subprocess.run(again, env=environment, check=True)


@pytest.mark.parametrize(
    "options, wrong",
    [
        ({"name": "my-tiny"}, "name should be one that Python can import.*got 'my-tiny'"),
        ({"sources": "tiny.cpp"}, r"sources should be a list such as .*got 'tiny.cpp'"),
        ({"sources": []}, r"sources should be a list"),
        ({"module": "nowhere"}, "module should be the caller's __name__, got 'nowhere'"),
    ],
)
def test_arguments_that_nothing_can_be_made_of_are_refused_at_once(
    folder: Path, options: dict[str, Any], wrong: str
) -> None:
    given: dict[str, Any] = {"name": "tiny", "sources": ["tiny.cpp"], **options}
    with pytest.raises(UsageError, match=wrong):
        cpp.load(build_directory="builds", **given)
    assert not Path("builds").exists()


def test_a_folder_that_cannot_be_written_to_is_named(folder: Path) -> None:
    with pytest.raises(BuildError, match=r"(?s)tiny.cpp.*Pass build_directory="):
        cpp.load("tiny", ["tiny.cpp"], build_directory="tiny.cpp")


def test_a_library_without_the_module_is_named(folder: Path) -> None:
    Path("tiny.cpp").write_text("int nothing;\n")
    with pytest.raises(BuildError, match=r"(?s)can be imported.*PYBIND11_MODULE.*module is tiny"):
        load()


SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
from picklable_loader import cpp
flags = ["-std=c++20", "-fvisibility=hidden", "-O0"]
of = CppExtension("tiny", ["tiny.cpp"], include_dirs=[cpp.include()], extra_compile_args=flags)
setup(name="tiny", ext_modules=[of], cmdclass={"build_ext": BuildExtension})
"""

CHECKS = """
#if __cplusplus < 202002L || !__has_include(<picklable_loader/torch_data.h>)
#error "the header cannot be included"
#endif
"""


def python(folder: Path, *command: str) -> str:
    """What an interpreter prints that finds this package, and modules in the folder."""
    here = os.pathsep.join([str(HERE.parents[1]), str(folder)])
    environment = {**os.environ, "PYTHONPATH": here, "MAX_JOBS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.costly
def test_a_setup_py_finds_the_header(folder: Path) -> None:
    """Torch's headers take most of a minute; that they are found is known without."""
    Path("setup.py").write_text(SETUP)
    Path("tiny.cpp").write_text(CHECKS + SOURCE)
    python(folder, "setup.py", "-q", "build_ext", "--inplace")
    assert python(folder, "-c", "import tiny; print(tiny.number)") == "1\n"


def test_a_library_that_is_imported_by_its_own_name_is_as_good(parts: Any, tmp_path: Path) -> None:
    """A setup.py makes such a one."""
    shutil.copy(parts.extension.__file__, tmp_path / "parts_of_tests.so")
    program = "import torch, parts_of_tests, pickle\nfrom picklable_loader import DataLoader\n"
    program += "captions = parts_of_tests.Captions(6); it = iter(DataLoader(captions, 2, seed=1))\n"
    program += "next(it); data = pickle.dumps(it); rest = list(it)\n"
    program += "print(b'parts_of_tests' in data, str(list(pickle.loads(data))) == str(rest))\n"
    program += "print(rest[-1][1])"
    shown = python(tmp_path, "-c", program)
    assert shown == "True True\n('caption 4', 'caption 5')\n"


# --- where pickles find the classes ----------------------------------------------------------


NOTEBOOK = f"""
import cloudpickle, dill, os, pickle, sys
sys.path.insert(0, {str(HERE.parent)!r})
from cpp import parts  # whose classes are put into this __main__
from picklable_loader import DataLoader, cpp
extension = cpp.load(
    "parts_of_tests", [parts.__file__.replace(".py", ".cpp")], module=MODULE,
    extra_cflags=parts.FLAGS, build_directory=parts.BUILDS)

class More(extension.Samples):
    def __getitem__(self, index):
        return {{**super().__getitem__(index), "more": 1}}

def make(num_workers=0, of=extension.Samples, **options):
    return DataLoader(of(6), 2, collate_fn=list, num_workers=num_workers, **options)
"""


def run(program: str, given: bytes = b"") -> bytes:
    """What an interpreter prints whose program comes as in a notebook: from no file."""
    here = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=given,
        env={**os.environ, "PYTHONPATH": here},
        capture_output=True,
        check=False,
    )
    assert not done.returncode, done.stderr.decode()
    return done.stdout


@pytest.mark.costly
@pytest.mark.parametrize("module", ["__name__", "None"])
@pytest.mark.parametrize("pickler", ["pickle", "cloudpickle", "dill"])
def test_a_notebooks_objects_can_be_read_by_another_process(
    module: str, pickler: str, parts: Any
) -> None:
    # cloudpickle takes a whole function along, with the extension that it names
    thing = "make" if pickler == "cloudpickle" else "extension.Samples(6)"
    program = NOTEBOOK.replace("MODULE", module)
    data = run(f"{program}\nsys.stdout.buffer.write({pickler}.dumps({thing}))")
    read = f"import sys, {pickler}; thing = {pickler}.load(sys.stdin.buffer)"
    count = "len(list(thing())) * 2" if pickler == "cloudpickle" else "len(thing)"
    assert run(f"{read}\nprint({count})", data) == b"6\n"


def test_a_notebook_has_spawned_workers_and_verifies_a_resume(parts: Any) -> None:
    program = NOTEBOOK.replace("MODULE", "__name__")
    program += """
if __name__ == "__main__":
    from picklable_loader.testing import verify_resume
    spawned = make(1, More, multiprocessing_context="spawn")
    print(verify_resume(make).batches, *[batch[0]["more"] for batch in spawned])
"""
    assert run(program) == b"3 1 1 1\n"


#: what an extension may have beside the classes of bind_...: as arguments, functions, errors
BESIDE = """
def beside(e):
    config, order = e.Config(e.Config.Unit.ten), e.apart.Sequential(6)
    return DataLoader(
        e.Configured(e.Mode.train, config), 2, sampler=order, collate_fn=e.collated, OPTIONS)
"""


@pytest.mark.parametrize("module", ["__name__", "None"])
def test_all_that_an_extension_has_can_be_read_by_another_process(module: str, parts: Any) -> None:
    write = NOTEBOOK.replace("MODULE", module) + BESIDE.replace("OPTIONS", "")
    write += "it = iter(beside(extension)); next(it); sys.stdout.buffer.write(pickle.dumps(it))"
    read = "import sys, pickle; it = pickle.load(sys.stdin.buffer); print([b.tolist() for b in it])"
    assert run(read, run(write)) == b"[[21, 31], [41, 51]]\n"


def test_all_that_an_extension_has_is_there_in_spawned_workers(parts: Any) -> None:
    program = NOTEBOOK.replace("MODULE", "__name__")
    program += BESIDE.replace("OPTIONS", "num_workers=1, multiprocessing_context='spawn'")
    program += """
if __name__ == "__main__":
    print([batch.tolist() for batch in beside(extension)])
"""
    assert run(program) == b"[[1, 11], [21, 31], [41, 51]]\n"


@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_an_error_that_an_extension_registers_is_itself(method: str | None, parts: Any) -> None:
    configured = parts.Configured(parts.Mode.test, parts.Config(parts.Config.Unit.one))
    loader = DataLoader(
        configured, 2, num_workers=int(method is not None), multiprocessing_context=method
    )
    with pytest.raises(parts.Corrupt, match="record 3"):
        [*loader]


def test_the_classes_beside_the_bound_ones_are_the_modules_too(parts: Any) -> None:
    for cls in (parts.Mode, parts.Config, parts.Config.Unit, parts.Corrupt):
        assert cls.__module__ == parts.__name__ and pickle.loads(pickle.dumps(cls)) is cls
    for value in (parts.Mode.test, parts.Config.Unit.ten):
        assert pickle.loads(pickle.dumps(value)) == value


def test_a_class_beside_the_bound_ones_takes_no_name_of_the_program(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / parts.extension.__name__
    folder.mkdir()
    shutil.copy(parts.extension.__file__, folder / "key-4.so")
    newer, program = imported(folder / "key-4.so"), ModuleType("program")
    program.Mode = mine = "mine"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "program", program)
    library.put_into("program", newer)
    assert program.Mode is mine and program.Config is newer.Config
    assert pickle.loads(pickle.dumps(newer.Mode.test)) == newer.Mode.test
    # in a pickle of an older build, too
    older = pickle.dumps([newer.Mode, newer.apart.Sequential, newer.collated])
    older = older.replace(*[str(folder / f"key-{n}.so").encode().hex().encode() for n in (4, 3)])
    assert pickle.loads(older) == [newer.Mode, newer.apart.Sequential, newer.collated]


def test_a_library_that_is_not_there_is_named() -> None:
    with pytest.raises(
        CannotLoadError, match="extension parts .*library cannot be imported.*module="
    ):
        import_module(_name_of(Path("/nowhere/parts/1-2.so")))


def test_a_class_takes_the_name_of_nothing_else(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "Samples", "mine")
    with pytest.raises(UsageError, match="cpp.parts has another Samples.*another name"):
        parts.load()


def test_a_class_takes_the_name_of_no_other_extensions_class(
    parts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / parts.extension.__name__
    folder.mkdir()
    shutil.copy(parts.extension.__file__, folder / "key-2.so")
    newer = imported(folder / "key-2.so")
    monkeypatch.setattr(parts, "Samples", newer.Samples)  # of an older build
    assert parts.load().Samples is parts.Samples
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    shutil.copy(parts.extension.__file__, foreign / "key-3.so")
    monkeypatch.setattr(library, "_imported", {foreign / "key-3.so": newer, **library._imported})
    del library._imported[folder / "key-2.so"]
    monkeypatch.setattr(parts, "Samples", newer.Samples)
    before = dict(vars(parts))
    with pytest.raises(UsageError, match="cpp.parts has another Samples.*another name"):
        parts.load()
    assert dict(vars(parts)) == before


def test_two_libraries_of_one_name_are_two_modules(parts: Any, tmp_path: Path) -> None:
    """As when somebody edits a source in a notebook, and loads again."""
    folder = tmp_path / parts.extension.__name__
    folder.mkdir()
    other = folder / "key-1.so"
    shutil.copy(parts.extension.__file__, other)
    again = imported(other)
    assert again.__file__ == str(other) and again.Samples is not parts.Samples
    assert (len(again.Samples(3)), len(parts.Samples(4))) == (3, 4)
    assert type(pickle.loads(pickle.dumps(again.Samples(3)))) is again.Samples
    # a pickle of an older build of the same sources is read with the newer one
    assert import_module(_name_of(folder / "key-0.so")) is again


def test_the_headers_are_part_of_the_package() -> None:
    header = Path(cpp.include(), "picklable_loader", "torch_data.h")
    assert header.is_file()
    assert header.is_relative_to(Path(picklable_loader.__file__).parent)
