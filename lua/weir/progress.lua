-- How far streams have come, for people to see: told a few at a time, with what is sent anyway.
--
-- Short streams are never told of. All are looked through once in a while, so that a stream costs
-- nothing beyond what its body filter counts.

local leases = require("weir.leases")

local floor = math.floor
local max = math.max
local now = ngx.now

local EVERY_S = 5 -- for each stream, and its least age
local AT_ONCE = 200 -- about 10 kB of a batch

local _M = {}

local due, first = {}, 1
local looked_at = 0

-- `entry` as a member of a batch's JSON list: [id, bytes, events, milliseconds since the last].
-- Comments are no events; an answer that is no event stream has none.
local function describe(entry, at)
    local bytes = entry.bytes or 0
    local events = entry.seen and entry.seen.events or (bytes > 0 and "null" or 0)
    local idle_ms = floor(max(0, at - (entry.heard or entry.claimed_at)) * 1000)
    return '["' .. entry.id .. '",' .. bytes .. "," .. events .. "," .. idle_ms .. "]"
end

-- What is to be told now: members of a JSON list, or nil.
function _M.take()
    local at = now()
    if first > #due then
        if at - looked_at < EVERY_S and at >= looked_at then
            return nil
        end
        looked_at = at
        due, first = leases.granted_before(at - EVERY_S), 1
    end
    local told, n = {}, 0
    while first <= #due and n < AT_ONCE do
        local entry = due[first]
        due[first] = false
        first = first + 1
        if leases.get(entry.id) == entry then
            n = n + 1
            told[n] = describe(entry, at)
        end
    end
    return n > 0 and told or nil
end

return _M
