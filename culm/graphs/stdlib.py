"""Python's own standard library as a graph, without a network: functions, and which functions each one names.

The question is to which package a function belongs. Source files are read and never run. They are those of the Python
that runs, so another version of it has another graph, and so may another build: Debian ships tkinter apart. The nodes
of one run need the same version anyway.

What could give the answer away is left out: import statements, and each identifier that has a package's name among its
words (``logging``, ``_asyncio_loop``, ``HTTPError``). What stays is the vocabulary: a package's own names, such as tk's
options, say much of it. Edges say more, as they are found in a function's own module first: most lead to the same
package. That is what a call graph is, and no label is among the features of any neighbour.
"""

import ast
import math
import re
import sysconfig
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from culm.graphs.datasets import split
from culm.pipeline.errors import JobError
from culm.pipeline.user_code.graph.graph import Graph

WHERE = "graph.args"
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "_bundled"}
REEXPORTS = 3  # how many modules a name is followed through
_DEFINITION = re.compile(rb"^[ \t]*(?:async[ \t]+)?def ", re.MULTILINE)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

Function = ast.FunctionDef | ast.AsyncFunctionDef
_Defines = Function | ast.ClassDef | ast.Import | ast.ImportFrom


def calls(packages: int = 16, features: int = 128, seed: int = 0, edges: bool = True) -> Graph:
    """A vertex for each function and method, an edge from it to each one that it names; both ways, with loops.

    ``packages``: the classes, those with the most functions; other packages are left out. ``features``: columns into
    which the identifiers of a body are hashed; a value is log(1 + count). ``seed``: of the split. ``edges``: False
    leaves loops alone, to see what edges are good for. Raises JobError.
    """
    if packages < 2 or features < 1:
        what = f"packages is {packages} and features is {features}"
        raise JobError(what, WHERE, "give 2 packages or more, and 1 feature or more")
    library = Library(Path(sysconfig.get_paths()["stdlib"]), packages)
    ends = sorted(library.edges()) if edges else []
    both = torch.tensor(ends, dtype=torch.int64).reshape(-1, 2)
    train, valid, test = split(len(library.functions), seed)
    graph = Graph(
        sources=both[:, 0].contiguous(),
        targets=both[:, 1].contiguous(),
        features=library.features(features),
        labels=torch.tensor([library.names.index(each.module.package) for each in library.functions]),
        train=train,
        valid=valid,
        test=test,
        names=library.names,
    )
    return graph.undirected().normalized()


@dataclass(eq=False, kw_only=True)
class _Module:
    """What a file defines and imports. A qualified name is the path within the module: ``Class.method``."""

    name: str
    is_package: bool
    functions: dict[str, int] = field(default_factory=dict)  # by qualified name: the vertex
    bases: dict[str, list[str]] = field(default_factory=dict)  # by qualified name of a class, as they are written
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # by name here: module, and the name in it or ""
    stars: list[str] = field(default_factory=list)  # modules of which all names are imported

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Vertex:
    """A function or method. ``paths``: the dotted names that it reads, ``.name`` where they begin with a call's result.

    ``bound``: its parameters, and the names that it assigns, which hide those of the module.
    """

    module: _Module
    name: str
    identifiers: Counter[str]
    paths: set[str]
    bound: set[str]

    @property
    def owner(self) -> str:
        """The class that it is a method of, or nothing."""
        return self.name.rpartition(".")[0]


class Library:
    """The functions of the packages with the most of them, in order of files' paths and of lines."""

    def __init__(self, folder: Path, packages: int) -> None:
        """``folder``: of the library's files. Raises JobError where it has fewer packages."""
        files = {path.relative_to(folder).parts: path.read_bytes() for path in _files_of(folder)}
        sizes: Counter[str] = Counter()
        for parts, text in files.items():
            if count := len(_DEFINITION.findall(text)):
                sizes[parts[0].removesuffix(".py")] += count
        if len(sizes) < packages:
            what = f"packages is {packages}, and {folder} has {len(sizes)} packages with functions"
            raise JobError(what, WHERE, f"give {len(sizes)} or less")
        largest = sorted(sizes, key=lambda name: (-sizes[name], name))[:packages]
        self.names = tuple(sorted(largest))
        self.functions: list[_Vertex] = []
        self._modules: dict[str, _Module] = {}
        for parts, text in files.items():
            if parts[0].removesuffix(".py") in largest:
                self._read(parts, text)
        called = Counter(each.name.rpartition(".")[2] for each in self.functions)
        self._unique = {
            name: vertex
            for vertex, each in enumerate(self.functions)
            if called[name := each.name.rpartition(".")[2]] == 1
        }

    def features(self, columns: int) -> torch.Tensor:
        """[V, columns]: the identifiers of each body, hashed."""
        labels = {word.lower() for name in self.names for word in (name, name.strip("_"))}
        found = torch.zeros(len(self.functions), columns, dtype=torch.float32)
        for vertex, each in enumerate(self.functions):
            counts: Counter[int] = Counter()
            for name, count in each.identifiers.items():
                if labels.isdisjoint(words_of(name)):
                    counts[zlib.crc32(name.encode()) % columns] += count
            for column, count in counts.items():
                found[vertex, column] = math.log1p(count)
        return found

    def edges(self) -> set[tuple[int, int]]:
        """(function, function that its body names); none leads to itself."""
        found = set()
        for vertex, each in enumerate(self.functions):
            for path in each.paths:
                target = self._named(each, path)
                if target is not None and target != vertex:
                    found.add((vertex, target))
        return found

    def _read(self, parts: Sequence[str], text: bytes) -> None:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):  # samples of bad source, which tools are tried on
            return
        path = [*parts[:-1], parts[-1].removesuffix(".py")]
        is_package = path[-1] == "__init__"
        module = _Module(name=".".join(path[:-1] if is_package else path), is_package=is_package)
        self._modules[module.name] = module
        for name, node in _definitions(tree.body, ""):
            if isinstance(node, ast.Import | ast.ImportFrom):
                _note_imports(module, node)
            elif isinstance(node, ast.ClassDef):
                module.bases.setdefault(name, [base for each in node.bases if (base := _path_of(each))])
            else:
                module.functions.setdefault(name, len(self.functions))
                self.functions.append(_vertex(module, name, node))

    def _named(self, by: _Vertex, path: str) -> int | None:
        """The function that a dotted name in a body means, where that can be told."""
        head, _, rest = path.partition(".")
        if head not in by.bound:
            if (found := self._find(by.module, path, REEXPORTS)) is not None or head in by.module.imports:
                return found
        elif head in ("self", "cls") and (found := self._method(by.module, by.owner, rest, REEXPORTS)) is not None:
            return found
        # Of some object: a method, if there is only one of that name.
        return self._unique.get(path.rpartition(".")[2]) if rest else None

    def _find(self, module: _Module, path: str, deep: int) -> int | None:
        """What the name means at the module's top level; of a class its constructor."""
        if path in module.functions:
            return module.functions[path]
        if path in module.bases:
            return self._method(module, path, "__init__", deep)
        owner, _, name = path.rpartition(".")
        if owner in module.bases:
            return self._method(module, owner, name, deep)
        if not deep:
            return None
        head, _, rest = path.partition(".")
        if head in module.imports:
            origin, attribute = module.imports[head]
            return self._in_module(origin, ".".join(filter(None, (attribute, rest))), deep - 1)
        for star in module.stars:
            if (found := self._in_module(star, path, deep - 1)) is not None:
                return found
        return None

    def _in_module(self, name: str, path: str, deep: int) -> int | None:
        """``path`` may begin with modules below: of ``os``, ``path.join`` is ``join`` of ``os.path``."""
        head, _, rest = path.partition(".")
        if rest and f"{name}.{head}" in self._modules:
            return self._in_module(f"{name}.{head}", rest, deep)
        module = self._modules.get(name)
        return self._find(module, path, deep) if module is not None and path else None

    def _method(self, module: _Module, owner: str, name: str, deep: int) -> int | None:
        """A class's, or the first of its bases' that has one."""
        if (found := module.functions.get(f"{owner}.{name}")) is not None or not deep or not name:
            return found
        for base in module.bases.get(owner, []):
            if base in module.bases:
                found = self._method(module, base, name, deep - 1)
            elif base.partition(".")[0] in module.imports:
                found = self._find(module, f"{base}.{name}", deep - 1)
            if found is not None:
                return found
        return None


def _vertex(module: _Module, name: str, node: Function) -> _Vertex:
    """Reads a function once. Its imports are noted as the module's."""
    identifiers: Counter[str] = Counter()
    paths, bound = set(), set()
    for each in _walk(node):
        match each:
            case ast.Name(id=used, ctx=context):
                identifiers[used] += 1
                if isinstance(context, ast.Store):
                    bound.add(used)
                else:
                    paths.add(used)
            case ast.Attribute(attr=used, ctx=context):
                identifiers[used] += 1
                if isinstance(context, ast.Load):
                    paths.add(_path_of(each) or f".{used}")
            case ast.arg(arg=used):
                identifiers[used] += 1
                bound.add(used)
            case ast.keyword(arg=str(used)):
                identifiers[used] += 1
            case ast.Import() | ast.ImportFrom():
                _note_imports(module, each)
    return _Vertex(module=module, name=name, identifiers=identifiers, paths=paths, bound=bound)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """It and the nodes below it, as ``ast.walk``, in half the time."""
    waiting: list[ast.AST] = [node]
    while waiting:
        each = waiting.pop()
        yield each
        for value in each.__dict__.values():
            if isinstance(value, list):
                waiting += [item for item in value if isinstance(item, ast.AST)]
            elif isinstance(value, ast.AST):
                waiting.append(value)


def words_of(identifier: str) -> set[str]:
    """``_asyncioLoop``: asyncio, loop; and the identifier itself, for names such as ``lib2to3``."""
    return {word.lower() for word in _WORD.findall(identifier)} | {identifier.lower(), identifier.lower().strip("_")}


def _path_of(node: ast.expr) -> str:
    """``a.b.c``, or nothing where it does not begin with a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _path_of(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _definitions(body: Sequence[ast.stmt], before: str) -> Iterator[tuple[str, _Defines]]:
    """Classes, functions and methods with their qualified names, and imports; what a function defines within is a part
    of it.
    """
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield before + node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield "", node
        elif isinstance(node, ast.ClassDef):
            yield before + node.name, node
            yield from _definitions(node.body, f"{before}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            branches: list[Sequence[ast.stmt]] = [node.body, getattr(node, "orelse", [])]
            branches += [handler.body for handler in getattr(node, "handlers", [])]
            for branch in branches:
                yield from _definitions(branch, before)


def _note_imports(module: _Module, node: ast.Import | ast.ImportFrom) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.asname:
                module.imports.setdefault(alias.asname, (alias.name, ""))
            else:
                top = alias.name.partition(".")[0]
                module.imports.setdefault(top, (top, ""))
        return
    origin = node.module or ""
    if node.level:
        parents = module.name.split(".")
        up = node.level - 1 if module.is_package else node.level
        origin = ".".join([*parents[: len(parents) - up], *filter(None, [node.module])])
    for alias in node.names:
        if alias.name == "*":
            module.stars.append(origin)
        else:
            module.imports.setdefault(alias.asname or alias.name, (origin, alias.name))


def _files_of(folder: Path) -> list[Path]:
    """In order of their paths: no tests, and nothing that was installed."""
    found = []
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        if LEFT_OUT.isdisjoint(parts) and all(part.isidentifier() for part in parts[:-1]):
            found.append(path)
    return sorted(found, key=lambda path: path.relative_to(folder).parts)
