"""The data plane's JSON: what is read, what is refused, and that nothing else happens."""

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from control.admission import Ask, UnknownRoute
from control.api import wire
from control.api.wire import AcquireOp, Op, OpError, ReleaseOp, SyncOp, WireError
from control.core.decision import AlreadyEnded, Granted, Reason, Refused, ReleaseOutcome
from control.core.lease import Lease
from control.core.ledger import Held
from control.core.operation import Release, Reroute, Sync, Synced
from control.core.verdict import Verdict, Witness

CASEBOOK_32 = {
    "-5": None,
    "0": 0,
    "2147483647": 2147483647,
    "9223372036854775808": None,
    "1" * 5000: None,
    "-" + "1" * 5000: None,
    "1e18": None,
    "1e400": None,
    "-1e400": None,
    "NaN": None,
    "Infinity": None,
    "-Infinity": None,
    "true": None,
    "false": None,
    '"100"': None,
    "null": None,
    "[]": None,
    "{}": None,
    "100.5": None,
    "1e-400": None,
    "0x10": None,
    "": None,
}
"""A number's text, and what it is as a size or None where it must be refused."""
NUMBERS = [
    pytest.param(text, value, id=text if 0 < len(text) < 25 else f"{len(text)}-characters")
    for text, value in CASEBOOK_32.items()
]


def batch(*ops: str, session: str = "node/1/2") -> bytes:
    return f'{{"session":"{session}","ops":[{",".join(ops)}]}}'.encode()


def acquire(lease_id: str = "a", **fields: str) -> str:
    inside = "".join(f',"{name}":{value}' for name, value in fields.items())
    return f'{{"op":"acquire","id":"{lease_id}","route":"/v1/x"{inside}}}'


def read(body: bytes) -> Sequence[Op | OpError] | None:
    """The operations, or None where the body was refused as a whole."""
    try:
        return wire.read_batch(body)[1]
    except WireError as exc:
        assert str(exc)
        return None


# -- batches -----------------------------------------------------------------------------------


def test_a_sound_batch_is_read_in_order() -> None:
    session, ops, _, _ = wire.read_batch(
        batch(
            acquire("a", bytes="120", scene='"QA"'),
            acquire("b", tokens="7"),
            '{"op":"release","id":"a","verdict":"client_abort","grant":3,"delay_ms":2}',
            '{"op":"reroute","id":"b"}',
            '{"op":"sync","ids":["b",{"id":"c","pool":"p","backend":"g","tokens":5}]}',
        )
    )
    assert session == "node/1/2"
    assert [wire.to_request(session, op) for op in ops if not isinstance(op, OpError)] == [
        Ask("a", "/v1/x", "QA", 120, None),
        Ask("b", "/v1/x", "", 0, 7),
        Release("a", Verdict.CLIENT_ABORT, Witness.LUA, 3),
        Reroute("b"),
        Sync("node/1/2", ["b"], [Held("c", "p", "g", "", 5, None)], None),
    ]


def test_a_batch_without_operations_is_sound() -> None:
    assert wire.read_batch(batch()) == ("node/1/2", [], 0, [])


@pytest.mark.parametrize(
    "nonsense",
    [
        "1", "null", '"acquire"', "[]", "{}", '{"op":"acquire"}', '{"op":"nonsense","id":"a"}',
        '{"op":1,"id":"a"}', '{"op":"acquire","id":"a"}', acquire(""), acquire("a" * 129),
        acquire("a b"), acquire("../a"), acquire("a/b"), acquire("é"), acquire("a\\n"),
        acquire(scene="7"), acquire(scene=f'"{"x" * 257}"'),
        '{"op":"release","id":"a"}', '{"op":"release","id":"a","verdict":"done"}',
        '{"op":"release","id":"a","verdict":"killed","witness":"me"}',
        '{"op":"release","id":"a","verdict":"killed","grant":0}',
        '{"op":"release","id":"a","verdict":"killed","grant":1.5}',
        '{"op":"release","id":"a","verdict":"killed","delay_ms":-1}',
        '{"op":"release","id":"a","verdict":"killed","delay_ms":1e400}',
        '{"op":"sync"}', '{"op":"sync","ids":"a"}', '{"op":"sync","ids":[1]}',
        '{"op":"sync","ids":[{"id":"a"}]}', '{"op":"reroute"}',
        '{"op":"sync","ids":[{"id":"a","pool":"p","backend":"g","tokens":-1}]}',
    ],
    ids=lambda op: op[:60],
)  # fmt: skip
def test_one_operation_that_is_nonsense_spoils_no_other(nonsense: str) -> None:
    session, ops, _, _ = wire.read_batch(batch(acquire("before"), nonsense, acquire("after")))
    assert session == "node/1/2"
    before, wrong, after = ops
    assert isinstance(before, AcquireOp) and before.id == "before"
    assert isinstance(wrong, OpError) and wrong.message
    assert isinstance(after, AcquireOp) and after.id == "after"


@pytest.mark.parametrize("junk", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80"])
def test_bytes_that_are_not_utf_8_spoil_their_own_operation_only(junk: bytes) -> None:
    body = batch(acquire("before"), acquire("@@"), acquire("after")).replace(b"@@", junk)
    _, [before, wrong, after], _, _ = wire.read_batch(body)
    assert isinstance(before, AcquireOp) and isinstance(after, AcquireOp)
    assert isinstance(wrong, OpError)


def test_bytes_that_are_not_utf_8_never_name_a_route_or_scene_that_is_configured() -> None:
    [op] = read(batch(acquire(scene='"@@"')).replace(b"@@", b"Q\xffA")) or []
    assert isinstance(op, OpError) or (isinstance(op, AcquireOp) and op.scene not in ("Q", "QA"))


@pytest.mark.parametrize(
    "body",
    [
        b"", b" ", b"nonsense", b"{", b"null", b"1", b"[]", b'"session"', b"{}", b"\xff\xfe{",
        b'{"session":"s"}', b'{"ops":[]}', b'{"session":1,"ops":[]}', b'{"session":null,"ops":[]}',
        b'{"session":"","ops":[]}', b'{"session":"a b","ops":[]}', b'{"session":"s\\n","ops":[]}',
        b'{"session":"s","ops":{}}', b'{"session":"s","ops":null}', b'{"session":"s","ops":[1',
        b'{"session":"s","ops":[]}x', b'{"session":"s","ops":[NaN]}',
        b'{"session":"\xff","ops":[]}', b'{"session":"' + b"s" * 201 + b'","ops":[]}',
        b"[" * 100_000, b'{"session":"s","ops":[' + b"[" * 3_000 + b"]" * 3_000 + b"]}",
        b'{"session":"s","ops":[],"x":' + b"[" * 3_000 + b"]" * 3_000 + b"}",
    ],
    ids=lambda body: body[:40],
)  # fmt: skip
def test_a_body_that_names_no_session_or_operations_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(WireError) as caught:
        wire.read_batch(body)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


# -- numbers: casebook 32 ----------------------------------------------------------------------


@pytest.mark.parametrize("field", ["bytes", "tokens"])
@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_a_size_is_a_whole_number_and_not_negative(
    text: str, value: int | None, field: str
) -> None:
    ops = read(batch(acquire("before"), acquire(**{field: text}), acquire("after")))
    if ops is None:
        return  # not even JSON
    assert isinstance(ops[0], AcquireOp) and isinstance(ops[2], AcquireOp)
    _is_refused_or(ops[1], field, text, value)


@pytest.mark.parametrize("field", ["bytes", "tokens"])
@pytest.mark.parametrize(("text", "value"), NUMBERS)
def test_a_single_leases_size_is_a_whole_number_and_not_negative(
    text: str, value: int | None, field: str
) -> None:
    body = f'{{"session":"s","id":"a","route":"/v1/x","{field}":{text}}}'.encode()
    try:
        asked = wire.read_lease_request(body)
    except WireError:
        asked = OpError("refused")
    _is_refused_or(asked, field, text, value)


def _is_refused_or(asked: object, field: str, text: str, value: int | None) -> None:
    """Refused, or read as ``value``; a context of 2^31 tokens may be refused as well."""
    if isinstance(asked, OpError):
        assert value is None or (field == "tokens" and value > wire.MAX_TOKENS)
    elif field == "tokens" and text == "null":
        assert getattr(asked, field) is None, "null stands for: estimate it"
    else:
        read_as = getattr(asked, field)
        assert type(read_as) is int and read_as == value


def test_an_absent_size_is_left_to_the_estimate() -> None:
    [op] = read(batch(acquire())) or []
    assert isinstance(op, AcquireOp)
    assert (op.bytes, op.tokens) == (0, None)


@given(st.text("0123456789+-.eE", max_size=30))
@example("1" * 5_000)
@example("-0")
@example("1e5")
def test_whatever_looks_like_a_number_is_a_size_or_refused(text: str) -> None:
    for field in ("bytes", "tokens"):
        for op in read(batch(acquire(**{field: text}))) or []:
            if isinstance(op, AcquireOp):
                value = getattr(op, field)
                assert type(value) is int
                assert 0 <= value <= max(wire.MAX_BYTES, wire.MAX_TOKENS)
                assert value == int(text)


# -- anything ----------------------------------------------------------------------------------

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**25), 10**25)
    | st.floats()
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=12,
)
field_names = st.sampled_from(
    ["op", "id", "route", "bytes", "scene", "tokens", "verdict", "witness", "grant", "delay_ms",
     "ids", "pool", "backend"]
)  # fmt: skip
likely_values = json_values | st.sampled_from(
    ["acquire", "release", "reroute", "sync", "a", "/v1/x", "completed", "lua", "killed"]
)
odd_ops = json_values | st.dictionaries(field_names, likely_values, max_size=9)


@given(json_values)
def test_no_json_at_all_raises_anything_but_a_wire_error(value: object) -> None:
    read(json.dumps(value).encode())
    read(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@given(st.lists(odd_ops, max_size=6))
def test_each_operation_is_answered_in_its_place_whatever_it_is(odd: list[object]) -> None:
    ops = read(json.dumps({"session": "s", "ops": odd}).encode())
    if ops is not None:
        assert len(ops) == len(odd)
        for op in ops:
            if not isinstance(op, OpError):
                wire.to_request("s", op)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_raise_anything_but_a_wire_error(body: bytes) -> None:
    read(body)


@given(st.data())
def test_no_broken_batch_raises_anything_but_a_wire_error(data: st.DataObject) -> None:
    sound = batch(acquire("a", bytes="12"), '{"op":"release","id":"a","verdict":"killed"}')
    at = data.draw(st.integers(0, len(sound)))
    length = data.draw(st.integers(0, 5))
    read(sound[:at] + data.draw(st.binary(max_size=5)) + sound[at + length :])


@given(st.binary(max_size=100) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_lease_request_raises_anything_but_a_wire_error(body: bytes) -> None:
    try:
        wire.read_lease_request(body)
    except WireError as exc:
        assert str(exc)


def test_a_lease_request_nested_too_deep_is_refused() -> None:
    deep = b"[" * 3_000 + b"]" * 3_000
    with pytest.raises(WireError):
        wire.read_lease_request(b'{"session":"s","id":"a","route":"/v1/x","x":' + deep + b"}")


# -- answers -----------------------------------------------------------------------------------


def test_answers_say_what_was_decided() -> None:
    lease = Lease("a", 4, "p", "g", "", "QA", 99, "s", 0.0)
    urls = {("p", "g"): "http://e:1"}
    refused = Refused(Reason.TOKENS_EXHAUSTED, "p", 80_000, 79_000, 7_000, 3.4)
    results = [
        Granted(lease, repeated=False, tight=True), refused, AlreadyEnded("b"),
        ReleaseOutcome.ALREADY, Synced([lease], [], {}), UnknownRoute("/v1/y"),
    ]  # fmt: skip
    answers = wire.BatchResult([wire.to_answer(result, urls) for result in results])
    told = json.loads(wire.encode(answers))["results"]
    assert told[:5] == [
        {
            "decision": "granted", "id": "a", "pool": "p", "backend": "g", "url": "http://e:1",
            "scene": "QA", "tokens": 99, "grant": 4, "tight": True,
        },
        {
            "decision": "refused", "reason": "tokens_exhausted", "status": 429, "pool": "p",
            "limit": 80_000, "in_use": 79_000, "requested": 7_000, "retry_after_ms": 3_400,
            "retryable": True,
        },
        {"decision": "ended", "id": "b"},
        {"outcome": "already_released"},
        {"ended": ["a"], "adopted": []},
    ]  # fmt: skip
    assert told[5]["decision"] == "invalid" and "routes" in told[5]["message"]


@pytest.mark.parametrize(
    ("wait_s", "told_ms"),
    [(0.0, 1_000), (0.2, 1_000), (7.0, 7_000), (121.0, 60_000), (1e9, 60_000)],
)
def test_a_wait_is_told_between_one_and_sixty_seconds(wait_s: float, told_ms: int) -> None:
    refused = Refused(Reason.STREAMS_EXHAUSTED, "p", retry_after_s=wait_s)
    assert wire.retry_after_ms(refused) == told_ms


def test_no_wait_is_told_where_coming_back_is_of_no_use() -> None:
    assert wire.retry_after_ms(Refused(Reason.REQUEST_TOO_LARGE, "p", retry_after_s=9)) == 0


def test_every_reason_has_a_status_that_a_client_understands() -> None:
    for reason in Reason:
        told = wire.to_refusal(Refused(reason, "p"))
        assert told.status in (413, 429, 503)
        assert (told.status == 413) is not told.retryable


def test_what_is_read_can_be_written_again() -> None:
    sound = batch(acquire("a", bytes="12"), '{"op":"sync","ids":["a"]}')
    _, ops, _, _ = wire.read_batch(sound)
    assert [type(op) for op in ops] == [AcquireOp, SyncOp]
    again = msgspec.json.encode({"session": "s", "ops": list(ops)})
    assert wire.read_batch(again)[1] == ops


def test_a_release_without_its_grant_or_delay_is_sound() -> None:
    [op] = read(batch('{"op":"release","id":"a","verdict":"completed"}')) or []
    assert op == ReleaseOp("a", Verdict.COMPLETED, Witness.LUA, None, 0.0)


def test_a_report_of_a_log_with_an_inode_of_64_bits_is_read_and_shown() -> None:
    inode = (1 << 64) - 1
    told = f'"file":"f","inode":{inode},"offset":1,"lag_bytes":0,"lag_seconds":0'
    body = f'{{"agent":{{"pid":1,"started":1}},"tailer":{{{told}}}}}'
    shown = wire.from_plain(wire.plain(wire.read_report("node", body.encode())))
    assert json.loads(wire.encode(shown))["tailer"]["inode"] == inode
