"""What the package gives away: every public name is there, documented, annotated; nothing more."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

import picklable_loader

HOUSE = Path(picklable_loader.__file__).parent
ROOT = HOUSE.parent

#: what modules need, by the beginnings of their names: extras
EXTRAS = {
    "tools.demo": ("matplotlib", "sklearn", "tqdm"),
    "integrations.accelerate": ("accelerate",),
    "integrations.huggingface": ("transformers",),
    "integrations.lightning": ("lightning",),
}

#: a class documents their arguments in its own docstring
MAKERS = ("__init__", "__call__")

PUBLIC = [name for name in picklable_loader.__all__ if name != "__version__"]


def module_names() -> list[str]:
    """Every module of the package; some only where what they need is installed."""
    found = [module.name for module in pkgutil.walk_packages([str(HOUSE)], "picklable_loader.")]
    for beginning, needed in EXTRAS.items():
        if not all(importlib.util.find_spec(extra) for extra in needed):
            found = [name for name in found if not name.startswith(f"picklable_loader.{beginning}")]
    return sorted(name for name in found if name != "picklable_loader.__main__")


MODULES = pytest.mark.parametrize("name", module_names())


def is_our_own(thing: Any) -> bool:
    return bool(getattr(thing, "__module__", "").startswith("picklable_loader"))


def functions_of(thing: Any) -> Iterator[tuple[str, Any]]:
    """A function itself; the public methods and properties that a class of ours defines."""
    if inspect.isfunction(thing):
        yield thing.__name__, thing
    elif inspect.isclass(thing):
        for name, member in vars(thing).items():
            if isinstance(member, property):
                yield name, member.fget
            elif isinstance(member, classmethod | staticmethod):
                yield name, member.__func__
            elif inspect.isfunction(member) and (name == "__init__" or not name.startswith("_")):
                yield name, member


def run(program: str) -> Any:
    """What a fresh interpreter prints, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# --- the package ---------------------------------------------------------------------------------


def test_the_public_names_are_these() -> None:
    assert picklable_loader.__all__ == [
        "DataLoader",
        "DtypeConverter",
        "Interleave",
        "KeyBasedDtypeConverter",
        "LoaderError",
        "LoaderIterator",
        "PackedList",
        "ShuffleBuffer",
        "ShuffleSampler",
        "WorkerStart",
        "__version__",
        "current_seed",
        "explain",
        "from_json",
        "load",
        "merge_states",
        "progress",
        "register_order",
        "save",
        "save_on_signal",
        "send_feedback",
        "to_json",
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name: str) -> None:
    text = inspect.getdoc(getattr(picklable_loader, name))
    assert text and text.splitlines()[0].rstrip().endswith((".", ":"))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_annotated(name: str) -> None:
    for _, function in functions_of(getattr(picklable_loader, name)):
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
        assert all(p.annotation is not inspect.Parameter.empty for p in named), function
        assert signature.return_annotation is not inspect.Signature.empty, function


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_class_has_documented_methods(name: str) -> None:
    thing = getattr(picklable_loader, name)
    bare = [
        member
        for member, function in functions_of(thing)
        if not member.startswith("__") and not inspect.getdoc(function)
    ]
    assert bare == []


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_found_where_it_says_that_it_is(name: str) -> None:
    thing = getattr(picklable_loader, name)
    home = importlib.import_module(thing.__module__)
    assert vars(home)[thing.__qualname__] is thing


@pytest.mark.parametrize("name", PUBLIC)
def test_pickles_hold_a_public_name_and_no_path_within_the_package(name: str) -> None:
    # `cloudpickle` writes the functions that a dataset's class of ``__main__`` calls by such names.
    assert getattr(picklable_loader, name).__module__ in (
        "picklable_loader",
        "picklable_loader.errors",
    )


def test_a_star_import_gives_the_public_names() -> None:
    given = run(
        "import json\n"
        "from picklable_loader import *\n"
        "print(json.dumps(sorted(name for name in dir() if name != 'json')))"
    )
    names = {name for name in given if not name.startswith("__")}
    assert names == set(PUBLIC)
    assert "__version__" in given


def test_the_version_is_the_one_in_the_metadata() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    where = config["metadata"]["version"].removeprefix("attr:").strip()
    module, _, attribute = where.rpartition(".")
    assert getattr(importlib.import_module(module), attribute) == picklable_loader.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc|\.dev)\d+)?", picklable_loader.__version__)


def test_the_package_says_that_it_is_typed_and_ships_the_mark() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert (HOUSE / "py.typed").is_file()
    assert "py.typed" in config["options.package_data"]["picklable_loader"]
    assert "Typing :: Typed" in config["metadata"]["classifiers"]


def test_a_module_has_a_short_name() -> None:
    found = run(
        "import json\n"
        "from picklable_loader.converters import DtypeConverter\n"
        "from picklable_loader.cpp import load\n"
        "import picklable_loader.converters as short\n"
        "from picklable_loader import converters, cpp\n"
        "from picklable_loader.datasets import converters as whole\n"
        "from picklable_loader.integrations import cpp as ours\n"
        "same = DtypeConverter is whole.DtypeConverter and load is ours.load\n"
        "print(json.dumps([same, short is converters is whole, cpp is ours]))"
    )
    assert found == [True, True, True]


def test_a_short_name_has_no_other_names() -> None:
    with pytest.raises(ImportError, match="NoConverter"):
        from picklable_loader.converters import NoConverter  # type: ignore # noqa: F401


# --- importing -----------------------------------------------------------------------------------


def test_an_import_loads_no_optional_package() -> None:
    loaded = run(
        "import json, sys, torch\n"
        "before = set(sys.modules)  # torch itself loads some of them where they are installed\n"
        "from picklable_loader import *\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    assert "picklable_loader.loader.loader" in loaded
    extras = {extra for needed in EXTRAS.values() for extra in needed}
    assert not {*extras, "torchdata", "pytest", "hypothesis"} & set(loaded)


def test_an_import_starts_no_process_and_no_thread() -> None:
    alive = run(
        "import json, multiprocessing, os, threading\n"
        "from picklable_loader import *\n"
        "children = [open(f'/proc/self/task/{t}/children').read().split()"
        " for t in os.listdir('/proc/self/task')]\n"
        "print(json.dumps([sum(children, []), len(multiprocessing.active_children()),"
        " threading.active_count()]))"
    )
    assert alive == [[], 0, 1]


def test_an_import_moves_no_random_number_generator() -> None:
    before, after = run(
        "import json, random\n"
        "import numpy as np, torch\n"
        "def draw():\n"
        "    return [random.random(), float(np.random.rand()), torch.rand(()).item(),\n"
        "            random.gauss(0, 1), float(np.random.randn()), torch.randn(()).item()]\n"
        "def seed():\n"
        "    random.seed(1), np.random.seed(1), torch.manual_seed(1)\n"
        "seed(); before = [draw(), draw()]\n"
        "seed(); first = draw()\n"
        "from picklable_loader import *\n"
        "print(json.dumps([before, [first, draw()]]))"
    )
    assert before == after


def test_an_import_warns_of_nothing() -> None:
    assert (
        run(
            "import json, warnings, torch\n"
            "with warnings.catch_warnings(record=True) as caught:\n"
            "    warnings.simplefilter('always')\n"
            "    import picklable_loader\n"
            "print(json.dumps([str(each.message) for each in caught]))"
        )
        == []
    )


# --- modules -------------------------------------------------------------------------------------


@MODULES
def test_a_module_says_what_it_is_for(name: str) -> None:
    assert (importlib.import_module(name).__doc__ or "").strip()


def own_names(name: str) -> list[Any]:
    """The classes and functions without an underscore that a module defines."""
    module = importlib.import_module(name)
    path = module.__file__
    found = [each for own, each in vars(module).items() if not own.startswith("_")]
    return [
        each
        for each in found
        if (inspect.isclass(each) or inspect.isfunction(each))
        and is_our_own(each)
        and inspect.getsourcefile(each) == path
    ]


@MODULES
def test_a_list_of_what_a_module_gives_away_is_right(name: str) -> None:
    module = importlib.import_module(name)
    names = vars(module).get("__all__", ())
    assert len(set(names)) == len(names)
    assert [each for each in names if not hasattr(module, each)] == []
    assert not [each for each in names if each.startswith("_")]


@MODULES
def test_a_modules_own_public_classes_are_documented(name: str) -> None:
    assert [each for each in own_names(name) if inspect.isclass(each) and not each.__doc__] == []


@MODULES
def test_a_modules_own_public_functions_are_annotated(name: str) -> None:
    for each in own_names(name):
        for _, function in functions_of(each):
            assert not is_our_own(function) or "return" in function.__annotations__, function


# --- docstrings ----------------------------------------------------------------------------------


def documented_arguments(docstring: str) -> list[str]:
    section = re.search(r"^Args:\n((?:(?: {4}.*)?\n)*)", docstring + "\n", re.M)
    return re.findall(r"^ {4}\*{0,2}(\w+):", section[1], re.M) if section else []


def arguments_of(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Those of a function; of a class, those of its constructor and its dataclass fields."""
    if isinstance(node, ast.FunctionDef):
        every = ast.walk(node.args)
        return {each.arg for each in every if isinstance(each, ast.arg)}
    fields = {
        member.target.id
        for member in node.body
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
    }
    makers = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name in MAKERS]
    return fields.union(*map(arguments_of, makers))


@pytest.mark.parametrize("path", sorted(HOUSE.rglob("*.py")), ids=lambda p: p.stem)
def test_every_documented_argument_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            documented = documented_arguments(ast.get_docstring(node) or "")
            unknown = set(documented) - arguments_of(node)
            assert not unknown, f"{node.name}, line {node.lineno}: {unknown}"
