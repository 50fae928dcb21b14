-- The requests of this worker that have asked for a lease and not given it back.
--
-- An entry lives from before the acquire is sent until its release is queued, so that whatever
-- becomes of the answer, an end is told to the service.

local now = ngx.now

local _M = { count = 0, last_grant = 0 }

local entries = {}

-- A new entry for request `id`: { id, [pool], [backend], [scene], [tokens], [grant] }, the claim
-- once it is granted, and what the stream notes of itself.
function _M.open(id)
    local entry = entries[id]
    if not entry then
        entry = { id = id }
        entries[id] = entry
        _M.count = _M.count + 1
    end
    return entry
end

function _M.get(id)
    return entries[id]
end

-- Forgets `id`; true where it was known.
function _M.close(id)
    if not entries[id] then
        return false
    end
    entries[id] = nil
    _M.count = _M.count - 1
    return true
end

-- Notes what was granted to `entry`.
function _M.claim(entry, pool, backend, scene, tokens, grant)
    entry.pool = pool
    entry.backend = backend
    entry.scene = scene
    entry.tokens = tokens
    entry.grant = grant
    entry.claimed_at = now()
    if grant and grant > _M.last_grant then
        _M.last_grant = grant
    end
end

-- The entries that were granted before a time.
function _M.granted_before(at)
    local found, n = {}, 0
    for _, entry in pairs(entries) do
        if entry.claimed_at and entry.claimed_at < at then
            n = n + 1
            found[n] = entry
        end
    end
    return found
end

-- Whether the engine has begun to answer `entry`. Comments are not a first byte.
function _M.is_answered(entry)
    local passed = entry.bytes and entry.bytes > 0
    return passed and (not entry.seen or entry.seen.events > 0)
end

-- The entries of requests that have been let pass and are not answered.
function _M.unanswered()
    local found, n = {}, 0
    for _, entry in pairs(entries) do
        if entry.request and not _M.is_answered(entry) then
            n = n + 1
            found[n] = entry
        end
    end
    return found
end

-- All entries as the members of a sync's JSON list.
function _M.describe()
    local all, n = {}, 0
    for id, entry in pairs(entries) do
        n = n + 1
        if entry.pool then
            local grant = entry.grant and (',"grant":' .. entry.grant) or ""
            all[n] = '{"id":"' .. id .. '","pool":"' .. entry.pool .. '","backend":"'
                .. entry.backend .. '","scene":"' .. entry.scene .. '","tokens":'
                .. entry.tokens .. grant .. "}"
        else
            all[n] = '"' .. id .. '"'
        end
    end
    return all
end

return _M
