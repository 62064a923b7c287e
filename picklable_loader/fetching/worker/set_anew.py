"""Attributes that a dataset's ``__iter__`` sets before it reads them, as its source shows.

``self.position = 0`` at its beginning is one example. No sample depends on the value that an
earlier epoch has left there. Whatever this module does not follow (a loop, a call that has the
dataset as an argument) ends its look: then the attributes after it may depend on earlier epochs.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from inspect import getattr_static, getsource
from textwrap import dedent
from types import FunctionType, MemberDescriptorType
from typing import Any

#: values of these kinds of nodes may be computed later, or not at all
_LATER = (ast.Lambda, ast.Yield, ast.YieldFrom, ast.Await)
#: statements that set nothing anew
_PLAIN = (ast.Pass, ast.Import, ast.ImportFrom, ast.Assert, ast.Expr, ast.AugAssign)


class _Unclear(Exception):
    """It follows the code up to here."""


@lru_cache(256)
def set_anew(kind: Any) -> frozenset[str]:
    """Their names, of datasets of a class; none where Python does not have its source."""
    look = _Look(kind)
    own = ("__setattr__", "__getattribute__")
    if all(getattr_static(kind, name) is getattr_static(object, name) for name in own):
        # OSError: there is no source; others: the file has changed since.
        with suppress(_Unclear, OSError, TypeError, SyntaxError, ValueError, IndexError):
            look.method("__iter__")
    return frozenset(look.anew)


class _Look:
    """Follows the statements of a method in their order, and those of methods that it calls."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        #: attributes that were set before any of that name was read; all that were read
        self.anew, self.read = set[str](), set[str]()
        #: methods that were entered, and what the present one calls its object
        self.entered, self.me = set[str](), ""

    def method(self, name: str) -> None:
        function = getattr_static(self.kind, name, None)
        if type(function) is not FunctionType or name in self.entered:
            raise _Unclear
        self.entered.add(name)
        [definition] = ast.parse(dedent(getsource(function))).body
        if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
            raise _Unclear
        if definition.name != function.__name__:  # the file has changed
            raise _Unclear
        before, self.me = self.me, definition.args.args[0].arg
        self.follow(definition.body)
        self.me = before

    def follow(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if isinstance(statement, ast.If):
                self.choice(statement)
            elif isinstance(statement, ast.Assign):
                self.value(statement.value)
                self.set(statement.targets)
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

    def set(self, targets: list[ast.expr]) -> None:
        for target in targets:
            if isinstance(target, (ast.Tuple, ast.List)):
                self.set(target.elts)
            elif self.is_mine(target):
                name = target.attr  # type: ignore[attr-defined]
                self.check(name)
                self.anew |= {name} - self.read
            else:
                self.look(target)

    def look(self, node: ast.AST) -> None:
        """Note all that is read in it; ``self.parent.child.at`` may lead to the dataset as well."""
        attributes = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
        mine = [each for each in attributes if self.is_mine(each)]
        others = [each for each in attributes if each not in mine]
        of_names = [each for each in others if isinstance(each.value, ast.Name)]
        self.read |= {each.attr for each in attributes if each not in of_names} - self.anew
        if any(each.attr == "dataset" for each in others):  # of torch's WorkerInfo
            raise _Unclear
        named = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
        bare = sum(each.id == self.me for each in named) > len(mine)
        if bare or any(each.id == "super" for each in named):
            raise _Unclear
        for each in ast.walk(node):
            if isinstance(each, _LATER) or (isinstance(each, ast.Call) and self.is_mine(each.func)):
                raise _Unclear
        for each in mine:
            self.check(each.attr)

    def check(self, name: str) -> None:
        """A method, or a property, may read and set anything."""
        value = getattr_static(self.kind, name, None)
        if hasattr(value, "__get__") and type(value) is not MemberDescriptorType:
            raise _Unclear

    def is_mine(self, node: ast.AST) -> bool:
        value = node.value if isinstance(node, ast.Attribute) else None
        return isinstance(value, ast.Name) and value.id == self.me
