-- Where in an answer something may be put in: between two events, and between two HTTP chunks.
--
-- Follows the bytes of an event stream's body without changing or keeping them.

local byte = string.byte
local find = string.find
local format = string.format
local match = string.match
local sub = string.sub
local tonumber = tonumber

local LONGEST_SIZE_LINE = 256 -- a chunk's size with its extensions, or a trailer
local TAIL = 64 -- bytes by which an event's end, and the terminator, are known
local CR, LF = 13, 10

local _M = {}

-- A body that begins: in HTTP/1.1's chunks, or of `size` bytes, or up to the connection's end.
-- { between, ended, broken }
function _M.new(chunked, size)
    return {
        chunked = chunked,
        size = not chunked and size or nil, -- bytes that are still to come
        between = true, -- whether the next byte begins an event (and, if so framed, a chunk)
        ended = not chunked and size == 0, -- all of it has passed
        trailing = false, -- the last chunk has passed, and its trailers have not
        broken = false, -- this is not HTTP: nothing is put in any more
        left = 0, -- bytes of the present chunk that are still to come
        skip = 0, -- of the line break after it
        line = "", -- of a size line that is cut in two
        tail = "", -- the last bytes of the body
        payload = nil, -- set to a table, it is given the body without its framing
    }
end

-- Whether a body that ends with `tail` ends with a blank line: LF LF, CR CR, or CRLF CRLF.
local function is_border(tail)
    local a, b, c = byte(tail, -1), byte(tail, -2), byte(tail, -3)
    if a == LF then
        return b == LF or (b == CR and (c == LF or c == CR))
    end
    return a == CR and b == CR
end

-- Notes the end of a piece of the body, data[first..last].
local function note(state, data, first, last)
    if state.payload then
        state.payload[#state.payload + 1] = sub(data, first, last)
    end
    if last - first >= TAIL - 1 then
        state.tail = sub(data, last - TAIL + 1, last)
    else
        state.tail = sub(state.tail .. sub(data, first, last), -TAIL)
    end
end

-- The size line at `at`, or a trailer: the position after it, or nil where its end has not come.
local function size_line(state, data, at)
    local stop = find(data, "\n", at, true)
    local line = state.line .. sub(data, at, stop or #data)
    if #line > LONGEST_SIZE_LINE then
        state.broken = true
        return nil
    end
    if not stop then
        state.line = line
        return nil
    end
    state.line = ""
    if state.trailing then
        state.ended = line == "\r\n" or line == "\n"
        return stop + 1
    end
    local size = tonumber(match(line, "^%x+") or "", 16)
    if not size then
        state.broken = true
        return nil
    end
    state.left = size
    state.trailing = size == 0
    return stop + 1
end

local function chunks(state, data)
    local at, total = 1, #data
    while at and at <= total and not state.ended and not state.broken do
        if state.left > 0 then
            local last = at + state.left - 1
            if last > total then
                last = total
            end
            note(state, data, at, last)
            state.left = state.left - (last - at + 1)
            at = last + 1
            if state.left == 0 then
                state.skip = 2
            end
        elseif state.skip > 0 then
            state.skip = state.skip - 1
            at = at + 1
        else
            at = size_line(state, data, at)
        end
    end
    return state.left == 0 and state.skip == 0 and state.line == "" and not state.trailing
end

-- Looks at the next bytes.
function _M.feed(state, data)
    local whole = true
    if state.chunked then
        whole = chunks(state, data)
    elseif data ~= "" then
        note(state, data, 1, #data)
        if state.size then
            state.size = state.size - #data
            state.ended = state.size <= 0
        end
    end
    state.between = whole and not state.ended and not state.broken
        and (state.tail == "" or is_border(state.tail))
end

-- Whether the last event that has passed, to its end, was the terminator.
function _M.is_over(state)
    if not state.between then
        return false
    end
    local tail = #state.tail < TAIL and "\n" .. state.tail or state.tail
    return find(tail, "[\r\n]data:[ \t]*%[DONE%][ \t]*[\r\n]+$") ~= nil
        or find(tail, "[\r\n]event:[ \t]*message_stop[\r\n]+data:[^\r\n]*[\r\n]+$") ~= nil
end

-- `text` as a chunk.
function _M.chunk(text)
    return format("%x\r\n%s\r\n", #text, text)
end

-- `text` as it stands in this body.
function _M.framed(state, text)
    return state.chunked and _M.chunk(text) or text
end

return _M
