-- Group commit with the admission service, one batcher a worker.
--
-- What is pending goes out in one POST; while that is under way the next operations gather. An
-- idle worker sends a batch of one at once, so batching adds no waiting. The queue is drained by
-- one long-lived timer: timers of the log phase are dropped beyond lua_max_running_timers, and
-- an exiting worker refuses delayed ones.

local semaphore = require("ngx.semaphore")
local cjson = require("cjson.safe")
local advice = require("weir.advice")
local client = require("weir.client")
local clock = require("weir.clock")
local config = require("weir.config")
local cutting = require("weir.cutting")
local leases = require("weir.leases")
local log = require("weir.log")
local progress = require("weir.progress")
local share = require("weir.share")
local uploads = require("weir.uploads")

local concat = table.concat
local crit = log.crit
local floor = math.floor
local format = string.format
local min = math.min
local exiting = ngx.worker.exiting
local now = clock.now
local sleep = ngx.sleep
local timer_at = ngx.timer.at

local MAX_OPS = 1000 -- a batch; the service takes some milliseconds for so many
local MAX_RELEASES = 100000 -- about 20 MB of releases while the service is away
local ROUNDS = 1000 -- batches of one timer, then a fresh one: its memory pool only grows
local WAKE_S = 0.5 -- an exiting worker is noticed within it
local BUSY = 4 -- operations that gathered during one POST: so many mean a busy worker,
local LINGER_S = 0.001 -- which waits a moment, that the next POST may carry more
local LAST_TRIES = 24 -- of an exiting worker, about 6 s: the sessions' time to live is the rest
local RETRY_S = { 0.02, 0.1, 0.25 }
-- The breaker: so many exchanges that failed, or asks that timed out, in a row, and nobody waits
-- for an answer any more until the loop, which goes on trying, has had one.
local BREAK_FAILURES = 2
local BREAK_TIMEOUTS = 3

local _M = {}

local queue = {} -- { id, fields, [ready] or told, [since], [patient], [abandoned] }
local resting = {} -- semaphores that nobody waits for
local work -- posted when the queue has something and the loop sleeps
local idle = false
local running = false
local begin
local session
local failures = 0
local last_error -- of an exchange: each is logged once in a row
local timeouts = 0
local sync_due = false
local dropped = 0 -- releases that found no place since the service was last told: the log has them

-- Has the loop look at what there is to do. Where it has ended, for the worker is leaving and held
-- nothing, it begins again: a connection that was open already may still bring a request.
local function wake()
    if idle then
        idle = false
        work:post(1)
    elseif not running then
        begin()
    end
end

local function push(item)
    queue[#queue + 1] = item
    wake()
end

-- Queues a release of `id`, which waits for no answer. `fields`: the inside of its JSON object;
-- `timed`: whether the service shall know how long it was under way; `patient`: whether it may
-- wait a moment for something to go with, as where much room is free.
function _M.tell(id, fields, timed, patient)
    if #queue >= MAX_RELEASES then
        if dropped % 1000 == 0 then
            crit("weir: releases_dropped since_last_answer=", dropped + 1)
        end
        dropped = dropped + 1
        return nil, "overflow"
    end
    push({
        id = id, fields = fields, told = true, since = timed and now() or nil, patient = patient,
    })
    return true
end

-- Has the service told all that this worker holds, with the next batch.
function _M.sync()
    sync_due = true
    wake()
end

-- Sends an operation and waits for its result: a table, or nil and why. After nil it may or may
-- not have been done: the caller follows it with a release. `fields`: as for tell.
function _M.ask(fields, timeout_s)
    if failures >= BREAK_FAILURES or timeouts >= BREAK_TIMEOUTS then
        return nil, "down"
    end
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
        timeouts = timeouts + 1
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

-- All that this worker holds, and what it has still to say of: the service ends the rest, as far
-- as it was granted before.
local function sync_op()
    local ids = leases.describe()
    for _, item in ipairs(queue) do
        if item.told then
            ids[#ids + 1] = '"' .. item.id .. '"'
        end
    end
    return concat({
        '{"op":"sync","config":"', config.version, '","up_to":', leases.last_grant,
        ',"ids":[', concat(ids, ","), "]}",
    })
end

local function exchange(http, batch, syncs)
    local ops = {}
    for i, item in ipairs(batch) do
        local delay = ""
        if item.since then
            delay = format(',"delay_ms":%.2f', (now() - item.since) * 1000)
        end
        ops[i] = "{" .. item.fields .. delay .. "}"
    end
    if syncs then
        ops[#ops + 1] = sync_op()
    end
    local lost = dropped > 0 and (',"dropped":' .. dropped) or ""
    local told = progress.take()
    local come = told and (',"progress":[' .. concat(told, ",") .. "]") or ""
    local response, err = http:post(
        "/v1/admission",
        concat({ '{"session":"', session, '"', lost, come, ',"ops":[', concat(ops, ","), "]}" })
    )
    if not response then
        return nil, err
    end
    local body = cjson.decode(response.body)
    local results = response.status == 200 and body and body.results
    if type(results) ~= "table" or #results ~= #ops then
        return nil, "status " .. response.status .. " " .. (body and body.code or "")
    end
    return body
end

-- What the service wants of this worker. A cut that takes more than one step it says again, a
-- batch later.
local function obey(body, syncs)
    if body.sync then
        sync_due = true
    end
    if body.cut then
        for _, id in ipairs(body.cut) do
            local entry = leases.get(id)
            if entry and entry.request then
                cutting.cut(entry, "killed")
            end
        end
    end
    if syncs then
        local synced = body.results[#body.results]
        if synced.limits then
            share.learn(synced.limits)
        end
    end
end

local function send(http, batch)
    local syncs = sync_due
    sync_due = false
    -- A handshake that breaks off can raise in lua-resty-core; what was to be told is kept.
    local ok, body, err = pcall(exchange, http, batch, syncs)
    if not ok then
        body, err = nil, body
    end
    if body then
        if failures > 0 or timeouts > 0 then
            failures, timeouts = 0, 0
            last_error = nil
        end
        dropped = 0
        for i, item in ipairs(batch) do
            answer(item, body.results[i])
        end
        obey(body, syncs)
        return
    end
    sync_due = sync_due or syncs
    failures = failures + 1
    if err ~= last_error then
        last_error = err
        crit("weir: admission_unreachable error=", err, " pending=", #batch)
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

-- Sleeps until there is work, or for so long.
local function rest(seconds)
    idle = true
    work:wait(seconds)
    idle = false
end

-- Waits for work; returns when there is some, a heartbeat is due, or the worker is leaving.
local function await(last_sent)
    local heartbeat_s = config.heartbeat_s
    while #queue == 0 and not sync_due and failures == 0 and not exiting()
        and now() - last_sent < heartbeat_s do
        rest(min(WAKE_S, heartbeat_s))
    end
    if #queue == 0 and not sync_due and exiting() and leases.count > 0 then
        rest(WAKE_S)
    end
end

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
            rest(LINGER_S)
        end
        share.tick()
        uploads.tick()
        local batch = take()
        busy = #batch >= BUSY
        send(http, batch)
        last_sent = now()
        if failures > 0 then
            sleep(RETRY_S[failures] or RETRY_S[#RETRY_S])
        end
    end
    http:rest()
end

-- Whatever the premature flag says: an exiting worker has releases to deliver.
local function loop(premature)
    local ok, err = pcall(run, premature)
    if not ok then
        crit("weir: batcher_failed error=", err)
    end
    running = false
    if not finished() then
        begin()
    end
end

begin = function()
    local ok, err = timer_at(0, loop)
    running = ok
    if not ok then
        crit("weir: batcher_stopped error=", err)
    end
end

-- Begins this worker's session and its loop.
function _M.start()
    session = concat({ config.node, "/", ngx.worker.pid(), "/", floor(ngx.now() * 1000) })
    advice.start()
    share.start()
    work = semaphore.new(0)
    begin()
end

return _M
