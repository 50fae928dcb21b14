-- Uploads that drip: a lease is granted before its request's body is read, and nginx's own time
-- limit is only between two reads.
--
-- From `upload_grace` on an upload lives on what it brings: a second for each `slowest_upload`,
-- `upload_grace` of them at most in store. One that stands still loses none: it has come whole, or
-- the engine does not read, or nginx ends it. All are looked through once in a while, so that an
-- upload costs nothing of its own.

local clock = require("weir.clock")
local config = require("weir.config")
local cutting = require("weir.cutting")
local leases = require("weir.leases")
local sockets = require("weir.sockets")

local min = math.min

local EVERY_S = 5
local LOOKS = 6 -- within the grace, where that is short

local _M = {}

local looked_at = 0

-- Whether an upload is to be ended: it had nothing left, and yet went on as slowly. What comes
-- whole just then is so left alone.
local function is_over(entry, at)
    local upload = entry.upload
    local grace_s = config.upload_grace_s
    if not upload then
        entry.upload = { since = at }
        return false
    end
    if at - upload.since < grace_s then
        return false
    end
    local length = sockets.received(entry.request)
    if not length or length == upload.length then
        upload.at = at
        return false
    end
    local brought_s = (length - (upload.length or 0)) / config.slowest_upload
    local taken_s = upload.at and at - upload.at or 0
    local had_s = upload.left_s or 0
    upload.length, upload.at = length, at
    upload.left_s = min(grace_s, had_s + brought_s - taken_s)
    return had_s < 0 and upload.left_s < 0
end

-- Looks, when it is time to, at the requests that wait for their engine's answer.
function _M.tick()
    local at = clock.now()
    if at - looked_at < min(EVERY_S, config.upload_grace_s / LOOKS)
        or config.slowest_upload == 0 then
        return
    end
    looked_at = at
    for _, entry in ipairs(leases.unanswered()) do
        if entry.cut == "timeout" or is_over(entry, at) then
            cutting.cut(entry, "timeout")
        end
    end
end

return _M
