"""Checks in the source code that a part's formula and its PyTorch reference share only the fields of the part's spec.

Reference code is every function with such a name (`REFERENCE_FUNCTION`), every method in `REFERENCE_METHODS`, and every
function of the package that these call. It may use only what is listed here; anything else is a fault:

- of a spec: its pydantic fields, `REFERENCE_METHODS` and `OF_EVERY_SPEC`;
- of the package: the classes of parts, `Around`, `PassState`, `WORDS`, and other reference code;
- no counting code of the package may call reference code.

The check infers from annotations and assignments whether an expression is a spec. If that fails, an attribute with the
name of a method or property of any part is a fault as well.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, get_args

import llmcalc
from llmcalc.components.base import Part

REFERENCE_FUNCTION = re.compile(r"_*(references?|\w+_references?|\w+_class)")
"""Names of functions that are reference code, in any module."""

REFERENCE_METHODS = frozenset(
    {
        "reference",  # the PyTorch module of a part
        "rotate_heads",  # RoPE on queries and keys: tensors in, tensors out
    }
)
"""Methods of specs that are reference code; each is checked."""

OF_EVERY_SPEC = frozenset(
    {
        "model_copy",  # the same spec with other fields
        "items",  # for a field that is a dict
        "values",  # likewise
        "index",  # for a field that is a tuple
        "node_name",  # the name of a layer's part on both sides; it is not a number
    }
)
"""Other attributes of a spec that reference code may use, each with the reason why it cannot hide an error."""

WORDS = frozenset(
    {
        "BASE_LAYER_NAME",  # the word in the field `pattern` that stands for the field `block`
    }
)
"""Constants of the package that reference code may use: keywords of the spec's language, no numbers and no parts."""

CONTEXT_CLASSES = frozenset({"PassState", "ModelProperties"})
"""Classes of the package that are not parts and give reference code its context."""

FORMULA_MODULES = frozenset({"algebra", "ops", "flow", "workload", "costs", "units"})
"""Modules of the closed form, which reference code may not use."""


@cache
def modules() -> dict[str, Path]:
    """Dotted name of every module with parts → its file."""
    root, found = Path(llmcalc.__file__).parent, {"llmcalc.model": Path(llmcalc.__file__).parent / "model.py"}
    for package in ("components", *(f"components/{inner}" for inner in ("mixers", "networks", "layers", "towers"))):
        folder = root / package
        name = f"llmcalc.{package.replace('/', '.')}"
        found[name] = folder / "__init__.py"
        found.update({f"{name}.{m.name}": folder / f"{m.name}.py" for m in iter_modules([str(folder)]) if not m.ispkg})
    return found


@cache
def parts() -> dict[str, type[Part]]:
    """Name → class, for every class of the package that is a part."""
    for name in modules():
        import_module(name)
    found: dict[str, type[Part]] = {}
    todo: list[type[Part]] = [Part]
    while todo:
        cls = todo.pop()
        todo += cls.__subclasses__()
        if cls.__module__ in modules():  # a preset, for example, is a record but not a part
            found[cls.__name__] = cls
    return found


@cache
def members() -> frozenset[str]:
    """Names of methods, properties and class variables of any part that are not a field of any part."""
    fields = {name for cls in parts().values() for name in cls.model_fields}
    own = {name for cls in parts().values() for name in _own_members(cls)}
    return frozenset(own - fields)


@cache
def _own_members(cls: type[Part]) -> set[str]:
    return {
        name for name in vars(cls) if name not in cls.model_fields and not name.startswith(("__", "model_", "_abc"))
    }


@cache
def _family(cls: str) -> tuple[type[Part], ...]:
    """A class of parts and all its subclasses."""
    top = parts().get(cls, Part)
    return (top, *(c for c in parts().values() if issubclass(c, top)))


@cache
def _is_field(name: str, classes: Kinds) -> bool:
    """Whether a name is a field of some of these classes, and not another kind of attribute of any of them."""
    family = [cls for kind in classes for cls in _family(kind)]
    return any(name in cls.model_fields for cls in family) and not any(name in _own_members(cls) for cls in family)


@cache
def _kinds_of_field(name: str, classes: Kinds) -> Kinds:
    """The classes of parts that a field may have as its value."""
    found: set[str] = set()
    for cls in (cls for kind in classes for cls in _family(kind) if name in cls.model_fields):
        todo: list[Any] = [cls.model_fields[name].annotation]
        while todo:
            one = todo.pop()
            if isinstance(one, type) and issubclass(one, Part):
                found.add(one.__name__)
            todo += get_args(one)
    return frozenset(found) or ANY


Kinds = frozenset[str]
"""Names of the classes of parts that an expression may be an instance of."""

ANY: Kinds = frozenset({"Part"})

ModuleScope = dict[str, Kinds | None]
"""Name → the classes of parts that it may be; None if it is not a spec."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Module:
    """One file: the origin of its names, and its functions. A source is parsed once."""

    name: str
    tree: ast.Module
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    methods: list[tuple[str, Function]] = field(default_factory=list)
    constants: set[str] = field(default_factory=set)

    @classmethod
    @cache
    def of(cls, source: str, name: str) -> Module:
        tree = ast.parse(source)
        found = cls(name, tree)
        package = name if modules().get(name, Path()).name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
                home = ".".join(part for part in (base, node.module or "") if part)
                found.imported.update({a.asname or a.name: (home, a.name) for a in node.names})
        for statement in _flat(tree.body):
            if isinstance(statement, Function):
                found.functions[statement.name] = statement
            elif isinstance(statement, ast.ClassDef):
                found.methods += [(statement.name, n) for n in statement.body if isinstance(n, Function)]
            elif isinstance(statement, ast.Assign | ast.AnnAssign):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                found.constants |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        return found


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements of a module, including those under `if TYPE_CHECKING`."""
    for statement in body:
        if isinstance(statement, ast.If):
            yield from _flat([*statement.body, *statement.orelse])
        else:
            yield statement


def faults(changed: dict[str, str] | None = None) -> list[str]:
    """Returns the forbidden uses in reference code of the package. changed: module name → other source for it."""
    sources = {name: path.read_text() for name, path in modules().items()} | (changed or {})
    read = {name: Module.of(source, name) for name, source in sources.items()}
    todo: list[tuple[str, str, Function]] = []  # (module, part if the function is its method, function)
    for module in read.values():
        todo += [(module.name, "", f) for name, f in module.functions.items() if REFERENCE_FUNCTION.fullmatch(name)]
        todo += [
            (module.name, cls, f)
            for cls, f in module.methods
            if f.name in REFERENCE_METHODS or REFERENCE_FUNCTION.fullmatch(f.name)
        ]
    found: list[str] = []
    checked: set[int] = set()
    called: set[tuple[str, str]] = set()
    while todo:
        home, cls, function = todo.pop()
        if id(function) in checked:
            continue
        checked.add(id(function))
        forbidden, calls = _uses(read[home], cls, function)
        found += forbidden
        if not cls:
            called.add((home, function.name))
        todo += [(where, "", read[where].functions[name]) for where, name in calls]
    for module in read.values():
        functions = (*module.functions.values(), *(method for _, method in module.methods))
        reference_code = frozenset(id(function) for function in functions) & checked
        for line, home, name in _outside(module, reference_code):
            if (home, name) in called or (not home and name in REFERENCE_METHODS):
                found.append(f"{module.name}:{line}: `{name}` is reference code, and is used elsewhere")
    return sorted(set(found))


@cache
def _uses(module: Module, cls: str, function: Function) -> tuple[list[str], list[tuple[str, str]]]:
    """The forbidden uses in a function of reference code, and the functions of the package that it names."""
    check = _Check(module, f"{module.name}.{f'{cls}.' if cls else ''}{function.name}")
    check.function(function, {}, cls if cls in parts() else "")
    return check.faults, check.calls


@cache
def _outside(module: Module, reference_code: frozenset[int]) -> tuple[tuple[int, str, str], ...]:
    """Returns (line, module, name) of every name outside of reference code; for an attribute, ("", name).

    reference_code: ids of the module's functions that are reference code.
    """
    names: set[tuple[int, str, str]] = set()
    todo: list[tuple[ast.AST, frozenset[str]]] = [(module.tree, frozenset())]
    while todo:
        node, local = todo.pop()
        if id(node) in reference_code:
            continue
        if isinstance(node, Function):
            local |= {n.name for s in node.body for n in ast.walk(s) if isinstance(n, Function)}
            local |= {n.arg for n in ast.walk(node.args) if isinstance(n, ast.arg)}
        if isinstance(node, ast.Name) and node.id not in local:
            names.add((node.lineno, *module.imported.get(node.id, (module.name, node.id))))
        elif isinstance(node, ast.Attribute):
            names.add((node.lineno, "", node.attr))
        todo += [(child, local) for child in ast.iter_child_nodes(node)]
    return tuple(names)


class _Check:
    """Walks a function of reference code and records forbidden uses.

    calls: functions of the package that it names, as (module, function).
    """

    def __init__(self, module: Module, where: str) -> None:
        self.module, self.where = module, where
        self.faults: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.held: dict[str, Kinds] = {}  # attribute of a nested class's `self` → the classes of specs that it may be

    def say(self, node: ast.AST, what: str) -> None:
        self.faults.append(f"{self.where}:{getattr(node, 'lineno', 0)}: {what}")

    def function(self, function: Function, known: ModuleScope, part: str = "") -> None:
        """Checks one function. known: names in the enclosing scopes. part: its class, if it is a method of a part."""
        scope = dict(known)
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        for argument in [*arguments, function.args.vararg, function.args.kwarg]:
            if argument is not None:
                scope[argument.arg] = self._annotated(argument.annotation)
        if part:
            scope["self"] = frozenset({part})
        for default in (*function.args.defaults, *function.args.kw_defaults):
            if default is not None:
                self.visit(default, scope)
        for _ in range(2):  # twice, for names that are assigned after their use
            for node in [n for s in function.body for n in _own(s)]:
                self._learn(node, scope)
        for statement in function.body:
            self.visit(statement, scope)

    def _annotated(self, annotation: ast.expr | None) -> Kinds | None:
        names = () if annotation is None else (n.id for n in ast.walk(annotation) if isinstance(n, ast.Name))
        return frozenset(name for name in names if name in parts()) or None

    def _learn(self, node: ast.AST, scope: ModuleScope) -> None:
        if isinstance(node, Function | ast.ClassDef):
            scope[node.name] = None
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, node.value, scope)
        elif (isinstance(node, ast.AnnAssign) and node.value is not None) or isinstance(node, ast.NamedExpr):
            self._bind(node.target, node.value, scope)
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Tuple | ast.List):
            for value in node.iter.elts:
                self._bind(node.target, value, scope)
        elif isinstance(node, ast.For | ast.comprehension):
            specs = [self.spec(n, scope) for n in ast.walk(node.iter) if isinstance(n, ast.expr)]
            self._mark(node.target, _either(specs), scope)

    def _bind(self, target: ast.expr, value: ast.expr, scope: ModuleScope) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for one, of in zip(target.elts, value.elts, strict=True):
                self._bind(one, of, scope)
        else:
            self._mark(target, self.spec(value, scope), scope)

    def _mark(self, target: ast.expr, kinds: Kinds | None, scope: ModuleScope) -> None:
        for n in ast.walk(target) if isinstance(target, ast.Tuple | ast.List | ast.Starred) else [target]:
            if isinstance(n, ast.Name):
                scope[n.id] = _either([kinds, scope.get(n.id)])
            elif isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self":
                held = _either([kinds, self.held.get(n.attr)])
                self.held |= {} if held is None else {n.attr: held}

    def spec(self, node: ast.expr, scope: ModuleScope) -> Kinds | None:
        """Returns the classes that an expression may be an instance of, or contain, if it is a spec or built from
        specs.
        """
        if isinstance(node, ast.Name):
            return scope.get(node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self" and scope.get("self") is None:
                return self.held.get(node.attr)
            below = self.spec(node.value, scope)
            return None if below is None else _kinds_of_field(node.attr, below)
        if isinstance(node, ast.Subscript | ast.Starred | ast.NamedExpr):
            return self.spec(node.value, scope)
        if isinstance(node, ast.IfExp):
            return _either([self.spec(node.body, scope), self.spec(node.orelse, scope)])
        if isinstance(node, ast.BoolOp | ast.Dict):
            return _either([self.spec(v, scope) for v in node.values])
        if isinstance(node, ast.Tuple | ast.List):
            return _either([self.spec(v, scope) for v in node.elts])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            kept = node.func.attr in ("model_copy", "items", "values")
            return self.spec(node.func.value, scope) if kept else None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            made = node.func.id in parts() and node.func.id not in scope
            asked = node.func.id == "getattr" and self.spec(node.args[0], scope) is not None
            return frozenset({node.func.id}) if made else ANY if asked else None
        return None

    def visit(self, node: ast.AST, scope: ModuleScope) -> None:
        if isinstance(node, ast.ClassDef):
            outer, self.held = self.held, {}
            methods = [n for n in node.body if isinstance(n, Function)]
            said, calls = list(self.faults), list(self.calls)
            for method in methods:  # first pass, for attributes that are specs
                self.function(method, {**scope, "self": None})
            self.faults, self.calls = said, calls
            for method in methods:
                self.function(method, {**scope, "self": None})
            self.held = outer
        elif isinstance(node, Function):
            self.function(node, scope)
        elif isinstance(node, ast.Lambda):
            self.visit(node.body, {**scope, **{a.arg: None for a in node.args.args}})
        elif not isinstance(node, ast.ImportFrom | ast.Import):
            self._look_at(node, scope)
            for name, child in ast.iter_fields(node):
                if name != "annotation":
                    for one in child if isinstance(child, list) else [child]:
                        if isinstance(one, ast.AST):
                            self.visit(one, scope)

    def _look_at(self, node: ast.AST, scope: ModuleScope) -> None:
        if isinstance(node, ast.Attribute):
            self._attribute(node, node.value, node.attr, scope)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant):
                self._attribute(node, node.args[0], str(name.value), scope)
            elif self.spec(node.args[0], scope) is not None:
                self.say(node, f"`{ast.unparse(node)}` asks a spec for a name that is made up as it runs")
        elif isinstance(node, ast.Name) and node.id not in scope:
            self._name(node)

    def _attribute(self, node: ast.AST, value: ast.expr, name: str, scope: ModuleScope) -> None:
        kinds = self.spec(value, scope)
        if name in REFERENCE_METHODS or name in OF_EVERY_SPEC:
            return
        if kinds is not None:
            if not _is_field(name, kinds):
                self.say(node, f"`.{name}` of a spec is none of its fields")
        elif name in members() and not (isinstance(value, ast.Name) and value.id == "self") and not _is_torch(value):
            self.say(node, f"`.{name}` is a method or property of a part")

    def _name(self, node: ast.Name) -> None:
        home, name = self.module.imported.get(node.id, (self.module.name, node.id))
        top, *below = home.split(".")
        if top != "llmcalc":
            return
        if FORMULA_MODULES & {name, *below}:
            self.say(node, f"`{node.id}` is the closed form's")
        elif name in parts() or name in CONTEXT_CLASSES or name in WORDS:
            return
        elif home == self.module.name:
            if name in self.module.functions:
                self.calls.append((home, name))
            elif name in self.module.constants:
                self.say(node, f"`{node.id}` is a constant of the package")
        elif home in modules() and inspect.isfunction(inspect.unwrap(getattr(import_module(home), name, None))):
            self.calls.append((home, name))
        else:
            self.say(node, f"`{node.id}` of {home} is no part and no reference code")


def _either(kinds: list[Kinds | None]) -> Kinds | None:
    """The union of these classes."""
    return frozenset(one for some in kinds if some is not None for one in some) or None


def _own(statement: ast.AST) -> Iterator[ast.AST]:
    """Yields a statement and the nodes inside it, without the bodies of functions and classes."""
    yield statement
    if not isinstance(statement, Function | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(statement):
            yield from _own(child)


def _is_torch(node: ast.expr) -> bool:
    """Whether an attribute belongs to torch itself: `torch.nn.functional`, `nn`, `F`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in ("torch", "nn", "F", "math")
