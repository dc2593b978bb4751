"""The row of `audit`: what it is asked, and of which rules."""

from __future__ import annotations

from .row import Command, Option

FORMATS = ("full", "concise", "json", "junit", "github", "gitlab", "sarif")


def _format(text: str) -> str:
    if text not in FORMATS:
        raise ValueError(f"a format is {', '.join(FORMATS)}, not {text!r}")
    return text


def _jobs(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 256):
        raise ValueError(f"a number of processes is 1 to 256, not {text!r}")
    return int(text)


AUDIT = Command(
    "audit",
    "lifehold audit [--select CODES] [--format FORMAT] [PATH...]",
    "Find the bugs in code and scripts that make locks stale or void.",
    """\
  lifehold audit                               here, and what is below
  lifehold audit --format sarif src > a.sarif  for a code host
  lifehold audit explain LH108                 what a rule means, and its cure
  lifehold audit --write-baseline known.json   what is there today is known""",
    (
        Option(
            "select",
            ("--select",),
            "ask these rules alone: codes or\ntheir beginnings, LH1,LH203; ALL",
            "CODES",
            many=True,
            default=None,
        ),
        Option(
            "extend", ("--extend-select",), "ask these rules too", "CODES", many=True, default=None
        ),
        Option("ignore", ("--ignore",), "do not ask these", "CODES", many=True, default=None),
        Option(
            "per_file",
            ("--per-file-ignores",),
            "do not ask them of files that fit:\n'tests/*:LH106'",
            "PATTERN:CODES",
            many=True,
            default=None,
        ),
        Option(
            "format",
            ("--format",),
            "full, concise, json, junit, github,\ngitlab, sarif",
            "FORMAT",
            read=_format,
            default="full",
        ),
        Option(
            "statistics",
            ("--statistics",),
            "how often each rule is broken, and no more",
            default=False,
        ),
        Option("fix", ("--fix",), "mend what can safely be mended, in place", default=False),
        Option(
            "unsafe",
            ("--unsafe-fixes",),
            "with --fix or --diff: also what should\nbe read before it runs",
            default=False,
        ),
        Option(
            "adopt",
            ("--adopt",),
            "show each lock, right ones too, with the\nline of lifehold that takes its place",
            default=False,
        ),
        Option("diff", ("--diff",), "show what --fix would write", default=False),
        Option("config", ("--config",), "the pyproject.toml to obey", "FILE", default=""),
        Option("baseline", ("--baseline",), "leave out what this file holds", "FILE", default=""),
        Option(
            "write", ("--write-baseline",), "what is found is known from now on", "FILE", default=""
        ),
        Option(
            "since",
            ("--diff-base",),
            "only what touches lines that changed\nsince the branch left this revision of git",
            "REV",
            default="",
        ),
        Option("watch", ("--watch",), "look again whenever a file changes", default=False),
        Option(
            "jobs",
            ("-j", "--jobs"),
            "processes; one for each processor",
            "N",
            read=_jobs,
            default=None,
        ),
        Option(
            "no_cache", ("--no-cache",), "remember nothing, and look at all anew", default=False
        ),
        Option(
            "crash",
            ("--crash-test",),
            "kill this lock at each of its steps:\nfactory(path) gives acquire and release",
            "MODULE:FACTORY",
            default="",
        ),
        Option("lsp", ("--lsp",), "serve an editor on stdin and stdout", default=False),
        Option("all", ("--all",), "with explain: every rule in one line", default=False),
    ),
    (("file", "*"),),
    """\
A comment `# lifehold: ignore[LH108] -- why` silences a line; one that silences
nothing is found itself. Settings stand in [tool.lifehold.audit]. What was read
is remembered by its content in $XDG_CACHE_HOME/lifehold/audit.

Exit codes: 0 nothing found, 1 findings, 2 it could not be done as asked.""",
)
