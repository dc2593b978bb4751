"""The tables of a store in SQLite, and who may use them.

`lifehold_meta` has one row. L12: `version` is that of the newest code that has written here,
`least` the oldest that may: a newer version adds columns with defaults, which older code does not
name and does not disturb, so both exclude each other; where that cannot be, it raises `least`, and
older code, which looks in every step, refuses from then on.

L4  Power loss. Steps are committed without waiting for the disk (`synchronous=normal`), so the last
ones can be lost. No token is given above `ceiling`, which was written to the disk before; a store
that finds another boot's id in `boot` gives none below the ceiling it finds (`floor`).
"""

from __future__ import annotations

VERSION = 1
AHEAD_US = 60_000_000  # how far the ceiling is put above the clock

META_TABLE = """CREATE TABLE lifehold_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, least INTEGER NOT NULL,
    boot TEXT NOT NULL, floor INTEGER NOT NULL, ceiling INTEGER NOT NULL
)"""
NAME_TABLE = """CREATE TABLE lifehold_names (
    name TEXT PRIMARY KEY, token INTEGER, capacity INTEGER NOT NULL
) WITHOUT ROWID"""
CHAIR_TABLE = """CREATE TABLE lifehold_chairs (
    name TEXT NOT NULL, seat INTEGER NOT NULL, mark TEXT NOT NULL, token INTEGER,
    weight INTEGER NOT NULL, slot INTEGER NOT NULL, shared INTEGER NOT NULL, ttl REAL NOT NULL,
    delay REAL NOT NULL, ends_at REAL NOT NULL, clock TEXT NOT NULL, acquired_at REAL NOT NULL,
    renewals INTEGER NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (name, seat)
) WITHOUT ROWID"""
LINE_TABLE = """CREATE TABLE lifehold_line (
    name TEXT NOT NULL, spot INTEGER NOT NULL, mark TEXT NOT NULL, weight INTEGER NOT NULL,
    dies_at REAL NOT NULL, clock TEXT NOT NULL, bell TEXT NOT NULL, called_at REAL,
    PRIMARY KEY (name, spot)
) WITHOUT ROWID"""
AUDIT_TABLE = """CREATE TABLE lifehold_audit (
    at REAL NOT NULL, verb TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL,
    who TEXT NOT NULL, least INTEGER NOT NULL, before TEXT NOT NULL
)"""
KEPT_TABLE = """CREATE TABLE lifehold_kept (
    name TEXT PRIMARY KEY, token INTEGER NOT NULL, text TEXT NOT NULL
) WITHOUT ROWID"""
TABLES = (META_TABLE, NAME_TABLE, CHAIR_TABLE, LINE_TABLE, AUDIT_TABLE, KEPT_TABLE)
FIRST = (
    "INSERT INTO lifehold_meta (one, version, least, boot, floor, ceiling)"
    " VALUES (1, ?, ?, '', 0, 0)"
)

THERE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'lifehold_meta'"
META = "SELECT version, least FROM lifehold_meta"
HEAD = (
    "SELECT least, boot, floor, ceiling, token, capacity,"
    " EXISTS (SELECT 1 FROM lifehold_chairs WHERE name = ?1),"
    " EXISTS (SELECT 1 FROM lifehold_line WHERE name = ?1)"
    " FROM lifehold_meta LEFT JOIN lifehold_names ON name = ?1"
)
RAISE = "UPDATE lifehold_meta SET boot = ?, floor = ?, ceiling = ?"
CHAIRS = (
    "SELECT seat, mark, token, weight, slot, shared, ttl, delay, ends_at, clock, acquired_at,"
    " renewals, owner FROM lifehold_chairs WHERE name = ? ORDER BY seat"
)
SPOTS = (
    "SELECT spot, mark, weight, dies_at, clock, bell, called_at FROM lifehold_line WHERE name = ?"
)
LINE = f"{SPOTS} ORDER BY spot"
FEW = f"{SPOTS} ORDER BY spot LIMIT ?"
LIVING = "clock = ? AND dies_at > ? AND (called_at IS NULL OR called_at > ?)"
FRONT = f"{SPOTS} AND {LIVING} ORDER BY spot LIMIT 2"
MINE = f"{SPOTS} AND mark = ?"
BEFORE = f"{SPOTS} AND spot < ? ORDER BY spot DESC LIMIT 1"
AHEAD = "SELECT count(*) FROM lifehold_line WHERE name = ? AND spot < ?"
OTHERS = "DELETE FROM lifehold_line WHERE name = ? AND mark <> ?"
SWEEP = f"{OTHERS} AND NOT ({LIVING})"
WITHOUT_PIPE = "DELETE FROM lifehold_line WHERE name = ? AND substr(bell, 1, ?) = ?"
WITHOUT_MARK = "DELETE FROM lifehold_line WHERE name = ? AND mark = ?"
TAKE = (  # as Book.acquire does it, where the name is free and the token that of the clock
    "INSERT INTO lifehold_chairs (name, seat, mark, token, weight, slot, shared, ttl, delay,"
    " ends_at, clock, acquired_at, renewals, owner)"
    " SELECT ?1, 1, ?2, ?3, ?4, 0, 0, ?5, ?6, ?7, ?8, ?9, 0, ?10"
    " FROM lifehold_names CROSS JOIN lifehold_meta"
    " WHERE name = ?1 AND token < ?3 AND capacity = ?11 AND least <= ?12 AND {ceiling}"
    " AND NOT EXISTS (SELECT 1 FROM lifehold_chairs WHERE name = ?1)"
    " AND NOT EXISTS (SELECT 1 FROM lifehold_line WHERE name = ?1)"
)
TAKE_BELOW = TAKE.format(ceiling="boot = ?13 AND floor < ?3 AND ceiling >= ?3")
TAKE_ON_DISK = TAKE.format(
    ceiling="CASE WHEN boot = ?13 AND boot <> '' THEN floor ELSE max(floor, ceiling) END < ?3"
)
# Of this connection alone, so the file and its other users know nothing of it: what sits down
# writes the name's token in the same statement, which then is a step by itself.
TOGETHER = (
    "CREATE TEMP TRIGGER lifehold_together AFTER INSERT ON main.lifehold_chairs"
    " WHEN NOT NEW.shared BEGIN"
    " UPDATE lifehold_names SET token = NEW.token WHERE name = NEW.name; END"
)
SIT = (
    "INSERT INTO lifehold_chairs (name, seat, mark, token, weight, slot, shared, ttl, delay,"
    " ends_at, clock, acquired_at, renewals, owner)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
KEEP = (
    "UPDATE lifehold_chairs SET weight = ?, shared = ?, ttl = ?, ends_at = ?, clock = ?,"
    " renewals = ? WHERE name = ? AND seat = ?"
)
PROLONG = (  # as Book.renew does it, where no weight changes: thousands at a time
    "UPDATE lifehold_chairs SET ttl = ?, ends_at = ?, clock = ?, renewals = renewals + 1"
    " WHERE name = ? AND mark = ? AND (clock <> ? OR ends_at > ?)"
)
RISE = "DELETE FROM lifehold_chairs WHERE name = ? AND seat = ?"
GO = (  # as Book.release does it, where nobody waits
    "DELETE FROM lifehold_chairs WHERE name = ?1 AND mark = ?2"
    " AND NOT EXISTS (SELECT 1 FROM lifehold_line WHERE name = ?1)"
    " AND (SELECT least FROM lifehold_meta) <= ?3"
)
STAND = (
    "INSERT INTO lifehold_line (name, spot, mark, weight, dies_at, clock, bell, called_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
STAY = (
    "UPDATE lifehold_line SET dies_at = ?, clock = ?, bell = ?, called_at = ?"
    " WHERE name = ? AND spot = ?"
)
LEAVE = "DELETE FROM lifehold_line WHERE name = ? AND spot = ?"
NAME = (
    "INSERT INTO lifehold_names (name, token, capacity) VALUES (?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET token = excluded.token, capacity = excluded.capacity"
)
KEEP_TEXT = "INSERT OR REPLACE INTO lifehold_kept (name, token, text) VALUES (?, ?, ?)"
FORGET_TEXT = "DELETE FROM lifehold_kept WHERE name = ?"
KEPT_TEXT = "SELECT token, text FROM lifehold_kept WHERE name = ?"
NOTE = (
    "INSERT INTO lifehold_audit (at, verb, name, reason, who, least, before)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
PAGE = (
    "SELECT name, token, capacity FROM lifehold_names WHERE name > CAST(?2 AS TEXT)"
    " AND name >= ?1 AND name < ?1 || char(1114111) ORDER BY name LIMIT ?3"
)
BETWEEN = "WHERE name >= CAST(? AS TEXT) AND name <= CAST(? AS TEXT) ORDER BY name,"
SITTING = f"SELECT name, {CHAIRS.partition('SELECT ')[2].partition(' WHERE')[0]} {BETWEEN} seat"
STANDING = f"SELECT name, {SPOTS.partition('SELECT ')[2].partition(' WHERE')[0]} {BETWEEN} spot"
IDLE = (  # of the names of a page those that can be forgotten: L4 the next token is above the last
    "SELECT n.name FROM lifehold_names n"
    " WHERE n.name >= CAST(?1 AS TEXT) AND n.name <= CAST(?2 AS TEXT)"
    " AND (n.token IS NULL OR n.token < ?3)"
    " AND NOT EXISTS (SELECT 1 FROM lifehold_chairs c WHERE c.name = n.name"
    " AND (c.clock <> ?4 OR c.ends_at + c.delay > ?5))"
    " AND NOT EXISTS (SELECT 1 FROM lifehold_line w WHERE w.name = n.name"
    " AND w.clock = ?4 AND w.dies_at > ?5)"
    " AND NOT EXISTS (SELECT 1 FROM lifehold_kept k WHERE k.name = n.name)"
)
STRANGERS = (  # whose end nobody can tell by our clock; a delay runs by theirs
    "SELECT name, mark, owner FROM lifehold_chairs WHERE name >= CAST(? AS TEXT)"
    " AND name <= CAST(? AS TEXT) AND clock <> ? AND delay = 0"
)
RUN_OUT = (
    "UPDATE lifehold_chairs SET ends_at = 0, clock = ? WHERE name = CAST(? AS TEXT) AND mark = ?"
)
FORGET = (
    "DELETE FROM lifehold_chairs WHERE name = CAST(? AS TEXT)",
    "DELETE FROM lifehold_line WHERE name = CAST(? AS TEXT)",
    "DELETE FROM lifehold_names WHERE name = CAST(? AS TEXT)",
)
LAST = "SELECT token FROM lifehold_names WHERE name = ?"
CLEAR = (
    "DELETE FROM lifehold_chairs WHERE name = ?",
    "DELETE FROM lifehold_line WHERE name = ?",
)
