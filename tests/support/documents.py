"""The pages of the documentation, and the code in them."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "README.md", ROOT / "clients" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for path in FILES}
README = PAGES["README.md"]
ENVIRONMENT = os.environ | {  # of the commands: `heed` and heed_client are those of this checkout
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'clients'}",
}
ADDRESS = "http://127.0.0.1:8000"  # of the examples
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A piece of code on a page, and the output that the page shows below it."""

    page: str
    language: str
    code: str
    shown: str | None

    def __str__(self) -> str:
        return f"{self.page}: {self.code.partition(chr(10))[0][:60]}"

    def commands(self) -> list[list[str]]:
        """The words of each command of a shell example; those of a pipe count one by one."""
        lexer = shlex.shlex(self.code.replace("\\\n", " "), posix=True, punctuation_chars=";|&\n")
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
        commands: list[list[str]] = [[]]
        for word in lexer:
            if set(word) <= set(";|&\n"):
                commands.append([])
            else:
                commands[-1].append(re.sub(r"^\w+=\$\(", "", word) if not commands[-1] else word)
        return [command for command in commands if command]


def examples() -> Iterator[Example]:
    """Every piece of code of every page, in order."""
    for page, text in PAGES.items():
        for language, code, shown in FENCE.findall(text):
            yield Example(page, language, code, shown or None)


EXAMPLES = [*examples()]
CURLS = [(of.code, of.shown) for of in EXAMPLES if of.page == "README.md" and of.code.startswith("curl")]
