-- auth_request's handler: asks for quota before the request's body is read.
--
-- 204: granted, and $weir_upstream says where to. 403: refused, and $weir_refusal says why.

local cjson = require("cjson.safe")
local batcher = require("weir.batcher")
local config = require("weir.config")
local leases = require("weir.leases")
local stream = require("weir.stream")

local find = string.find
local tonumber = tonumber

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

-- Variables are dear: setting one costs as much as a hundred lines of Lua. The log finds pool and
-- backend by $weir_upstream.
local function granted(entry, result, var)
    entry.grant = result.grant
    entry.patient = not result.tight
    var.weir_grant = result.grant
    var.weir_scene = result.scene
    var.weir_upstream = config.upstreams[result.pool][result.backend]
    return reply(204)
end

local function decided(entry, result, var)
    local decision = result.decision
    if decision == "granted" then
        return granted(entry, result, var)
    end
    leases.close(entry.id)
    if decision == "refused" then
        return refuse(result)
    end
    if decision == "ended" then
        return refuse({ reason = "client_gone", status = 499 })
    end
    ngx.log(ngx.CRIT, "weir: operation_rejected message=", result.message)
    return refuse({ reason = "admission_down" })
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
    local entry = leases.open(id)
    local result = batcher.ask(
        '"op":"acquire","id":"' .. id .. '","route":"' .. var.weir_route
            .. '","scene":"' .. scene(var) .. '","bytes":' .. bytes,
        config.budget_s
    )
    if not result then
        stream.undo(entry)
        return refuse({ reason = "admission_down" })
    end
    return decided(entry, result, var)
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
        var.weir_upstream = config.upstreams[result.pool][result.backend]
        return reply(204)
    end
    return refuse(result.decision == "refused" and result or { reason = "admission_down" })
end

return _M
