-- How this node identifies itself to an admission service elsewhere: read once, in the master,
-- whose files and environment the workers need not see.

local ssl = require("ngx.ssl")

local _M = {}

local function content(path)
    local file = assert(io.open(path, "r"))
    local text = file:read("*a")
    file:close()
    return text
end

local function secret(token)
    local text, from
    if token.env then
        text, from = os.getenv(token.env), "the environment's " .. token.env
    else
        text, from = content(token.file), token.file
    end
    text = text and text:match("^%s*(%S+)%s*$")
    return assert(text, "admission.token: no token in " .. from)
end

-- Puts in the place of names what they name: `certificate` and `key` as OpenSSL's, and `token` as
-- the line of a request's head. Raises where it cannot.
function _M.read(admission)
    if admission.certificate then
        admission.certificate = assert(ssl.parse_pem_cert(content(admission.certificate)))
        admission.key = assert(ssl.parse_pem_priv_key(content(admission.key)))
    end
    if admission.token then
        admission.token = "Authorization: Bearer " .. secret(admission.token) .. "\r\n"
    end
end

return _M
