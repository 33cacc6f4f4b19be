"""Draw mutants of the code: a seed gives the same ones after changes elsewhere in the code."""

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code


class Mutant(NamedTuple):
    """A change of one place in the code. ``line`` is 1 for the first."""

    file: Path  # relative to the checkout
    line: int
    operator: str
    occurrence: int  # the number of the place among those of this operator in the file

    def code(self, source: str) -> str:
        """The code of the file with the change."""
        mutated = mutate_code(source, cosmic_ray.plugins.get_operator(self.operator)(), self.occurrence)
        assert mutated is not None
        return mutated


def draw(root: Path, folders: Iterable[str], count: int, seed: int) -> list[Mutant]:
    """``count`` mutants at different places of the files in ``folders``, each place as likely as any other."""
    places = [
        place for folder in folders for file in sorted((root / folder).rglob("*.py")) for place in _places(root, file)
    ]
    places.sort(key=lambda place: _hash(seed, place.key))
    mutants: list[Mutant] = []
    for place in places:
        if len(mutants) == count:
            break
        source = (root / place.file).read_text()
        for mutant in sorted(place.mutants, key=lambda mutant: _hash(seed, mutant.operator, str(mutant.occurrence))):
            if _changes_behaviour(source, mutant.code(source)):
                mutants.append(mutant)
                break
    return mutants


class _Place(NamedTuple):
    """A place in a file, identified by the text of its line and the lines like it, not by its line number."""

    file: Path
    key: str
    mutants: Sequence[Mutant]


def _places(root: Path, file: Path) -> Iterator[_Place]:
    source = file.read_text()
    tree, lines = get_ast(source), source.splitlines()
    name = file.relative_to(root)
    at: dict[tuple[int, int], list[Mutant]] = defaultdict(list)
    for operator_name in sorted(cosmic_ray.plugins.operator_names()):
        kind = cosmic_ray.plugins.get_operator(operator_name)
        if kind.arguments():
            continue
        operator = kind()
        positions = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for occurrence, (line, column) in enumerate(positions):
            at[line, column].append(Mutant(name, line, operator_name, occurrence))
    seen: dict[tuple[str, int], int] = defaultdict(int)
    for (line, column), mutants in sorted(at.items()):
        text = lines[line - 1]
        seen[text, column] += 1
        yield _Place(name, f"{name}:{seen[text, column]}:{column}:{text}", mutants)


def _hash(seed: int, *parts: str) -> str:
    return hashlib.sha256("\0".join((str(seed), *parts)).encode()).hexdigest()


class _WithoutAnnotations(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return ast.AnnAssign(node.target, ast.Constant(None), node.value, node.simple)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node


def _changes_behaviour(source: str, mutated: str) -> bool:
    """Whether the mutated code can be compiled, and more than annotations differ."""
    try:
        before, after = (ast.dump(_WithoutAnnotations().visit(ast.parse(code))) for code in (source, mutated))
    except SyntaxError:
        return False
    return before != after
