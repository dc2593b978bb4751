"""Shell scripts as a row of simple commands, each with what stands around it.

Read are quotes, substitutions, here-documents, `if`, loops, `case`, groups, functions and traps;
nothing is expanded but variables that are given a value once. `Script.key(word)` is one text for
one path. What cannot be parsed ends the row early and raises nothing.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from . import words

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATORS = ("&&", "||", ";;&", ";;", ";&", "|&", ";", "&", "|", "(", ")", "\n")
REDIRECT = re.compile(r"(\d+|\{\w+\})?(<<<|<<-|<<|<>|>>|>\||>&|<&|&>>|&>|>|<)")
ENDING = re.compile(r"\s*\\?['\"]?([\w.!-]+)['\"]?")  # what ends a here-document
ASSIGNS = re.compile(r"(\w+)\+?=(.*)", re.DOTALL)
LEAVES = frozenset("exit return continue break die fail error abort quit".split())
TEST = frozenset("[ [[ test".split())
PREFIXES = frozenset("sudo command builtin exec nohup nice ionice env time setsid".split())
VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
DEFAULTED = re.compile(r"\$\{(\w+):?[-=]([^{}]*)\}")


class Token(NamedTuple):
    """A word, an operator or a redirection, and where it stands."""

    kind: str  # word, op, redirect
    text: str
    line: int
    column: int
    end: int


class Compound(NamedTuple):
    """One compound command around another: `part` is where in it the other stands."""

    number: int
    part: str


class Redirect(NamedTuple):
    """`2>file`: the number, the sign and the file."""

    number: str
    sign: str
    target: str


@dataclass(slots=True, eq=False)
class ShellCommand:
    """One simple command. `joined`: the operator before it; `next`: the one behind it."""

    words: list[str]
    line: int
    column: int
    end: int
    around: tuple[Compound, ...]
    joined: str = ""
    next: str = ""
    negated: bool = False
    redirects: list[Redirect] = field(default_factory=list)
    within: str = ""  # the function
    trapped: bool = False

    @property
    def name(self) -> str:
        """What is called, without `sudo` and paths."""
        for each in self.words:
            if each not in PREFIXES and not each.startswith("-"):
                return each.rpartition("/")[2]
        return ""

    @property
    def given(self) -> list[str]:
        """The words behind the name."""
        for number, each in enumerate(self.words):
            if each not in PREFIXES and not each.startswith("-"):
                return self.words[number + 1 :]
        return []

    @property
    def operands(self) -> list[str]:
        return [each for each in self.given if not each.startswith("-")]

    @property
    def leaves(self) -> bool:
        return self.name in LEAVES

    # What a finding stands at, by the names of ast.
    @property
    def lineno(self) -> int:
        return self.line

    @property
    def end_lineno(self) -> int:
        return self.line

    @property
    def col_offset(self) -> int:
        return self.column

    @property
    def end_col_offset(self) -> int:
        return self.end

    @property
    def title(self) -> str:
        return self.within or "the script"


Texts = list[tuple[int, int]]  # offsets: where a text begins, and where it ends


def tokens(text: str, texts: Texts | None = None) -> list[Token]:
    """The words and operators; here-documents and comments are left out.

    `texts` is told where here-documents stand, and words that hold no commands.
    """
    found: list[Token] = []
    told: Texts = [] if texts is None else texts
    here: list[tuple[str, bool]] = []
    at, line, start = 0, 1, 0
    size, last = len(text), text.rfind("))")
    while at < size:
        char = text[at]
        if char in " \t\r":
            at += 1
        elif char == "\\" and text[at : at + 2] == "\\\n":
            at, line, start = at + 2, line + 1, at + 2
        elif text.startswith("((", at) and at < last:
            end = text.find("))", at)
            inner = text[at + 2 : end]
            for part in ("[[", inner, "]]"):  # a test of numbers
                found.append(Token("word", plain(part), line, at - start, end + 2 - start))
            line, start = place_behind(text, at, end, line, start)
            at = end + 2
        elif char == "#":
            at = text.find("\n", at) if text.find("\n", at) >= 0 else size
        elif char == "\n":
            found.append(Token("op", "\n", line, at - start, at - start))
            start = at = at + 1
            line += 1
            at, line = behind_documents(text, at, line, here)
            told.append((start, at))
            here, start = [], at
        elif (match := REDIRECT.match(text, at)) and not text.startswith(("<(", ">("), at):
            found.append(Token("redirect", match[0], line, at - start, match.end() - start))
            at = match.end()
            heading = ENDING.match(text, at) if match[2] in ("<<", "<<-") else None
            if heading:
                here.append((heading[1], match[2] == "<<-"))
        elif sign := next((each for each in OPERATORS if text.startswith(each, at)), ""):
            found.append(Token("op", sign, line, at - start, at - start + len(sign)))
            at += len(sign)
        else:
            end = word_end(text, at)
            raw = text[at:end]
            found.append(Token("word", plain(raw), line, at - start, end - start))
            if "$(" not in raw and "`" not in raw:
                told.append((at, end))
            line, start = place_behind(text, at, end, line, start)
            at = max(end, at + 1)
    return found


def place_behind(text: str, at: int, end: int, line: int, start: int) -> tuple[int, int]:
    """The line behind a piece of the text, and where it begins."""
    more = text.count("\n", at, end)
    return (line + more, text.rindex("\n", at, end) + 1) if more else (line, start)


def comments(text: str) -> Callable[[int], bool]:
    """Can a comment begin at an offset: is it in no here-document, and in no word?"""
    texts: Texts = []
    tokens(text, texts)
    return lambda at: text[at] == "#" and not any(first <= at < last for first, last in texts)


def behind_documents(
    text: str, at: int, line: int, here: list[tuple[str, bool]]
) -> tuple[int, int]:
    for word, tabs in here:
        while at < len(text):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            row = text[at:end]
            at, line = end + 1, line + 1
            if (row.lstrip("\t") if tabs else row).rstrip("\r") == word:
                break
    return at, line


CLOSES = {"(": ")", "{": "}"}


def word_end(text: str, at: int) -> int:
    """The end of the word that begins here, its quotes and substitutions closed."""
    size = len(text)
    stack: list[str] = []  # what has to be closed
    while at < size:
        char = text[at]
        top = stack[-1] if stack else ""
        if top == "'":
            stack.pop() if char == "'" else None
        elif char == "\\":
            at += 1
        elif char == '"':
            stack.pop() if top == '"' else stack.append('"')
        elif char == "`":
            stack.pop() if top == "`" else stack.append("`")
        elif char == "'" and top != '"':
            stack.append("'")
        elif char in "$<>" and text[at + 1 : at + 2] in ("(", "{") and (char == "$" or not top):
            stack.append(CLOSES[text[at + 1]])
            at += 1
        elif char == "(" and top == ")":
            stack.append(")")
        elif top and char == top:
            stack.pop()
        elif not stack and (char in " \t\r\n;&|()" or char in "<>"):
            return at
        at += 1
    return size


def substitutions(word: str) -> list[str]:
    """The texts between `$(` and `)` in a word, the outermost alone; arithmetic is none."""
    found, at = [], word.find("$(")
    while at >= 0:
        end = word_end(word[at:], 0) + at
        if not word.startswith("$((", at):
            found.append(
                word[at + 2 : end - 1] if word[end - 1 : end] == ")" else word[at + 2 : end]
            )
        at = word.find("$(", max(end, at + 2))
    return found


def plain(raw: str) -> str:
    """A word without its quotes; `${x}` is `$x`."""
    if raw[:1] == raw[-1:] == "'" and len(raw) > 1:
        return raw[1:-1]
    text = raw.replace('\\"', "\0").replace('"', "").replace("'", "").replace("\0", '"')
    return VARIABLE.sub(lambda found: f"${found[1] or found[2]}", text)


class Builder:
    """Puts tokens together: simple commands and the compound ones around them."""

    def __init__(self, found: list[Token]) -> None:
        self.found = found
        self.at = 0
        self.commands: list[ShellCommand] = []
        self.groups: dict[int, list[Redirect]] = {}  # what is redirected for a whole compound
        self.stack: list[Compound] = []
        self.functions: list[tuple[int, str]] = []
        self.current: ShellCommand | None = None
        self.joined = self.pending = ""
        self.negated = False
        self.closed = self.count = 0

    def build(self) -> None:
        while self.at < len(self.found):
            token = self.found[self.at]
            self.at += 1
            now = self.current
            if now is not None and now.words[:1] == ["[["] and "]]" not in now.words:
                now.words.append(token.text)
            elif token.kind == "redirect":
                self.redirect(token)
            elif token.kind == "op":
                self.operator(token.text)
            elif now is not None:
                now.words.append(token.text)
                now.end = token.end if token.line == now.line else now.end
            else:
                self.first(token)

    def ahead(self, number: int = 0) -> str:
        place = self.at + number
        return self.found[place].text if place < len(self.found) else ""

    def push(self, part: str) -> None:
        self.count += 1
        self.stack.append(Compound(self.count, part))

    def pop(self) -> None:
        if self.stack:
            self.closed = self.stack.pop().number
        open_now = {each.number for each in self.stack}
        self.functions = [each for each in self.functions if each[0] in open_now]

    def part(self, text: str) -> None:
        if self.stack:
            self.stack[-1] = self.stack[-1]._replace(part=text)

    @property
    def top(self) -> str:
        return self.stack[-1].part if self.stack else ""

    def redirect(self, token: Token) -> None:
        behind = self.found[self.at - 2].text if self.at > 1 else ""
        target = ""
        if self.at < len(self.found) and self.found[self.at].kind == "word":
            target = self.found[self.at].text
            self.at += 1
        match = REDIRECT.fullmatch(token.text)
        made = Redirect((match[1] or "") if match else "", match[2] if match else "", target)
        if self.current is None and self.closed and behind in (")", "}", "done", "fi"):
            self.groups.setdefault(self.closed, []).append(made)
            return
        if self.current is None:
            self.command([], token)
        if self.current is not None:
            self.current.redirects.append(made)

    def command(self, given: list[str], token: Token) -> None:
        made = ShellCommand(
            given, token.line, token.column, token.end, tuple(self.stack), self.joined
        )
        made.negated, self.negated = self.negated, False
        made.within = self.functions[-1][1] if self.functions else ""
        self.commands.append(made)
        self.current = made

    def operator(self, sign: str) -> None:
        now, self.current = self.current, None
        if now is not None:
            now.next = sign
            if sign == "(" and len(now.words) == 1 and self.ahead() == ")":
                self.commands.remove(now)
                self.pending, self.at = now.words[0], self.at + 1
                return
        if sign == "(":
            if self.top != "pattern":
                self.push("subshell")
        elif sign == ")":
            if self.top == "pattern":
                self.part("case")
            else:
                self.pop()
        elif sign.startswith(";;") or sign == ";&":
            while self.stack and self.top not in ("case", "pattern"):
                self.pop()
            self.part("pattern")
        if sign == "(" or (sign == "\n" and now is None and self.joined in ("&&", "||", "|")):
            return
        self.joined = "" if sign == ")" else sign

    def first(self, token: Token) -> None:
        """A word where a command can begin: a keyword, or the command's name."""
        text = token.text
        if self.top == "pattern":
            if text == "esac":
                self.pop()
        elif text in ("if", "while", "until"):
            self.push("test")
        elif text in ("then", "do", "else", "elif"):
            self.part("test" if text == "elif" else text)
            self.joined = ""
        elif text in ("fi", "done", "esac", "}"):
            self.pop()
        elif text == "case":
            self.push("pattern")
            self.skip("in")
            self.at += 1
        elif text in ("for", "select"):
            self.push("head")
            self.skip(";", "\n", "do")
        elif text == "function":
            self.pending, self.at = self.ahead(), self.at + 1
            if (self.ahead(), self.ahead(1)) == ("(", ")"):
                self.at += 2
        elif text == "{":
            self.push("group")
            if self.pending:
                self.functions.append((self.stack[-1].number, self.pending))
                self.pending = ""
        elif text == "!":
            self.negated = True
        else:
            self.command([text], token)

    def skip(self, *ends: str) -> None:
        while self.at < len(self.found) and self.found[self.at].text not in ends:
            self.at += 1


class Script:
    """The commands of a script, its variables, functions and traps."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        built = Builder(tokens(text))
        built.build()
        self.commands = built.commands
        self.groups = built.groups
        if "$(" in text:
            self._substitute(built)
        self.values: dict[str, list[str]] = {}
        self.traps: list[tuple[ShellCommand, list[ShellCommand], list[str]]] = []
        for command in self.commands:
            self._assign(command)
        for command in list(self.commands):
            if command.name == "trap" and len(command.given) >= 2:
                self._trap(command)

    def _substitute(self, built: Builder) -> None:
        """Put the commands of each `$(...)` before the command that it stands in."""
        found: list[ShellCommand] = []
        for command in self.commands:
            targets = [each.target for each in command.redirects]
            for word in [*command.words, *targets]:
                for body in substitutions(word) if command.name != "trap" else ():
                    built.count += 1
                    outer = (*command.around, Compound(built.count, "subst"))
                    inner = Builder(tokens(body))
                    inner.count = built.count
                    inner.build()
                    built.count = inner.count
                    self.groups.update(inner.groups)
                    for each in inner.commands:
                        each.line, each.column, each.end = command.line, command.column, command.end
                        each.around = (*outer, *each.around)
                        each.within = each.within or command.within
                    if inner.commands and not inner.commands[-1].next:
                        inner.commands[-1].next = command.next  # who asks the one asks the other
                    found += inner.commands
            found.append(command)
        self.commands = found

    def _assign(self, command: ShellCommand) -> None:
        if command.words[:1] in (["export"], ["readonly"], ["local"], ["declare"], ["typeset"]):
            command.words = command.words[1:]
            while command.words and command.words[0].startswith("-"):
                command.words.pop(0)
        while command.words and (found := ASSIGNS.fullmatch(command.words[0])):
            self.values.setdefault(found[1], []).append(found[2])
            command.words.pop(0)

    def _trap(self, command: ShellCommand) -> None:
        inner = Script(self.path, command.given[0])
        for each in inner.commands:
            each.line, each.column, each.end = command.line, command.column, command.end
            each.trapped = True
        inside = list(inner.commands)
        for each in inner.commands:
            for other in self.commands:
                if other.within and other.within == each.name:
                    inside.append(other)
        self.traps.append((command, inside, command.given[1:]))

    # --- asking --------------------------------------------------------------------------------

    def key(self, word: str) -> str:
        """One text for one path: variables that have one value stand for it."""
        for _ in range(5):
            new = VARIABLE.sub(self._value, DEFAULTED.sub(r"\2", word))
            if new == word or len(new) > 500:
                break
            word = new
        return word.rstrip("/")

    def _value(self, found: re.Match[str]) -> str:
        name = found[1] or found[2]
        known = set(self.values.get(name, ()))
        return known.pop() if len(known) == 1 else f"${name}"

    def lockish(self, word: str) -> bool:
        """Does this path speak of a lock or a pid file?"""
        whole = f"{word} {self.key(word)}"
        if words.PACKAGES.search(whole):
            return False
        return any(words.speaks_of_lock(each) for each in whole.split())

    @functools.cached_property
    def places(self) -> dict[ShellCommand, int]:
        """Where in the row each command stands."""
        return {command: place for place, command in enumerate(self.commands)}

    @functools.cached_property
    def within_numbers(self) -> dict[int, list[ShellCommand]]:
        """The commands of each compound command, by its number."""
        found: dict[int, list[ShellCommand]] = {}
        for command in self.commands:
            for each in command.around:
                found.setdefault(each.number, []).append(command)
        return found

    @functools.cached_property
    def by_name(self) -> dict[str, list[ShellCommand]]:
        found: dict[str, list[ShellCommand]] = {}
        for command in self.commands:
            found.setdefault(command.name, []).append(command)
        return found

    def behind(self, command: ShellCommand) -> ShellCommand | None:
        """The next command of the row; a trap's commands stand in none."""
        place = self.places.get(command, len(self.commands)) + 1
        return self.commands[place] if place < len(self.commands) else None

    def all(self) -> list[ShellCommand]:
        """Every command, those of traps among them."""
        return [*self.commands, *(each for _c, inner, _s in self.traps for each in inner)]

    def inside(self, around: Compound) -> list[ShellCommand]:
        """The commands of a compound command, whatever part."""
        return [c for c in self.commands if any(a.number == around.number for a in c.around)]
