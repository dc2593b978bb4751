"""The line of those who wait, in SQL: who is let in next, and how it is told.

Promise: who is first is let in by the very step that makes room, where that is safe: it has asked a
moment ago, and the connection on which it listens is open. Else it is called, and asks. One is let
in and one is called per step, so there is no herd.

How it could fail, and what keeps it. Who is let in may be dead: then its lease costs the others one
ttl, as if it had died a moment later; so nobody is let in who has not asked lately, and who has no
connection any more is passed. It may have gone: then it gives the lease back as soon as it hears
of it (bells.py). Its connection may break before it hears: it looks for itself, and finds its grant
by its mark (L6). It may hear late: its deadline counts from its own last request, which was before
(L8). The call goes out behind the commit, and that behind the flush.

A listener holds an advisory lock of a random key: who can take it sees that nobody listens. That
costs a hundredth of a look into pg_stat_activity, and a key is not given again as a pid is.
"""

from __future__ import annotations

LINE = """
DROP FUNCTION IF EXISTS lifehold_1_call(text, integer, double precision);

-- Whether it could be told by its listener, and that one is gone.
CREATE OR REPLACE FUNCTION lifehold_3_absent(w lifehold_waiter)
RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT w.word IS NOT NULL AND pg_try_advisory_xact_lock_shared(w.listener)
$$;

CREATE OR REPLACE FUNCTION lifehold_3_sit(
    p_name text, p_mark text, p_last bigint, p_capacity integer, p_weight integer,
    p_shared boolean, p_ttl double precision, p_delay double precision, p_owner text,
    p_held bigint, p_nr bigint, p_busy boolean, p_now double precision,
    OUT token bigint, OUT slot integer, OUT acquired_at double precision
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    slot := 0;
    IF p_held > 0 THEN
        SELECT min(s.nr) INTO slot FROM generate_series(0, p_held) s (nr)
            WHERE s.nr NOT IN (SELECT h.slot FROM lifehold_holder h
                WHERE h.name = p_name AND h.mark IS NOT NULL);
    END IF;
    acquired_at := floor(p_now * 1e6) / 1e6;
    UPDATE lifehold_lease l
        SET token = CASE WHEN p_shared THEN l.token ELSE lifehold_1_token(l.token, p_now) END,
            capacity = p_capacity
        WHERE l.name = p_name AND NOT (p_shared AND l.capacity = p_capacity)
        RETURNING l.token INTO token;
    IF NOT FOUND THEN
        token := p_last;
    END IF;
    UPDATE lifehold_holder h SET mark = p_mark, nr = p_nr,
            token = lifehold_3_sit.token, weight = p_weight, shared = p_shared,
            ttl = p_ttl, delay = p_delay, ends_at = p_now + p_ttl,
            acquired_at = lifehold_3_sit.acquired_at, renewals = 0, owner = '', busy = p_busy,
            owner_key = hashtextextended(p_owner, 0)
        WHERE h.name = p_name AND h.slot = lifehold_3_sit.slot;
    IF NOT FOUND THEN
        INSERT INTO lifehold_holder (name, mark, nr, token, weight, slot, shared, ttl, delay,
                ends_at, acquired_at, owner, busy, owner_key)
            VALUES (p_name, p_mark, p_nr, token, p_weight, slot, p_shared, p_ttl,
                p_delay, p_now + p_ttl, acquired_at, '', p_busy, hashtextextended(p_owner, 0));
    END IF;
    PERFORM lifehold_4_write(p_name, slot, p_owner);
END $$;

-- Let in or wake the first that lives, if there is room for it. Whether anybody was let in.
CREATE OR REPLACE FUNCTION lifehold_3_call(
    p_name text, p_capacity integer, p_last bigint, p_now double precision
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    w lifehold_waiter;
    g record;
    held bigint;
    used bigint;
    top bigint;
    handed boolean := false;
BEGIN
    FOR w IN SELECT o.* FROM lifehold_waiter o
        WHERE o.name = p_name AND o.dies_at > p_now
        AND (o.called_at IS NULL OR o.called_at + 1.0 > p_now) ORDER BY o.place
    LOOP
        CONTINUE WHEN lifehold_3_absent(w);
        EXIT WHEN w.called_at IS NOT NULL;
        SELECT count(*), coalesce(sum(h.weight), 0), coalesce(max(h.nr), 0) INTO held, used, top
            FROM lifehold_holder h WHERE h.name = p_name AND h.mark IS NOT NULL;
        EXIT WHEN held > 0 AND w.weight > p_capacity - used;
        IF handed OR w.word IS NULL OR (held > 0 AND w.capacity <> p_capacity)
            OR p_now - w.asked_at > least(6.0, w.ttl / 4)
        THEN
            UPDATE lifehold_waiter o SET called_at = p_now
                WHERE o.name = p_name AND o.mark = w.mark;
            IF w.bell <> '' THEN
                PERFORM pg_notify(w.bell, w.mark);
            END IF;
            EXIT;
        END IF;
        DELETE FROM lifehold_waiter o WHERE o.name = p_name AND o.mark = w.mark;
        SELECT * INTO g FROM lifehold_3_sit(p_name, w.mark, p_last, w.capacity, w.weight, w.shared,
            w.ttl, w.delay, w.owner, held, top + 1, true, p_now);
        PERFORM pg_notify(w.bell, concat_ws(' ', w.mark, w.word, coalesce(g.token::text, '-'),
            g.slot, g.acquired_at, p_now));
        handed := true;
        p_capacity := w.capacity;
        EXIT WHEN used + w.weight >= p_capacity;
    END LOOP;
    RETURN handed;
END $$;

-- Who may call what calls these may call these, also where nobody has given it a right to them.
DO $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT a.grantee::regrole AS who FROM pg_proc p, aclexplode(p.proacl) a
        WHERE p.oid = to_regprocedure('lifehold_1_release(text, text)')
        AND a.grantee <> 0 AND a.grantee <> p.proowner
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION lifehold_3_absent(lifehold_waiter), '
            'lifehold_3_sit(text, text, bigint, integer, integer, boolean, double precision, '
            'double precision, text, bigint, bigint, boolean, double precision), '
            'lifehold_3_call(text, integer, bigint, double precision) TO %s', g.who);
    END LOOP;
END $$;
"""
