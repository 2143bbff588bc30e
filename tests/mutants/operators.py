"""Mutant: one place of a module's source, and the text that replaces it.

The operators are those of the field (mutmut, cosmic-ray, PIT). Text is replaced by the positions of
the parsed nodes, so that all else stays as it is, line numbers included. Some source decides
nothing, and is left alone:

* annotations, names of types, decorators, imports, and options of dataclass fields;
* docstrings and other texts, ``__repr__``, and what a logger is given;
* assertions, and the checkers that consist of them.

Mutants are drawn uniformly over the places (a node and an operator); of the changes that are
possible there, one is drawn.
"""

import ast
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from random import Random

MODULE_LEVEL = -1
"""The code that an import of the module executes."""

_COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.BitXor: ("^", "&"),
}
_TYPES_ONLY = {"NewType", "TypeVar", "ParamSpec", "cast", "Protocol"}
_LOGGERS = {"_log", "log", "logger", "logging"}
_FIELD_OPTIONS = {"init", "repr", "compare", "hash", "kw_only"}
_CHECKERS = {"__repr__", "check_invariants"}


@dataclass(frozen=True, slots=True, order=True)
class Mutation:
    module: str
    start: int
    line: int
    operator: str
    old: str
    new: str
    statement: int = MODULE_LEVEL
    """The number of the innermost statement in a function that it belongs to."""
    function: str = ""

    def apply(self, source: bytes) -> bytes:
        old = self.old.encode()
        assert source[self.start : self.start + len(old)] == old, "not the source it was drawn from"
        return source[: self.start] + self.new.encode() + source[self.start + len(old) :]

    def shown(self) -> str:
        short = [" ".join(text.split()) or "nothing" for text in (self.old, self.new)]
        return f"{self.operator}: {short[0]} -> {short[1]}"


def statements(tree: ast.Module) -> list[ast.stmt]:
    found: list[ast.stmt] = []

    def visit(node: ast.AST, in_function: bool) -> None:
        if in_function and isinstance(node, ast.stmt):
            found.append(node)
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(tree, False)
    return found


def places(module: str, source: bytes) -> list[list[Mutation]]:
    tree = ast.parse(source)
    finder = _Finder(module, source, {id(node): at for at, node in enumerate(statements(tree))})
    finder.visit(tree)
    return finder.places


def draw(sources: Mapping[str, bytes], seed: int, count: int) -> list[Mutation]:
    random = Random(seed)
    found = [place for module, source in sources.items() for place in places(module, source)]
    random.shuffle(found)
    drawn: list[Mutation] = []
    for place in found:
        if len(drawn) == count:
            break
        change = random.choice(place)
        if _compiles(change.apply(sources[change.module])):
            drawn.append(change)
    return drawn


def _compiles(source: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "is" with a literal, calls of a literal
        try:
            compile(source, "mutant", "exec", dont_inherit=True)
        except (SyntaxError, SyntaxWarning, ValueError):
            return False
    return True


class _Finder(ast.NodeVisitor):
    def __init__(self, module: str, source: bytes, numbers: dict[int, int]) -> None:
        self.places: list[list[Mutation]] = []
        self._module, self._source, self._numbers = module, source, numbers
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._statement = MODULE_LEVEL
        self._names: list[str] = []

    # --- walking ---------------------------------------------------------------------------------

    def visit(self, node: ast.AST) -> None:
        before = self._statement
        if isinstance(node, ast.stmt):
            self._statement = self._numbers.get(id(node), before)
        handler = getattr(self, f"visit_{type(node).__name__}", None)
        if handler is not None:
            handler(node)
        else:
            self.generic_visit(node)
        self._statement = before

    def _visit_all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def _body(self, body: list[ast.stmt]) -> None:
        for node in body:
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not is_text:
                self._delete(node)
                self.visit(node)

    def visit_Module(self, node: ast.Module) -> None:
        self._body(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        self._body(node.body)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name in _CHECKERS:
            return
        self._names.append(node.name)
        self._visit_all(*node.args.defaults, *node.args.kw_defaults)
        self._body(node.body)
        self._names.pop()

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_Import(self, node: ast.Import) -> None:
        pass

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        is_type = isinstance(node.value, ast.Subscript | ast.BinOp) and not self._names
        if not (is_type and _is_type(node.value)):
            self._visit_all(*node.targets, node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        pass  # the message of an error is a text

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    # --- operators -------------------------------------------------------------------------------

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._condition(node.test)
        self.visit(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def visit_While(self, node: ast.While) -> None:
        self._whole("condition", node.test, "False")
        self.visit(node.test)
        self._body(node.body)
        self._body(node.orelse)

    def visit_For(self, node: ast.For) -> None:
        self._visit_all(node.target, node.iter)
        self._body(node.body)
        self._body(node.orelse)

    def visit_With(self, node: ast.With) -> None:
        self._visit_all(*node.items)
        self._body(node.body)

    def visit_Try(self, node: ast.Try) -> None:
        self._body(node.body)
        for handler in node.handlers:
            self._body(handler.body)
        self._body(node.orelse)
        self._body(node.finalbody)

    def visit_match_case(self, node: ast.match_case) -> None:
        if node.guard is not None:
            self._condition(node.guard)
            self.visit(node.guard)
        self._body(node.body)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for each in node.ifs:
            self._condition(each)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            pattern, others = _COMPARISONS[type(operator)]
            self._between("comparison", left, right, pattern, others, is_pattern=True)
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            self._between("arithmetic", node.left, node.right, old, (new,))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            self._between("arithmetic", node.target, node.value, f"{old}=", (f"{new}=", "="))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in pairwise(node.values):
            begin, end = self._span(node)
            gap = self._gap(left, right, rf"\b{old}\b")
            if gap is not None:  # in parentheses, or what is beside it would bind otherwise
                text = self._text(begin, gap[0]) + new + self._text(gap[1], end)
                self._add("boolean", begin, end, f"({text})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            begin, end = self._span(node)
            self._add("negation", begin, end, f"({self._text(*self._span(node.operand))})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value, others = node.value, []
        if isinstance(value, bool):
            others = [str(not value)]
        elif isinstance(value, int):
            others = [str(value + 1), "1" if value == 0 else "0"]
        elif isinstance(value, float):
            others = [str(value * 2 if value else 1.0), "1.0" if value == 0 else "0.0"]
        elif isinstance(value, bytes):
            others = ["b''" if value else "b'x'"]
        elif value is None and self._statement != MODULE_LEVEL:
            others = ["0"]
        self._whole("constant", node, *dict.fromkeys(others))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            if not (isinstance(node.value, ast.Constant) and node.value.value is None):
                self._whole("return", node.value, "None")
            self.visit(node.value)

    def visit_Break(self, node: ast.Break) -> None:
        self._whole("jump", node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._whole("jump", node, "break")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _TYPES_ONLY or name == "field" or _is_log(node):
            for each in node.keywords:
                if each.arg not in _FIELD_OPTIONS and name == "field":
                    self.visit(each.value)
            return
        plain = [each for each in node.args if not isinstance(each, ast.Starred)]
        swaps = [
            self._text(*self._span(right))
            + self._text(self._span(left)[1], self._span(right)[0])
            + self._text(*self._span(left))
            for left, right in pairwise(plain)
        ]
        for at, text in enumerate(swaps):
            self._add("arguments", self._span(plain[at])[0], self._span(plain[at + 1])[1], text)
        for each in node.keywords:
            begin = self._at(each.lineno, each.col_offset)
            end = self._at(each.end_lineno, each.end_col_offset)
            comma = re.compile(rb"\s*,").match(self._source, end)
            self._add("arguments", begin, comma.end() if comma else end, "")
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Slice):
            for bound in (node.slice.lower, node.slice.upper):
                if bound is not None:
                    text = self._text(*self._span(bound))
                    self._whole("slice", bound, "", f"({text}) + 1")
        self.generic_visit(node)

    # --- texts and positions ---------------------------------------------------------------------

    def _condition(self, test: ast.expr) -> None:
        self._whole("condition", test, "True", "False")

    def _delete(self, node: ast.stmt) -> None:
        """A replacement changes something; a missing name would be noticed too easily."""
        if isinstance(node, ast.Expr) and _is_log(node.value):
            return
        changes = isinstance(node, ast.Expr | ast.AugAssign | ast.Delete | ast.Raise)
        if isinstance(node, ast.Assign):
            changes = all(isinstance(each, ast.Attribute | ast.Subscript) for each in node.targets)
        if changes:
            before = self._statement
            self._statement = self._numbers.get(id(node), before)
            self._whole("deletion", node, "pass")
            self._statement = before

    def _at(self, line: int | None, column: int | None) -> int:
        assert line is not None
        assert column is not None
        return self._lines[line - 1] + column

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        begin = self._at(node.lineno, node.col_offset)
        return begin, self._at(node.end_lineno, node.end_col_offset)

    def _text(self, begin: int, end: int) -> str:
        return self._source[begin:end].decode()

    def _whole(self, operator: str, node: ast.expr | ast.stmt, *others: str) -> None:
        self._add(operator, *self._span(node), *others)

    def _gap(self, left: ast.expr, right: ast.expr, pattern: str) -> tuple[int, int] | None:
        begin, end = self._span(left)[1], self._span(right)[0]
        found = re.search(pattern, self._text(begin, end))
        return None if found is None else (begin + found.start(), begin + found.end())

    def _between(
        self,
        operator: str,
        left: ast.expr,
        right: ast.expr,
        old: str,
        others: tuple[str, ...],
        *,
        is_pattern: bool = False,
    ) -> None:
        gap = self._gap(left, right, old if is_pattern else re.escape(old))
        if gap is not None:
            self._add(operator, *gap, *others)

    def _add(self, operator: str, begin: int, end: int, *others: str) -> None:
        old = self._text(begin, end)
        line = self._source.count(b"\n", 0, begin) + 1
        where = self._module, begin, line, operator, old
        place = [
            Mutation(*where, other, self._statement, ".".join(self._names))
            for other in others
            if other != old
        ]
        if place:
            self.places.append(place)


def _is_log(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    return isinstance(node.func.value, ast.Name) and node.func.value.id in _LOGGERS


def _is_type(node: ast.AST) -> bool:
    """``tuple[Kind, object]``, ``LookupRequest | ListRequest``: types alone."""
    names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
    known = {"tuple", "dict", "list", "set", "frozenset", "object", "int", "str", "bytes", "float"}
    return bool(names) and all(
        name in known or (name.lstrip("_")[:1].isupper() and not name.isupper()) for name in names
    )
