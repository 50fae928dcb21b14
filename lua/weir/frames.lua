-- Frames of our own in an answer that has begun: what the engine can no longer say (contract.md,
-- section 3). No terminator follows, so that no client takes a part for the whole.

local MESSAGES = {
    killed = "This answer was ended by an operator: it is incomplete.",
    timeout = "The engine was silent for too long: this answer is incomplete.",
    upstream_truncated = "The engine broke off: this answer is incomplete.",
    upload_timeout = "The request's body came too slowly.",
}
local TYPES = { upload_timeout = "invalid_request_error" }

local _M = {}

-- The frame of a failure. Its code comes first: by that, another hop of ours knows it.
function _M.failure(code)
    return 'data: {"error":{"code":"' .. code .. '","message":"' .. MESSAGES[code]
        .. '","type":"' .. (TYPES[code] or "upstream_error") .. '","param":null}}\n\n'
end

return _M
