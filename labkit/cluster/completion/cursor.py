"""What stands at the cursor, in code that may be incomplete: a name, an attribute, a call, an import …"""

from __future__ import annotations

import ast
import keyword
import re
from dataclasses import dataclass, field
from typing import NamedTuple

OPENING, CLOSING = "([{", ")]}"
QUOTE = re.compile(r"(?P<prefix>\b[rRbBuUfF]{1,2})?(?P<quote>'''|\"\"\"|'|\")")
WORD = re.compile(r"\w+")
IDENTIFIER_END = re.compile(r"[^\W\d]\w*\Z")
IMPORT = re.compile(r"[ \t]*import[ \t]+(?:[\w. \t]+,[ \t]*)*(?P<module>[\w.]*)\Z")
FROM = re.compile(r"[ \t]*from[ \t]+(?P<module>[\w.]*)\Z")
FROM_IMPORT = re.compile(
    r"[ \t]*from[ \t]+(?P<module>[\w.]+)[ \t]+import[ \t(]+(?:[\w \t\n]+,\s*)*(?P<name>\w*)\Z"
)
STATEMENT = re.compile(r"(?:def|class|import|from|while|with|try|return)\b|@")
DEFINITION = re.compile(r"[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+\w*\Z")


@dataclass
class Scan:
    """Code up to the cursor, read once from its start.

    `openings` holds where the brackets begin that are open at the cursor, `partners` where the bracket or
    text begins that ends at a place. `text_start` is where an open text (a string) begins, None without one,
    and `text_quote` its prefix and quotation mark; `in_comment` says whether the cursor stands in a comment.
    `line_starts` are the starts of lines that begin no text and are inside no bracket.
    """

    code: str
    openings: list[int] = field(default_factory=list)
    partners: dict[int, int] = field(default_factory=dict)
    line_starts: list[int] = field(default_factory=lambda: [0])
    text_start: int | None = None
    text_quote: str = ""
    in_comment: bool = False

    def __post_init__(self) -> None:
        position = 0
        while position < len(self.code):
            position = self.step(position)

    def step(self, position: int) -> int:
        """Read what begins at a position; return where it ends."""
        character = self.code[position]
        if character == "#":
            end = self.code.find("\n", position)
            self.in_comment = end < 0
            return len(self.code) if end < 0 else end
        if character == "\\":
            return position + 2
        quote = QUOTE.match(self.code, position)
        if quote is not None:
            return self.read_text(position, quote)
        if character in OPENING:
            self.openings.append(position)
        elif character in CLOSING and self.openings:
            self.partners[position + 1] = self.openings.pop()
        elif character == "\n":
            if STATEMENT.match(self.code, position + 1):  # a bracket above has been forgotten
                self.openings.clear()
            if not self.openings:
                self.line_starts.append(position + 1)
        word = WORD.match(self.code, position)
        return word.end() if word else position + 1

    def read_text(self, position: int, quote: re.Match[str]) -> int:
        """Read a text that begins at a position; return where it ends."""
        at, mark = quote.end(), quote["quote"]
        while at < len(self.code):
            if self.code.startswith(mark, at):
                self.partners[at + len(mark)] = position
                return at + len(mark)
            if self.code[at] == "\n" and len(mark) == 1:
                return at  # a text that is not closed on its line
            at += 2 if self.code[at] == "\\" else 1
        self.text_start = quote.end()
        self.text_quote = (quote["prefix"] or "").lower() + mark
        return len(self.code)

    def statement(self) -> str:
        """Return the statement that holds the cursor, up to the cursor."""
        start = self.line_starts[-1]
        return self.code[start:] if self.openings else self.code[start:].rpartition(";")[2]

    def expression_before(self, end: int) -> str:
        """Return the expression that ends at a place: names, attributes, calls and items; empty if none."""
        start = end
        while start > 0:
            opening = self.partners.get(start)
            name = name_before(self.code[:start] if opening is None else self.code[:opening])
            if opening is not None:
                start = opening
                follows = bool(name) or opening in self.partners
                if self.code[opening] in "([" and follows:
                    continue  # a call or an item of what is before it
                break
            start -= len(name)
            if not name or not self.code[:start].endswith("."):
                break
            start -= 1
        text = self.code[start:end].strip()
        return text if is_expression(text) else ""


def name_before(code: str) -> str:
    """Return the name at the end of code; empty if there is none, or a keyword."""
    match = IDENTIFIER_END.search(code)
    return match[0] if match and not keyword.iskeyword(match[0]) else ""


def is_expression(text: str) -> bool:
    """Return whether a text is a Python expression."""
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return bool(text)


class CursorPlace(NamedTuple):
    """What stands before the cursor.

    `kind` is `name`, `attribute` or `key` (of `expression`), `import` or `from` (of the module `expression`),
    `text` (in the folder `expression`), or `none`. `word` is the beginning that is typed, `calls` the
    functions whose brackets are open, the innermost last.
    """

    kind: str
    word: str
    expression: str = ""
    calls: tuple[str, ...] = ()


def place_in(code: str) -> CursorPlace:
    """Return what stands at the end of code, which is where the cursor is."""
    scan = Scan(code)
    if scan.in_comment or DEFINITION.match(scan.statement()):
        return CursorPlace("none", "")
    brackets = [at for at in scan.openings if code[at] == "("]
    calls = tuple(filter(None, map(scan.expression_before, brackets)))
    if scan.text_start is not None:
        return place_in_text(scan, calls)
    return place_in_import(scan.statement()) or place_of_name(scan, calls)


def place_in_import(statement: str) -> CursorPlace | None:
    """Return what stands at the end of an import, None if it is none."""
    match = FROM_IMPORT.match(statement)
    if match is not None:
        return CursorPlace("from", match["name"], match["module"])
    match = FROM.match(statement) or IMPORT.match(statement)
    if match is None:
        return None
    package, _, word = match["module"].rpartition(".")
    return CursorPlace("import", word, package)


def place_of_name(scan: Scan, calls: tuple[str, ...]) -> CursorPlace:
    """Return what stands at the end of other code: a name or an attribute, perhaps with nothing typed."""
    identifier = IDENTIFIER_END.search(scan.code)
    word = identifier[0] if identifier else ""
    before = scan.code.removesuffix(word)
    if before.endswith("."):
        expression = scan.expression_before(len(before) - 1)
        return CursorPlace("attribute" if expression else "none", word, expression, calls)
    if not word and re.search(r"[\w)\]}'\"]\Z", before):
        return CursorPlace("none", "")  # no name begins behind a number or a bracket
    return CursorPlace("name", word, "", calls)


def place_in_text(scan: Scan, calls: tuple[str, ...]) -> CursorPlace:
    """Return what stands at the end of a text: code in an f-string's braces, a key of a dict, or a path."""
    assert scan.text_start is not None
    text = scan.code[scan.text_start :]
    if "f" in scan.text_quote and text.rfind("{") > text.rfind("}"):
        return place_in(text[text.rfind("{") + 1 :])
    opening = scan.openings[-1] if scan.openings else -1
    before = scan.code[opening + 1 : scan.text_start].strip()
    if opening >= 0 and scan.code[opening] == "[" and before in ("'", '"'):
        expression = scan.expression_before(opening)
        if expression:
            return CursorPlace("key", text, expression)
    if len(scan.text_quote.strip("rbuf")) == 3:
        return CursorPlace("none", "")
    return CursorPlace("text", text.rpartition("/")[2], text.rpartition("/")[0] if "/" in text else "", calls)


def expressions_at(code: str, cursor: int) -> list[str]:
    """Return the expressions that help may be wanted for at the cursor, the most likely first.

    That is the name, with what its dots precede, that the cursor touches; then the functions of open brackets
    from the inside to the outside; then the name before the cursor.
    """
    after = WORD.match(code, cursor)
    end = after.end() if after else cursor
    scan = Scan(code[:end])
    if scan.in_comment:
        return []
    touched = "" if scan.text_start is not None else scan.expression_before(end)
    if touched and not re.search(r"\w\Z", touched):
        touched = ""  # a call that ends at the cursor
    opened = Scan(code[:cursor]).openings
    calls = [scan.expression_before(at) for at in reversed(opened) if code[at] == "("]
    last = ""
    if not touched and not any(calls) and scan.text_start is None:
        names = re.findall(r"[^\W\d][\w.]*\w|[^\W\d]", scan.statement())
        last = names[-1] if names else ""
    return [expression for expression in (touched, *calls, last) if expression]
