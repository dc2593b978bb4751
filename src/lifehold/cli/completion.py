"""`lifehold completion SHELL`: completion made from the table of options, for bash, zsh and fish.

Rule: nothing about a command is written here; names of existing locks are asked for at the time, by
`lifehold ls --names`, which reads one folder.
"""

from __future__ import annotations

import os
import sys

from .. import __version__
from ..core.nearest import did_you_mean
from ..local.kinds import KINDS
from ..ops import history
from . import exits
from .choose_tree import QUESTIONS
from .options import COMMANDS, COMPLETION, RUN, SORTS, USAGE_OF_ALL, Usage, arguments, notes_of
from .render import put
from .row import Command, Option

HELP = Option("help", ("-h", "--help"), "show this text")
CHOICES: dict[str, tuple[str, ...]] = {
    "event": history.EVENTS,
    "kind": ("auto", *KINDS, "session"),
    "sort": SORTS,
    **{each.name: tuple(each.answers) for each in QUESTIONS},
}
ACTS = "migrate check prune"  # of `lifehold store`
NAMES = "lifehold ls --names 2>/dev/null"
LOCKS = "NAME"  # what an option takes whose value is the name of a lock
FOLDERS = "DIR"  # and one whose value is a folder


def completion(words: list[str]) -> int:
    """The exit code of `lifehold completion WORDS`."""
    _, (shell,) = arguments(COMPLETION, words)
    made = SHELLS.get(shell)
    if made is None:
        end = did_you_mean(shell, SHELLS)
        raise Usage(f"there is no completion for {shell!r}, but for {', '.join(SHELLS)}{end}")
    put(made())
    return exits.DONE


def options_of(command: Command) -> tuple[Option, ...]:
    return (*command.options, HELP)


def operand_of(command: Command) -> str:
    """What its words are: "name" of a lock, "file", "dir", "shell", "act", or "" for none."""
    kind = command.operands[0][0] if command.operands else ""
    return "name" if kind == "path" else kind


def _line(option: Option) -> str:
    return " ".join(option.help.split())


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def bash() -> str:
    """For `complete -F`; needs no package bash-completion."""
    cases: list[str] = []
    locks: list[str] = []
    folders: list[str] = []
    for command in COMMANDS.values():
        flags = " ".join(flag for each in options_of(command) for flag in each.flags)
        taking = "|".join(flag for each in command.options if each.takes for flag in each.flags)
        locks += [flag for each in command.options if each.takes == LOCKS for flag in each.flags]
        folders += [f for each in command.options if each.takes == FOLDERS for f in each.flags]
        cases.append(
            f"        {command.name}) flags='{flags}' taking='|{taking}|' "
            f"kind='{operand_of(command)}' ;;"
        )
    choices = "".join(
        f"        --{name}) COMPREPLY=($(compgen -W '{' '.join(words)}' -- \"$cur\")); return ;;\n"
        for name, words in CHOICES.items()
    )
    return BASH % {
        "commands": " ".join(COMMANDS),
        "cases": "\n".join(cases),
        "choices": choices,
        "shells": " ".join(SHELLS),
        "acts": ACTS,
        "names": NAMES,
        "locks": "|".join(locks),
        "folders": "|".join(folders),
    }


BASH = """\
# bash completion of lifehold; made by: lifehold completion bash
_lifehold_names() {  # that begin as $cur; each stands in the line as one word, and runs nothing
    local word=$cur quote='' plain='' part name
    case $word in \\"* | \\'*) quote=${word:0:1} word=${word:1} ;; esac
    while [[ $quote != \\' && $word == *\\\\* ]]; do  # the word without its backslashes
        part=${word%%%%\\\\*} word=${word#*\\\\}
        [[ $quote || $part != *[\\"\\']* ]] || return  # a quote within a word: not read here
        plain+=$part${word:0:1} word=${word:1}
    done
    [[ $quote || $word != *[\\"\\']* ]] || return
    plain+=$word
    while IFS= read -r name; do  # not by compgen -W, which runs $(...) in its words
        [[ $name == "$plain"* ]] || continue
        case $quote in
            \\') [[ $name == *\\'* ]] || COMPREPLY+=("$name") ;;
            \\") [[ $name == *[\\"\\\\\\$\\`!]* ]] || COMPREPLY+=("$name") ;;
            *) printf -v name %%q "$name" && COMPREPLY+=("$name") ;;
        esac
    done < <(%(names)s)
}
_lifehold() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
    local flags='' taking='' kind='' at IFS=$' \\t\\n'
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W '%(commands)s help version --help --version' -- "$cur"))
        return
    fi
    if ((COMP_CWORD == 2)) && [[ ${COMP_WORDS[1]} == help ]]; then
        COMPREPLY=($(compgen -W '%(commands)s' -- "$cur"))
        return
    fi
    case ${COMP_WORDS[1]} in
%(cases)s
        *) return ;;
    esac
    if [[ ${COMP_WORDS[1]} == run ]]; then
        for ((at = 2; at < COMP_CWORD; at++)); do  # CMD begins behind NAME
            if [[ ${COMP_WORDS[at]} == -* ]]; then
                if [[ ${COMP_WORDS[at + 1]} == = ]]; then
                    ((at += 2))
                elif [[ $taking == *"|${COMP_WORDS[at]}|"* ]]; then
                    ((at += 1))
                fi
                continue
            fi
            ((at += 1))
            while ((at < COMP_CWORD)); do  # options directly behind NAME
                [[ ${COMP_WORDS[at]} == -?* && ${COMP_WORDS[at]} != -- ]] || break
                [[ $taking == *"|${COMP_WORDS[at]}|"* ]] && ((at += 1))
                ((at += 1))
            done
            ((at > COMP_CWORD)) && break
            if ((at < COMP_CWORD)) && [[ ${COMP_WORDS[at]} == -- ]]; then
                ((at += 1))
            elif ((at == COMP_CWORD)) && [[ $cur == -* ]]; then
                COMPREPLY=($(compgen -W "-- $flags" -- "$cur"))
                return
            fi
            if ((at == COMP_CWORD)); then
                COMPREPLY+=($(compgen -c -- "$cur"))
            else
                compopt -o default 2>/dev/null
            fi
            return
        done
    fi
    case $prev in
%(choices)s        %(locks)s) kind=name taking='' ;;
        %(folders)s) kind=dir taking='' ;;
    esac
    [[ $taking == *"|$prev|"* ]] && return
    if [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$cur"))
        return
    fi
    case $kind in
        name)  # a bare word is a NAME; a file of this folder is offered as ./FILE
            if [[ $cur != */* ]]; then
                _lifehold_names
                ((${#COMPREPLY[@]})) && return
                [[ $cur == '~'* ]] || cur=./$cur
            fi
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            ;;
        file)
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur")
            ;;
        dir)
            [[ $cur == */* || $cur == '~'* ]] || cur=./$cur
            compopt -o filenames 2>/dev/null
            mapfile -t COMPREPLY < <(compgen -d -- "$cur")
            ;;
        shell)
            COMPREPLY=($(compgen -W '%(shells)s' -- "$cur"))
            ;;
        act)
            COMPREPLY=($(compgen -W '%(acts)s' -- "$cur"))
            ;;
    esac
}
complete -F _lifehold lifehold
"""


def zsh() -> str:
    """For a folder of $fpath, as _lifehold; or to be sourced after compinit."""
    rows = [f"        {_quoted(f'{each.name}:{each.summary}')}" for each in COMMANDS.values()]
    cases = []
    for command in COMMANDS.values():
        specs = [_zsh_spec(option) for option in options_of(command)]
        kind = operand_of(command)
        has_command = command is RUN or ("cmd", "*") in command.operands
        behind = "'*:::command:_normal'"
        locks = (
            ["'1:lock:_lifehold_locks'", behind] if has_command else ["'*:lock:_lifehold_locks'"]
        )
        specs += {
            "name": locks,
            "file": ["'1:file:_files'", behind] if has_command else ["'*:file:_files'"],
            "dir": ["'*:folder:_lifehold_folders'"],
            "shell": [f"'1:shell:({' '.join(SHELLS)})'"],
            "act": [f"'1:what:({ACTS})'", "'2:url: '"],
        }.get(kind, [])
        shown = " \\\n                ".join(specs)
        ends = "-A '-*' " if has_command else ""
        cases.append(
            f"        {command.name})\n            _arguments -s {ends}\\\n"
            f"                {shown} ;;"
        )
    return ZSH % {"commands": "\n".join(rows), "cases": "\n".join(cases), "names": NAMES}


def _zsh_spec(option: Option) -> str:
    text = _line(option)
    for char in "\\[]:":
        text = text.replace(char, "\\" + char)
    words = CHOICES.get(option.name)
    action = f"({' '.join(words)})" if words else " "
    action = {LOCKS: "_lifehold_locks", FOLDERS: "_lifehold_folders"}.get(option.takes, action)
    takes = f":{option.takes}:{action}" if option.takes else ""
    flags = " ".join(option.flags)
    if len(option.flags) == 1:
        again = "*" if option.many else ""
        return _quoted(f"{again}{flags}[{text}]{takes}")
    return f"{_quoted(f'({flags})')}{{{','.join(option.flags)}}}{_quoted(f'[{text}]{takes}')}"


ZSH = """\
#compdef lifehold
# zsh completion of lifehold; made by: lifehold completion zsh
_lifehold_locks() {
    local -a names
    names=(${(f)"$(%(names)s)"})
    # A bare word is a NAME; a file of this folder is offered as ./FILE.
    if [[ $PREFIX == (*/*|\\~*) ]]; then _files; return; fi
    (( $#names )) && compadd -a names && return
    _files -P ./
}
_lifehold_folders() {
    if [[ $PREFIX == (*/*|\\~*) ]]; then _files -/; else _files -/ -P ./; fi
}
_lifehold() {
    local -a ours  # not `commands`: that is where zsh itself looks for CMD
    ours=(
%(commands)s
    )
    if (( CURRENT == 2 )) || [[ CURRENT -eq 3 && $words[2] == help ]]; then
        _describe -t commands command ours
        return
    fi
    local name=$words[2] dashes=${words[(i)--]}
    if [[ $name == run ]] && (( dashes < CURRENT )); then
        shift dashes words
        (( CURRENT -= dashes ))
        _normal
        return
    fi
    shift words
    (( CURRENT-- ))
    case $name in
%(cases)s
    esac
}
if [[ $funcstack[1] == _lifehold ]]; then
    _lifehold "$@"
else
    compdef _lifehold lifehold
fi
"""


def fish() -> str:
    """For a folder completions of fish, as lifehold.fish."""
    first = "not __fish_seen_subcommand_from " + " ".join(COMMANDS)
    lines = [FISH % {"names": NAMES}]
    lines += [
        f"complete -c lifehold -n '{first}' -f -a {name} -d {_quoted(command.summary)}"
        for name, command in COMMANDS.items()
    ]
    for name, command in COMMANDS.items():
        seen = f"__lifehold_in {name}"
        for option in options_of(command):
            flags = " ".join(
                f"-l {flag[2:]}" if flag[:2] == "--" else f"-s {flag[1:]}" for flag in option.flags
            )
            words = CHOICES.get(option.name)
            takes = f" -x -a '{' '.join(words)}'" if words else " -x" if option.takes else ""
            of = {LOCKS: "__lifehold_locks", FOLDERS: "__lifehold_folders"}
            takes += f" -a '({of[option.takes]})'" if option.takes in of else ""
            lines.append(
                f"complete -c lifehold -n '{seen}' {flags}{takes} -d {_quoted(_line(option))}"
            )
        words_of = {
            "name": "-f -a '(__lifehold_locks)'",
            "file": "-F",
            "dir": "-f -a '(__lifehold_folders)'",
            "shell": f"-f -a '{' '.join(SHELLS)}'",
            "act": f"-f -a '{ACTS}'",
        }.get(operand_of(command), "-f")
        lines.append(f"complete -c lifehold -n '{seen}' {words_of}")
    lines.append("complete -c lifehold -n __lifehold_after_dashes -x -a '(__lifehold_command)'")
    return "\n".join(lines) + "\n"


FISH = """\
# fish completion of lifehold; made by: lifehold completion fish
function __lifehold_names
    %(names)s
end
function __lifehold_locks  # a bare word is a NAME; a file of this folder is ./FILE
    set -l word (commandline -ct)
    if string match -q -- '*/*' $word
        __fish_complete_path $word
    else
        __lifehold_names
        __fish_complete_path ./$word
    end
end
function __lifehold_folders
    set -l word (commandline -ct)
    string match -q -- '*/*' $word; or set word ./$word
    __fish_complete_directories $word
end
function __lifehold_after_dashes
    set -l words (commandline -opc)
    test "$words[2]" = run; and contains -- -- $words
end
function __lifehold_in
    set -l words (commandline -opc)
    test "$words[2]" = $argv[1]; and not __lifehold_after_dashes
end
function __lifehold_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words)
    set -e words[1..$at]
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end"""

SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


# ------------------------------------------------------------------------------------------------
# The man pages, made from the table of options: `python -m lifehold.cli.completion FOLDER`.


FILES = """\
A NAME has no slash. It is the file NAME.lock in $LIFEHOLD_DIR, when that is set; else in
/var/lib/lifehold, if you may write there; else in $XDG_STATE_HOME/lifehold, by default
~/.local/state/lifehold. What has a slash is a PATH."""


def escaped(text: str) -> str:
    """`text` as roff shows it, character by character."""
    shown = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    shown = shown.replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    return "\n".join(
        "\\&" + line if line[:1] in (".", "\\") else line for line in shown.split("\n")
    )


def page(command: Command) -> str:
    """The page of one command, section 1."""
    name = f"lifehold-{command.name}"
    parts = [
        _head(name),
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(_first_small(command.summary))}",
        ".SH SYNOPSIS",
        f".B {escaped(command.usage)}",
        ".SH EXAMPLES",
        _verbatim(command.examples),
        ".SH OPTIONS",
    ]
    for option in (*command.options, HELP):
        takes = f" \\fI{escaped(option.takes)}\\fR" if option.takes else ""
        flags = ", ".join(f"\\fB{escaped(flag)}\\fR" for flag in option.flags)
        parts += [".TP", flags + takes, escaped(" ".join(option.help.split()))]
    notes = [part for part in notes_of(command).split("\n\n") if part]
    codes = [part for part in notes if part.startswith("Exit codes:")]
    if words := [escaped(part) for part in notes if part not in codes]:
        parts += [".SH DESCRIPTION", "\n.PP\n".join(words)]
    if codes:
        parts += [".SH EXIT STATUS", escaped(codes[0].removeprefix("Exit codes:").strip())]
    return "\n".join([*parts, ".SH SEE ALSO", _see(command.name)]) + "\n"


def front() -> str:
    """lifehold(1)."""
    parts = [
        _head("lifehold"),
        ".SH NAME",
        "lifehold \\- locks that live exactly as long as their holder",
        ".SH SYNOPSIS",
        ".B lifehold\n.I COMMAND\n\\&...",
        ".SH EXAMPLES",
        _verbatim("\n".join(line for line in USAGE_OF_ALL.splitlines() if line.startswith("  "))),
        ".SH COMMANDS",
    ]
    for command in COMMANDS.values():
        parts += [".TP", f"\\fB{escaped(command.name)}\\fR", escaped(command.summary)]
    return "\n".join([*parts, ".SH FILES", escaped(FILES), ".SH SEE ALSO", _see("")]) + "\n"


def _head(name: str) -> str:
    title = escaped(name.upper())
    return f'.TH "{title}" "1" "" "lifehold {escaped(__version__)}" "User Commands"\n.nh\n.ad l'


def _verbatim(text: str) -> str:
    return f".nf\n{escaped(text)}\n.fi"


def _first_small(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def _see(name: str) -> str:
    others = ["lifehold"] if name else []
    others += [f"lifehold-{each}" for each in COMMANDS if each != name]
    return ",\n".join(f".BR {escaped(each)} (1)" for each in others).replace("(1),", "(1) ,")


# Where the shells look, below the `share` of a prefix.
PLACES = {
    "bash": "bash-completion/completions/lifehold",
    "zsh": "zsh/site-functions/_lifehold",
    "fish": "fish/vendor_completions.d/lifehold.fish",
}


def shared(folder: str) -> None:
    """Write the man pages and the completions as they stand below the `share` of a prefix."""
    main(os.path.join(folder, "man", "man1"))
    for shell, place in PLACES.items():
        path = os.path.join(folder, place)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(SHELLS[shell]())


def main(folder: str) -> None:
    """Write one page per command, and lifehold.1."""
    os.makedirs(folder, exist_ok=True)
    pages = {"lifehold": front()} | {f"lifehold-{n}": page(c) for n, c in COMMANDS.items()}
    for name, text in pages.items():
        with open(os.path.join(folder, f"{name}.1"), "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
