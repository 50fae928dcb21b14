-- auth_request's handler: asks for quota before the request's body is read.
--
-- 204: granted, and $weir_upstream says where to. 403: refused, and $weir_refusal says why.

local cjson = require("cjson.safe")
local advice = require("weir.advice")
local batcher = require("weir.batcher")
local config = require("weir.config")
local leases = require("weir.leases")
local log = require("weir.log")
local share = require("weir.share")
local sockets = require("weir.sockets")
local stream = require("weir.stream")

local find = string.find
local http_version = ngx.req.http_version
local tonumber = tonumber

local RETRY_MS = 1000 -- where one worker admitted what another was just granted
local VANISHED_S = 30 -- a client that acknowledges nothing for so long has vanished

local HEX = "[0-9a-f]"
-- version, trace, span, flags (W3C Trace Context)
local TRACEPARENT = "^" .. HEX:rep(2) .. "%-" .. HEX:rep(32) .. "%-" .. HEX:rep(16) .. "%-"
    .. HEX:rep(2) .. "$"

local METHODS = { POST = true, GET = true, HEAD = true }
local BODILESS = { GET = true, HEAD = true }

local _M = {}

local function reply(status)
    ngx.status = status
    ngx.send_headers()
end

local function refuse(refusal)
    ngx.var.weir_refusal = cjson.encode(refusal)
    return reply(403)
end

-- The request's body in bytes, as announced; nil where it must not be served without a length.
local function body_bytes(var)
    local announced = tonumber(var.content_length)
    if announced then
        return announced
    end
    if BODILESS[var.request_method] and not var.http_transfer_encoding then
        return 0
    end
    if config.unknown_size == "refuse" then
        return nil
    end
    return config.max_body
end

-- The scene as the client names it, or none where it could not stand in a label.
local function scene(var)
    local asked = var[config.scene_variable]
    if asked and #asked <= 64 and find(asked, "^[%w_-]+$") then
        return asked
    end
    return ""
end

-- The client's trace, for the spans of its decision and its stream; only where spans are made.
local function trace(var)
    local parent = config.trace and var.http_traceparent
    if parent and #parent == 55 and find(parent, TRACEPARENT) then
        return ',"trace":"' .. parent .. '"'
    end
    return ""
end

-- Variables are dear: setting one costs as much as a hundred lines of Lua. The log finds pool and
-- backend by $weir_upstream.
local function proceed(entry, var)
    var.weir_scene = entry.scene
    var.weir_upstream = config.pools[entry.pool].backends[entry.backend].upstream
    local request = sockets.handle()
    local stall_s = config.pools[entry.pool].stall_s
    -- A client that reads nothing, but is there, is for `stall` to judge.
    sockets.give_up_after(request, stall_s > VANISHED_S and stall_s or VANISHED_S)
    entry.request = request
    entry.multiplexed = http_version() >= 2
    return reply(204)
end

local function granted(entry, result, var)
    leases.claim(
        entry, result.pool, result.backend, result.scene, result.tokens, result.grant
    )
    var.weir_grant = result.grant
    entry.patient = not result.tight
    if share.covers(result.pool) and not share.hold(entry) then
        stream.undo(entry)
        return refuse({
            reason = "streams_exhausted", status = 429, pool = result.pool,
            retry_after_ms = advice.retry_after_ms(RETRY_MS),
        })
    end
    return proceed(entry, var)
end

-- No answer of the service, or `result`, that it cannot decide yet: what the pool's `when_down`
-- says.
local function undecided(entry, pool, asked_scene, bytes, var, result)
    if not share.covers(pool) then
        stream.undo(entry)
        return refuse(result or { reason = "admission_down", pool = pool })
    end
    local claim, refusal = share.claim(pool, asked_scene, bytes, config.session_ttl_s)
    if not claim then
        stream.undo(entry)
        return refuse(refusal)
    end
    entry.counted = true
    leases.claim(entry, pool, claim.backend, claim.scene, claim.tokens)
    batcher.sync()
    return proceed(entry, var)
end

-- A new request.
function _M.acquire()
    local var = ngx.var
    if not METHODS[var.request_method] then
        return refuse({ reason = "method_not_allowed", status = 405 })
    end
    local bytes = body_bytes(var)
    if not bytes then
        return refuse({ reason = "length_required", status = 411 })
    end
    local id = var.request_id
    local route = var.weir_route
    local asked_scene = scene(var)
    local entry = leases.open(id)
    local result = batcher.ask(
        '"op":"acquire","id":"' .. id .. '","route":"' .. route
            .. '","scene":"' .. asked_scene .. '","bytes":' .. bytes .. trace(var),
        config.budget_s
    )
    local decision = result and result.decision
    if decision == "granted" then
        return granted(entry, result, var)
    end
    if not result or result.reason == "admission_down" then
        return undecided(entry, config.routes[route].pool, asked_scene, bytes, var, result)
    end
    leases.close(id)
    if decision == "refused" then
        return refuse(result)
    end
    if decision == "ended" then
        return refuse({ reason = "client_gone", status = 499 })
    end
    log.crit("weir: operation_rejected message=", result.message)
    return refuse({ reason = "admission_down" })
end

-- A request whose backend could not be reached, sent on by the worker that holds its lease.
function _M.reroute()
    local var = ngx.var
    local result = batcher.ask(
        '"op":"reroute","id":"' .. (var.http_x_request_id or "") .. '"', config.budget_s
    )
    if not result then
        return refuse({ reason = "admission_down" })
    end
    if result.decision == "granted" then
        var.weir_upstream = config.pools[result.pool].backends[result.backend].upstream
        return reply(204)
    end
    return refuse(result.decision == "refused" and result or { reason = "admission_down" })
end

return _M
