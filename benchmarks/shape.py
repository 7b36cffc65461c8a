"""The shape of the code: ``python -m benchmarks.shape [--root FOLDER]``, for comparing two commits.

Lines, files, the largest objects, imports from room to room, file names that occur twice, and how much is explained.
A line of code is one that is neither empty nor comment nor docstring. A room is the folder that a file lies in.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("pipeline", "coordinator", "stage_server", "simulator", "ui", "culm")
EXPLAINED = ("stage_server/worker", "stage_server/streams", "coordinator", "")
LONG = 400  # lines of a file that is to be redesigned


class Text(NamedTuple):
    """Lines of one file, by what they are."""

    code: int
    comments: int
    docstrings: int


class Size(NamedTuple):
    """Of one object: what its class and the classes that it inherits from here add up to."""

    attributes: int
    methods: int
    name: str


def files(root: Path) -> Iterator[Path]:
    """The repository's own modules; generated ones are nobody's reading."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            linked = any(parent.is_symlink() for parent in path.parents if parent != root and root in parent.parents)
            if not linked and "_pb2" not in path.name:
                yield path


def lines(text: str) -> Text:
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            ast.get_docstring(node) is not None
        ):
            said = node.body[0]
            docstrings.update(range(said.lineno, (said.end_lineno or said.lineno) + 1))
    comments, code = 0, set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            code.update(range(token.start[0], token.end[0] + 1))
    return Text(len(code - docstrings), comments, len(docstrings))


def objects(trees: dict[str, ast.Module]) -> list[Size]:
    """Every class, the largest first."""
    found = {node.name: node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}

    def parts(name: str, seen: frozenset[str] = frozenset()) -> tuple[set[str], set[str]]:
        node, attributes, methods = found[name], set[str](), set[str]()
        for base in node.bases:
            inherited = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            if inherited in found and inherited not in seen | {name}:
                more = parts(inherited, seen | {name})
                attributes, methods = attributes | more[0], methods | more[1]
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                attributes.add(each.target.id)
            elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                methods.add(each.name)
                for inner in ast.walk(each):
                    if not isinstance(inner, ast.Attribute) or not isinstance(inner.ctx, ast.Store):
                        continue
                    if ast.unparse(inner.value) == "self":
                        attributes.add(inner.attr)
        return attributes, methods

    sizes = [Size(len(parts(name)[0]), len(parts(name)[1]), name) for name in found]
    return sorted(sizes, key=lambda size: -(size.attributes + size.methods))


def room_of(module: str, rooms: set[str]) -> str:
    """The deepest room that the module lies in."""
    while module and module not in rooms:
        module = module.rpartition(".")[0]
    return module


def across(trees: dict[str, ast.Module]) -> Counter[tuple[str, str]]:
    """Imports of a module of another room, as (importer's room, imported room)."""
    modules = {dotted(name) for name in trees}
    rooms = {module.rpartition(".")[0] for module in modules}
    found: Counter[tuple[str, str]] = Counter()
    for name, tree in trees.items():
        own = room_of(dotted(name).rpartition(".")[0], rooms)
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            said = node.module.removeprefix("culm.") if f"{node.module}.".startswith(LINKED) else node.module
            named = {f"{said}.{alias.name}" for alias in node.names} & modules or {said}
            for module in named:
                other = room_of(module.rpartition(".")[0], rooms)
                if other and other != own:
                    found[own, other] += 1
    return found


def dotted(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".")


LINKED = tuple(f"culm.{folder}." for folder in FOLDERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=lambda text: Path(text).resolve(), default=ROOT, help="the tree to measure")
    root = parser.parse_args().root
    texts = {str(path.relative_to(root)): path.read_text() for path in files(root)}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    counted = {name: lines(text) for name, text in texts.items()}
    print(f"{len(texts)} files, {sum(each.code for each in counted.values())} lines of code")
    long = [f"{name} ({text.count(chr(10))})" for name, text in texts.items() if text.count("\n") > LONG]
    print(f"longer than {LONG} lines: {', '.join(long) or 'none'}")
    for size in objects(trees)[:8]:
        print(f"{size.name}: {size.attributes} attributes, {size.methods} methods")
    crossing = across(trees)
    print(f"{sum(crossing.values())} imports from room to room, over {len(crossing)} pairs of rooms")
    top = Counter({pair: n for pair, n in crossing.items() if pair[0].partition(".")[0] != pair[1].partition(".")[0]})
    print(f"{sum(top.values())} imports from one top-level folder to another")
    names = Counter(Path(name).name for name in texts if not name.endswith("__init__.py"))
    twice = sorted(name for name, count in names.items() if count > 1)
    print(f"names of files that occur more than once: {', '.join(twice) or 'none'}")
    for folder in EXPLAINED:
        mine = [each for name, each in counted.items() if name.startswith(folder)]
        code = sum(each.code for each in mine) or 1
        comments, docstrings = sum(each.comments for each in mine), sum(each.docstrings for each in mine)
        print(
            f"{folder or 'all'}: {100 * comments / code:.0f} comment lines and {100 * docstrings / code:.0f} docstring "
            "lines per 100 of code"
        )


if __name__ == "__main__":
    main()
