-- The requests of this worker that have asked for a lease and not given it back.
--
-- An entry lives from before the acquire is sent until its release is queued, so that whatever
-- becomes of the answer, an end is told to the service.

local _M = { count = 0 }

local entries = {}

-- A new entry for request `id`: { id, [grant] }, and what the stream notes of itself.
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

return _M
