"""Precision and recall on snippets that were labelled before the rules were run on them.

Each snippet is a reduced form of what stands in public code, told anew. `seen` is the half that
rules may be mended by; `held` is not looked at but here. A label is what a reviewer must say of a
snippet, a "maybe" what may be said too; anything else that is found is a false finding.

`blind` was written and labelled by a reader who had not seen one rule. The first run on it gave
P 0.95 R 0.62 for Python, 1.00 and 1.00 for shell, 1.00 and 0.69 for JavaScript; then the classes of
what was missed were mended. `shared_tmp_name` asks LH113 of a file that never holds a byte: left.

`second` was made in the same way a version later, labels at their lines. First run: P 0.97 (29/30)
R 0.76 (29/38) for Python, 1.00 (14/14) and 0.93 (14/15) for shell, 1.00 (15/15) and 0.83 (15/18)
for JavaScript. Its one false finding, LH111 of a `__del__`, is the label's fault, and stands.
`third` is a later one yet, of more forms of each rule. First run: P 0.96 (48/50) R 0.74 (48/65) for
Python, 1.00 (20/20) and 0.80 (20/25) for shell, 1.00 (31/31) and 0.79 (31/39) for JavaScript. Three
classes were mended then (R 0.78 for Python), and the others a version later: it is not unseen any
more. `ps_dash_p_check` asks LH304 of a script that also judges by the number: left.
`fourth` and `fifth` are two strangers' sets of a later version, in words that the others lack: a
lock is called busy, running, guard, claim or flag. First run: P 0.97 (39/40) R 0.40 (39/98) and
P 1.00 (42/42) R 0.43 (42/98): the rules leant on names. Then they were made to go by form, mended
by the fourth alone: P 0.99 (91/92) R 0.93 (91/98); the fifth, unread: P 1.00 (72/72), R 0.73.
Then the fifth's classes were mended. `sixth` to `twelfth` are seven strangers' sets more,
each run on once and mended by before the next: P 1.00 (103/103) R 0.82 (103/125), 0.98 (91/93) and
0.82 (91/111), 0.97 (90/93) and 0.74 (90/121), 0.98 (81/83) and 0.78 (81/104), 0.99 (92/93) and 0.87
(92/106), 0.98 (82/84) and 0.83 (82/99), 1.00 (89/89) and 0.82 (89/109). Sixteen of their labels are
LH214, asked on demand alone.
`forms` are other spellings of the classes that were mended then: helpers, pathlib, suppress, SQL.
`own` was labelled before the rules were run on it, by one who had read them: that is not unseen.
Python's came in five lots, each mended by before the next was written. First runs: P 0.86 R 0.62,
1.00 and 0.76, 0.95 and 0.93, 1.00 and 0.74 (harder on purpose), 0.94 and 0.84. Shell came in two,
0.96 and 0.93, 1.00 and 0.80; JavaScript too, 0.90 and 0.88, 0.94 and 0.76. Then thirteen codes were
made a "maybe" of what stands in a snippet, and one snippet, which hands a locked file on with
purpose, was taken out. What is missed is left in.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from lifehold.audit import scan
from lifehold.audit.catalogue import RULES
from lifehold.audit.settings import Settings

CORPUS = Path(__file__).parent / "corpus"
SUFFIX = {"python": ".py", "shell": ".sh", "javascript": ".ts"}
BLIND = Path(__file__).parent / "corpus_blind"
NAMED = {
    "dockerfile": "Dockerfile", "compose": "docker-compose.yml", "crontab": "app.crontab",
    "unit": "app.service",
}  # fmt: skip
HALVES = ("seen", "held")
BLIND_SETS = tuple(
    "blind second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
)
MARKED = ("second", "third", "forms", "own")
MARK = re.compile(r"[ ]*(?:#|//)@((?: LH\d{3})+)$", re.MULTILINE)


class Snippet(NamedTuple):
    """One text with what is to be found in it; no label means that it is clean."""

    name: str
    labels: frozenset[str]
    maybe: frozenset[str]
    text: str
    lines: frozenset[tuple[str, int]] = frozenset()


class Score(NamedTuple):
    """Counts of pairs of a snippet and a code."""

    right: int
    false: tuple[str, ...]
    missed: tuple[str, ...]

    @property
    def precision(self) -> float:
        return self.right / max(1, self.right + len(self.false))

    @property
    def recall(self) -> float:
        return self.right / max(1, self.right + len(self.missed))

    def __str__(self) -> str:
        found, asked = self.right + len(self.false), self.right + len(self.missed)
        shares = f"{self.right}/{found}", f"{self.right}/{asked}"
        return f"P {self.precision:.2f} ({shares[0]}) R {self.recall:.2f} ({shares[1]})"


def marked(path: Path) -> list[Snippet]:
    """A corpus with its labels in place: a mark at the end of a line names what belongs there."""
    found = []
    for part in path.read_text().split("\n=== "):
        head, _, body = part.removeprefix("=== ").partition("\n")
        name, maybe = (each.strip() for each in head.split("|"))
        lines = frozenset(
            (code, number)
            for number, line in enumerate(body.splitlines(), 1)
            for mark in MARK.finditer(line)
            for code in mark[1].split()
        )
        codes = frozenset(code for code, _ in lines)
        text = MARK.sub("", body) + "\n"
        found.append(Snippet(name, codes, frozenset(maybe.split()), text, lines))
    return found


def file_of(language: str, half: str) -> Path:
    if half not in BLIND_SETS:
        return CORPUS / f"{language}_{half}.txt"
    number = BLIND_SETS.index(half) + 1
    return BLIND / (f"{language}.txt" if number == 1 else f"{language}_{number}.txt")


def snippets(language: str, half: str) -> list[Snippet]:
    """The texts of a half."""
    if half in MARKED:
        return marked(file_of(language, half))
    text = file_of(language, half).read_text()
    found = []
    for part in text.split("\n=== "):
        head, _, body = part.removeprefix("=== ").partition("\n")
        name, labels, *maybe = (each.strip() for each in head.split("|"))
        codes = frozenset(labels.split()) - {"clean"}
        found.append(Snippet(name, codes, frozenset(" ".join(maybe).split()), body + "\n"))
    return found


def codes_in(language: str, each: Snippet) -> frozenset[str]:
    """The codes that the usual rules find in a snippet."""
    name = language == "shell" and NAMED.get(each.name.partition("_")[0])
    report = scan.of_text(name or f"app{SUFFIX[language]}", each.text, Settings())
    return frozenset(finding.code for finding in report)


def score(language: str, half: str) -> Score:
    right, false, missed = 0, [], []
    for each in snippets(language, half):
        found = codes_in(language, each)
        right += len(found & each.labels)
        false += [f"{each.name} {code}" for code in sorted(found - each.labels - each.maybe)]
        missed += [f"{each.name} {code}" for code in sorted(each.labels - found)]
    return Score(right, tuple(false), tuple(missed))


def languages(half: str) -> list[str]:
    return [language for language in SUFFIX if file_of(language, half).exists()]


def by_rule(half: str) -> dict[str, list[int]]:
    """For each rule: right, false, missed, of all languages that the half has."""
    rows: dict[str, list[int]] = {}
    for language in languages(half):
        for each in snippets(language, half):
            found = codes_in(language, each)
            for code in found | each.labels:
                row = rows.setdefault(code, [0, 0, 0])
                row[0] += code in found & each.labels
                row[1] += code in found - each.labels - each.maybe
                row[2] += code in each.labels - found
    return rows


@pytest.mark.parametrize("language", SUFFIX)
def test_the_corpus_is_as_large_as_it_says(language):
    each = 30 if language == "python" else 15
    for half in HALVES:
        found = snippets(language, half)
        assert len({snippet.name for snippet in found}) == 2 * each
        assert sum(not snippet.labels for snippet in found) == each
        assert not {code for s in found for code in s.labels | s.maybe} - RULES.keys()


SIZES = [
    ("blind", "python", 30, 32),
    ("blind", "shell", 15, 15),
    ("blind", "javascript", 20, 20),
    ("second", "python", 32, 32),
    ("second", "shell", 15, 15),
    ("second", "javascript", 15, 15),
    ("third", "python", 51, 20),
    ("third", "shell", 20, 10),
    ("third", "javascript", 27, 13),
    ("fourth", "python", 61, 60),
    ("fifth", "python", 62, 61),
    ("sixth", "python", 77, 73),
    ("seventh", "python", 81, 81),
    ("eighth", "python", 89, 89),
    ("ninth", "python", 79, 78),
    ("tenth", "python", 84, 76),
    ("eleventh", "python", 70, 70),
    ("twelfth", "python", 84, 73),
]


@pytest.mark.parametrize(("half", "language", "bad", "clean"), SIZES)
def test_the_blind_corpora_are_as_large_as_they_say(half, language, bad, clean):
    found = snippets(language, half)
    assert len({snippet.name for snippet in found}) == bad + clean
    assert sum(not snippet.labels for snippet in found) == clean
    assert not {code for s in found for code in s.labels | s.maybe} - RULES.keys()


# What the rules reach, by language and half: precision and recall, floored. Raise them when paid.
REACHED = {
    ("python", "seen"): (0.97, 1.0),
    ("shell", "seen"): (1.0, 1.0),
    ("javascript", "seen"): (1.0, 1.0),
    ("python", "held"): (0.90, 0.87),
    ("shell", "held"): (1.0, 1.0),
    ("javascript", "held"): (0.93, 0.83),
    ("python", "blind"): (1.0, 0.97),
    ("shell", "blind"): (1.0, 1.0),
    ("javascript", "blind"): (1.0, 1.0),
    ("python", "second"): (0.97, 1.0),
    ("shell", "second"): (1.0, 1.0),
    ("javascript", "second"): (1.0, 1.0),
    ("python", "third"): (1.0, 1.0),
    ("shell", "third"): (1.0, 0.96),
    ("javascript", "third"): (1.0, 1.0),
    ("python", "fourth"): (0.98, 0.94),
    ("python", "fifth"): (1.0, 0.96),
    ("python", "sixth"): (1.0, 0.92),
    ("python", "seventh"): (1.0, 0.95),
    ("python", "eighth"): (1.0, 0.92),
    ("python", "ninth"): (0.98, 0.93),
    ("python", "tenth"): (1.0, 0.96),
    ("python", "eleventh"): (0.98, 0.89),
    ("python", "twelfth"): (1.0, 0.91),
    ("python", "forms"): (1.0, 1.0),
    ("shell", "forms"): (1.0, 1.0),
    ("javascript", "forms"): (1.0, 1.0),
    ("python", "own"): (1.0, 0.97),
    ("shell", "own"): (1.0, 1.0),
    ("javascript", "own"): (1.0, 1.0),
}


@pytest.mark.parametrize(("language", "half"), REACHED)
def test_the_rules_reach_what_they_reached_before(language, half):
    found = score(language, half)
    precision, recall = REACHED[language, half]
    lost = f"{language} {half}: {found}"
    assert found.precision >= precision, lost
    assert found.recall >= recall, lost


if __name__ == "__main__":
    for half in (*HALVES, *BLIND_SETS, "forms", "own"):
        for language in languages(half):
            result = score(language, half)
            print(f"{half} {language}: {result}")
            if half == "seen" or "-v" in sys.argv:
                print("  false: ", *result.false, sep="\n    ")
                print("  missed:", *result.missed, sep="\n    ")
        for code, row in sorted(by_rule(half).items()):
            print(f"  {half} {code} right {row[0]} false {row[1]} missed {row[2]}")
