"""The engine's HTTP: OpenAI's streaming and plain answers, vLLM's metrics, ``/stats``."""

import asyncio
import heapq
import json
import math
import os
import time
from dataclasses import asdict
from itertools import count
from typing import Any, cast

import httptools
import uvloop

from control.config.units import Address
from control.simulator.engine import BadRequest, Engine, OutOfMemory, Script, Stream, read_script

OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions")
MAX_BODY = 64 << 20
DONE_EVENT = b"data: [DONE]\n\n"
ERROR_EVENT = (
    b'data: {"error":{"message":"EngineCore failed","type":"InternalServerError","code":503}}\n\n'
)
"""vLLM's, as it stands in a stream whose status is 200."""
WRITE_HIGH = 16 << 10
"""Bytes that may wait in this process before an engine that is not read from pauses."""
BURST = 16 << 10
"""Frames without a gap are written together up to so many bytes."""


class Simulator:
    """One engine behind one listener."""

    def __init__(self, engine: Engine, keepalive_s: float, restart_s: float) -> None:
        self.engine = engine
        self.keepalive_s = keepalive_s
        self.restart_s = restart_s
        self.dead_until = 0.0
        self.connections: set[Connection] = set()
        self._due: list[tuple[float, int, Answer]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._loop = asyncio.get_running_loop()

    # -- pace ----------------------------------------------------------------------------

    def schedule(self, answer: "Answer", at: float) -> None:
        """Let an answer go on at ``at``, in the loop's time; at once where that is no later."""
        if at <= self._loop.time():
            self._loop.call_soon(self._go_on, answer)
            return
        heapq.heappush(self._due, (at, next(self._order), answer))
        if at < self._armed_for:
            self._arm(at)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = at
        self._timer = self._loop.call_at(at, self._run)

    def _run(self) -> None:
        self._timer = None
        self._armed_for = math.inf
        now = self._loop.time()
        try:
            while self._due and self._due[0][0] <= now:
                _, _, answer = heapq.heappop(self._due)
                self._go_on(answer)
        finally:  # one answer that fails holds up no other
            if self._due and self._due[0][0] < self._armed_for:
                self._arm(self._due[0][0])

    def _go_on(self, answer: "Answer") -> None:
        try:
            answer.advance(self._loop.time())
        except OutOfMemory:
            self.crash()

    # -- the life of a stream ------------------------------------------------------------

    def begin(self, connection: "Connection", script: Script, request_id: str) -> None:
        now = self._loop.time()
        if now < self.dead_until:
            connection.reply(500, {"error": {"message": "CUDA out of memory", "code": 500}})
            return
        try:
            stream = self.engine.begin(script, request_id, now)
        except OutOfMemory:
            connection.abort()
            self.crash()
            return
        answer = Answer(self, connection, stream)
        connection.answer = answer
        answer.start(now)

    def cancel(self, stream: Stream) -> None:
        """The client has gone: noticed now, freed at the end of the step that runs."""
        engine = self.engine
        engine.aborted += 1
        engine.note(stream, "aborted", time.time())
        rest = engine.step - self._loop.time() % engine.step
        self._loop.call_later(rest, engine.free, stream)

    def crash(self) -> None:
        """Everything that runs is cut; for ``restart_s`` all requests fail."""
        self.engine.crash(time.time())
        self.dead_until = self._loop.time() + self.restart_s
        for connection in list(self.connections):
            if connection.answer is not None:
                connection.abort()

    def sweep(self) -> None:
        """Close connections that have been idle for ``keepalive_s``, as uvicorn does."""
        now = self._loop.time()
        for connection in list(self.connections):
            if connection.idle_since is not None and now - connection.idle_since > self.keepalive_s:
                connection.close()
        self._loop.call_later(0.25, self.sweep)


class Answer:
    """One stream's answer on one connection."""

    __slots__ = ("_connection", "_head", "_server", "_text", "paused", "stream")

    def __init__(self, server: Simulator, connection: "Connection", stream: Stream) -> None:
        self._server = server
        self._connection = connection
        self._head = _chunk_head(stream)
        self._text: list[str] = []
        self.stream = stream
        self.paused = False

    def start(self, now: float) -> None:
        script = self.stream.script
        if script.stream and not script.late:
            self._connection.start_stream()
        self._server.schedule(self, now + script.first_s)

    def advance(self, now: float) -> None:
        """Generate what is due, and plan what comes next."""
        if not self.stream.alive or self.paused:
            return
        if not self.stream.script.stream:
            self._advance_plain(now)
            return
        self._connection.start_stream()
        script, stream = self.stream.script, self.stream
        burst: list[bytes] = []
        size = 0
        while True:
            if script.fail_after is not None and stream.frames >= script.fail_after:
                self._connection.write(b"".join(burst))
                self._server.engine.finish(stream, "failed", time.time())
                self._connection.abort_softly()
                return
            if script.error_after is not None and stream.frames >= script.error_after:
                burst.append(_http_chunk(ERROR_EVENT + DONE_EVENT))
                self._server.engine.finish(stream, "failed", time.time())
                self._connection.finish_stream(b"".join(burst))
                return
            if stream.frames >= script.frames:
                burst.append(self._last_frames())
                self._server.engine.finish(stream, "completed", time.time())
                self._connection.finish_stream(b"".join(burst))
                return
            burst.append(_http_chunk(self._frame(self._server.engine.generate(stream))))
            size += len(burst[-1])
            if script.gap_s > 0 or size >= BURST:
                break
        self._connection.write(b"".join(burst))
        if not self.paused:
            self._server.schedule(self, now + script.gap_s)

    def resume(self) -> None:
        """The client reads again."""
        if self.paused:
            self.paused = False
            self._server.schedule(self, asyncio.get_running_loop().time())

    def _advance_plain(self, now: float) -> None:
        stream, script = self.stream, self.stream.script
        if stream.frames < script.frames:
            self._text.append(self._server.engine.generate(stream))
            self._server.schedule(self, now + script.gap_s)
            return
        self._server.engine.finish(stream, "completed", time.time())
        self._connection.answer = None
        self._connection.reply(200, _completion(stream, "".join(self._text)))

    def _frame(self, text: str) -> bytes:
        content = json.dumps(text, ensure_ascii=False)
        return (
            f'data: {{{self._head}"sent_at":{time.time():.6f},'
            f'"choices":[{{"index":0,"delta":{{"content":{content}}},"finish_reason":null}}]}}\n\n'
        ).encode()

    def _last_frames(self) -> bytes:
        stop = (
            f'data: {{{self._head}"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}'
            "\n\n"
        ).encode()
        return _http_chunk(stop + DONE_EVENT if self.stream.script.terminates else stop)


class Connection(asyncio.Protocol):
    """One client's connection, HTTP/1.1 with keep-alive."""

    def __init__(self, server: Simulator) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._loop = asyncio.get_running_loop()
        self.answer: Answer | None = None
        self.idle_since: float | None = self._loop.time()
        self._streaming = False

    # -- asyncio -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self.answer is not None and self.answer.stream.alive:
            self._server.cancel(self.answer.stream)
        self.answer = None

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError:
            self.abort()
            raise
        except httptools.HttpParserError:
            self.reply(400, {"error": {"message": "not HTTP", "code": 400}})
            self.close()

    def pause_writing(self) -> None:
        if self.answer is not None:
            self.answer.paused = True

    def resume_writing(self) -> None:
        if self.answer is not None:
            self.answer.resume()

    # -- httptools -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self.idle_since = None
        self._path = b""
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._request_id = ""

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._request_id = value.decode("latin-1")[:64]

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY:
            self.abort()
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._path.decode("latin-1").split("?", 1)[0]
        if self._parser.get_method() == b"POST":
            self._post(path)
        else:
            self._get(path)

    # -- answers -------------------------------------------------------------------------

    def _post(self, path: str) -> None:
        body = b"".join(self._body)
        try:
            script = read_script(body, stream_by_default=path not in OPENAI_PATHS)
        except BadRequest as exc:
            error = {"message": str(exc), "type": "invalid_request_error", "code": 400}
            self.reply(400, {"error": error})
            return
        self._server.begin(self, script, self._request_id)

    def _get(self, path: str) -> None:
        engine = self._server.engine
        match path:
            case "/stats":
                self.reply(200, engine.stats())
            case "/ended":
                self.reply(200, [asdict(ended) for ended in engine.ended])
            case "/metrics":
                self._send(200, "text/plain; version=0.0.4", _metrics(engine).encode())
            case "/health":
                self.reply(200, {})
            case "/v1/models":
                self.reply(200, {"object": "list", "data": [{"id": "sim", "object": "model"}]})
            case _:
                self.reply(404, {"error": {"message": f"no {path} here", "code": 404}})

    def reply(self, status: int, body: Any) -> None:
        self._send(status, "application/json", json.dumps(body, ensure_ascii=False).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}\r\n"
        head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.write(head.encode() + body)
        self._rest()

    def start_stream(self) -> None:
        """Send the headers of an event stream, once."""
        if not self._streaming:
            self._streaming = True
            self._transport.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                b"Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"
            )

    def write(self, data: bytes) -> None:
        if data and not self._transport.is_closing():
            self._server.engine.bytes_sent += len(data)
            self._transport.write(data)

    def finish_stream(self, data: bytes) -> None:
        self.answer = None
        self.write(data + b"0\r\n\r\n")
        self._rest()

    def close(self) -> None:
        self._transport.close()

    def abort_softly(self) -> None:
        """Die mid-stream: what was sent arrives, the last chunk never comes."""
        self.answer = None
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _rest(self) -> None:
        self._streaming = False
        self.idle_since = self._loop.time()
        if not self._parser.should_keep_alive():
            self._transport.close()


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _chunk_head(stream: Stream) -> str:
    completion = json.dumps(f"chatcmpl-{stream.request_id or id(stream)}")
    return (
        f'"id":{completion},"object":"chat.completion.chunk","created":{int(time.time())},'
        '"model":"sim",'
    )


def _completion(stream: Stream, text: str) -> dict[str, Any]:
    prompt = stream.script.prompt_tokens
    return {
        "id": f"chatcmpl-{stream.request_id or id(stream)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": "sim",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": stream.frames,
            "total_tokens": prompt + stream.frames,
        },
    }


def _metrics(engine: Engine) -> str:
    """vLLM's names for what an admission layer may want to know."""
    used = engine.stats()["kv_tokens_used"] / engine.kv_tokens
    values = {
        "vllm:num_requests_running": ("gauge", len(engine.streams)),
        "vllm:num_requests_waiting": ("gauge", 0),
        "vllm:kv_cache_usage_perc": ("gauge", used),
        "vllm:gpu_cache_usage_perc": ("gauge", used),
        "vllm:prompt_tokens_total": ("counter", engine.prompt_tokens),
        "vllm:generation_tokens_total": ("counter", engine.generated_tokens),
        "vllm:request_success_total": ("counter", engine.completed),
    }
    return "".join(
        f'# TYPE {name} {kind}\n{name}{{model_name="sim"}} {value}\n'
        for name, (kind, value) in values.items()
    )


async def _serve(
    listen: Address, kv_tokens: int, step_s: float, keepalive_s: float, restart_s: float
) -> None:
    loop = asyncio.get_running_loop()
    simulator = Simulator(Engine(kv_tokens, step_s), keepalive_s, restart_s)
    try:
        server = await loop.create_server(
            lambda: Connection(simulator), listen.host, listen.port, backlog=4096
        )
    except OSError as exc:
        # What a name lacks has a number below 0.
        why = os.strerror(exc.errno) if exc.errno and exc.errno > 0 else exc.strerror
        raise OSError(exc.errno, why, str(listen)) from exc
    simulator.sweep()
    port = server.sockets[0].getsockname()[1]
    print(f"weir simulate: ready http://{Address(listen.host, port)}", flush=True)
    await server.serve_forever()


def serve(
    listen: Address, kv_tokens: int, step_s: float, keepalive_s: float, restart_s: float
) -> None:
    """Serve until interrupted. Times in seconds."""
    uvloop.run(_serve(listen, kv_tokens, step_s, keepalive_s, restart_s))
