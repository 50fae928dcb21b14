-- Ends a running request from outside of it.

local sockets = require("weir.sockets")

local _M = {}

-- Cuts the stream of `entry`, which then ends with `verdict`. Where that takes more than one step,
-- it has to be said again a second later.
function _M.cut(entry, verdict)
    if entry.cut and not entry.multiplexed then
        sockets.close_client(entry.request)
    end
    if sockets.close_engine(entry.request) then
        entry.cut = entry.cut or verdict
    end
end

return _M
