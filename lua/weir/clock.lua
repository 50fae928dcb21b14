-- Seconds that only pass: ngx.now() follows the wall clock, which may be set.

local ffi = require("ffi")

local C = ffi.C

ffi.cdef([[
typedef struct { long seconds; long nanoseconds; } weir_time_t;
int clock_gettime(int clock, weir_time_t *time);
]])

local CLOCK_MONOTONIC = 1

local time = ffi.new("weir_time_t[1]")

local _M = {}

-- Seconds since the machine started; the same for all of its processes.
function _M.now()
    C.clock_gettime(CLOCK_MONOTONIC, time)
    return tonumber(time[0].seconds) + tonumber(time[0].nanoseconds) * 1e-9
end

return _M
