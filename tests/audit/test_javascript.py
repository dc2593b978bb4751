"""JavaScript and TypeScript: what is found in other clothes, what is left alone, bad input."""

from __future__ import annotations

import sys

import pytest

from lifehold.audit import scan
from lifehold.audit.settings import Settings

FOUND = {
    "promises, awaited": (
        "js",
        """
import fs from "node:fs/promises";
import path from "node:path";
export async function withLock(dir, work) {
  const lockFile = path.join(dir, ".lock");
  try {
    await fs.writeFile(lockFile, `${process.pid}`, { flag: "wx" });
  } catch (e) {
    const { mtimeMs } = await fs.stat(lockFile);
    if (Date.now() - mtimeMs > 30_000) await fs.unlink(lockFile);
  }
}
""",
        {"LH405", "LH406"},
    ),
    "a class in TypeScript": (
        "ts",
        """
import * as fs from "fs";
export class StateLock {
  private readonly lockPath: string;
  async acquire(timeout: number): Promise<boolean> {
    if (this.isStale()) fs.rmSync(this.lockPath, { force: true });
    fs.writeFileSync(this.lockPath, JSON.stringify({ pid: process.pid }), { flag: "wx" });
    return true;
  }
  private isStale(): boolean {
    const { pid } = JSON.parse(fs.readFileSync(this.lockPath, "utf8")) as { pid: number };
    try { process.kill(pid, 0); return false; } catch { return true; }
  }
  release(): void { fs.unlinkSync(this.lockPath); }
}
""",
        {"LH403", "LH404", "LH405", "LH407"},
    ),
    "a folder in a loop": (
        "ts",
        """
import { mkdirSync, rmdirSync } from "fs";
export function acquireLock(lockDir: string) {
  while (true) {
    try { mkdirSync(lockDir); return () => rmdirSync(lockDir); } catch {}
  }
}
""",
        {"LH402"},
    ),
    "looked for on the way": (
        "js",
        """
const { existsSync, writeFileSync } = require("fs");
const PID_FILE = "/tmp/app.pid";
if (existsSync(PID_FILE)) { console.error("runs"); process.exit(1); }
writeFileSync(PID_FILE, String(process.pid));
""",
        {"LH401"},
    ),
    "ioredis, compared apart": (
        "ts",
        """
async function unlock(key: string, token: string) {
  const lockKey = `lock:${key}`;
  const held = await this.redis.get(lockKey);
  if (held !== token) return false;
  await this.redis.del(lockKey);
}
""",
        {"LH412"},
    ),
    "setNX of node-redis": (
        "js",
        """
async function acquireLock(client, name) {
  const ok = await client.setNX(`lock:${name}`, "1");
  if (ok) { await client.expire(`lock:${name}`, 10); }
}
""",
        {"LH409"},
    ),
}
CLEAN = {
    "a package manager's lock": """
if (fs.existsSync("package-lock.json")) fs.unlinkSync("package-lock.json");
if (!fs.existsSync(yarnLockPath)) fs.writeFileSync("yarn.lock", text);
""",
    "a block and a clock": """
if (!fs.existsSync(blockPath)) fs.writeFileSync(blockPath, clock.now());
""",
    "a folder that is made whole": "fs.mkdirSync(lockDir, { recursive: true });",
    "another kill": "function stop(lock) { child.kill(lock.pid, 0); process.kill(p, 'SIGTERM'); }",
    "EPERM is known": """
function lockOwnerAlive(pid, startTime) {
  try { process.kill(pid, 0); return true; } catch (e) { return e.code !== "ESRCH"; }
}
""",
    "a map is no file": "const locks = new Map(); locks.set('lock', 1); locks.delete('lock');",
    "one script": """
const ok = await redis.set(lockKey, token, "PX", 1000, "NX");
await redis.eval(script, 1, lockKey, token);
""",
    "deleted in time": """
async function free(redis, lockKey, endsAt) {
  await redis.set(lockKey, 1, "NX", "PX", 9);
  if (endsAt > Date.now()) await redis.del(lockKey);
}
""",
}


def codes(suffix: str, text: str) -> set[str]:
    return {hit[0] for hit in scan.hits_of_unit(f"example.{suffix}", "javascript", text)}


@pytest.mark.parametrize("name", FOUND)
def test_a_defect_is_found_by_its_rules_and_no_other(name):
    suffix, text, expected = FOUND[name]
    assert codes(suffix, text) == expected


@pytest.mark.parametrize("name", CLEAN)
def test_what_only_looks_like_a_defect_is_left_alone(name):
    assert codes("js", CLEAN[name]) == set()
    assert codes("tsx", CLEAN[name]) == set()


def test_a_file_is_looked_at_by_its_suffix_and_silenced_by_a_comment(tmp_path):
    text = FOUND["looked for on the way"][1]
    (tmp_path / "a.mjs").write_text(text)
    (found,) = scan.audit([str(tmp_path)], Settings()).findings
    assert (found.code, found.line, found.column) == ("LH401", 5, 1)
    row = "writeFileSync(PID_FILE, String"
    silent = text.replace(row, f"// lifehold: ignore[LH401] -- why\n{row}")
    (tmp_path / "a.mjs").write_text(silent)
    report = scan.audit([str(tmp_path)], Settings())
    assert (report.findings, report.suppressed) == ([], 1)


def test_without_tree_sitter_one_notice_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tree_sitter_typescript", None)
    for name in ("a.js", "b.js"):
        (tmp_path / name).write_text(FOUND["looked for on the way"][1])
    report = scan.audit([str(tmp_path)], Settings())
    assert report.findings == []
    assert [n.text for n in report.notices] == [
        "2 files of JavaScript were not looked at: pip install 'lifehold[audit]'"
    ]


@pytest.mark.parametrize(
    "text",
    ["", "{" * 5000, "lock(" * 3000, "`${", "/*", "function (", "class {", "\x00lock", "é;" * 99],
)
def test_text_that_is_no_script_raises_nothing(text):
    for suffix in ("js", "ts", "tsx"):
        codes(suffix, f"fs.unlinkSync(lockPath); {text}")


def test_what_a_program_wrote_is_passed_over_and_that_is_told_once(tmp_path):
    folder, cache = tmp_path / "src", tmp_path / "cache"
    folder.mkdir()
    for name in ("bundle.js", "other.js"):
        (folder / name).write_text(FOUND["looked for on the way"][1] + name + "x;" * 9000)
    for _first_and_remembered in range(2):
        report = scan.audit([str(folder)], Settings(), cache=cache)
        assert (report.findings, report.unread) == ([], False)
        (notice,) = report.notices
        assert notice.path.endswith("bundle.js")
        assert "longer than 5,000 characters" in notice.text
        assert "(and 1 more)" in notice.text


def test_a_short_script_is_told_of_by_no_notice(tmp_path):
    (tmp_path / "short.js").write_text(FOUND["looked for on the way"][1])
    assert scan.audit([str(tmp_path)], Settings()).notices == []
