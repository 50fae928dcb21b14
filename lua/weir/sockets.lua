-- A request's two sockets, its client's and its engine's, and how much of it has come, from outside
-- the request.
--
-- nginx has no call for what is done here: to end a stream that runs, to see whether a client is
-- still there, to give one up that answers nothing. The sockets are found through the first fields
-- of nginx's structures, which have stood where they are since 0.8 (src/core/ngx_connection.h,
-- src/http/ngx_http_request.h and ngx_http_upstream.h, built with the cache, as all packages are).
-- The engine's is shut down only when its peer is the address that the request itself notes.

local ffi = require("ffi")
local base = require("resty.core.base")
require("resty.core.var") -- declares what a variable is read with

local C = ffi.C
local cast = ffi.cast

ffi.cdef([[
typedef struct { void *data; void *read; void *write; int fd; } weir_connection_t;
typedef struct {
    void *read_event_handler; void *write_event_handler;
    weir_connection_t *connection; void *sockaddr; uint32_t socklen;
} weir_upstream_t;
typedef struct {
    uint32_t signature; weir_connection_t *connection;
    void *ctx; void *main_conf; void *srv_conf; void *loc_conf;
    void *read_event_handler; void *write_event_handler; void *cache;
    weir_upstream_t *upstream;
} weir_request_t;
int getpeername(int fd, void *address, uint32_t *length);
int shutdown(int fd, int how);
int setsockopt(int fd, int level, int option, const void *value, uint32_t size);
typedef struct { int fd; short events; short revents; } weir_pollfd_t;
int poll(weir_pollfd_t *fds, unsigned long count, int timeout);
int memcmp(const void *a, const void *b, size_t n);
]])

local SIGNATURE = 0x50545448 -- "HTTP"
local SHUT_RDWR = 2
local GONE = 0x2018 -- POLLRDHUP, POLLHUP and POLLERR
local IPPROTO_TCP = 6
local TCP_USER_TIMEOUT = 18
local ADDRESS_BYTES = 128

local LENGTH = "request_length"

local address = ffi.new("uint8_t[?]", ADDRESS_BYTES)
local length = ffi.new("uint32_t[1]")
local milliseconds = ffi.new("int[1]")
local polled = ffi.new("weir_pollfd_t[1]")
local lower_case = ffi.new("char[?]", #LENGTH)
local value = ffi.new("char *[1]")
local value_length = ffi.new("size_t[1]")
local message = ffi.new("char *[1]")
local request_type = ffi.typeof("weir_request_t *")

local _M = {}

-- The current request, to be kept while it lives.
function _M.handle()
    return cast(request_type, base.get_request())
end

-- The request that `handle`, one of its subrequests, belongs to.
local function request_of(handle)
    local connection = handle.connection
    local request = cast(request_type, connection.data)
    if request == nil or request.signature ~= SIGNATURE or request.connection ~= connection then
        return nil, "no request"
    end
    return request
end

-- The engine's descriptor of that request.
local function engine_of(handle)
    local request, err = request_of(handle)
    if not request then
        return nil, err
    end
    local upstream = request.upstream
    if upstream == nil or upstream.connection == nil then
        return nil, "not connected"
    end
    local fd = upstream.connection.fd
    length[0] = ADDRESS_BYTES
    if C.getpeername(fd, address, length) ~= 0 then
        return nil, "not connected"
    end
    local known = length[0] < upstream.socklen and length[0] or upstream.socklen
    if upstream.sockaddr == nil or C.memcmp(address, upstream.sockaddr, known) ~= 0 then
        return nil, "another peer"
    end
    return fd
end

-- Gives a client up that has acknowledged nothing for so long: it has gone without a word. Without
-- this the kernel tries for a quarter of an hour.
function _M.give_up_after(handle, seconds)
    milliseconds[0] = seconds * 1000
    C.setsockopt(handle.connection.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, milliseconds, 4)
end

-- Whether the client of a request is still there: neither has it closed, nor only its own side,
-- whatever it sent before.
function _M.has_client(handle)
    polled[0].fd = handle.connection.fd
    polled[0].events = GONE
    return C.poll(polled, 1, 0) == 0
end

-- How much of a request has come: its head and its body so far, in bytes; nil where nginx does not
-- say. Each look takes 36 bytes of the request's memory.
function _M.received(handle)
    local request = request_of(handle)
    if not request then
        return nil
    end
    local rc = C.ngx_http_lua_ffi_var_get(
        cast("ngx_http_request_t *", request), LENGTH, #LENGTH, lower_case, 0, value,
        value_length, message
    )
    return rc == 0 and tonumber(ffi.string(value[0], value_length[0])) or nil
end

-- Closes the client's connection of a request, and all else that goes over it.
function _M.close_client(handle)
    C.shutdown(handle.connection.fd, SHUT_RDWR)
end

-- Closes the engine's connection of a request, as if the engine had died: nginx then ends the
-- client's side, for HTTP/1.1 and HTTP/2 alike. True, or nil and why not (yet). Where nginx does
-- not look at the engine, for its client reads nothing, only closing the client helps.
function _M.close_engine(handle)
    local fd, err = engine_of(handle)
    if not fd then
        return nil, err
    end
    C.shutdown(fd, SHUT_RDWR)
    return true
end

return _M
