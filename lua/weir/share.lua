-- What this node may admit by itself while the service gives no answer, for pools with
-- `when_down: local`: a share of each backend's limits.
--
-- Live streams are counted in nginx's shared memory, for each worker under its own slot, so that
-- what a killed worker held goes with it. A claim is added first and checked then: two workers
-- may both refuse, but never both pass.

local ffi = require("ffi")
local advice = require("weir.advice")
local clock = require("weir.clock")
local config = require("weir.config")

local C = ffi.C
local floor = math.floor
local now = clock.now

ffi.cdef([[ int kill(int pid, int signal); ]])

local EPERM = 1
local RETRY_MS = 1000 -- streams end all the time
local SIZES = { "streams", "tokens" }

local _M = {}

local dict
local slot
local draining, first, last = {}, 1, 0 -- a queue of { at, pool, backend, tokens }
local live = {} -- limits that were changed since the configuration was written

local function key(of, what, pool, backend)
    return of .. " " .. what .. " " .. pool .. "/" .. backend
end

local function add(pool, backend, streams, tokens)
    dict:incr(key(slot, "streams", pool, backend), streams, 0)
    dict:incr(key(slot, "tokens", pool, backend), tokens, 0)
end

local function is_alive(pid)
    return C.kill(pid, 0) == 0 or ffi.errno() == EPERM
end

-- Whether what slot `i` held is to be counted: its worker lives, or has just been found dead, and
-- the engines may still be at what it held.
local function counts(i)
    local pid = dict:get("pid " .. i)
    if not pid then
        return false
    end
    if is_alive(pid) then
        return true
    end
    dict:add("dead " .. i, now())
    return now() - (dict:get("dead " .. i) or 0) <= config.drain_s
end

-- The slots that count, the oldest first.
local function slots()
    local all, n = {}, 0
    local from = dict:get("first") or 1
    for i = from, dict:get("slots") or 0 do
        if counts(i) then
            n = n + 1
            all[n] = i
        elseif n == 0 then
            dict:set("first", i + 1)
        end
    end
    return all
end

local function in_use(pool, backend, of)
    local sums = {}
    for _, what in ipairs(SIZES) do
        local sum = 0
        for _, i in ipairs(of) do
            sum = sum + (dict:get(key(i, what, pool, backend)) or 0)
        end
        sums[what] = sum
    end
    return sums.streams, sums.tokens
end

local function limits(pool, backend)
    local changed = live[pool] and live[pool][backend]
    if changed then
        return changed[1], changed[2], changed[3]
    end
    local own = config.pools[pool].backends[backend]
    return own.max_streams, own.max_tokens, "active"
end

-- The refusal of a request that no backend of the pool would ever take, or none at present; nil
-- where only room is wanting. The service's own reasons, in its own order.
local function closed(pool, tokens)
    local enabled, active, largest = false, false, 0
    for backend in pairs(config.pools[pool].backends) do
        local _, max_tokens, state = limits(pool, backend)
        if state ~= "disabled" then
            enabled = true
            active = active or state == "active"
            largest = math.max(largest, max_tokens)
        end
    end
    if enabled and tokens > largest then
        return { reason = "request_too_large", status = 413, limit = largest, requested = tokens }
    end
    if not active then
        return { reason = enabled and "draining" or "no_backend", status = 503 }
    end
end

-- This worker's slot, taken when it starts; and a look at who has died, for it may replace one.
function _M.start()
    dict = ngx.shared.weir
    slot = dict:incr("slots", 1, 0)
    dict:set("pid " .. slot, ngx.worker.pid())
    slots()
end

-- Whether the pool's streams are counted here.
function _M.covers(pool)
    return config.pools[pool].local_share ~= nil
end

-- The limits that are in force, as the service told them: { pool = { backend = { streams, tokens,
-- state } } }.
function _M.learn(told)
    live = told
end

-- Counts a stream that the service granted. False where, with what the workers admitted by
-- themselves, it is one too many: it is not counted then.
function _M.hold(entry)
    local pool, backend = entry.pool, entry.backend
    add(pool, backend, 1, entry.tokens)
    entry.counted = true
    if (dict:get("alone") or 0) > now() then
        local streams, tokens = in_use(pool, backend, slots())
        local max_streams, max_tokens = limits(pool, backend)
        if streams > max_streams or tokens > max_tokens then
            _M.drop(entry, false)
            return false
        end
    end
    return true
end

-- Forgets a stream that was counted; `drains`: only when its engine has surely noticed.
function _M.drop(entry, drains)
    if not entry.counted then
        return
    end
    entry.counted = false
    local drain_s = drains and config.pools[entry.pool].drain_s or 0
    if drain_s > 0 then
        last = last + 1
        draining[last] = {
            at = now() + drain_s, pool = entry.pool, backend = entry.backend,
            tokens = entry.tokens,
        }
    else
        add(entry.pool, entry.backend, -1, -entry.tokens)
    end
end

-- Lets time pass for what drains. Streams of pools with a longer drain may hold up others: the
-- count errs to the safe side.
function _M.tick()
    local at = now()
    while first <= last and draining[first].at <= at do
        local gone = draining[first]
        draining[first] = nil
        first = first + 1
        add(gone.pool, gone.backend, -1, -gone.tokens)
    end
end

-- The tokens and scene of a request, as the service would reckon them.
local function estimate(asked_scene, bytes)
    local scene = config.expected_output[asked_scene] and asked_scene or config.default_scene
    return scene, math.ceil(bytes * config.tokens_per_char) + config.expected_output[scene]
end

-- Takes room for a stream without the service: a claim { backend, scene, tokens }, or nil and a
-- refusal. `alone_s`: for how long other workers shall check their grants against it.
function _M.claim(pool, asked_scene, bytes, alone_s)
    _M.tick()
    dict:set("alone", now() + alone_s)
    local share = config.pools[pool].local_share
    local scene, tokens = estimate(asked_scene, bytes)
    local of = slots()
    local refusal
    for backend in pairs(config.pools[pool].backends) do
        local max_streams, max_tokens, state = limits(pool, backend)
        if state == "active" then
            max_streams, max_tokens = floor(max_streams * share), floor(max_tokens * share)
            add(pool, backend, 1, tokens)
            local streams, used = in_use(pool, backend, of)
            if streams <= max_streams and used <= max_tokens then
                return { backend = backend, scene = scene, tokens = tokens }
            end
            add(pool, backend, -1, -tokens)
            local by_streams = streams > max_streams
            refusal = {
                reason = by_streams and "streams_exhausted" or "tokens_exhausted",
                status = 429,
                limit = by_streams and max_streams or max_tokens,
                in_use = by_streams and streams - 1 or used - tokens,
                requested = by_streams and 1 or tokens,
            }
        end
    end
    refusal = closed(pool, tokens) or refusal
    refusal.pool = pool
    refusal.retry_after_ms = advice.retry_after_ms(RETRY_MS)
    return nil, refusal
end

return _M
