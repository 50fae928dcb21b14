-- What nginx's configuration calls, one function a phase. An error in ours is logged at crit,
-- which nginx always writes, and ends in an answer that fails closed; a running stream goes on.

local hook = require("weir.hook")
local leases = require("weir.leases")
local log = require("weir.log")
local refusal = require("weir.refusal")
local relay = require("weir.relay")
local stream = require("weir.stream")

local crit = log.crit
local pcall = pcall

local _M = {}

local function guarded(name, run)
    return function()
        local ok, err = pcall(run)
        if not ok then
            crit("weir: ", name, "_failed error=", err)
        end
        return ok, err
    end
end

-- For the hook: without a decision there is no stream, and what may have been taken goes back.
local function closed(name, run)
    local try = guarded(name, run)
    return function()
        if try() then
            return
        end
        local entry = leases.get(ngx.var.request_id)
        if entry then
            stream.undo(entry)
        end
        ngx.status = 403
        ngx.send_headers()
    end
end

_M.acquire = closed("acquire", hook.acquire)
_M.reroute = closed("reroute", hook.reroute)
local look = guarded("body", stream.body)

-- nginx breaks the answer off where this is ngx.ERROR.
function _M.body()
    local ok, result = look()
    return ok and result or nil
end

_M.log = guarded("log", stream.log)
_M.relay = guarded("relay", relay.relay)
_M.refused = guarded("refused", refusal.refused)
_M.failed = guarded("failed", refusal.failed)
_M.invalid = guarded("invalid", refusal.invalid)

return _M
