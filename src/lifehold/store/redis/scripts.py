"""The steps of a store in Redis, in Lua: each question about a name is one call of one script.

Promise: one round trip, and one step in which nobody else's falls. The rules are those of
store/rules.py, line by line; docs/adr/0018 says how the state is laid out.

Keys of a name, all in one hash slot. The first carries type and version, and never expires; the
others are read only where it is ours, and expire by themselves when nothing in them counts.

    lifehold:{NAME}:lease     hash   version, last token, capacity, and when the line was last seen
    lifehold:{NAME}:holders   hash   nonce -> holder
    lifehold:{NAME}:line      zset   nonces of who waits, by their numbers
    lifehold:{NAME}:dies      zset   the same by the instants at which they are passed over
    lifehold:{NAME}:waiters   hash   nonce -> what it asked for
    lifehold:{NAME}:kept      hash   a text that a holder has left
    lifehold:{NAME}:undone    zset   nonces that were given up before their request came

How it could fail, and what keeps it. An answer is lost: the nonce finds the same grant (L6), and a
client that asks again by itself gets it too. A request comes behind the release that was to undo
it, on another connection: the nonce is among the undone, and is not let in. Memory is full: whoever
begins with a deletion may write, so renewals and releases go on, and a grant is refused before it
has changed anything. The server's clock is set back: whoever asks first writes each end anew.

L2  The clock is TIME of the server, once per step. L4  Tokens are numbers of 64 bits and Lua's are
    not: they are kept as text, and counted up by the server where a double would be too small.
"""

from __future__ import annotations

import functools
import hashlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "1"  # of what is in the keys; L12  another one is held, and never written over
KINDS = ("lease", "holders", "line", "dies", "waiters", "kept", "undone")

CLOCK = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local micros = time[1] .. string.format('%06d', time[2])
"""

OURS = """
local LEASE, HOLDERS, LINE, DIES, WAITERS, KEPT, UNDONE = unpack(KEYS)
local call, pcall = redis.call, redis.pcall
local lease = call('HMGET', LEASE, 'lifehold', 'token', 'capacity', 'at')
if lease[1] and lease[1] ~= '1' then
  local newer = tonumber(lease[1])
  return redis.error_reply('LIFEHOLD ' .. (newer and 'NEWER ' or 'FOREIGN ') .. LEASE)
elseif not lease[1] and call('EXISTS', LEASE) == 1 then
  return redis.error_reply('LIFEHOLD FOREIGN ' .. LEASE)
end
local token, capacity = lease[2] or '', tonumber(lease[3]) or 1
"""

BEGIN = """{clock}
local CLAIM, FRESH, PART, SHOWN, GRACE = 1.0, 6.0, 4, 8, 60

local function num(number)
  return string.format('%.17g', number)
end

local function lasts(key, seconds)
  local ms = math.ceil((seconds + GRACE) * 1000)
  if call('PTTL', key) < ms then
    call('PEXPIRE', key, ms)
  end
end
"""

HOLDERS = """
-- A holder is a text: token weight slot shared ttl delay ends_at acquired_at renewals number owner
local function read(nonce, text)
  local h = {nonce = nonce}
  h.token, h.weight, h.slot, h.shared, h.ttl, h.delay, h.ends, h.since, h.renewals, h.nr, h.owner =
    string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  for _, field in ipairs({'weight', 'slot', 'ttl', 'delay', 'ends', 'renewals', 'nr'}) do
    h[field] = tonumber(h[field])
  end
  return h
end

local function text_of(h)
  return table.concat({h.token, h.weight, h.slot, h.shared, num(h.ttl), num(h.delay), num(h.ends),
    h.since, h.renewals, h.nr, h.owner}, ' ')
end

local function holders()
  local all, flat = {}, call('HGETALL', HOLDERS)
  for at = 1, #flat, 2 do
    all[#all + 1] = read(flat[at], flat[at + 1])
  end
  table.sort(all, function(a, b) return a.nr < b.nr end)
  return all
end

local function save(h, alone)  -- alone: the key was not there
  call('HSET', HOLDERS, h.nonce, text_of(h))
  if alone then
    call('PEXPIRE', HOLDERS, math.ceil((h.ends + h.delay - now + GRACE) * 1000))
  else
    lasts(HOLDERS, h.ends + h.delay - now)
  end
end

local function used(all)
  local sum = 0
  for _, h in ipairs(all) do  -- L1  what no step has written, nan too, fills the lock
    sum = sum + (h.weight >= 1 and h.weight or math.max(capacity, 1))
  end
  return sum
end
"""

NEXT = """
local function instant()  -- the clock, as text
  return string.sub(micros, 1, -7) .. '.' .. string.sub(micros, -6)
end

local function less(a, b)  -- of two tokens, as text
  if #a ~= #b then
    return #a < #b
  end
  return a < b
end

local LARGEST = '9223372036854775806'

-- L4  Above every earlier one, and not behind the clock.
local function next_token()
  if token == '' or less(token, micros) then
    return micros
  elseif token == LARGEST then
    return LARGEST
  elseif less(token, '9007199254740990') then
    return string.format('%.0f', token + 1)
  end
  call('HINCRBY', LEASE, 'token', 1)
  return call('HGET', LEASE, 'token')
end
"""

# Nobody is here, waits, or was given up: most grants, made before the rest has to be read. Numbers
# go from text to text as they are: to read and write one costs as much as a command.
FREE = """
if call('EXISTS', HOLDERS, LINE, UNDONE) == 0 and tonumber(ARGV[6]) <= tonumber(ARGV[5]) then
  if ARGV[7] ~= '1' then
    token = next_token()
  end
  if lease[1] and lease[3] == ARGV[5] then
    call('HSET', LEASE, 'token', token)
  else
    call('HSET', LEASE, 'lifehold', '1', 'token', token, 'capacity', ARGV[5])
  end
  local shown = token == '' and '-' or token
  local since = instant()
  call('HSET', HOLDERS, ARGV[1], shown .. ' ' .. ARGV[6] .. ' 0 ' .. ARGV[7] .. ' ' .. ARGV[2]
    .. ' ' .. ARGV[3] .. ' ' .. num(now + ARGV[2]) .. ' ' .. since .. ' 0 1 ' .. ARGV[4])
  call('PEXPIRE', HOLDERS, math.ceil((ARGV[2] + ARGV[3] + GRACE) * 1000))
  return shown .. ' 0 ' .. since .. ' ' .. num(now)
end
"""

GRANT = """
local function let_in(all, nonce, asked)
  if asked.shared ~= '1' then
    token = next_token()
  end
  call('HSET', LEASE, 'lifehold', '1', 'token', token, 'capacity', capacity)
  local taken, slot, nr = {}, 0, 0
  for _, h in ipairs(all) do
    taken[h.slot], nr = true, math.max(nr, h.nr)
  end
  while taken[slot] do
    slot = slot + 1
  end
  local h = {nonce = nonce, token = token == '' and '-' or token, weight = asked.weight,
    slot = slot, shared = asked.shared, ttl = asked.ttl, delay = asked.delay,
    ends = now + asked.ttl, since = instant(), renewals = 0, nr = nr + 1,
    owner = asked.owner}
  save(h, #all == 0)
  all[#all + 1] = h
  return h
end
"""

LINE = """
-- Who waits is a text:
-- weight dies_at called_at wakeup handoff_id asked_at capacity shared ttl delay owner
local function waiter(nonce)
  local text = call('HGET', WAITERS, nonce)
  if not text then
    return nil
  end
  local w = {nonce = nonce}
  w.weight, w.dies, w.called, w.wakeup, w.handoff, w.asked_at, w.capacity, w.shared, w.ttl, w.delay,
    w.owner = string.match(text,
    '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  for _, field in ipairs({'weight', 'dies', 'asked_at', 'capacity', 'ttl', 'delay'}) do
    w[field] = tonumber(w[field])
  end
  w.called = tonumber(w.called)  -- nil: not yet
  return w
end

-- A place dies when its patience is over, or when it was called and has not come.
local function dies_at(w)
  return w.called and math.min(w.dies, w.called + CLAIM) or w.dies
end

local function put(w)
  call('HSET', WAITERS, w.nonce, table.concat({w.weight, num(w.dies), w.called and num(w.called)
    or '-', w.wakeup, w.handoff, num(w.asked_at), w.capacity, w.shared, num(w.ttl), num(w.delay),
    w.owner}, ' '))
  call('ZADD', DIES, num(dies_at(w)), w.nonce)
end

local function leave(nonce)
  call('ZREM', LINE, nonce)
  call('ZREM', DIES, nonce)
  call('HDEL', WAITERS, nonce)
end

local function told(w, words)
  if w.wakeup ~= '-' then
    pcall('PUBLISH', w.wakeup, words)
  end
end

-- False where it could be told by its listener, and that one is gone.
local function present(w)
  if w.handoff == '-' then
    return true
  end
  local found = pcall('PUBSUB', 'NUMSUB', w.wakeup)
  return not found.err and found[2] > 0
end

-- HANDED: not where it may be dead, for that would cost the others its whole ttl.
local function may_be_handed(w, all)
  if w.handoff == '-' or (#all > 0 and w.capacity ~= capacity) then
    return false
  end
  return now - w.asked_at <= math.min(FRESH, w.ttl / PART)
end

-- Let in or wake the first that lives, if there is room for it. One each per step: no herd.
local function call_next(all)
  local from, handed = 0, false
  while true do
    local some = call('ZRANGE', LINE, from, from + 15)
    for _, nonce in ipairs(some) do
      local w = waiter(nonce)
      if w and dies_at(w) > now and present(w) then
        if w.called or (#all > 0 and w.weight > capacity - used(all)) then
          return
        elseif not handed and may_be_handed(w, all) then
          leave(nonce)
          capacity, handed, from = w.capacity, true, from - 1
          local h = let_in(all, nonce, w)
          told(w, table.concat({nonce, w.handoff, h.token, h.slot, h.since, num(now)}, ' '))
        else
          w.called = now
          put(w)
          told(w, nonce)
          return
        end
      end
    end
    if #some < 16 then
      return
    end
    from = from + 16
  end
end
"""

ACQUIRE = """
local nonce, gone, wait, fair = ARGV[1], ARGV[12], ARGV[8] == '1', ARGV[9] == '1'
local asked = {ttl = tonumber(ARGV[2]), delay = tonumber(ARGV[3]), owner = ARGV[4],
  weight = tonumber(ARGV[6]), shared = ARGV[7]}
local size, patience, wakeup, handoff = tonumber(ARGV[5]), tonumber(ARGV[10]), ARGV[11], ARGV[13]

-- L2  Forget whose lease has run out. The last one forgotten is told.
local all, over, mine = {}, nil, nil
for _, h in ipairs(holders()) do
  if h.nonce ~= nonce and (h.nonce .. ':' .. h.renewals == gone or h.ends + h.delay <= now) then
    call('HDEL', HOLDERS, h.nonce)
    over = h
  else
    all[#all + 1] = h
    if h.nonce == nonce then
      mine = h
    end
  end
end
for _, h in ipairs(all) do  -- by a clock that was set back an end may lie further than a ttl
  if h.ends > now + h.ttl then
    h.ends = now + h.ttl
    save(h)
  end
end

-- What was given is one text: token slot acquired_at now, and nonce and text of whose was over.
local function given(h)
  local text = table.concat({h.token, h.slot, h.since, num(now)}, ' ')
  return over and table.concat({text, over.nonce, text_of(over)}, ' ') or text
end

-- The line: forget whose place is dead, and what lies ahead of a clock that was set back.
local rank, ahead, line = false, 0, call('ZCARD', LINE) > 0
if line then
  for _, dead in ipairs(call('ZRANGEBYSCORE', DIES, '-inf', num(now))) do
    if dead ~= nonce then
      leave(dead)
    end
  end
  rank = call('ZRANK', LINE, nonce)
  ahead = rank or call('ZCARD', LINE)
  if now < (tonumber(lease[4]) or 0) then
    for _, each in ipairs(ahead > 0 and call('ZRANGE', LINE, 0, ahead - 1) or {}) do
      local w = waiter(each)
      if w then
        w.dies = math.min(w.dies, now + patience)
        w.called = w.called and math.min(w.called, now)
        if w.asked_at > now then
          w.handoff, w.asked_at = '-', now
        end
        put(w)
      end
    end
  end
end

if mine then  -- L6  an answer was lost: the same grant, from now on
  over, mine.ends, mine.renewals = nil, now + mine.ttl, mine.renewals + 1
  call('HDEL', HOLDERS, nonce)
  save(mine)
  return given(mine)
end

local function stand()
  local w = rank and waiter(nonce)
  if not w then
    local last = call('ZREVRANGE', LINE, 0, 0, 'WITHSCORES')
    call('ZADD', LINE, (tonumber(last[2]) or 0) + 1, nonce)
    w = {nonce = nonce, weight = asked.weight}
  end
  local handy = handoff ~= '' and fair and asked.weight == w.weight
  w.dies, w.called, w.wakeup = now + patience, nil, wakeup == '' and '-' or wakeup
  w.handoff, w.asked_at, w.capacity = handy and handoff or '-', now, size
  w.shared, w.ttl, w.delay, w.owner = asked.shared, asked.ttl, asked.delay, asked.owner
  put(w)
  for _, key in ipairs({LINE, DIES, WAITERS}) do
    lasts(key, patience)
  end
  call('HSET', LEASE, 'lifehold', '1', 'at', num(math.max(now, tonumber(lease[4]) or 0)))
end

local function refused(ahead, other)
  if wait and not other then
    stand()
  end
  local look_in = nil
  if ahead == 0 then
    for _, h in ipairs(all) do
      local left = h.ends + h.delay - now
      look_in = left ~= 0 and math.min(look_in or left, left) or look_in
    end
  elseif ahead == 1 then  -- for who is behind the first: when that one, being called, has not come
    local first = call('ZRANGE', LINE, 0, 0)[1]
    local w = first and first ~= nonce and waiter(first)
    look_in = w and w.called and w.called + CLAIM - now
  end
  local answer = {ahead, look_in and num(look_in) or '', other or '', num(now)}
  for at = 1, math.min(SHOWN, #all) do
    answer[#answer + 1] = all[at].nonce
    answer[#answer + 1] = text_of(all[at])
  end
  return answer
end

if call('ZSCORE', UNDONE, nonce) then  -- L6  it was given up before it came
  wait = false
  return refused(ahead)
end
if #all == 0 and capacity ~= size then
  capacity = size
  if lease[1] then
    call('HSET', LEASE, 'capacity', size)
  end
end
if capacity ~= size then
  return refused(0, capacity)
end
if asked.weight > capacity - used(all) then
  return refused(ahead)
end
if fair and ahead > 0 then
  for _, each in ipairs(call('ZRANGE', LINE, 0, ahead - 1)) do
    local w = waiter(each)
    if w and present(w) then
      call_next(all)  -- there is room: who is first comes now, or is dead and is passed
      return refused(ahead)
    end
  end
end
local h = let_in(all, nonce, asked)
if line then
  leave(nonce)
  call_next(all)
end
return given(h)
"""

RENEW = """
local nonce, ttl, weight = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local text = call('HGET', HOLDERS, nonce)
local h = text and read(nonce, text)
if not h or h.ends <= now then
  return {num(now), 0}
end
call('HDEL', HOLDERS, nonce)  -- a deletion first: then a full memory lets us write
h.ttl, h.ends, h.renewals = ttl, now + ttl, h.renewals + 1
local lighter = weight and weight < h.weight
if lighter then
  h.weight, h.shared = weight, '1'
end
save(h)
if lighter and call('ZCARD', LINE) > 0 then
  call_next(holders())
end
return {num(now), 1}
"""

LEAVE = """
local nonce = ARGV[1]
local was_in = call('HDEL', HOLDERS, nonce)  -- L5
if was_in == 1 and ARGV[2] ~= '1' and call('EXISTS', LINE) == 0 then
  return 1
end
"""

RELEASE = """
if was_in == 0 then
  leave(nonce)
end
if was_in == 0 or ARGV[2] == '1' then  -- L6  a request of it may still be on its way
  call('ZREMRANGEBYSCORE', UNDONE, '-inf', num(now))
  call('ZADD', UNDONE, num(now + GRACE), nonce)
  call('ZREMRANGEBYRANK', UNDONE, 0, -10001)
  lasts(UNDONE, 0)
end
call_next(holders())
return was_in
"""

STATE = """
local function state()
  local kept, all = call('HMGET', KEPT, 'token', 'text'), holders()
  call('ZCARD', UNDONE)  -- a key of another program there keeps all out: it is told
  local answer = {lease[1] and 1 or 0, token, capacity, num(now), kept[1] or '', kept[2] or '', 0}
  for _, h in ipairs(all) do
    if h.ends + h.delay - now > 0 then
      answer[#answer + 1], answer[#answer + 2] = h.nonce, text_of(h)
      answer[7] = answer[7] + 1
    end
  end
  local alive = {}
  for _, nonce in ipairs(call('ZRANGEBYSCORE', DIES, '(' .. num(now), '+inf')) do
    alive[nonce] = true
  end
  for _, nonce in ipairs(call('ZRANGE', LINE, 0, -1)) do
    if alive[nonce] then
      answer[#answer + 1] = nonce
    end
  end
  return answer, all
end
"""

# What only reads is answered by a replica too, and a replica may lack the last grants. Whoever may
# not ask INFO is answered all the same.
LOOK = """
local about = pcall('INFO', 'replication')
if type(about) == 'string' and string.find(about, 'role:slave', 1, true) then
  return redis.error_reply('READONLY a replica may lack the last grants')
end
return (state())
"""

ORDER = """
local verb, least, text, nonce = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local before, all = state()
local spared = nonce ~= ''
for _, h in ipairs(all) do
  local of = string.match(h.nonce, '^[^~]*')  -- whichever try of a quorum
  spared = spared and (of ~= nonce or h.ends + h.delay - now <= 0)
end
if spared then
  return {0}
end
if verb == 'keep' then  -- by who holds the name now, alone
  for _, h in ipairs(all) do
    if h.token == least and h.ends + h.delay - now > 0 then
      call('HSET', KEPT, 'lifehold', '1', 'token', least, 'text', text)
      break
    end
  end
  return before
elseif verb == 'forget' then
  call('DEL', KEPT)
  return before
elseif verb == 'break' then
  call('DEL', HOLDERS)
  all = {}
end
token = next_token()
token = less(token, least) and least or token
call('HSET', LEASE, 'lifehold', '1', 'token', token, 'capacity', capacity)
call_next(all)
return before
"""

PRUNE = """
local before = less(ARGV[1], micros) and ARGV[1] or micros
if not lease[1] or (token ~= '' and not less(token, before)) then
  return 0
end
for _, h in ipairs(holders()) do
  if h.ends + h.delay - now > 0 then
    return 0
  end
end
if call('EXISTS', LINE, KEPT) > 0 then
  return 0
end
call('DEL', LEASE, HOLDERS, DIES, WAITERS)  -- L6  the undone stay as long as they count
return 1
"""


class RedisScript:
    """One of them: its text, and the name by which the server knows it."""

    __slots__ = ("sha", "text")

    def __init__(self, *parts: str, clock: str = CLOCK) -> None:
        self.text = "".join(parts).replace("{clock}", clock)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def scripts(clock: str = CLOCK) -> dict[str, RedisScript]:
    """By the names of their verbs. `clock`: what reads it, for tests."""
    ready = OURS, BEGIN, HOLDERS
    full = HOLDERS, GRANT, LINE
    stepped = OURS, BEGIN, NEXT, *full
    made: dict[str, tuple[str, ...]] = {
        "acquire": (OURS, BEGIN, NEXT, FREE, *full, ACQUIRE),
        "renew": (*stepped, RENEW),
        "release": (OURS, LEAVE, BEGIN, NEXT, *full, RELEASE),
        "order": (*stepped, STATE, ORDER),
        "look": (*ready, STATE, LOOK),
        "prune": (*ready, NEXT, PRUNE),
    }
    return {verb: RedisScript(*parts, clock=clock) for verb, parts in made.items()}


# ------------------------------------------------------------------------------------------------
# A quorum (quorum.py): the steps at one of its servers, and the marker of that.
#
# The marker is a hash that never expires: the run of the server that it was written in, what its
# clients agree on, since when it is there, and whether the server counts. A step that is asked of a
# server which does not count changes nothing.

MARKER = "lifehold:quorum"

RUN = """
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
"""

COUNTS = """
local mark = redis.call('HMGET', KEYS[8], 'run', 'counts', 'terms')
if mark[1] ~= run or mark[2] ~= '1' or mark[3] ~= '{terms}' then
  return redis.error_reply('ABSENT it has forgotten')
end
"""

ADMIT = """
local mark = redis.call('HMGET', KEYS[1], 'lifehold', 'run', 'counts', 'terms', 'since')
if (mark[1] and mark[1] ~= '1') or (not mark[1] and redis.call('EXISTS', KEYS[1]) == 1) then
  return redis.error_reply('LIFEHOLD ' .. (tonumber(mark[1]) and 'NEWER ' or 'FOREIGN ') .. KEYS[1])
elseif mark[1] and mark[4] ~= '{terms}' then
  return redis.error_reply('TERMS ' .. mark[4])
end
local since, longest = tonumber(mark[5]) or now, tonumber(ARGV[1])
if mark[2] ~= run or since > now then  -- forgotten, or its clock was set back
  if mark[2] == run and mark[3] == '1' then
    return {run, '0'}
  end
  redis.call('HSET', KEYS[1], 'lifehold', '1', 'run', run, 'counts', '0', 'terms', '{terms}',
    'since', string.format('%.6f', now))
  since = now
end
if mark[2] ~= run or mark[3] ~= '1' then
  if now < since + longest then
    return {run, string.format('%.6f', since + longest - now)}
  end
  redis.call('HSET', KEYS[1], 'counts', '1')
end
return {run, '0'}
"""

# L4  The greatest token of a majority, where the nonce still holds the name; who does not, waits no
# more: it is in.
CONFIRM = """
local nonce, most, since = ARGV[1], ARGV[2], ARGV[3]
local text = call('HGET', HOLDERS, nonce)
local h = text and read(nonce, text)
if not h or h.ends <= now then
  leave(nonce)
  return 0
end
if less(token, most) then
  call('HSET', LEASE, 'token', most)
end
if less(h.token, most) or h.since ~= since then
  h.token, h.since = less(h.token, most) and most or h.token, since
  call('HSET', HOLDERS, nonce, text_of(h))
end
return 1
"""

# L6  As a release, but nobody is called: whoever asked at the same time asks again by itself.
UNDO = """
local nonce = ARGV[1]
local was_in = call('HDEL', HOLDERS, nonce)
call('ZREMRANGEBYSCORE', UNDONE, '-inf', num(now))
call('ZADD', UNDONE, num(now + GRACE), nonce)
call('ZREMRANGEBYRANK', UNDONE, 0, -10001)
lasts(UNDONE, 0)
leave(nonce)
return was_in
"""


def quorum_scripts(terms: str, clock: str = CLOCK) -> dict[str, RedisScript]:
    """By the names of their verbs. `terms`: what the clients of a quorum agree on."""
    counts = RUN + COUNTS.replace("{terms}", terms)
    stepped = OURS, BEGIN, NEXT, HOLDERS, GRANT, LINE
    known = scripts(clock)
    checked = "acquire", "renew", "look", "order"
    made = {verb: RedisScript(counts, known[verb].text) for verb in checked}
    made["release"] = known["release"]
    made["confirm"] = RedisScript(counts, *stepped, CONFIRM, clock=clock)
    made["undo"] = RedisScript(*stepped, UNDO, clock=clock)
    made["admit"] = RedisScript(RUN, "{clock}", ADMIT.replace("{terms}", terms), clock=clock)
    return made


ESCAPES = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


@functools.lru_cache(128)
def keys(name: str) -> tuple[str, ...]:
    """The keys of a name: one hash slot, whatever braces it has."""
    tag = f"lifehold:{{{name.translate(ESCAPES)}}}:"
    return tuple(tag + kind for kind in KINDS)


def name_of(key: str) -> str:
    """The name whose lease has this key."""
    inner = key[len("lifehold:{") : -len("}:lease")]
    return inner.replace("%7B", "{").replace("%7D", "}").replace("%25", "%")


def pattern(prefix: str) -> str:
    """What SCAN is asked for: the leases of all names that begin so."""
    escaped = "".join("\\" + each if each in "*?[]^\\" else each for each in prefix)
    return f"lifehold:{{{escaped.translate(ESCAPES)}*}}:lease"
