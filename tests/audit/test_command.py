"""`lifehold audit`: what it prints in each format, how it ends, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest

from ground import needs
from lifehold.audit.catalogue import RULES
from lifehold.audit.suppress import suppressions
from lifehold.cli.main import main

ROOT = Path(__file__).parents[2]
BAD = RULES["LH115"].bad
LINE = next(row for row in BAD.splitlines() if "flock(open" in row)


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        code = main(["audit", *words])
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(words, code, out, err)

    (tmp_path / "app.py").write_text(BAD)
    return run


def test_the_command_is_there_for_a_shell(tmp_path):
    (tmp_path / "app.py").write_text(BAD)
    done = subprocess.run(
        [sys.executable, "-m", "lifehold", "audit", "--no-cache", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")


def test_it_ends_with_1_on_findings_and_with_0_on_none(run, tmp_path):
    assert run().returncode == 1
    (tmp_path / "app.py").write_text(RULES["LH115"].good)
    assert (run().returncode, run().stderr) == (0, "")


def test_the_full_format_shows_line_caret_and_cure(run):
    out = run("app.py").stdout
    assert out.startswith("app.py:4:5: LH115 handle-dropped [error]\n")
    assert "\n    |     ^^^^^^^^^^^" in out
    assert "fix: Keep the file" in out
    assert out.endswith("1 finding in 1 file (4 lines).\n")


def test_the_concise_format_is_one_line_a_finding(run):
    first = run("--format", "concise").stdout.splitlines()[0]
    assert first.startswith("app.py:4:5: LH115 the file that is locked here")


def test_json_keeps_its_schema(run):
    schema = json.loads((ROOT / "docs/reference/audit/report.schema.json").read_text())
    answer = json.loads(run("--format", "json").stdout)
    jsonschema.Draft202012Validator(schema).validate(answer)
    assert answer["findings"][0]["code"] == "LH115"


# What the SARIF 2.1.0 schema asks of the parts that are written.
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
PLACE = {
    "type": "object",
    "required": ["physicalLocation"],
    "properties": {
        "physicalLocation": {
            "type": "object",
            "required": ["artifactLocation"],
            "additionalProperties": False,
            "properties": {
                "artifactLocation": {
                    "type": "object",
                    "required": ["uri"],
                    "properties": {"uri": {"type": "string", "format": "uri-reference"}},
                },
                "region": {
                    "type": "object",
                    "properties": {
                        name: {"type": "integer", "minimum": 1}
                        for name in ("startLine", "startColumn", "endLine", "endColumn")
                    },
                },
            },
        },
        "message": TEXT,
    },
}
RESULT = {
    "type": "object",
    "required": ["message", "ruleId", "locations", "partialFingerprints"],
    "additionalProperties": False,
    "properties": {
        "ruleId": {"type": "string"},
        "ruleIndex": {"type": "integer", "minimum": 0},
        "level": {"enum": ["none", "note", "warning", "error"]},
        "message": TEXT,
        "locations": {"type": "array", "items": PLACE, "minItems": 1},
        "relatedLocations": {"type": "array", "items": PLACE},
        "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
        "fixes": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["artifactChanges"],
                "additionalProperties": False,
                "properties": {
                    "description": TEXT,
                    "artifactChanges": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["artifactLocation", "replacements"],
                            "properties": {"replacements": {"type": "array", "minItems": 1}},
                        },
                    },
                },
            },
        },
        "codeFlows": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["threadFlows"],
                "properties": {
                    "threadFlows": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["locations"],
                            "properties": {
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["location"],
                                        "properties": {"location": PLACE},
                                    },
                                }
                            },
                        },
                    }
                },
            },
        },
    },
}


def test_sarif_has_the_shape_of_2_1_0(run, tmp_path):
    (tmp_path / "two words.py").write_text(RULES["LH101"].bad)
    log = json.loads(run("--format", "sarif").stdout)
    assert log["version"] == "2.1.0"
    (part,) = log["runs"]
    for result in part["results"]:
        jsonschema.Draft202012Validator(RESULT).validate(result)
        rule = part["tool"]["driver"]["rules"][result["ruleIndex"]]
        assert rule["id"] == result["ruleId"]
        assert rule["properties"]["security-severity"]
    assert any("codeFlows" in result for result in part["results"])
    uris = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in part["results"]]
    assert {uri["uri"] for uri in uris} == {"app.py", "two%20words.py"}


def test_junit_is_xml_and_counts_failures(run, tmp_path):
    (tmp_path / "a&b<.py").write_text(BAD)
    tree = ET.fromstring(run("--format", "junit").stdout)
    assert tree.get("failures") == "2"
    assert len(tree.findall(".//failure")) == 2
    (tmp_path / "a&b<.py").unlink()
    (tmp_path / "app.py").unlink()
    assert ET.fromstring(run("--format", "junit").stdout).get("failures") == "0"


def test_annotations_and_code_quality_name_the_place(run):
    assert run("--format", "github").stdout.startswith("::error file=app.py,line=4,")
    (issue,) = json.loads(run("--format", "gitlab").stdout)
    assert issue["location"] == {"path": "app.py", "lines": {"begin": 4, "end": 4}}
    assert len(issue["fingerprint"]) == 20


def test_statistics_count_each_rule(run):
    assert run("--statistics").stdout.startswith("     1 LH115 handle-dropped\n")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--select", "LH115"], 1),
        (["--select", "LH2"], 0),
        (["--select", "handle-dropped"], 1),
        (["--ignore", "LH1"], 0),
        (["--select", "LH2", "--extend-select", "LH115"], 1),
        (["--per-file-ignores", "*.py:LH115,LH101"], 0),
        (["--per-file-ignores", "tests/*:LH115"], 1),
        (["--select", "ALL"], 1),
    ],
)
def test_rules_are_chosen_by_code_and_by_file(run, words, status):
    assert run(*words).returncode == status


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "there is no 'nowhere'"),
        (["--select", "LH999"], "there is no rule 'LH999'"),
        (["--format", "yaml"], "a format is full"),
        (["--per-file-ignores", "LH115"], "PATTERN:CODE"),
        (["--config", "none.toml"], "cannot be read"),
        (["--baseline", "none.json"], "cannot be read"),
        (["explain", "LH999"], "there is no rule"),
        (["--nope"], "--nope"),
        (["--jobs", "0"], "1 to 256"),
    ],
)
def test_what_cannot_be_done_ends_with_2_and_says_why(run, words, says):
    done = run(*words)
    assert done.returncode == 2, done.stdout
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.lifehold.audit\n", "is no TOML"),
        ("[tool.lifehold.audit]\nselekt = []\n", "knows no 'selekt'"),
        ("[tool.lifehold.audit]\nignore = 'LH1'\n", "a list of words"),
        ("[tool.lifehold.audit]\nignore = ['LH9']\n", "there is no rule 'LH9'"),
        ("[tool.lifehold]\naudit = 1\n", "is a table"),
        ("[tool.lifehold.audit]\nper-file-ignores = ['a']\n", "lists of codes"),
    ],
)
def test_a_broken_configuration_is_refused_with_its_reason(run, tmp_path, text, says):
    (tmp_path / "pyproject.toml").write_text(text)
    done = run()
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


VOCABULARY = """\
[tool.lifehold.audit]
lock-words = ["gate"]
lock-classes = ["app.locks.Barrier"]
flock-wrappers = ["app.files.grab"]
"""
OWN_WORDS = """\
import os
from app.files import grab
from app.locks import Barrier

def begin(gate_path):
    if os.path.exists(gate_path):
        return False
    with open(gate_path, "w") as file:
        file.write(str(os.getpid()))
    return True

def job(work):
    barrier = Barrier("x")
    barrier.acquire()
    work()
    barrier.release()

def ensure_lock():
    grab(open("x", "a"))
"""


def test_a_project_says_what_it_calls_its_locks(run, tmp_path):
    (tmp_path / "app.py").write_text(OWN_WORDS)
    before = run("--format", "concise").stdout
    (tmp_path / "pyproject.toml").write_text(VOCABULARY)
    after = run("--format", "concise").stdout
    assert [code for code in ("LH101", "LH110", "LH115") if code in before] == []
    assert [code for code in ("LH101", "LH110", "LH115") if code in after] == [
        "LH101", "LH110", "LH115",
    ]  # fmt: skip
    (tmp_path / "pyproject.toml").unlink()
    assert run("--format", "concise").stdout == before


def test_the_nearest_configuration_counts(run, tmp_path):
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(BAD)
    (tmp_path / "deep" / "pyproject.toml").write_text(
        "[tool.lifehold.audit]\nper-file-ignores = { 'er/*' = ['LH115'] }\nexclude = ['old']\n"
    )
    assert run("deep").returncode == 0
    assert run("deep", "--ignore", "LH2").returncode == 0
    assert run(".").returncode == 1


def test_a_comment_with_a_reason_silences_its_line(run, tmp_path):
    for comment in ("# lifehold: ignore[LH115] -- why", "# noqa: LH115", "# lifehold: ignore"):
        (tmp_path / "app.py").write_text(BAD.replace(LINE, f"{LINE}  {comment}"))
        done = run()
        assert (done.returncode, "1 suppressed" in done.stdout) == (0, True), done.stdout
    (tmp_path / "app.py").write_text("# lifehold: ignore-file[LH115] -- why\n" + BAD)
    assert run().returncode == 0
    above = f"    # lifehold: ignore[LH115] -- why\n{LINE}"
    (tmp_path / "app.py").write_text(BAD.replace(LINE, above))
    assert run().returncode == 0


def test_a_comment_that_silences_nothing_is_found(run, tmp_path):
    (tmp_path / "app.py").write_text("lock = 1  # lifehold: ignore[LH108] -- gone\n")
    done = run("--format", "concise")
    assert done.returncode == 1
    assert "app.py:1:11: LH001" in done.stdout
    assert run("--ignore", "LH001").returncode == 0
    (tmp_path / "app.py").write_text(BAD.replace(LINE, f"{LINE}  # noqa: LH115, LH101"))
    assert "suppresses LH101" in run().stdout


def test_text_that_only_quotes_a_comment_is_none():
    assert suppressions('x = "# lifehold: ignore[LH101]"\n') == []
    (wrong,) = suppressions("x = 1  # lifehold: ignore[nonsense]\n")
    assert not wrong.understood


def test_a_comment_covers_the_statement_that_it_ends():
    (found,) = suppressions("f(\n    1,\n    2,\n)  # lifehold: ignore[LH101] -- long\n")
    assert (found.line, found.last) == (1, 4)


def test_a_baseline_holds_what_was_there_and_no_more(run, tmp_path):
    assert run("--write-baseline", "known.json").returncode == 0
    assert run("--baseline", "known.json").returncode == 0
    (tmp_path / "app.py").write_text("import os\n\n\n" + BAD)
    assert run("--baseline", "known.json").returncode == 0
    (tmp_path / "app.py").write_text(BAD + BAD.replace("ensure_single", "start_single"))
    done = run("--baseline", "known.json")
    assert (done.returncode, "1 in the baseline" in done.stdout) == (1, True)


@pytest.mark.parametrize(
    "text", ['{"schema": "lifehold.audit-baseline/9", "findings": []}', "[", "[1]", "{}"]
)
def test_a_baseline_of_another_version_is_refused_with_the_cure(run, tmp_path, text):
    (tmp_path / "known.json").write_text(text)
    done = run("--baseline", "known.json")
    assert done.returncode == 2
    assert "--write-baseline" in done.stderr


@pytest.mark.parametrize("text", [BAD, "[1]", '{"name": "app", "schema": "app/1"}', "[" * 100_000])
def test_no_file_but_a_baseline_is_written_over(run, tmp_path, text):
    for name in ("app.py", "package.json"):
        (tmp_path / name).write_text(text)
        done = run("--write-baseline", name)
        told = f"{name} is no baseline: name another file, or remove it\n"
        assert (done.returncode, done.stdout, done.stderr.endswith(told)) == (2, "", True)
        assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("text", ['{"schema": "lifehold.audit-baseline/9"}', "", "\n"])
def test_a_baseline_of_any_version_is_written_anew(run, tmp_path, text):
    (tmp_path / "known.json").write_text(text)
    assert run("--write-baseline", "known.json").returncode == 0
    assert run("--baseline", "known.json").returncode == 0


def test_a_hostile_file_name_writes_nothing_to_the_terminal(run, tmp_path):
    (tmp_path / "evil\x1b[31m.py").write_text(BAD)
    (tmp_path / "evil\x1b[32m.py").write_text("lock = (\nflock(")
    done = run()
    assert "\x1b" not in done.stdout + done.stderr


def test_explain_tells_a_rule_in_full(run):
    out = run("explain", "LH108", "setnx-then-expire").stdout
    assert "LH108 unlink-flocked-file" in out
    assert "How it fails:" in out
    assert "LH201 setnx-then-expire" in out
    assert len(run("explain", "--all").stdout.splitlines()) == len(RULES)


def test_our_own_source_has_no_finding_that_is_not_answered():
    done = subprocess.run(
        [sys.executable, "-m", "lifehold", "audit", "--no-cache", "--format", "concise", "src"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout


WRAPPED = """\
[tool.lifehold.audit.wrappers]
"app.io.drop" = "os.unlink"
"app.io.grab" = "fcntl.flock"
"app.kv.take" = "redis.setnx"
"app.kv.free" = "redis.delete"
"""
BY_WRAPPERS = """\
from app.io import drop, grab
from app.kv import free, take

def once(lock_path):
    handle = open(lock_path, "a")
    grab(handle)
    drop(lock_path)

def job(work):
    if take("lock:report", "1"):
        work()
        free("lock:report")
"""


def test_functions_of_a_project_stand_for_calls_that_are_known(run, tmp_path):
    (tmp_path / "app.py").write_text(BY_WRAPPERS)
    assert run("--format", "concise").stdout.startswith("nothing found")
    (tmp_path / "pyproject.toml").write_text(WRAPPED)
    rows = run("--format", "concise").stdout.splitlines()[:-1]
    assert [row.split()[1] for row in rows] == ["LH108", "LH202", "LH203"]


def test_a_wrapper_of_an_unknown_call_is_refused(run, tmp_path):
    (tmp_path / "pyproject.toml").write_text(WRAPPED.replace("os.unlink", "os.sink"))
    done = run()
    assert done.returncode == 2
    assert "'app.io.drop' cannot stand for 'os.sink', but for" in done.stderr


@needs("package:libcst")
def test_sarif_holds_the_safe_fixes_that_a_reader_can_apply(run, tmp_path):
    (tmp_path / "app.py").write_text("# ö\n" + BAD.rstrip("\n"))
    (log,) = json.loads(run("--format", "sarif").stdout)["runs"]
    (result,) = log["results"]
    ((change,),) = (fix["artifactChanges"] for fix in result["fixes"])
    assert change["artifactLocation"]["uri"] == "app.py"
    rows = (tmp_path / "app.py").read_text().split("\n")
    for each in reversed(change["replacements"]):
        region = each["deletedRegion"]
        end, column = region["endLine"], region["endColumn"]
        kept = rows[end - 1][column - 1 :] if end <= len(rows) else ""
        text = each["insertedContent"]["text"] + kept
        rows[region["startLine"] - 1 : end] = text.split("\n")
    (tmp_path / "app.py").write_text("\n".join(rows))
    assert run().returncode == 0
