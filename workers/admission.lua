-- One provider's limits for the whole fleet, in one round trip: `limiter.py` inside Redis. Read that one: this is the same,
-- name by name, and a test holds the two against each other.
--
-- KEYS[1]  the provider's state: one value, written whole with its expiry in the same command, so it can never lose it
-- ARGV     what is asked (admit, report, look_up, found, seen), the limits in force and the request as JSON, and the time in
--          ms; '' (always, outside of tests) = this server's own clock
-- Answers in JSON.

local op, limits, asked = ARGV[1], cjson.decode(ARGV[2]), cjson.decode(ARGV[3])
local now = tonumber(ARGV[4])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local SLOT_MS, MINUTE_SLOTS, HEALTH_SLOTS, HOUR_MS, HOURS_KEPT = 5000, 12, 10, 3600000, 25
local LOOK_BURST_S = 5
local BURST_S, RAMP_FACTOR, RAMP_PER_OUTAGE, RAMP_MAX_MS, RAMP_MIN_PER_S, RUN_FACTOR = 0.1, 1.12, 10, 600000, 5, 2
local WORKERS_MS, LEASE_MAX_MS, WAIT_MAX_MS, TENANTS_MAX = 60000, 600000, 60000, 500
local KEPT_MS = HOURS_KEPT * HOUR_MS
local share = type(limits.tenant_share) == 'number' and limits.tenant_share or nil -- JSON's null is not nil here

local function fresh()
  return { born = now, tokens = limits.tokens_max, tokens_at = now, rate = 1, rate_at = now, look = 1, look_at = now,
           tenants = {}, leases = {}, workers = {}, minute = {}, health = {}, run = 0, good_at = 0,
           breaker = 'closed', opened_at = 0, open_until = 0, openings = 0, base_per_s = 0, probe = '', probe_until = 0,
           probes = {}, ramp_until = 0, hours = {} }
end

local function is_finite(value)
  if type(value) == 'number' then return value == value and value > -math.huge and value < math.huge end
  if type(value) ~= 'table' then return true end
  for _, inner in pairs(value) do
    if not is_finite(inner) then return false end
  end
  return true
end

-- What another program, another version or a mistake has left under the key counts as nothing.
local function load_state()
  if redis.call('TYPE', KEYS[1]).ok ~= 'string' then
    redis.call('DEL', KEYS[1])
    return fresh()
  end
  local ok, found = pcall(cmsgpack.unpack, redis.call('GET', KEYS[1]))
  if not ok or type(found) ~= 'table' then return fresh() end
  for name, value in pairs(fresh()) do
    if type(found[name]) ~= type(value) then return fresh() end
  end
  local known = found.breaker == 'closed' or found.breaker == 'open' or found.breaker == 'half'
  return known and is_finite(found) and found or fresh()
end

local s

local function keep(entries, wanted)
  local kept = {}
  for key, value in pairs(entries) do
    if wanted(key, value) then kept[key] = value end
  end
  return kept
end

local function size(entries)
  local n = 0
  for _ in pairs(entries) do n = n + 1 end
  return n
end

local function slot_key(at) return string.format('%.0f', at) end

local function rate_per_s()
  if now >= s.ramp_until or s.base_per_s <= 0 then return limits.rate_per_s end
  return math.min(limits.rate_per_s, math.max(RAMP_MIN_PER_S, s.base_per_s * RAMP_FACTOR))
end

local function usual_per_s()
  if s.breaker ~= 'closed' or now < s.ramp_until then return s.base_per_s end
  local newest, answered = math.floor(now / SLOT_MS), {}
  for slot, counts in pairs(s.minute) do
    if tonumber(slot) < newest and counts[3] > 0 then answered[#answered + 1] = counts[3] end
  end
  if #answered == 0 then return 0 end
  table.sort(answered)
  return answered[math.floor(#answered / 2) + 1] * 1000 / SLOT_MS
end

local function turn()
  s.tokens_at, s.rate_at, s.look_at = math.min(s.tokens_at, now), math.min(s.rate_at, now), math.min(s.look_at, now)
  s.born, s.opened_at, s.good_at = math.min(s.born, now), math.min(s.opened_at, now), math.min(s.good_at, now)
  s.open_until = math.min(s.open_until, now + limits.open_max_ms)
  s.ramp_until = math.min(s.ramp_until, now + RAMP_MAX_MS)
  s.probe_until = math.min(s.probe_until, now + LEASE_MAX_MS)
  local function lasts(_, till) return now < till and till <= now + LEASE_MAX_MS end
  s.leases, s.probes = keep(s.leases, lasts), keep(s.probes, lasts)
  s.workers = keep(s.workers, function(_, at) return now - WORKERS_MS < at and at <= now end)
  local function recent(newest, slots)
    return function(key) return newest - slots < tonumber(key) and tonumber(key) <= newest end
  end
  s.minute = keep(s.minute, recent(math.floor(now / SLOT_MS), MINUTE_SLOTS))
  s.health = keep(s.health, recent(math.floor(now * HEALTH_SLOTS / limits.window_ms), HEALTH_SLOTS))
  s.hours = keep(s.hours, recent(math.floor(now / HOUR_MS), HOURS_KEPT))
  local earned = (now - s.tokens_at) * limits.refill_per_min / 60000
  s.tokens, s.tokens_at = math.min(limits.tokens_max, math.max(0, s.tokens) + earned), now
  local per_s = rate_per_s()
  s.rate = math.min(math.max(1, per_s * BURST_S), math.max(0, s.rate) + (now - s.rate_at) * per_s / 1000)
  s.look = math.min(math.max(1, limits.lookups_per_s * LOOK_BURST_S),
                    math.max(0, s.look) + (now - s.look_at) * limits.lookups_per_s / 1000)
  s.rate_at, s.look_at = now, now
  if s.breaker == 'open' and now >= s.open_until then
    s.breaker, s.probe, s.probe_until = 'half', '', 0
  end
end

local function open_in()
  if s.breaker == 'open' then return math.max(0, s.open_until - now) end
  if s.breaker == 'half' then return math.max(0, s.probe_until - now) end
  return 0
end

local function last_minute()
  local firsts, retries = 0, 0
  for _, counts in pairs(s.minute) do
    firsts, retries = firsts + counts[1], retries + counts[2]
  end
  return firsts, retries
end

local function count(what, by)
  local hour = slot_key(math.floor(now / HOUR_MS))
  local counts = s.hours[hour] or {}
  counts[what] = math.max(0, (counts[what] or 0) + (by or 1))
  s.hours[hour] = counts
end

local function cost_of(kind)
  if kind == 'after_timeout' then return limits.cost_after_timeout end
  if kind == 'after_throttle' then return limits.cost_after_throttle end
  return 0
end

local function tenant_tokens(tenant)
  if not share then return limits.tokens_max end
  local most = limits.tokens_max * share
  local bucket = s.tenants[tenant]
  if not bucket or bucket[2] > now then return most end
  return math.min(most, math.max(0, bucket[1]) + (now - bucket[2]) * limits.refill_per_min * share / 60000)
end

local function drop_fullest()
  local fullest
  for tenant, bucket in pairs(s.tenants) do
    local other = fullest and s.tenants[fullest]
    if not other or bucket[1] > other[1] or (bucket[1] == other[1] and tenant > fullest) then fullest = tenant end
  end
  s.tenants[fullest] = nil
end

local function give(tenant, tokens)
  s.tokens = math.min(limits.tokens_max, math.max(0, s.tokens + tokens))
  if not tenant or not share then return end
  local most = limits.tokens_max * share
  local left = math.min(most, math.max(0, tenant_tokens(tenant) + tokens))
  s.tenants[tenant] = left < most and { left, now } or nil
  if size(s.tenants) > TENANTS_MAX then drop_fullest() end
end

local function tally(firsts, retries, answered)
  local key = slot_key(math.floor(now / SLOT_MS))
  local counts = s.minute[key] or { 0, 0, 0 }
  s.minute[key] = { math.max(0, counts[1] + firsts), math.max(0, counts[2] + retries), counts[3] + answered }
end

local function closed(ticket)
  local wait = open_in()
  if wait > 0 then return { 'breaker', math.ceil(math.min(wait, limits.open_max_ms)) } end
  if not s.leases[ticket] and size(s.leases) >= limits.concurrency_max then
    local first = math.huge
    for _, till in pairs(s.leases) do first = math.min(first, till) end
    return { 'concurrency', math.ceil(math.min(first - now, 1000)) }
  end
end

local function one(ask)
  if s.rate < 1 then return { 'rate', math.ceil((1 - s.rate) * 1000 / rate_per_s()) } end
  if ask[1] == 'first' then return end
  local lacks = cost_of(ask[1]) - math.min(s.tokens, tenant_tokens(ask[2]))
  if lacks > 0 then
    local per_ms = limits.refill_per_min / 60000
    return { 'budget', per_ms > 0 and math.min(math.max(1000, math.ceil(lacks / per_ms)), WAIT_MAX_MS) or WAIT_MAX_MS }
  end
  local firsts, retries = last_minute()
  if retries + 1 > math.max(limits.ratio_max * firsts, limits.retries_per_min_min) then return { 'ratio', SLOT_MS } end
end

local function take(ask)
  s.rate = s.rate - 1
  give(ask[2], -cost_of(ask[1]))
  local first = ask[1] == 'first'
  tally(first and 1 or 0, first and 0 or 1, 0)
  count(first and 'firsts' or 'retries')
end

local function open_breaker()
  if s.breaker == 'closed' then
    s.base_per_s = usual_per_s()
    local since = now - s.good_at
    s.opened_at = 0 < since and since <= RAMP_MAX_MS and s.good_at or now
    s.openings = 0
  end
  s.openings = s.openings + 1
  s.breaker, s.probe, s.probe_until, s.probes = 'open', '', 0, {}
  s.open_until = now + math.min(limits.open_max_ms, limits.open_ms * 2 ^ math.min(s.openings - 1, 20))
end

local function close_breaker()
  s.breaker, s.probe, s.probe_until, s.probes, s.openings = 'closed', '', 0, {}, 0
  s.health, s.run, s.good_at = {}, 0, now
  s.ramp_until = math.max(s.ramp_until, now + math.min(RAMP_PER_OUTAGE * (now - s.opened_at), RAMP_MAX_MS))
end

local function settle(kind, tenant, result)
  local cost, first = cost_of(kind), kind == 'first'
  if result == 'ok' or result == 'refused' then tally(0, 0, 1) end
  if result == 'ok' then
    give(tenant, 2 * cost + limits.refill_per_success)
  elseif result == 'refused' then
    give(tenant, 2 * cost)
  elseif result == 'timeout' and first then
    give(tenant, -limits.cost_after_timeout)
  elseif (result == 'throttle' or result == 'not_sent') and first then
    give(tenant, -limits.cost_after_throttle)
  elseif result == 'unused' then
    give(tenant, cost)
    s.rate = math.min(math.max(1, rate_per_s() * BURST_S), s.rate + 1)
    tally(first and -1 or 0, first and 0 or -1, 0)
    count(first and 'firsts' or 'retries', -1)
  end
end

local function judge(ticket, result)
  if result == 'unused' then return end
  local bad = result == 'timeout' or result == 'not_sent'
  if s.breaker == 'half' and s.probes[ticket] then
    if not bad then close_breaker() elseif s.probe == ticket then open_breaker() end
  elseif s.breaker == 'closed' then
    local key = slot_key(math.floor(now * HEALTH_SLOTS / limits.window_ms))
    local counts = s.health[key] or { 0, 0 }
    s.health[key] = { counts[1] + (bad and 0 or 1), counts[2] + (bad and 1 or 0) }
    local answers, failures = 0, 0
    for _, c in pairs(s.health) do
      answers, failures = answers + c[1], failures + c[2]
    end
    s.run = bad and s.run + 1 or 0
    if not bad then s.good_at = now end
    if s.run >= RUN_FACTOR * limits.failures_min
      or (failures >= limits.failures_min and failures >= limits.failure_ratio * (answers + failures)) then
      open_breaker()
    end
  end
end

local function recall(born, usual, failing)
  if born == s.born then return end
  if failing and s.opened_at <= 0 and s.good_at <= 0 then open_breaker() end
  if usual > 0 and s.base_per_s <= 0 and usual_per_s() <= 0 then
    s.base_per_s, s.ramp_until = usual, now + RAMP_MAX_MS
  end
end

local ops = {}

function ops.admit()
  s.workers[asked.worker] = now
  if type(asked.recalled) == 'table' then recall(unpack(asked.recalled)) end
  local held, said = closed(asked.ticket), {}
  for i, ask in ipairs(asked.asks) do
    local no = held or one(ask)
    if no then
      count(no[1])
      said[i] = no
    else
      take(ask)
      if s.breaker == 'half' then
        s.probe, s.probe_until = asked.ticket, now + math.min(asked.lease_ms, limits.open_max_ms)
        s.probes[asked.ticket] = now + math.min(asked.lease_ms, LEASE_MAX_MS)
        held = { 'breaker', limits.open_ms }
      end
      s.leases[asked.ticket] = now + math.min(asked.lease_ms, LEASE_MAX_MS)
      said[i] = { false, 0 }
    end
  end
  return { said = said, processes = size(s.workers), born = s.born, usual_per_s = usual_per_s() }
end

function ops.report()
  for _, result in ipairs(asked.results) do
    settle(result[1], result[2], result[3])
    judge(asked.ticket, result[3])
  end
  if asked.done then
    s.leases[asked.ticket], s.probes[asked.ticket] = nil, nil
    if s.probe == asked.ticket then s.probe, s.probe_until = '', 0 end
  end
  return { go_on = s.breaker == 'closed' }
end

function ops.look_up()
  local granted, wait = math.min(asked.wanted, math.floor(s.look)), 0
  s.look = s.look - granted
  if granted < asked.wanted then wait = math.ceil((1 - math.min(s.look, 1)) * 1000 / limits.lookups_per_s) end
  return { granted = granted, wait_ms = wait }
end

function ops.found()
  give(nil, limits.cost_after_timeout * asked.effects)
  return { given = true }
end

function ops.seen()
  local firsts, retries = last_minute()
  return { born = s.born, usual_per_s = usual_per_s(), breaker = s.breaker, open_in_ms = open_in(), tokens = s.tokens,
           rate = s.rate, rate_per_s = rate_per_s(), look = s.look, in_flight = size(s.leases),
           processes = size(s.workers), firsts = firsts, retries = retries, hours = s.hours }
end

local function answer()
  turn()
  return cjson.encode(ops[op]())
end

s = load_state()
local ok, said = pcall(answer)
if not ok then -- the right names with wrong things in them: begin anew rather than stop a provider for ever
  s = fresh()
  said = answer()
end
if op ~= 'seen' then redis.call('SET', KEYS[1], cmsgpack.pack(s), 'PX', KEPT_MS) end
return said
