-- Whether the client of the current request is still there.
--
-- While auth_request waits, nginx does not look at a client whose body is unread, and the event
-- of its leaving is gone by the time the stream is proxied: an engine silent in prefill would
-- compute for nobody. So the hook looks once, right before it lets the stream begin.

local ffi = require("ffi")
local base = require("resty.core.base")

local get_request = base.get_request
local C = ffi.C

-- The first members of nginx's own structures, unchanged since 0.8; `signature` proves the first.
ffi.cdef([[
typedef struct {
    void *data;
    void *read;
    void *write;
    int fd;
} weir_connection_t;

typedef struct {
    uint32_t signature;
    weir_connection_t *connection;
} weir_request_t;

struct weir_pollfd {
    int fd;
    short events;
    short revents;
};

int poll(struct weir_pollfd *fds, unsigned long nfds, int timeout);
]])

local SIGNATURE = 0x50545448 -- "HTTP"
local POLLERR, POLLHUP, POLLRDHUP = 0x8, 0x10, 0x2000

local pollfd = ffi.new("struct weir_pollfd[1]")

local _M = {}

-- True where the peer has closed or reset its connection. An HTTP/2 stream's cancel does not
-- show here: nginx tells Lua of that itself (lua_check_client_abort).
function _M.gone()
    local request = ffi.cast("weir_request_t *", get_request())
    if request == nil or request.signature ~= SIGNATURE or request.connection == nil then
        return false
    end
    pollfd[0].fd = request.connection.fd
    pollfd[0].events = POLLRDHUP
    pollfd[0].revents = 0
    if C.poll(pollfd, 1, 0) <= 0 then
        return false
    end
    return bit.band(pollfd[0].revents, POLLERR + POLLHUP + POLLRDHUP) ~= 0
end

return _M
