-- The answers that Weir gives itself: refusals, failures, bad requests (contract.md, section 3).

local cjson = require("cjson.safe")
local advice = require("weir.advice")
local config = require("weir.config")
local leases = require("weir.leases")
local stream = require("weir.stream")

local ceil = math.ceil
local find = string.find

local RETRY_MS = 5000 -- where the service could not say when to come back

local INVALID = {
    [400] = { "bad_request", "The request is not valid HTTP, or a header is too long." },
    [404] = { "not_found", "No route is configured for this path." },
    [405] = { "method_not_allowed", "This path takes POST and GET." },
    [408] = { "upload_timeout", "The request's body came too slowly." },
    [411] = { "length_required", "Send the request with a Content-Length." },
    [413] = { "request_too_large", "The request is larger than can ever be served here." },
    [414] = { "bad_request", "The request's address is too long." },
    [499] = { "client_gone", "The client has left." },
}

local _M = {}

local function wants_frame(var)
    local accept = var.http_accept
    if accept then
        if find(accept, "text/event-stream", 1, true) then
            return true
        end
        if find(accept, "application/json", 1, true) then
            return false
        end
    end
    local route = config.routes[var.weir_route]
    return route and route.stream
end

local function send(status, err, as_frame)
    local header = ngx.header
    ngx.status = status
    header.cache_control = "no-store"
    local body = cjson.encode({ error = err })
    if as_frame then
        header.content_type = "text/event-stream; charset=utf-8"
        body = "event: error\ndata: " .. body .. "\n\n"
    else
        header.content_type = "application/json; charset=utf-8"
    end
    header.content_length = #body
    ngx.print(body)
end

local function invalid(status, detail)
    local known = INVALID[status] or INVALID[400]
    ngx.header.x_weir_reason = known[1]
    return send(status, {
        message = detail or known[2],
        type = "invalid_request_error",
        code = known[1],
        param = cjson.null,
    }, false)
end

local function overloaded(status, refusal)
    local retry_ms = refusal.retry_after_ms or advice.retry_after_ms(RETRY_MS)
    ngx.header.retry_after = ceil(retry_ms / 1000)
    ngx.header.x_weir_reason = refusal.reason
    return send(status, {
        message = config.message,
        type = "overloaded",
        code = refusal.reason,
        param = cjson.null,
        weir = {
            reason = refusal.reason,
            pool = refusal.pool or cjson.null,
            limit = refusal.limit or 0,
            in_use = refusal.in_use or 0,
            requested = refusal.requested or 0,
            retry_after_ms = retry_ms,
            retryable = true,
        },
    }, wants_frame(ngx.var))
end

local function too_large(refusal)
    return invalid(413, "The request needs " .. refusal.requested .. " tokens; at most "
        .. refusal.limit .. " can ever be served.")
end

-- The hook said no.
function _M.refused()
    local refusal = cjson.decode(ngx.var.weir_refusal or "") or { reason = "admission_down" }
    local status = refusal.status or 503
    if refusal.reason == "request_too_large" then
        return too_large(refusal)
    end
    if status == 429 or status == 503 then
        return overloaded(status, refusal)
    end
    return invalid(status)
end

-- nginx got no answer from the engine: 502, or 504 after the pool's `silence`.
function _M.failed()
    local var = ngx.var
    local entry = leases.get(var.request_id)
    local timeout = ngx.status == 504
    if entry then
        -- The engine has not said that it freed anything, or it is a worker of ours that is gone.
        stream.finish(entry, timeout and "timeout" or "upstream_truncated")
    end
    local cut = entry and entry.cut
    if cut == "timeout" then
        return invalid(408)
    end
    if cut == "killed" then
        return overloaded(503, { reason = "killed", pool = var.weir_pool })
    end
    local reason = timeout and "timeout" or "no_backend"
    return overloaded(timeout and 504 or 503, { reason = reason, pool = var.weir_pool })
end

-- nginx found the request itself wanting.
function _M.invalid()
    local entry = leases.get(ngx.var.request_id)
    if entry then
        stream.finish(entry, "client_abort")
    end
    return invalid(ngx.status)
end

return _M
