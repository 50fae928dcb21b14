-- What `weir render` wrote for Lua: read once, in the master, before the workers fork.

local cjson = require("cjson.safe")
local identity = require("weir.identity")

local _M = {}

-- Reads the JSON document at `path` into this module. Raises where it cannot: nginx then
-- refuses to start or to reload, and the old workers go on.
function _M.load(path)
    local file = assert(io.open(path, "r"))
    local text = file:read("*a")
    file:close()
    for key, value in pairs(assert(cjson.decode(text))) do
        _M[key] = value
    end
    identity.read(_M.admission)
end

return _M
