-- What an engine answers, as it is passed to a client that is told meanwhile that all is well.
--
-- The engine's bytes pass as they are, with comments between its events. Where it is silent before
-- its answer begins, an answer is begun for it; what it then refuses with, or fails of, becomes a
-- frame of that answer.

local cjson = require("cjson.safe")
local frames = require("weir.frames")
local framing = require("weir.framing")

local concat = table.concat
local find = string.find
local lower = string.lower
local match = string.match
local sub = string.sub
local tonumber = tonumber

local LONGEST_HEAD = 65536
local LONGEST_REFUSAL = 65536 -- of an engine's error that is put into a frame
local PING = ": ping\n\n"
local HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    .. "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
local LAST_CHUNK = "0\r\n\r\n"

local _M = {}
local mt = { __index = _M }

-- `send` passes bytes to the client: nil when it has left. `wants_stream()`: whether an answer may
-- be begun before the engine has said of what kind it will be.
function _M.new(send, wants_stream)
    return setmetatable({
        send = send,
        wants_stream = wants_stream,
        head = "", -- the engine's, until all of it has come
        begun = false, -- an answer was begun for it
        body = nil, -- the framing of the stream that passes
        wrapped = false, -- the engine's body has no chunks, and ours has
        refusal = nil, -- { status, text } of what is no stream, after an answer was begun
        plain = false, -- no stream: passed as it is
        ended = false,
    }, mt)
end

-- Puts a text of our own into the body.
local function put(self, text)
    if self.wrapped then
        return self.send(framing.chunk(text))
    end
    return self.send(framing.framed(self.body, text))
end

local function refused(self)
    local text = concat(self.refusal.framing.payload)
    local said = cjson.decode(text)
    local err = type(said) == "table" and said.error
    if type(err) ~= "table" then
        err = {
            message = "The engine answered with status " .. self.refusal.status .. ".",
            type = "upstream_error",
            code = self.refusal.status,
            param = cjson.null,
        }
    end
    return "data: " .. cjson.encode({ error = err }) .. "\n\n"
end

-- A piece of the engine's body.
local function pass(self, data)
    local body = self.body
    if body.size then
        data = sub(data, 1, body.size) -- what is beyond the announced length is no part of it
    end
    if data == "" then
        return true
    end
    framing.feed(body, data)
    self.ended = body.ended
    if self.wrapped then
        return self.send(framing.chunk(data) .. (body.ended and LAST_CHUNK or ""))
    end
    return self.send(data)
end

-- The engine's head is whole: what follows is a stream, or not.
local function open(self, head, rest)
    local fields = lower(head)
    local status = match(head, "^HTTP/1%.[01] (%d%d%d)")
    local chunked = find(fields, "\ntransfer%-encoding:[^\r\n]*chunked") ~= nil
    local size = tonumber(match(fields, "\ncontent%-length:[ \t]*(%d+)"))
    local streams = status == "200"
        and find(fields, "\ncontent%-type:[ \t]*text/event%-stream") ~= nil
    self.head = nil
    if not self.begun then
        if not streams or size then
            self.plain = true
            return self.send(head .. rest)
        end
        self.body = framing.new(chunked)
        framing.feed(self.body, rest)
        self.ended = self.body.ended
        return self.send(head .. rest)
    end
    if not streams then
        if status == "204" or status == "304" then
            size = 0
        end
        self.refusal = { status = status or "502", framing = framing.new(chunked, size) }
        self.refusal.framing.payload = {}
        framing.feed(self.refusal.framing, rest)
        return not self.refusal.framing.ended
    end
    self.wrapped = not chunked
    self.body = framing.new(chunked, size)
    return pass(self, rest)
end

local function gather_head(self, data)
    local head = self.head .. data
    local _, stop = find(head, "\n\r?\n")
    while stop and match(head, "^HTTP/1%.[01] 1") do
        head = sub(head, stop + 1) -- 100 Continue and the like are between the two of us
        _, stop = find(head, "\n\r?\n")
    end
    if stop then
        return open(self, sub(head, 1, stop), sub(head, stop + 1))
    end
    self.head = head
    return #head <= LONGEST_HEAD
end

-- The next bytes of the engine; false when it is of no use to go on.
function _M:feed(data)
    if self.plain then
        return self.send(data)
    end
    if self.head then
        return gather_head(self, data)
    end
    if self.refusal then
        framing.feed(self.refusal.framing, data)
        self.refusal.size = (self.refusal.size or 0) + #data
        return self.refusal.size <= LONGEST_REFUSAL and not self.refusal.framing.ended
    end
    return pass(self, data)
end

-- The engine has been silent for as long as a client is to wait without a word.
function _M:beat()
    if self.plain or self.refusal then
        return true
    end
    if not self.body then
        if self.head ~= "" or not self.wants_stream() then
            return true
        end
        self.begun = true
        self.body = framing.new(true)
        if not self.send(HEAD) then
            return false
        end
    end
    if self.body.between and not framing.is_over(self.body) then
        return put(self, PING)
    end
    return true
end

-- No more comes of the engine: it has closed, or was `silent` for too long.
function _M:finish(silent)
    if self.plain or self.ended or not (self.body or self.refusal) then
        return
    end
    if self.refusal then
        self.send(framing.chunk(refused(self)) .. LAST_CHUNK)
        return
    end
    local code
    if framing.is_over(self.body) then
        code = nil -- all that matters has come
    elseif silent then
        code = "timeout"
    elseif self.begun or self.body.chunked then
        code = "upstream_truncated"
    end
    if code and not self.body.between then
        return -- within an event: the client is to see that its end is missing
    end
    if code then
        put(self, frames.failure(code))
    end
    if self.begun or self.body.chunked then
        self.send(LAST_CHUNK)
    end
end

return _M
