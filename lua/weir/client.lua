-- One HTTP/1.1 exchange at a time with the admission service, over its Unix socket.

local tcp = ngx.socket.tcp

local find = string.find
local lower = string.lower
local match = string.match
local sub = string.sub
local tonumber = tonumber

local CONNECT_MS = 250
local SEND_MS = 1000
local READ_MS = 5000
local IDLE_MS = 60000 -- shorter than the service's keep-alive of 75 s

local _M = {}
local mt = { __index = _M }

-- `address`: "unix:/path/to.sock".
function _M.new(address)
    return setmetatable({ address = address, sock = nil }, mt)
end

local function read_response(sock)
    local line, err = sock:receive("*l")
    if not line then
        return nil, err
    end
    local status = tonumber(match(line, "^HTTP/1%.[01] (%d%d%d)"))
    if not status then
        return nil, "not HTTP"
    end
    local length
    local keep = true
    while true do
        line, err = sock:receive("*l")
        if not line then
            return nil, err
        end
        if line == "" then
            break
        end
        local colon = find(line, ":", 1, true)
        if colon then
            local name = lower(sub(line, 1, colon - 1))
            if name == "content-length" then
                length = tonumber(sub(line, colon + 1))
            elseif name == "connection" and find(lower(line), "close", colon, true) then
                keep = false
            end
        end
    end
    if not length then
        return nil, "no length"
    end
    local body = ""
    if length > 0 then
        body, err = sock:receive(length)
        if not body then
            return nil, err
        end
    end
    return { status = status, body = body, keep = keep }
end

local function connect(address)
    local sock = tcp()
    sock:settimeouts(CONNECT_MS, SEND_MS, READ_MS)
    local ok, err = sock:connect(address)
    if not ok then
        return nil, err
    end
    return sock
end

-- One exchange on `sock`: a response, or nil and why.
local function exchange(sock, path, body)
    local bytes, err = sock:send({
        "POST ", path, " HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\n",
        "Content-Length: ", #body, "\r\n\r\n", body,
    })
    if not bytes then
        return nil, err
    end
    return read_response(sock)
end

-- Posts a JSON `body` to `path`: { status, body }, or nil and why. After nil nothing is known of
-- what the service did with it. Where a kept connection turns out to be closed, as by a service
-- that hands over to its successor, it is posted once more: every operation may be repeated.
function _M:post(path, body)
    local sock = self.sock
    self.sock = nil
    local response, err
    if sock then
        response, err = exchange(sock, path, body)
        if not response then
            sock:close()
            sock = nil
            if err == "timeout" then
                return nil, err
            end
        end
    end
    if not response then
        sock, err = connect(self.address)
        if not sock then
            return nil, err
        end
        response, err = exchange(sock, path, body)
    end
    if response and response.keep then
        self.sock = sock
    else
        sock:close()
    end
    return response, err
end

-- Leaves the connection to the worker's pool, for whoever follows.
function _M:rest()
    local sock = self.sock
    self.sock = nil
    if sock then
        sock:setkeepalive(IDLE_MS)
    end
end

return _M
