"""The tables of a store in PostgreSQL, schema version 3, and the small functions on them.

Promise: of a name a row stays, with its token, when its holders go (L4). Tables only grow from
version to version. A function carries in its name the version that first had it, and is made anew
by each later one, so a client of an older version works on the new rows by its old calls (L12).
Version 2 knows by `busy` that nobody has to be looked for. Version 3 knows of who waits all that it
takes to let it in.
"""

from __future__ import annotations

VERSION = 3

TABLES = """
SELECT pg_advisory_xact_lock(7811887393204924516);

CREATE TABLE IF NOT EXISTS lifehold_schema (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,  -- of the newest functions that are here
    least integer NOT NULL     -- of the oldest ones that are right beside them
);
DO $$ BEGIN
    IF (SELECT version FROM lifehold_schema) > 3 THEN
        RAISE EXCEPTION 'the tables of lifehold are of version %: bring them up by that version',
            (SELECT version FROM lifehold_schema);
    END IF;
END $$;
CREATE TABLE IF NOT EXISTS lifehold_lease (
    name text COLLATE "C" PRIMARY KEY,
    token bigint,
    capacity integer NOT NULL DEFAULT 1
) WITH (fillfactor = 50);
-- Behind every step that has begun, also one that waits for its row: it goes on by the old rules.
LOCK TABLE lifehold_lease IN EXCLUSIVE MODE;
CREATE TABLE IF NOT EXISTS lifehold_holder (
    name text COLLATE "C" NOT NULL,
    slot integer NOT NULL,
    mark text COLLATE "C",  -- null: nobody sits here; the row of slot 0 is used again and again
    nr bigint NOT NULL,     -- in order of arrival
    token bigint,
    weight integer NOT NULL,
    shared boolean NOT NULL,
    ttl double precision NOT NULL,
    delay double precision NOT NULL,
    ends_at double precision NOT NULL,  -- seconds since 1970 by the server's clock
    acquired_at double precision NOT NULL,
    renewals integer NOT NULL DEFAULT 0,
    owner text NOT NULL,
    PRIMARY KEY (name, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Before the line is locked: that is the order in which each step locks its tables.
ALTER TABLE lifehold_holder  -- of slot 0: others may be in, or in line
    ADD COLUMN IF NOT EXISTS busy boolean NOT NULL DEFAULT true;
CREATE TABLE IF NOT EXISTS lifehold_waiter (
    name text COLLATE "C" NOT NULL,
    mark text COLLATE "C" NOT NULL,
    place bigint GENERATED ALWAYS AS IDENTITY,
    weight integer NOT NULL,
    dies_at double precision NOT NULL,
    bell text NOT NULL,
    called_at double precision,
    PRIMARY KEY (name, mark)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
ALTER TABLE lifehold_waiter
    ADD COLUMN IF NOT EXISTS word text,  -- null: it is called, and asks
    ADD COLUMN IF NOT EXISTS listener bigint,  -- an advisory lock that it has while it listens
    ADD COLUMN IF NOT EXISTS asked_at double precision,
    ADD COLUMN IF NOT EXISTS capacity integer,
    ADD COLUMN IF NOT EXISTS shared boolean,
    ADD COLUMN IF NOT EXISTS ttl double precision,
    ADD COLUMN IF NOT EXISTS delay double precision,
    ADD COLUMN IF NOT EXISTS owner text;
CREATE INDEX IF NOT EXISTS lifehold_waiter_line ON lifehold_waiter (name, place);
CREATE TABLE IF NOT EXISTS lifehold_audit (
    nr bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    verb text NOT NULL,
    name text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    by text NOT NULL,
    token bigint,
    before text NOT NULL
);
CREATE TABLE IF NOT EXISTS lifehold_kept (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,  -- of the holder who left it
    text text NOT NULL
);
INSERT INTO lifehold_schema AS there (version, least) VALUES (3, 1)
    ON CONFLICT (one) DO UPDATE SET version = greatest(there.version, 3);
"""

SMALL = """
CREATE OR REPLACE FUNCTION lifehold_now() RETURNS double precision LANGUAGE sql VOLATILE AS $$
    SELECT extract(epoch FROM clock_timestamp())::double precision
$$;

CREATE OR REPLACE FUNCTION lifehold_1_token(last bigint, now double precision)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(9223372036854775806, greatest(coalesce(last, 0) + 1, floor(now * 1e6)::bigint))
$$;

CREATE OR REPLACE FUNCTION lifehold_1_seat(h lifehold_holder, now double precision)
RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_array(h.mark, h.token, h.weight, h.slot, h.ttl, h.ends_at + h.delay - now,
        h.acquired_at, h.renewals, h.owner, h.delay)
$$;

CREATE OR REPLACE FUNCTION lifehold_1_state(l lifehold_lease, now double precision)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_array(l.name, l.token, l.capacity,
        (SELECT json_agg(lifehold_1_seat(h, now) ORDER BY h.nr) FROM lifehold_holder h
            WHERE h.name = l.name AND h.mark IS NOT NULL AND h.ends_at + h.delay > now),
        (SELECT json_agg(w.mark ORDER BY w.place) FROM lifehold_waiter w
            WHERE w.name = l.name AND w.dies_at > now
            AND (w.called_at IS NULL OR w.called_at + 1.0 > now)))
$$;
"""
