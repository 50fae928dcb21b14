-- When a client that nginx refuses by itself may come back: spread as the service spreads its own
-- advice (control/wiring.py), so that those refused together do not return together.

local floor = math.floor
local max = math.max
local random = math.random

local SPREAD = 0.25
local LEAST_MS = 1000 -- contract.md, section 3

local _M = {}

-- Each worker has random numbers of its own: they fork from one state.
function _M.start()
    math.randomseed(ngx.now() * 1000 + ngx.worker.pid() * 65537)
end

-- About `base_ms`, in whole milliseconds.
function _M.retry_after_ms(base_ms)
    return max(LEAST_MS, floor(base_ms * (1 - SPREAD + 2 * SPREAD * random())))
end

return _M
