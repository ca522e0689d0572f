"""What a program can print, read from its sources: string constants and f-strings, by ast."""

import ast
import functools
import re
from pathlib import Path

WORDS = 2
"""A placeholder may stand for so many words; for more, they have to be a message, too."""
LITERAL = 8
"""Letters that a message has beside its placeholders."""


@functools.cache
def patterns_of(project: Path) -> tuple[re.Pattern[str], ...]:
    """A pattern for each string and f-string of a rendered project's programs."""
    found = set()
    for file in [
        *project.glob("*.py"),
        *project.glob("library/**/*.py"),
        *project.glob("project/*.py"),
    ]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        inside = {id(each) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
                  for each in ast.walk(node) if each is not node}  # fmt: skip
        for node in ast.walk(tree):
            if id(node) in inside and not isinstance(node, ast.JoinedStr):
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines = [re.sub(r"\{\w*\}", "\0", node.value)]  # as for str.format
            elif isinstance(node, ast.JoinedStr):
                lines = [piece_of(node)]
            else:
                continue
            found |= {line for text in lines for line in text.split("\n")}
    made = [re.sub("\0+", "\0", text) for text in found]
    kept = [text for text in made if re.search("[a-z:,;(]", text)]
    return tuple(
        re.compile("(.+?)".join(map(re.escape, text.split("\0")))) for text in sorted(kept)
    )


def piece_of(node: ast.expr) -> str:
    """A part of an f-string: its text, or a mark for a placeholder."""
    match node:
        case ast.Constant(value=text):
            return str(text)
        case ast.FormattedValue(value=ast.Call(func=ast.Name(id="counted"), args=[_, noun])):
            return "\0 " + piece_of(noun)  # of library/convert
        case ast.JoinedStr(values=values):
            return "".join(map(piece_of, values))
    return "\0"


def count(text: str) -> int:
    """Its letters and digits."""
    return len(re.findall(r"\w", text))


def is_printed(line: str, project: Path) -> bool:
    """Whether a program of the project can print this line; `...` in it stands for anything."""
    text = line.removeprefix("error: ").removeprefix("interrupted: ")
    patterns = patterns_of(project)

    @functools.cache
    def covered(text: str, depth: int = 0) -> bool:
        if depth and len(text.split()) <= WORDS:
            return True
        if depth > 3:
            return False
        for pattern in patterns:
            match = pattern.fullmatch(text)
            if match and all(covered(group, depth + 1) for group in match.groups()):
                letters = count(text) - sum(map(count, match.groups()))
                if depth or letters >= LITERAL:
                    return True
        # A message that is put together of two.
        cuts = [found.start() for found in re.finditer(r"(?<=\S)(?=[,;. (])|(?<=: )", text)]
        return depth < 3 and any(
            0 < cut < len(text) and is_message(text[:cut]) and covered(text[cut:], depth + 1)
            for cut in cuts
        )

    @functools.cache
    def is_message(text: str) -> bool:
        for pattern in patterns:
            match = pattern.fullmatch(text)
            if match and all(len(group.split()) <= WORDS for group in match.groups()):
                return len(text) - sum(map(len, match.groups())) >= 3
        return False

    return covered(text)
