-- Group commit with the admission service, one batcher a worker.
--
-- What is pending goes out in one POST; while that is under way the next operations gather. An
-- idle worker sends a batch of one at once, so batching adds no waiting. The queue is drained by
-- one long-lived timer: timers of the log phase are dropped beyond lua_max_running_timers, and
-- an exiting worker refuses delayed ones.

local semaphore = require("ngx.semaphore")
local cjson = require("cjson.safe")
local client = require("weir.client")
local config = require("weir.config")
local leases = require("weir.leases")

local concat = table.concat
local floor = math.floor
local min = math.min
local exiting = ngx.worker.exiting
local log = ngx.log
local now = ngx.now
local sleep = ngx.sleep
local update_time = ngx.update_time
local timer_at = ngx.timer.at
local CRIT = ngx.CRIT

local MAX_OPS = 1000 -- a batch; the service takes some milliseconds for so many
local MAX_RELEASES = 100000 -- about 20 MB of releases while the service is away
local ROUNDS = 1000 -- batches of one timer, then a fresh one: its memory pool only grows
local WAKE_S = 0.5 -- an exiting worker is noticed within it
local BUSY = 4 -- operations that gathered during one POST: so many mean a busy worker,
local LINGER_S = 0.001 -- which waits a moment, that the next POST may carry more
local LAST_TRIES = 8 -- of an exiting worker, about 6 s: the sessions' time to live is the rest
local RETRY_S = { 0.02, 0.1, 0.5, 1 }

local _M = {}

local queue = {} -- { fields, [ready] or told, [since], [patient], [abandoned] }
local resting = {} -- semaphores that nobody waits for
local work -- posted when the queue has something and the loop sleeps
local idle = false
local session
local failures = 0
local overflowed = 0 -- releases that found no place: their session's time to live frees them

local function push(item)
    queue[#queue + 1] = item
    if idle then
        idle = false
        work:post(1)
    end
end

-- Queues a release, which waits for no answer. `fields`: the inside of its JSON object; `timed`:
-- whether the service shall know how long it was under way; `patient`: whether it may wait a
-- moment for something to go with, as where much room is free.
function _M.tell(fields, timed, patient)
    if #queue >= MAX_RELEASES then
        if overflowed % 1000 == 0 then
            log(CRIT, "weir: releases_dropped total=", overflowed + 1)
        end
        overflowed = overflowed + 1
        return nil, "overflow"
    end
    push({ fields = fields, told = true, since = timed and now() or nil, patient = patient })
    return true
end

-- Sends an operation and waits for its result: a table, or nil and why. After nil it may or may
-- not have been done: the caller follows it with a release. `fields`: as for tell.
function _M.ask(fields, timeout_s)
    -- A semaphore is taken from those at rest: making one costs more than all else here.
    local n = #resting
    local ready = resting[n]
    if ready then
        resting[n] = nil
    else
        ready = semaphore.new(0)
    end
    local item = { fields = fields, ready = ready }
    push(item)
    local ok, err = ready:wait(timeout_s)
    item.ready = nil
    if not ok then
        -- It may have been posted to in this very moment: it is not used again.
        item.abandoned = true
        return nil, err
    end
    resting[#resting + 1] = ready
    return item.result, item.err
end

local function answer(item, result, err)
    local ready = item.ready
    if ready then
        item.ready = nil
        item.result = result
        item.err = err
        ready:post(1)
    end
end

-- The next operations to send, at most MAX_OPS, without those that nobody waits for any more.
local function take()
    local all = queue
    local batch, n = {}, 0
    local i, total = 1, #all
    while i <= total and n < MAX_OPS do
        local item = all[i]
        if not item.abandoned then
            n = n + 1
            batch[n] = item
        end
        i = i + 1
    end
    local rest = {}
    for j = i, total do
        rest[#rest + 1] = all[j]
    end
    queue = rest
    return batch
end

-- The service did not answer: those who wait are told, releases are kept for the next try.
local function give_back(batch, err)
    local kept = {}
    for _, item in ipairs(batch) do
        if item.told then
            kept[#kept + 1] = item
        else
            answer(item, nil, err)
        end
    end
    for _, item in ipairs(queue) do
        kept[#kept + 1] = item
    end
    queue = kept
end

local function exchange(http, batch)
    local ops = {}
    for i, item in ipairs(batch) do
        local delay = ""
        if item.since then
            delay = ',"delay_ms":' .. floor((now() - item.since) * 1000)
        end
        ops[i] = "{" .. item.fields .. delay .. "}"
    end
    local response, err = http:post(
        "/v1/admission",
        concat({ '{"session":"', session, '","ops":[', concat(ops, ","), "]}" })
    )
    if not response then
        return nil, err
    end
    local body = cjson.decode(response.body)
    local results = response.status == 200 and body and body.results
    if type(results) ~= "table" or #results ~= #batch then
        return nil, "status " .. response.status
    end
    return results
end

local function send(http, batch)
    local results, err = exchange(http, batch)
    if results then
        failures = 0
        for i, item in ipairs(batch) do
            answer(item, results[i])
        end
        return
    end
    failures = failures + 1
    if failures == 1 then
        log(CRIT, "weir: admission_unreachable error=", err, " pending=", #batch)
    end
    give_back(batch, err)
end

-- Whether all that is pending may wait for company.
local function patient()
    for _, item in ipairs(queue) do
        if not item.patient then
            return false
        end
    end
    return #queue > 0
end

local function finished()
    return exiting() and leases.count == 0 and (#queue == 0 or failures >= LAST_TRIES)
end

-- Waits for work; returns when there is some, a heartbeat is due, or the worker is leaving.
local function await(last_sent)
    local heartbeat_s = config.heartbeat_s
    while #queue == 0 and not exiting() and now() - last_sent < heartbeat_s do
        idle = true
        work:wait(min(WAKE_S, heartbeat_s))
        idle = false
    end
    if #queue == 0 and exiting() and leases.count > 0 then
        idle = true
        work:wait(WAKE_S)
        idle = false
    end
end

local loop

local function run(_)
    local http = client.new(config.admission)
    local last_sent = 0
    local busy = false
    for _ = 1, ROUNDS do
        await(last_sent)
        if finished() then
            break
        end
        if busy then
            sleep(LINGER_S)
        elseif patient() then
            idle = true
            work:wait(LINGER_S)
            idle = false
        end
        local batch = take()
        busy = #batch >= BUSY
        send(http, batch)
        update_time()
        last_sent = now()
        if failures > 0 then
            sleep(RETRY_S[failures] or RETRY_S[#RETRY_S])
        end
    end
    http:rest()
end

-- Whatever the premature flag says: an exiting worker has releases to deliver.
loop = function(premature)
    local ok, err = pcall(run, premature)
    if not ok then
        log(CRIT, "weir: batcher_failed error=", err)
    end
    if not finished() then
        ok, err = timer_at(0, loop)
        if not ok then
            log(CRIT, "weir: batcher_stopped error=", err)
        end
    end
end

-- Begins this worker's session and its loop.
function _M.start()
    session = concat({ config.node, "/", ngx.worker.pid(), "/", floor(now() * 1000) })
    _M.session = session
    work = semaphore.new(0)
    local ok, err = timer_at(0, loop)
    if not ok then
        log(CRIT, "weir: batcher_stopped error=", err)
    end
end

return _M
