-- The life of one proxied stream: what passes is looked at, its end is told once.
--
-- The lease is given back when the last byte passes the body filter. The log phase is the
-- fallback: it can come 5 to 30 s later, after a lingering close.

local batcher = require("weir.batcher")
local config = require("weir.config")
local leases = require("weir.leases")
local share = require("weir.share")
local sniff = require("weir.sniff")

local find = string.find

local _M = {}

local function release(entry, verdict)
    if entry.counted then
        share.drop(entry, verdict ~= "completed" and verdict ~= "upstream_error")
    end
    if not config.lua_release then
        return
    end
    local grant = entry.grant and (',"grant":' .. entry.grant) or ""
    local abort = verdict == "client_abort"
    batcher.tell(
        entry.id,
        '"op":"release","id":"' .. entry.id .. '","verdict":"' .. verdict .. '"' .. grant,
        abort,
        entry.patient and not abort
    )
end

-- Ends `entry`'s lease with `verdict`; the first call for a request counts.
function _M.finish(entry, verdict)
    if leases.close(entry.id) then
        entry.ended = true
        if entry.killed then
            verdict = "killed"
        end
        ngx.var.weir_verdict = verdict
        release(entry, verdict)
    end
end

-- No stream comes of `entry`: what may have been granted meanwhile goes back.
function _M.undo(entry)
    if leases.close(entry.id) then
        release(entry, "killed")
    end
end

-- The entry of the answer that begins to pass, and whether it is an event stream.
local function begin(ctx)
    local entry = leases.get(ngx.var.request_id)
    if not entry then
        return nil
    end
    ctx.weir = entry
    entry.status = ngx.status
    local kind = ngx.header.content_type
    if kind and find(kind, "text/event-stream", 1, true) then
        entry.seen = sniff.new()
    end
    return entry
end

-- What the bytes say of an answer that has come to its end.
local function verdict_at_end(entry)
    local seen = entry.seen
    if entry.status >= 500 or (seen and seen.failed) then
        return "upstream_error"
    end
    if seen and entry.status == 200 and not seen.terminated then
        return "upstream_truncated"
    end
    return "completed"
end

-- body_filter: counts and looks; changes nothing.
function _M.body()
    local ctx = ngx.ctx
    local entry = ctx.weir or begin(ctx)
    if not entry then
        return
    end
    local chunk = ngx.arg[1]
    local seen = entry.seen
    if chunk ~= "" then
        if seen then
            sniff.feed(seen, chunk)
        end
    elseif not ngx.arg[2] and entry.begun then
        -- nginx flushes without data twice: the headers, and what is left when the engine's
        -- connection broke.
        entry.broken = true
    end
    entry.begun = true
    if ngx.arg[2] then
        if seen then
            sniff.finish(seen)
        end
        _M.finish(entry, verdict_at_end(entry))
    end
end

-- What is left to conclude where the end of the answer was not seen.
local function verdict_at_log(entry, var)
    local seen = entry.seen
    if seen and seen.failed then
        return "upstream_error"
    end
    if seen and seen.terminated then
        return "completed"
    end
    if entry.broken then
        return "upstream_truncated"
    end
    if var.request_completion == "OK" then
        return ngx.status >= 500 and "upstream_error" or "completed"
    end
    return "client_abort"
end

-- log: the fallback, and what the access log carries of the stream.
function _M.log()
    local var = ngx.var
    local entry = ngx.ctx.weir or leases.get(var.request_id)
    if not entry then
        return
    end
    if not entry.ended then
        _M.finish(entry, verdict_at_log(entry, var))
    end
    local seen = entry.seen
    if seen then
        var.weir_seen = seen.events .. (seen.terminated and " terminated" or "")
            .. (seen.failed and " failed" or "")
    end
end

return _M
