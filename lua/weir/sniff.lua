-- What passes in an event stream: events, the terminator, an error at the top level. No JSON is
-- parsed, nothing is changed; only the beginnings of lines are looked at, also across chunks.

local byte = string.byte
local find = string.find
local gsub = string.gsub
local match = string.match
local sub = string.sub

local PREFIX = 64 -- bytes of a line that are enough to know it
local LF, CR, SPACE, TAB, COLON = 10, 13, 32, 9, 58
local D, E, N, BRACE, BRACKET = 100, 101, 110, 123, 91

local _M = {}

-- A fresh state: { events, terminated, failed, [told] }.
function _M.new()
    return {
        events = 0, terminated = false, failed = false,
        line = "", open = false, data = false, cr = false,
    }
end

local function skip_blank(text, at)
    local c = byte(text, at)
    while c == SPACE or c == TAB do
        at = at + 1
        c = byte(text, at)
    end
    return at
end

-- Whether `text` holds `"key":` at `at`, with a value that begins `value` or, without one, is
-- not null.
local function member(text, at, key, value)
    at = skip_blank(text, at)
    local quoted = '"' .. key .. '"'
    if sub(text, at, at + #quoted - 1) ~= quoted then
        return false
    end
    at = skip_blank(text, at + #quoted)
    if sub(text, at, at) ~= ":" then
        return false
    end
    at = skip_blank(text, at + 1)
    if value then
        return sub(text, at, at + #value - 1) == value
    end
    return byte(text, at) ~= N
end

-- `{"error":…}` is OpenAI's and vLLM's, `{"object":"error"` older vLLM's, `{"type":"error"`
-- Anthropic's.
local function is_error(text, at)
    return member(text, at, "error")
        or member(text, at, "object", '"error"')
        or member(text, at, "type", '"error"')
end

-- Failures that a hop of ours told of, by the beginning of their frame.
local OURS = '{"error":{"code":"'
local TOLD = { upstream_truncated = true, timeout = true }

local function told(text, at)
    if sub(text, at, at + #OURS - 1) == OURS then
        local code = match(text, "^[%l_]+", at + #OURS)
        return code and TOLD[code] and code
    end
end

local function data_line(state, text, at, last)
    state.data = true
    at = skip_blank(text, at)
    local c = byte(text, at)
    if c == BRACKET then
        if sub(text, at, at + 5) == "[DONE]" then
            local after = skip_blank(text, at + 6)
            if after > last then
                state.terminated = true
            end
        end
    elseif c == BRACE and is_error(text, at + 1) then
        state.told = state.told or (not state.failed and told(text, at))
        state.failed = true
    end
end

-- One line of `text`, from `first` to `last`, without its end.
local function line(state, text, first, last)
    local c = byte(text, first)
    if first > last then
        if state.data then
            state.events = state.events + 1
            state.data = false
        end
        state.open = false
        return
    end
    if c ~= COLON then -- else a comment
        state.open = true
    end
    if c == D and sub(text, first, first + 4) == "data:" then
        data_line(state, text, first + 5, last)
    elseif c == E and sub(text, first, first + 5) == "event:" then
        local at = skip_blank(text, first + 6)
        local word = sub(text, at, last)
        if word == "error" then
            state.failed = true
        elseif word == "message_stop" then
            state.terminated = true
        end
    end
end

-- `text` with line feeds where lines end with CRLF or CR, which may be cut in two.
local function unified(state, text)
    local first = state.cr and byte(text) == LF and 2 or 1
    state.cr = byte(text, -1) == CR
    return (gsub(sub(text, first), "\r\n?", "\n"))
end

-- Looks at the next chunk; true where an event ends in it.
function _M.feed(state, chunk)
    local before = state.events
    local text = chunk
    if chunk ~= "" and (state.cr or find(chunk, "\r", 1, true)) then
        text = unified(state, chunk)
    end
    if state.line ~= "" then
        text = state.line .. text
    end
    local first = 1
    local stop = find(text, "\n", 1, true)
    while stop do
        if stop - first > PREFIX then -- seen alike, whether it came in one chunk or in many
            line(state, sub(text, first, first + PREFIX - 1), 1, PREFIX)
        else
            line(state, text, first, stop - 1)
        end
        first = stop + 1
        stop = find(text, "\n", first, true)
    end
    -- Of a line that goes on, its beginning is kept and its length is not.
    state.line = sub(text, first, first + PREFIX - 1)
    return state.events > before
end

-- Whether what has passed ends with an event, so that another may follow.
function _M.between_events(state)
    return state.line == "" and not state.open
end

-- The stream is over: a last line without a line feed counts too.
function _M.finish(state)
    if state.line ~= "" then
        line(state, state.line, 1, #state.line)
        state.line = ""
    end
end

return _M
