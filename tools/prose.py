"""A linter for the English of the pages: plain sentences, one meaning per word.

    python tools/prose.py                 the pages of tools/prose.txt, which are held to it
    python tools/prose.py --all           README.md and docs/, also the pages that are not yet
    python tools/prose.py FILE...         these

Looked at is prose: paragraphs, lists, quotes and cells of tables. Left out are code, headings,
targets of links, generated parts (from `<!-- figures: -->` to `<!-- end -->`), and what stands
between `<!-- prose: off -->` and `<!-- prose: on -->`. A rule has a name and a remedy; words that
the glossary forbids are among them. The linter knows English only as far as its rules go, so a
clean page may still be hard to read: read it aloud.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HELD = ROOT / "tools" / "prose.txt"
LONGEST = 30  # words of a sentence
# Pages that are written by a program, or are records of their day.
LEFT_OUT = ("docs/reference/audit/", "docs/explanation/faults.md", "docs/adr/")


@dataclass(frozen=True)
class Rule:
    """What is not written here, why, and what is written instead."""

    name: str
    pattern: re.Pattern[str]
    remedy: str


def rule(name: str, pattern: str, remedy: str) -> Rule:
    return Rule(name, re.compile(pattern), remedy)


VERB = (
    r"(?:is|are|was|has|had|does|holds|waits|takes|comes|wants|asks|gets|makes|goes|keeps|reads|"
    r"writes|locks|leaves|finds|needs|uses|may|can|must|will|would|cannot)"
)
RULES = [
    # "Who holds it is told" needs a second reading; a question does not.
    rule(
        "who-as-subject",
        rf"^(?:And |But |So |Then |That |Only )?Who(?:ever)?\b(?! else)[^?]*\b{VERB}\b[^?]*[^?:,]$",
        "name the thing: a process, a waiter, a holder, a reader, anyone who",
    ),
    rule("and-who", r"[;,] who(?:ever)? \w+[^,;?]*, (?:is|has|gets|may)\b", "name the thing"),
    rule("of-whom", r"\bof whom\b", "turn the sentence round"),
    rule("is-said", r"\bis said (?:in|on|by|of) \b", "say who says it, or drop it"),
    rule(
        "needs-not", r"\b(?:needs|costs|knows|does|helps|waits|takes) it not\b", "does not need it"
    ),
    rule("gone-by", r"\b(?:and|is|are) gone by[.,]", "old, over, later"),
    rule("behind-your-back", r"\bbehind (?:your|its|their) back\b", "in the background"),
    rule(
        "old-english", r"\b(?:thereof|therein|hereby|whilst|upon which|heretofore)\b", "plain words"
    ),
    rule("bears", r"\b(?:what|as|that) the ground bears\b", "what works there"),
    rule("timeout-of-lease", r"\blease'?s? timeouts?\b|\btimeout of (?:a|the|its) lease\b", "ttl"),
    rule("nonce-token", r"\brandom tokens?\b|\btoken,? a random\b", "nonce"),
    rule("zombie", r"\b[Zz]ombie (?:holder|client|writer|lock)", "lost holder, late writer"),
    rule("grant-in-hand", r"\bgrants? in hand\b", "the lease: the object you get"),
    rule("simply", r"\b(?:[Ss]imply|[Oo]bviously|[Oo]f course|[Bb]asically)\b", "leave it out"),
    rule("please", r"\b[Pp]lease\b", "leave it out"),
    rule("etc", r"\betc\.|\band so forth\b", "name them, or say `such as`"),
    rule("utilise", r"\b(?:utili[sz]e|leverage|in order to|facilitate)\w*\b", "use, to, help"),
]
# Names that begin a sentence in small letters.
SMALL = (
    r"(?:lifehold|filelock|flufl|fasteners|flock|inotify|cron|kill -9|torch|git|systemd|open\(2\))"
)
ABBREVIATED = re.compile(r"\b(?:e\.g|i\.e|vs|cf|No|St|Dr|approx)\.$")


@dataclass(frozen=True)
class Finding:
    """One breach: where, which rule, the words."""

    file: str
    line: int
    rule: str
    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.text!r}: {self.remedy}"


def prose(page: str) -> list[tuple[int, str]]:
    """The paragraphs, list items and cells of a page, each with the line where it begins."""
    found: list[tuple[int, str]] = []
    fence, off, open_ = "", False, False
    for number, line in enumerate(page.splitlines(), 1):
        text = line.strip()
        marker = re.match(r"(```+|~~~+)", text)
        if fence or marker:
            if marker and (not fence or text == fence):
                fence = "" if fence else marker[1]
            open_ = False
            continue
        comment = re.fullmatch(r"<!-- (.+?) -->", text)
        if comment:
            words = comment[1]
            off = words.startswith(("figures:", "prose: off")) or (
                off and words not in ("end", "prose: on")
            )
            open_ = False
            continue
        if off or not text or text.startswith(("#", "!!!", "???", "<", "![", "===")):
            open_ = False
        elif text.startswith("|"):
            if not re.fullmatch(r"[|:\- ]+", text):
                cells = re.split(r"(?<!\\)\|", text.strip("|"))
                found += [(number, cell.strip()) for cell in cells if " " in cell.strip()]
            open_ = False
        elif not open_ or re.match(r"(?:[-*+]|\d+\.) ", text):
            found.append((number, re.sub(r"^(?:[-*+]|\d+\.) ", "", text)))
            open_ = True
        else:
            begun, before = found[-1]
            found[-1] = (begun, f"{before} {text}")
    return found


def plain(text: str) -> str:
    """`text` without its marks: code is one word, a link its words."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(`+)[^`].*?\1", "CODE", text)
    text = re.sub(r"<[^>]+>", " ", text)
    text = re.sub(r"(?<!\w)[*_]{1,2}|[*_]{1,2}(?!\w)", "", text)
    return re.sub(r"\s+", " ", text).strip()


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph. A semicolon and a colon do not end one."""
    found = [""]
    for part in re.split(rf"(?<=[.?!])[\"')]* (?=[A-Z(\"'`0-9]|{SMALL})", text):
        joined = found[-1] and ABBREVIATED.search(found[-1])
        if joined:
            found[-1] += f" {part}"
        else:
            found.append(part)
    return [sentence for sentence in found if sentence]


def words(sentence: str) -> int:
    """How many words are to be kept in mind at once. What two semicolons part is a list."""
    parts = sentence.split("; ") if sentence.count("; ") > 1 else [sentence]
    return max(len(re.findall(r"[A-Za-z0-9][\w'./:()-]*", part)) for part in parts)


def look(page: str, file: str = "-") -> list[Finding]:
    """What a page breaks."""
    found = []
    for line, paragraph in prose(page):
        for sentence in sentences(plain(paragraph)):
            count = words(sentence)
            if count > LONGEST:
                begin = " ".join(sentence.split()[:8]) + " ..."
                remedy = f"{count} words: make it two sentences"
                found.append(Finding(file, line, "long-sentence", begin, remedy))
            for each in RULES:
                met = each.pattern.search(sentence)
                if met:
                    shown = met[0] if len(met[0]) < 60 else met[0][:57] + "..."
                    found.append(Finding(file, line, each.name, shown, each.remedy))
    return found


def pages() -> list[Path]:
    """All pages that are written by hand."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if not str(page.relative_to(ROOT)).startswith(LEFT_OUT)]


def held() -> list[Path]:
    """The pages that stay clean."""
    lines = HELD.read_text(encoding="utf-8").splitlines()
    return [ROOT / line for line in lines if line and not line.startswith("#")]


def main(names: list[str]) -> int:
    found = []
    for file in pages() if names == ["--all"] else [Path(name) for name in names] or held():
        shown = str(file.relative_to(ROOT)) if file.is_absolute() else str(file)
        found += look(file.read_text(encoding="utf-8"), shown)
    for finding in found:
        print(finding)  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
