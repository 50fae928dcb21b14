-- Heartbeats for streams of routes that ask for them.
--
-- nginx proxies such a request to a Unix socket of its own, and this stands there, between it and
-- the engine. Bytes pass both ways as they are; while the engine is silent between two events a
-- comment goes to the client. The hop before it is nginx's own proxying, so that a client's
-- leaving, its upload and its slowness are dealt with as on routes without heartbeats.

local cjson = require("cjson.safe")
local answer = require("weir.answer")
local batcher = require("weir.batcher")
local config = require("weir.config")
local framing = require("weir.framing")
local log = require("weir.log")
local refusal = require("weir.refusal")
local sockets = require("weir.sockets")

local find = string.find
local gsub = string.gsub
local ipairs = ipairs
local match = string.match
local sub = string.sub
local sleep = ngx.sleep
local tcp = ngx.socket.tcp
local kill = ngx.thread.kill
local spawn = ngx.thread.spawn
local wait = ngx.thread.wait

local PIECE = 65536 -- bytes of one read
local FOREVER_MS = 86400000 -- the hop before this one has the time limits
local LOOK_S = 0.005 -- how often a client is looked at while its upload is held up
local BUFFERED = 65536 -- bytes of a body that the way to an engine takes without being held up

local _M = {}

-- Connects to a backend: a socket, or nil and why not.
local function dial(pool, backend)
    local address = config.pools[pool].backends[backend].address
    local sock = tcp()
    sock:settimeouts(config.pools[pool].connect_ms, FOREVER_MS, FOREVER_MS)
    local ok, err = sock:connect(address.host, address.port)
    if ok and address.tls then
        ok, err = sock:sslhandshake(false, address.name, false)
    end
    if not ok then
        return nil, err
    end
    return sock
end

-- The engine of the request; another one where it cannot be reached and one has room.
local function engine_for(pool, backend, id)
    local sock = dial(pool, backend)
    if sock then
        return sock
    end
    local result = batcher.ask('"op":"reroute","id":"' .. id .. '"', config.budget_s)
    if not result or result.decision == "ended" then
        return nil, { reason = "no_backend", status = 503 }
    end
    if result.decision == "refused" then
        return nil, result
    end
    sock = dial(result.pool, result.backend)
    if not sock then
        return nil, { reason = "no_backend", status = 503, pool = pool }
    end
    return sock
end

-- Passes the request's body on, as it stands on the wire; returns when the client has left.
local function upload(client, engine, look, progress)
    local sends = true
    while true do
        local data, err = client:receiveany(PIECE)
        if not data and err ~= "timeout" then
            return
        end
        if data and sends then
            look(data)
            if not progress.answered then
                progress.silent_s = 0 -- an engine answers when it has the request
            end
            progress.held_up = true
            sends = engine:send(data) -- one that answers early need not take the rest
            progress.held_up = false
        end
    end
end

-- Returns when the client leaves while its upload is held up, where nobody reads from it.
local function watch(request, progress)
    while not progress.answered do
        sleep(LOOK_S)
        if progress.held_up and not sockets.has_client(request) then
            return
        end
    end
    sleep(FOREVER_MS / 1000) -- the others tell the end
end

-- Passes the engine's answer on, with a word to the client where it is silent.
local function download(engine, passed, progress, beat_s, silence_s)
    while not passed.ended do
        local data, err = engine:receiveany(PIECE)
        if data then
            progress.silent_s = 0
            progress.answered = true
            if not passed:feed(data) then
                break
            end
        elseif err == "timeout" then
            progress.silent_s = progress.silent_s + beat_s
            if progress.silent_s >= silence_s then
                return passed:finish(true)
            end
            if not passed:beat() then
                return
            end
        else
            break
        end
    end
    passed:finish(false)
end

-- Whether the body that passes has come whole and asks for a stream: only then may an answer be
-- begun as one (nginx, once it answers, takes an upload that was held up no further). On a path
-- that is named after its streams any body asks for one that does not decline it.
local function looker(accept, path, chunked, size)
    local asked = accept ~= nil and find(accept, "text/event-stream", 1, true) ~= nil
    local declined = not find(path, "stream$") or not (chunked or size)
    local body = framing.new(chunked, size or 0)
    local rest = ""
    local function look(data)
        framing.feed(body, data)
        if not asked then
            -- Within one of the request's own texts the quotes would be escaped.
            local text = rest .. data
            asked = find(text, '[^\\]"stream"%s*:%s*true') ~= nil
            declined = declined or find(text, '[^\\]"stream"%s*:%s*false') ~= nil
            rest = sub(text, -64)
        end
    end
    return look, function()
        return body.ended and (asked or not declined)
    end
end

-- The content handler of the socket that routes with heartbeats are proxied to.
function _M.relay()
    local var = ngx.var
    local pool, backend = match(var.http_x_weir_backend or "", "^([^/]+)/(.+)$")
    local engine, why = engine_for(pool, backend, var.http_x_request_id or "")
    if not engine then
        var.weir_refusal = cjson.encode(why)
        return refusal.refused()
    end
    local head = gsub(ngx.req.raw_header(), "\r\nX%-Weir%-Backend:[^\r\n]*", "", 1)
    local beat_s = config.routes[var.weir_route].heartbeat_s
    engine:settimeouts(FOREVER_MS, FOREVER_MS, beat_s * 1000)
    engine:send(head)
    local size = tonumber(var.content_length)
    local chunked = var.http_transfer_encoding ~= nil
    local look, wants_stream = looker(var.http_accept, var.weir_route, chunked, size)
    local request = sockets.handle()
    local client = ngx.req.socket(true)
    client:settimeouts(FOREVER_MS, FOREVER_MS, FOREVER_MS)
    local progress = { answered = false, held_up = false, silent_s = 0 }
    local passed = answer.new(function(bytes)
        return client:send(bytes)
    end, wants_stream)
    local threads = {
        spawn(download, engine, passed, progress, beat_s, config.pools[pool].silence_s),
        spawn(upload, client, engine, look, progress),
    }
    if (size or 0) > BUFFERED or chunked then
        threads[3] = spawn(watch, request, progress)
    end
    local ok, err = wait(unpack(threads))
    if not ok then
        log.crit("weir: relay_failed error=", err)
    end
    for _, thread in ipairs(threads) do
        kill(thread)
    end
    engine:close()
end

return _M
