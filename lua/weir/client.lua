-- One HTTP/1.1 exchange at a time with the admission service, over its Unix socket or over TCP.

local tcp = ngx.socket.tcp

local find = string.find
local lower = string.lower
local match = string.match
local sub = string.sub
local tonumber = tonumber

local CONNECT_MS = 250
local CONNECT_FAR_MS = 1000 -- of a handshake too: the loop waits, who asked has given up by then
local SEND_MS = 1000
local READ_MS = 5000
local IDLE_MS = 60000 -- shorter than the service's keep-alive of 75 s

local _M = {}
local mt = { __index = _M }

-- `place`: { host = "unix:/path/to.sock" }, or { host, port, name, tls, certificate, key, token }
-- with the last three as weir.identity makes them.
function _M.new(place)
    return setmetatable({ place = place, sock = nil, session = nil }, mt)
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

-- Verifies that the service is the one that was named, and shows it our certificate.
function _M:shake_hands(sock)
    local place = self.place
    if place.certificate then
        local ok, err = sock:setclientcert(place.certificate, place.key)
        if not ok then
            return nil, err
        end
    end
    local session, err = sock:sslhandshake(self.session, place.name, true)
    self.session = session
    return session, err
end

function _M:connect()
    local place = self.place
    local sock = tcp()
    local ok, err
    if not place.port then
        sock:settimeouts(CONNECT_MS, SEND_MS, READ_MS)
        ok, err = sock:connect(place.host)
    else
        sock:settimeouts(CONNECT_FAR_MS, SEND_MS, READ_MS)
        ok, err = sock:connect(place.host, place.port)
        if ok and place.tls then
            ok, err = self:shake_hands(sock)
            if not ok then
                sock:close()
            end
        end
    end
    if not ok then
        return nil, err
    end
    return sock
end

-- One exchange on `sock`: a response, or nil and why.
local function exchange(sock, token, path, body)
    local bytes, err = sock:send({
        "POST ", path, " HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\n",
        token or "", "Content-Length: ", #body, "\r\n\r\n", body,
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
        response, err = exchange(sock, self.place.token, path, body)
        if not response then
            sock:close()
            sock = nil
            if err == "timeout" then
                return nil, err
            end
        end
    end
    if not response then
        sock, err = self:connect()
        if not sock then
            return nil, err
        end
        response, err = exchange(sock, self.place.token, path, body)
        if err and self.place.tls then
            -- With TLS 1.3 a certificate is refused after the handshake.
            err = err .. " after the handshake: handshake_failed in the service's log says why"
        end
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
