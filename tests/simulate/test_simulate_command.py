"""`lifehold simulate`: a verdict in words and figures, advice that was tried, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from lifehold.cli import exits
from lifehold.cli import simulate as simulate_scale
from lifehold.cli.main import main
from lifehold.testing.simulate import Scenario, scale, simulate
from lifehold.testing.simulate.verdict import judged, longer, quantile

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
SHORT = ["--hours", "12m", "--pause-every", "20s"]


def run(capfd, *words):
    code = main(["simulate", *words])
    seen = capfd.readouterr()
    return code, seen.out, seen.err


def test_a_pause_longer_than_the_ttl_is_told_with_figures_and_advice_that_was_tried(capfd):
    code, out, _ = run(capfd, "--ttl", "10", "--pause", "12", *SHORT)
    assert code == exits.FREE
    assert "ttl 10 s, heartbeat 3.33 s, margin 1 s: does not survive pauses of 12 s" in out
    assert "where the data compares tokens all were refused" in out
    (advice,) = [line.split() for line in out.splitlines() if line.startswith("  advice")]
    code, out, _ = run(capfd, *advice[1:3], "--pause", "12", *SHORT)
    assert code == exits.DONE, out
    assert "survives pauses of 12 s" in out


def test_the_answer_in_json_keeps_its_schema_and_says_the_same(capfd):
    schema = json.loads((REFERENCE / "simulate.schema.json").read_text())
    code, out, _ = run(capfd, "--json", "--ttl", "10", "--pause", "12", *SHORT)
    told = json.loads(out)
    jsonschema.validate(told, schema)
    assert (code, told["survives"]) == (exits.FREE, False)
    figures = told["figures"]
    assert figures["leases_lost_in_a_pause"] == figures["pauses_of_a_holder"] > 0
    assert figures["late_writes_landed_unguarded"] > 0
    assert figures["late_writes_landed_guarded"] == figures["updates_lost_guarded"] == 0
    assert told["advice"]["figures"]["leases_lost"] == 0
    _, again, _ = run(capfd, "--json", "--ttl", "10", "--pause", "12", *SHORT)
    assert again == out


def test_what_went_wrong_is_shown_by_its_fewest_faults(capfd):
    schema = json.loads((REFERENCE / "simulate.schema.json").read_text())
    words = ("--ttl", "10", "--pause", "12", "--shrink", *SHORT)
    _, out, _ = run(capfd, *words)
    shown = [line for line in out.splitlines() if line.startswith("  fault ")]
    assert shown
    assert "  so that" in out
    _, out, _ = run(capfd, "--json", *words)
    told = json.loads(out)
    jsonschema.validate(told, schema)
    assert len(told["smallest"]["faults"]) == len(shown) < told["figures"]["pauses_of_a_holder"]
    _, out, _ = run(capfd, "--json", "--shrink", "--hours", "1m")
    assert json.loads(out)["smallest"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--shape", "readwrite"), ("1 reader/writer lock", "  reads ", "a writer and another")),
        (("--shape", "semaphore", "--permits", "2"), ("1 semaphore of 2", "nor two one slot")),
        (("--shape", "semaphore", "--names", "3"), ("3 semaphores of 3",)),
    ],
)
def test_readers_and_permits_are_told_in_their_own_words(capfd, words, told):
    schema = json.loads((REFERENCE / "simulate.schema.json").read_text())
    words = ("--ttl", "10", "--pause", "12", *words, *SHORT)
    code, out, _ = run(capfd, *words)
    assert code == exits.FREE
    for text in told:
        assert text in out
    _, out, _ = run(capfd, "--json", "--shrink", *words)
    jsonschema.validate(json.loads(out), schema)


def test_what_no_ttl_cures_gets_no_ttl_for_advice(capfd):
    code, out, _ = run(capfd, "--ttl", "10", "--pause", "15", "--frozen", "--nodes", "3",
                       "--seed", "2", *SHORT)  # fmt: skip
    assert code == exits.FREE
    assert "two believed to hold it (a clock that stands still)" in out


def test_a_run_in_which_nothing_was_tried_is_no_survival(capfd):
    code, _, told = run(capfd, "--pause", "12", "--hours", "1s")
    assert code == exits.USAGE
    assert "no pause met a holder" in told


@pytest.mark.parametrize(
    "words",
    [
        ("--latency", "10", "--hours", "6m"),
        ("--timeout", "0.001", "--hours", "6m"),
        ("--loss", "99.9%", "--hours", "6m"),
    ],
    ids=" ".join,
)
def test_a_run_in_which_no_grant_arrived_is_no_survival(capfd, words):
    code, out, told = run(capfd, *words)
    assert (code, out) == (exits.USAGE, "")
    assert "no grant reached" in told or "nothing was granted" in told


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--crash-every", "1000h"), "no crash"),
        (("--cut", "8", "--cut-every", "1000h"), "no cut"),
        (("--step", "1", "--step-every", "1000h"), "no step"),
        (("--failover-every", "1000h"), "no failover"),
    ],
)
def test_a_fault_that_was_asked_for_and_did_not_come_is_no_survival(capfd, words, named):
    code, out, told = run(capfd, *words, "--hours", "30s")
    assert (code, out) == (exits.USAGE, "")
    assert named in told


def test_a_fault_that_nobody_asked_for_need_not_come(capfd):
    code, _, told = run(capfd, "--hours", "30s", "--crash-every", "0", "--step", "0")
    assert (code, told) == (exits.DONE, "")


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_run_in_which_nothing_was_granted_is_no_survival(capfd, form):
    code, out, told = run(capfd, *form, "--hours", "0.001s")
    assert (code, out) == (exits.USAGE, "")
    assert "nothing was granted" in told


def test_the_log_goes_to_stderr_and_holds_every_event(capfd):
    main(["simulate", "--hours", "1m", "--log"])
    seen = capfd.readouterr()
    plan = Scenario(think=2.0, hours=60 / 3600, crash_every=200.0)
    outcome = simulate(plan, 1, keep=True)
    assert [line for line in seen.err.splitlines() if " grant " in line] == [
        line for line in outcome.lines if " grant " in line
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--ttl", "0"], "ttl"), (["--ttl", "nan"], "nan"), (["--ttl", "-3"], "-3"),
        (["--ttl", "10", "--heartbeat", "11"], "heartbeat"), (["--margin", "40"], "margin"),
        (["--nodes", "0"], "0"), (["--nodes", "1000000"], "nodes"), (["--loss", "1"], "loss"),
        (["--loss", "nan"], "nan"), (["--drift", "60%"], "drift"), (["--hours", "0"], "hours"),
        (["--hours", "inf"], "inf"), (["--seed", "x"], "seed"), (["--latency", "0"], "latency"),
        (["--pause", "soon"], "soon"), (["extra"], "extra"), (["--shape", "mutex"], "mutex"),
        (["--permits", "2"], "semaphore"), (["--writers", "1%"], "readwrite"),
        (["--shape", "semaphore", "--downgrade", "1%"], "readwrite"),
        (["--shape", "semaphore", "--permits", "9999"], "permits"),
        (["--shape", "readwrite", "--scale"], "--shape"),
    ],
)  # fmt: skip
def test_a_setting_that_makes_no_sense_ends_with_64_and_its_name(capfd, words, named):
    assert main(["simulate", *words]) == exits.USAGE
    assert named in capfd.readouterr().err


def test_the_advised_ttl_outlasts_the_pause_by_arithmetic():
    for pause in (1.0, 12.0, 90.0):
        for loss in (0.0, 0.01):
            plan = Scenario(ttl=5.0, pause=pause, loss=loss)
            terms = Scenario(ttl=float(longer(plan))).terms
            assert terms.ttl - terms.margin - terms.heartbeat > pause


def test_a_setting_that_survives_gets_no_advice():
    verdict = judged(Scenario(ttl=30.0, hours=0.1, pause=5.0, pause_every=30.0), 1)
    assert verdict.survives
    assert verdict.advice is None
    assert (verdict.certain, verdict.lucky) == (17.0, 27.0)


def test_a_quantile_of_nothing_is_none_and_of_one_is_that_one():
    assert quantile((), 0.5) is None
    assert quantile((3.0,), 0.99) == 3.0
    assert quantile(tuple(range(100)), 0.99) == 99


@pytest.mark.parametrize("line", [1, 10])
def test_the_light_model_asks_as_much_of_a_store_as_the_shipped_engine(line):
    light = scale.model(200, 10.0, line=line, lasts=60.0)
    real = scale.measured(200, 10.0, line=line, lasts=60.0)
    assert abs(light.mean - real.mean) / real.mean < 0.05
    if line > 1:
        assert abs(light.handovers - real.handovers) / real.handovers < 0.2


def test_holders_cost_one_command_per_heartbeat_and_waiters_a_few():
    alone, lines = scale.model(1000, 30.0), scale.model(1000, 30.0, line=10)
    assert abs(alone.mean - 100) < 3
    assert lines.mean < 1000
    assert scale.model(1000, 30.0, spread=1.0).peak > 5 * alone.peak / 2


def test_the_scale_in_words_and_json_has_a_row_for_each_size(capfd, monkeypatch):
    monkeypatch.setattr(simulate_scale, "SIZES", (10, 100))
    code, out, _ = run(capfd, "--scale", "--ttl", "30")
    assert code == exits.DONE
    assert "BUSIEST" in out
    assert "LINES OF 10" in out
    _, out, _ = run(capfd, "--scale", "--json")
    told = json.loads(out)
    schema = json.loads((REFERENCE / "simulate.schema.json").read_text())
    jsonschema.validate(told, schema)
    assert [each["clients"] for each in told["sizes"]] == [10, 100]
