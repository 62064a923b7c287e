"""Attributes that a dataset's ``__iter__`` sets before it reads them, as its source shows.

``self.position = 0`` at its beginning is one example. No sample depends on the value that an
earlier epoch has left there. Whatever this module does not follow (a loop, a call of the program's
functions) ends its look: then the attributes after it may depend on earlier epochs.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from inspect import getattr_static, getsource
from textwrap import dedent
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from ...saving.pickles.by_reference import attributes_of

#: values of these kinds of nodes may be computed later, or not at all
_LATER = (ast.Lambda, ast.Yield, ast.YieldFrom, ast.Await)
#: statements that set nothing anew
_PLAIN = (ast.Pass, ast.Import, ast.ImportFrom, ast.Assert, ast.Expr, ast.AugAssign)

#: functions of Python's that know the object whose method calls them
_KNOWING = ("super", "vars", "locals", "eval", "exec")


class _Unclear(Exception):
    """It follows the code up to here."""


def set_anew(dataset: Any) -> frozenset[str]:
    """The names of these attributes; none where Python does not have the source of its class."""
    kind: Any = type(dataset)
    names, methods = _in_class(kind)
    replaced = methods.intersection(attributes_of(dataset)) if names else ()
    return frozenset() if replaced else names


@lru_cache(256)
def _in_class(kind: Any) -> tuple[frozenset[str], frozenset[str]]:
    """The same for any dataset of a class; and the names of the methods that set them."""
    look = _Look(kind)
    own = ("__setattr__", "__getattribute__", "__getattr__")
    if all(getattr_static(kind, n, None) is getattr_static(object, n, None) for n in own):
        # OSError: there is no source; others: the file has changed since.
        with suppress(_Unclear, OSError, TypeError, SyntaxError, ValueError, IndexError):
            look.method("__iter__")
    return frozenset(look.anew), frozenset(look.entered)


class _Look:
    """Follows the statements of a method in their order, and those of methods that it calls."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        #: attributes that were set before any of that name was read; all that were read
        self.anew, self.read = set[str](), set[str]()
        #: methods that were entered; what the present one calls its object, and its global names
        self.entered, self.me, self.globals = set[str](), "", dict[str, Any]()
        #: local names of torch's WorkerInfo, and of anything else
        self.infos, self.locals = set[str](), set[str]()

    def method(self, name: str) -> None:
        """Follow a method that is called now.

        Raises:
            _Unclear: as do all that follow; its code cannot be followed any further.
        """
        function = getattr_static(self.kind, name, None)
        if type(function) is not FunctionType or name in self.entered:
            raise _Unclear
        if hasattr(function, "__wrapped__"):
            raise _Unclear
        self.entered.add(name)
        [definition] = ast.parse(dedent(getsource(function))).body
        if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
            raise _Unclear
        if definition.name != function.__name__:  # the file has changed
            raise _Unclear
        if name != "__iter__" and any(isinstance(each, _LATER) for each in ast.walk(definition)):
            raise _Unclear  # the body of a generator does not run now
        before = self.me, self.globals, self.infos, self.locals
        self.me, self.globals = definition.args.args[0].arg, function.__globals__
        self.infos, self.locals = set(), {each.arg for each in definition.args.args[1:]}
        self.follow(definition.body)
        self.me, self.globals, self.infos, self.locals = before

    def follow(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.If):
                self.choice(statement)
            elif isinstance(statement, ast.Assign):
                self.value(statement.value)
                self.set(statement.targets, self.is_info(statement.value))
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self.value(statement.value)
                self.set([statement.target])
            elif isinstance(statement, (ast.Expr, ast.Return)) and statement.value is not None:
                self.value(statement.value)
            else:
                self.look(statement)
            if not isinstance(statement, (ast.If, ast.Assign, ast.AnnAssign, *_PLAIN)):
                raise _Unclear

    def choice(self, statement: ast.If) -> None:
        """Set anew is what both branches set."""
        self.look(statement.test)
        before, both = self.anew, list[set[str]]()
        for branch in (statement.body, statement.orelse):
            self.anew = set(before)
            try:
                self.follow(branch)
            except _Unclear:
                self.anew = before
                raise
            both.append(self.anew)
        self.anew = both[0] & both[1]

    def value(self, node: ast.expr) -> None:
        """An expression that is computed now."""
        if isinstance(node, ast.Call) and self.is_mine(node.func):
            for argument in (*node.args, *node.keywords):
                self.look(argument)
            self.method(node.func.attr)  # type: ignore[attr-defined]
        else:
            self.look(node)

    def set(self, targets: list[ast.expr], info: bool = False) -> None:
        """Note what is set; ``info``: to torch's WorkerInfo."""
        for target in targets:
            if isinstance(target, ast.Name) and info:
                self.infos.add(target.id)
            elif isinstance(target, (ast.Tuple, ast.List)):
                self.set(target.elts)
            elif self.is_mine(target):
                name = target.attr  # type: ignore[attr-defined]
                self.check(name)
                self.anew |= {name} - self.read
            else:
                self.look(target)

    def look(self, node: ast.AST) -> None:
        """Note all that is read in it, of any object: another one may be the dataset itself."""
        parts = list(ast.walk(node))
        attributes = [each for each in parts if isinstance(each, ast.Attribute)]
        mine = [each for each in attributes if self.is_mine(each)]
        named = [each for each in parts if isinstance(each, ast.Name)]
        self.locals |= {each.id for each in named if isinstance(each.ctx, ast.Store)}
        if any(isinstance(each, _LATER) for each in parts):
            raise _Unclear
        if sum(each.id == self.me for each in named) > len(mine):  # it is an argument, say
            raise _Unclear
        if not all(self.is_harmless(each) for each in parts if isinstance(each, ast.Call)):
            raise _Unclear
        for each in attributes:
            name = each.value.id if isinstance(each.value, ast.Name) else ""
            if name not in self.infos - self.locals:
                self.read |= {each.attr} - self.anew
        if any(each.attr == "dataset" for each in attributes if each not in mine):
            raise _Unclear  # of torch's WorkerInfo: this worker's copy
        for each in mine:
            self.check(each.attr)

    def is_harmless(self, call: ast.Call) -> bool:
        """The function is Python's, torch's or numpy's, which do not know the dataset."""
        path, node = list[str](), call.func
        while isinstance(node, ast.Attribute):
            path.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in {*self.infos, *self.locals, *_KNOWING}:
            return False
        found = self.globals.get(node.id, getattr(builtins, node.id, None))
        for name in reversed(path):
            found = getattr(found, name, None) if isinstance(found, ModuleType) else None
        package = str(getattr(found, "__module__", None)).partition(".")[0]
        return package in sys.stdlib_module_names or package in ("torch", "numpy")

    def is_info(self, node: ast.expr) -> bool:
        """It gives torch's WorkerInfo."""
        function = node.func if isinstance(node, ast.Call) else None
        name = getattr(function, "attr", getattr(function, "id", None))
        return name == "get_worker_info"

    def check(self, name: str) -> None:
        """A method, or a property, may read and set anything."""
        value = getattr_static(self.kind, name, None)
        if name.startswith("__"):  # Python may know it under another name
            raise _Unclear
        if hasattr(value, "__get__") and type(value) is not MemberDescriptorType:
            raise _Unclear

    def is_mine(self, node: ast.AST) -> bool:
        """It is an attribute of the dataset, by the name that the method has for it."""
        value = node.value if isinstance(node, ast.Attribute) else None
        return isinstance(value, ast.Name) and value.id == self.me
