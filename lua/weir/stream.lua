-- The life of one proxied stream: what passes is looked at, its end is told once.
--
-- The lease is given back when the last byte passes the body filter. The log phase is the
-- fallback: it can come 5 to 30 s later, after a lingering close.

local batcher = require("weir.batcher")
local config = require("weir.config")
local frames = require("weir.frames")
local leases = require("weir.leases")
local share = require("weir.share")
local sniff = require("weir.sniff")
local sockets = require("weir.sockets")

local find = string.find
local gmatch = string.gmatch
local max = math.max
local now = ngx.now
local tonumber = tonumber

local NEARLY = 0.95 -- of a time limit: nginx's clock goes by milliseconds, ours by its events
local LAZY_S = 0.3 -- nginx leaves a timer as it is that is to be put off by less

local AT_ONCE_S = 0.25 -- what nginx does in one go, by its clock, is well within it

local _M = {}

-- How far the stream had come when its client left.
local function phase(entry)
    if not entry.pool then
        return "asking"
    end
    return leases.is_answered(entry) and "stream" or "prefill"
end

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
        '"op":"release","id":"' .. entry.id .. '","verdict":"' .. verdict .. '"' .. grant
            .. (abort and ',"phase":"' .. phase(entry) .. '"' or ""),
        abort,
        entry.patient and not abort
    )
end

-- Ends `entry`'s lease with `verdict`; the first call for a request counts.
function _M.finish(entry, verdict)
    if leases.close(entry.id) then
        entry.ended = true
        verdict = entry.cut or verdict
        ngx.var.weir_verdict = verdict
        release(entry, verdict)
    end
end

-- No stream comes of `entry`: what may have been granted meanwhile goes back. The log says it too,
-- whatever the reason that the client is given.
function _M.undo(entry)
    if leases.close(entry.id) then
        ngx.var.weir_verdict = "killed"
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
    entry.last = now()
    entry.bytes = 0
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
        return seen and seen.told or "upstream_error"
    end
    if seen and entry.status == 200 and not seen.terminated then
        return "upstream_truncated"
    end
    return "completed"
end

-- Why an answer broke off.
local function verdict_of_break(entry)
    if entry.cut then
        return entry.cut
    end
    if not sockets.has_client(entry.request) then
        return "client_abort" -- during its upload, when the answer had begun
    end
    local pool = config.pools[entry.pool]
    return now() - entry.last >= pool.silence_s * NEARLY and "timeout" or "upstream_truncated"
end

-- Whether the engine's answer ends where its connection does: so it ends when the engine dies, too.
local function ends_by_closing()
    local var = ngx.var
    return not var.upstream_http_transfer_encoding and not var.upstream_http_content_length
end

-- What a client is told of that.
local function failure(entry, code)
    return frames.failure(entry.cut == "timeout" and "upload_timeout" or code)
end

-- The answer broke off: where an event can follow, one says so.
local function tell_of_break(entry)
    entry.broken = verdict_of_break(entry)
    local seen = entry.seen
    if entry.broken ~= "client_abort" and seen and not seen.failed and not seen.terminated
        and sniff.between_events(seen) then
        local frame = failure(entry, entry.broken)
        local announced = tonumber(ngx.var.upstream_http_content_length)
        -- Beyond the announced length nothing is read: half a frame would make the answer whole.
        if not announced or entry.bytes + #frame <= announced then
            ngx.arg[1] = frame
        end
    end
end

-- The answer's last bytes pass. An end that only the connection's end tells of, without the
-- terminator, is the engine's death: it is told of as any other.
local function close(entry)
    local seen = entry.seen
    if not seen then
        return _M.finish(entry, verdict_at_end(entry))
    end
    local between = sniff.between_events(seen)
    sniff.finish(seen)
    local cut = entry.status == 200 and not entry.broken and not seen.failed
        and not seen.terminated and ends_by_closing()
    local code = cut and between and verdict_of_break(entry)
    if code and code ~= "client_abort" then
        ngx.arg[1] = ngx.arg[1] .. failure(entry, code)
    end
    _M.finish(entry, code or verdict_at_end(entry))
    return cut and not between and ngx.ERROR or nil
end

-- body_filter: counts and looks; changes nothing of what the engine says. ngx.ERROR where the
-- answer is to be broken off.
function _M.body()
    local ctx = ngx.ctx
    local entry = ctx.weir or begin(ctx)
    if not entry then
        return
    end
    local chunk = ngx.arg[1]
    local seen = entry.seen
    if chunk ~= "" then
        local at = now()
        entry.last = at
        entry.bytes = entry.bytes + #chunk
        if not seen or sniff.feed(seen, chunk) then
            entry.heard = at
        end
    elseif not ngx.arg[2] and entry.begun and not entry.broken then
        -- nginx flushes without data twice: the headers, and what is left when the engine's
        -- connection broke.
        tell_of_break(entry)
    end
    entry.begun = true
    if ngx.arg[2] then
        return close(entry)
    end
end

-- When the engine of `entry` was let go.
local function let_go_at(entry, var)
    local at = entry.claimed_at
    for seconds in gmatch(var.upstream_response_time or "", "[%d.]+") do -- one a try
        at = at + tonumber(seconds)
    end
    return at
end

-- Whether a stream that passed no end was cut by nginx, for its client read nothing for `stall`.
-- Over HTTP/2 a client that leaves a stream stays for its others: it has read all there was, where
-- only the engine paused. Of a stream that was cut, frames may wait for a connection that takes
-- nothing, and its log with them: what the client does then was not its end.
local function stalled(entry, var)
    local stall_s = config.pools[entry.pool].stall_s
    stall_s = max(stall_s * NEARLY - LAZY_S, stall_s / 2)
    if not entry.last or now() - entry.last < stall_s then
        return false
    end
    if entry.multiplexed then
        local at = let_go_at(entry, var)
        if now() - at > AT_ONCE_S then
            return at - entry.last >= stall_s
        end
        return tonumber(var.body_bytes_sent) < entry.bytes and sockets.has_client(entry.request)
    end
    return sockets.has_client(entry.request)
end

-- What is left to conclude where the end of the answer was not seen.
local function verdict_at_log(entry, var)
    local seen = entry.seen
    if seen and seen.failed then
        return seen.told or "upstream_error"
    end
    if seen and seen.terminated then
        return "completed"
    end
    if entry.broken then
        return entry.broken
    end
    if var.request_completion == "OK" then
        if seen and ngx.status == 200 then
            return "upstream_truncated"
        end
        return ngx.status >= 500 and "upstream_error" or "completed"
    end
    if ngx.status == 408 or stalled(entry, var) then -- an upload that stood still, or a reader
        return "timeout"
    end
    local cut = ngx.worker.exiting() -- by `shutdown_timeout`
    if entry.request and (cut or entry.begun) and not entry.multiplexed
        and sockets.has_client(entry.request) then
        return cut and "killed" or "upstream_truncated"
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
