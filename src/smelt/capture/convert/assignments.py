"""Assignments: the value first, then the targets from left to right, each with its parts in Python's order."""

from __future__ import annotations

import ast

from smelt.capture.convert.expressions import Expressions, binary
from smelt.capture.convert.runtime import HIDDEN


class Assignments(Expressions):
    """Lowers what binds, changes and deletes."""

    def _do_Assign(self, node: ast.Assign) -> None:
        value = node.value
        if len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(value, ast.GeneratorExp) and isinstance(target, (ast.Tuple, ast.List)):
                # Taken apart at once, it is a list.
                self.assign(target, self.items_of(value))
            else:
                self.assign(target, self.expr(value))
            return
        temporary = self.fresh("assigned")
        self.emit_assign(temporary, self.expr(value))
        for target in node.targets:
            self.assign(target, self.name(temporary))
        self._forget(temporary)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.expr(node.value))
        elif isinstance(node.target, ast.Attribute):
            self.emit_expr(self.expr(node.target.value))
        elif isinstance(node.target, ast.Subscript):
            self.emit_expr(self.tuple([self.expr(node.target.value), self.expr(node.target.slice)]))

    def _forget(self, *names: str) -> None:
        """Values live no longer than in the user's code."""
        self.emit(ast.Delete([ast.Name(n, ast.Del(), **self.place) for n in names], **self.place))

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        """Binds a target to a value that is evaluated first."""
        saved = self.place
        self.stand_at(target)
        match target:
            case ast.Name(name):
                self.emit_assign(name, value)
                if not name.startswith(HIDDEN):
                    self.bind(name)
            case ast.Attribute():
                o = self.expr(target.value)
                self.emit_expr(
                    self.helper("store_attribute", self.runtime(), self.at(), value, o, self.constant(target.attr))
                )
            case ast.Subscript():
                o, key = self.expr(target.value), self.expr(target.slice)
                self.emit_expr(self.helper("store_item", self.runtime(), self.at(), value, o, key))
            case ast.Tuple() | ast.List():
                self._unpack(target, self.ask("iterate", value))
            case _:
                raise AssertionError(type(target).__name__)
        self.place = saved

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr) -> None:
        plain = [part.value if isinstance(part, ast.Starred) else part for part in target.elts]
        names = [part for part in plain if isinstance(part, ast.Name)]
        if len(names) == len(plain):
            self.emit(ast.Assign([target], value, None, **self.place))
            for one in names:
                self.bind(one.id)
            for one, given in zip(names, target.elts, strict=True):
                if isinstance(given, ast.Starred):
                    self.emit_assign(one.id, self.ask("starred", self.variable(one.id)))
            return
        # Python unpacks one level, then binds its targets from left to right.
        parts: list[ast.expr] = []
        later: list[tuple[ast.expr, str]] = []
        for part in target.elts:
            name = self.fresh("part")
            starred = isinstance(part, ast.Starred)
            later.append((part.value if isinstance(part, ast.Starred) else part, name))
            parts.append(ast.Starred(self.target(name), ast.Store(), **self.place) if starred else self.target(name))
        self.emit(ast.Assign([ast.Tuple(parts, ast.Store(), **self.place)], value, None, **self.place))
        for (part, name), given in zip(later, target.elts, strict=True):
            held = self.name(name)
            self.assign(part, self.ask("starred", held) if isinstance(given, ast.Starred) else held)
            self._forget(name)

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        op = self.constant(binary(node.op))
        target = node.target
        match target:
            case ast.Name(name):
                self.emit_assign(name, self.ask("inplace", op, self.variable(name), self.expr(node.value)))
                self.bind(name)
            case ast.Attribute():
                o = self.fresh("object")
                self.emit_assign(o, self.expr(target.value))
                attribute = self.constant(target.attr)
                old = self.ask("getattr_", self.name(o), attribute)
                new = self.ask("inplace", op, old, self.expr(node.value))
                self.emit_expr(self.ask("setattr_", self.name(o), attribute, new))
                self._forget(o)
            case ast.Subscript():
                o, key = self.fresh("object"), self.fresh("key")
                self.emit_assign(o, self.expr(target.value))
                self.emit_assign(key, self.expr(target.slice))
                old = self.ask("getitem", self.name(o), self.name(key))
                new = self.ask("inplace", op, old, self.expr(node.value))
                self.emit_expr(self.ask("setitem", self.name(o), self.name(key), new))
                self._forget(o, key)

    def _do_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._delete(target)

    def _delete(self, target: ast.expr) -> None:
        match target:
            case ast.Name(name):
                if name in self.body.scope.locals:
                    self.emit_expr(self.ask("held", self.variable(name)))
                self.emit(ast.Delete([target], **self.place))
                self.bind(name)
            case ast.Attribute():
                new = ast.Attribute(self.expr(target.value), target.attr, ast.Del(), **self.place)
                self.emit(ast.Delete([new], **self.place))
            case ast.Subscript():
                self.emit_expr(self.ask("delitem", self.expr(target.value), self.expr(target.slice)))
            case ast.Tuple() | ast.List():
                for part in target.elts:
                    self._delete(part)
