-- nginx's error log, without the request.
--
-- What ngx.log says within a request gets the request's first line behind it, whose query may
-- carry a prompt. So this is said as nginx says what belongs to no request.

local ffi = require("ffi")
require("ngx.errlog") -- declares what a line is written with

local C = ffi.C
local concat = table.concat
local select = select
local tostring = tostring
local CRIT = ngx.CRIT

local _M = {}

-- Logs the arguments, one after the other, at crit, which nginx always writes.
function _M.crit(...)
    local parts = { ... }
    for i = 1, select("#", ...) do
        parts[i] = tostring(parts[i])
    end
    local line = concat(parts)
    C.ngx_http_lua_ffi_raw_log(nil, CRIT, line, #line)
end

return _M
