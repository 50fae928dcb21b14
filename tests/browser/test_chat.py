"""The chat page in a real browser, through a real node, before simulated engines.

Mission 000, section 6; missions 002 and 003 on leaving; casebook 37.
"""

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
import requests

from tests.browser.chat_page import ChatPage, greatest_lag_ms
from tests.harness.client import CHAT, Client, chat_body
from tests.harness.node import Engine, Node, wait_for
from tests.harness.scripted import DONE, HEAD, LAST, Scripted, chunk

DEMO = ["--demo"]
ROUTES = [{"path": CHAT, "pool": "default", "heartbeat": "300ms"}]
STREAMS = 2
SEEN_WITHIN_MS = 50
PROMISED_LAG_MS = 1000
BUSY_MS = 500
"""A browser that shares two cores with other tests may come so much later; without a bound a burst
of 5,000 characters would take a minute."""

OpenPage = Callable[..., ChatPage]


@pytest.fixture(scope="module")
def node(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    limits = {"max_streams": STREAMS}
    folder = tmp_path_factory.mktemp("node")
    node = Node(folder, [engine.url], DEMO, routes=ROUTES, limits=limits)
    yield node
    node.settled()
    node.stop()


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Scripted]]:
    """A node before an engine that plays what a test gives it as ``parts``."""
    engine = Scripted()
    node = Node(tmp_path_factory.mktemp("played"), [engine.url], DEMO, routes=ROUTES)
    yield node, engine
    node.settled()
    node.stop()
    engine.stop()


def delta(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    return chunk(f"data: {json.dumps({'choices': [choice]}, ensure_ascii=False)}\n\n".encode())


# -- what is served ------------------------------------------------------------------------------


def test_page_is_served_whole_and_may_load_nothing_from_elsewhere(node: Node) -> None:
    page = requests.get(node.url, timeout=5)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    assert page.headers["Cache-Control"] == "no-cache"
    assert "http:" not in page.text and "https:" not in page.text
    for name, kind in (("app.js", "text/javascript"), ("style.css", "text/css")):
        asset = requests.get(f"{node.url}/{name}", timeout=5)
        assert asset.headers["Content-Type"] == f"{kind}; charset=utf-8"
        again = {"If-None-Match": asset.headers["ETag"]}
        assert requests.get(f"{node.url}/{name}", headers=again, timeout=5).status_code == 304
    assert requests.get(f"{node.url}/nothing.js", timeout=5).status_code == 404


# -- a whole answer ------------------------------------------------------------------------------


def test_answer_is_typed_and_said_to_be_whole(node: Node, open_page: OpenPage) -> None:
    chat = open_page(node, sim={"frames": 100, "gap_ms": 20}).ask(scene="病历生成")
    chat.wait_for("whole")
    assert any(state.startswith("streaming") for state in chat.states())
    assert chat.status == "回答完整"
    assert chat.text == "".join(text for _, text in chat.came())
    shown = chat.shown()
    assert len(shown) > 30
    # A browser that gets no frame for a while shows more with the next few.
    quick = [(a, b) for a, b in pairwise(shown[:-1]) if b["at"] - a["at"] < 100]
    assert len(quick) > 10
    assert median(len(b["text"]) - len(a["text"]) for a, b in quick) <= 12
    [asked] = chat.page.evaluate("window.asked")
    assert asked["headers"]["X-Medical-Scene"] == "Record_Gen"
    # A screen reader is told sentences and the end, not characters.
    announced = chat.announced()
    assert announced[0] == "患者主诉发热三天，体温最高39.2℃，无咳嗽。"
    assert announced[-1] == "回答完整"


def test_second_question_carries_the_first_with_its_answer(node: Node, open_page: OpenPage) -> None:
    chat = open_page(node, sim={"frames": 3, "gap_ms": 0}).ask("一").wait_for("whole")
    chat.page.get_by_label("输入内容").fill("二")
    chat.page.get_by_label("输入内容").press("Enter")
    wait_for(lambda: chat.page.locator(".answer[data-state=whole]").count() == 2)
    sent = chat.page.evaluate("window.asked")[1]["body"]["messages"]
    assert [(m["role"], m["content"]) for m in sent] == [
        ("user", "一"),
        ("assistant", "患者主诉发热"),
        ("user", "二"),
    ]


def test_new_chat_leaves_nothing_of_the_old_one_to_be_said(
    played: tuple[Node, Scripted], open_page: OpenPage
) -> None:
    node, engine = played
    engine.parts = (HEAD, delta("前一位患者发热。他曾"), 60.0)
    chat = open_page(node).ask().wait_for("streaming")
    wait_for(lambda: chat.announced() == ["前一位患者发热。"])
    chat.page.get_by_role("button", name="新对话").click()
    assert chat.announced() == []
    engine.parts = (HEAD, delta("无不适。", "stop"), chunk(DONE), LAST)
    chat.ask().wait_for("whole")
    assert chat.announced() == ["无不适。", "回答完整"]


def test_enter_that_accepts_what_an_input_method_offers_sends_nothing(
    node: Node, open_page: OpenPage
) -> None:
    chat = open_page(node, sim={"frames": 3, "gap_ms": 0})
    chat.page.get_by_label("输入内容").fill("发热")
    # As in Safari, where the composition has ended by then.
    init = {"key": "Enter", "keyCode": 229, "bubbles": True, "cancelable": True}
    chat.page.get_by_label("输入内容").dispatch_event("keydown", init)
    assert chat.page.evaluate("window.asked") == []
    chat.page.get_by_label("输入内容").press("Enter")
    chat.wait_for("whole")
    assert len(chat.page.evaluate("window.asked")) == 1


def test_burst_of_5000_characters_lags_a_second_at_most(node: Node, open_page: OpenPage) -> None:
    sim = {"frames": 50, "gap_ms": 0, "payload": "患者主诉发热三天，" * 11 + "。"}
    chat = open_page(node, sim=sim).ask().wait_for("whole")
    assert len(chat.text) == 5000
    assert greatest_lag_ms(chat) <= PROMISED_LAG_MS + BUSY_MS


def test_burst_that_the_stream_outlives_is_typed_in_large_steps(
    played: tuple[Node, Scripted], open_page: OpenPage
) -> None:
    node, engine = played
    burst = "".join(f"第{n}项正常，" for n in range(900))[:5000]
    engine.parts = (HEAD, delta(burst), 1.2, delta("完", "stop"), chunk(DONE), LAST)
    chat = open_page(node).ask().wait_for("whole")
    assert chat.text == burst + "完"
    assert greatest_lag_ms(chat) <= PROMISED_LAG_MS + BUSY_MS
    steps = [len(step["text"]) for step in chat.shown()]
    # A browser that gets no more of the machine than a few frames a second takes fewer.
    assert len(steps) >= 5 and steps[-1] == len(chat.text)
    grown = [b - a for a, b in pairwise(steps[:-1])]
    third = max(1, len(grown) // 3)
    assert median(grown[:third]) > median(grown[-third:])


def test_what_reads_as_one_character_is_never_cut(
    played: tuple[Node, Scripted], open_page: OpenPage
) -> None:
    node, engine = played
    clusters = [
        "家",
        "👨‍👩‍👧‍👦",
        "🇨🇳",
        "🇫🇷",
        "👩🏽‍⚕️",
        "e\u0301",
        "℃",
        "1️⃣",
        "ă\u0323",
        "❤️‍🔥",
        "。",
    ] * 4
    text = "".join(clusters)
    # Each code point comes by itself, as tokens that are bytes make it.
    parts: list[bytes | float] = [HEAD]
    for point in text:
        parts += [delta(point), 0.008]
    engine.parts = (*parts, chunk(DONE), LAST)
    chat = open_page(node).ask().wait_for("whole")
    assert chat.text == text
    whole = {"".join(clusters[:n]) for n in range(len(clusters) + 1)}
    shown = [step["text"] for step in chat.shown()]
    assert len(shown) > 5
    assert not [text for text in shown if text not in whole]


def test_markdown_markers_are_never_cut(played: tuple[Node, Scripted], open_page: OpenPage) -> None:
    node, engine = played
    text = "## 诊断\n**肺炎**，见[指南](https://a.example/x)。\n```json\n{}\n```\n" * 3
    parts: list[bytes | float] = [HEAD]
    for sign in text:
        parts += [delta(sign), 0.004]
    engine.parts = (*parts, chunk(DONE), LAST)
    chat = open_page(node).ask().wait_for("whole")
    shown = [step["text"] for step in chat.shown()]
    for part in shown:
        assert not part.replace("**", "").endswith("*"), part
        assert part.count("[") == part.count(")"), part
        assert part.count("`") % 3 == 0, part
        assert not part.endswith(("```j", "```js", "```jso", "```json", "#")), part


# -- leaving -------------------------------------------------------------------------------------


def test_stop_reaches_the_engine_within_50_ms(
    node: Node, engine: Engine, open_page: OpenPage
) -> None:
    took = []
    for n in range(5):
        tag = f"stop-{n}"
        chat = open_page(node, sim={"frames": 2000, "gap_ms": 20, "tag": tag}).ask()
        chat.wait_for("streaming")
        wait_for(lambda chat=chat: len(chat.text) > 5)
        chat.page.get_by_role("button", name="停止").click()
        chat.wait_for("stopped")
        clicked_at = chat.page.evaluate("window.clicked.stop")
        [ended] = wait_for(lambda tag=tag: engine.ended(tag))
        assert ended["how"] == "aborted"
        took.append(ended["at"] * 1000 - clicked_at)
        assert chat.status == "已停止，内容不完整"
        assert "以下缺失" in chat.answer.locator(".body").inner_text()
        assert chat.text == "".join(text for _, text in chat.came())
    assert min(took) < SEEN_WITHIN_MS and median(took) < BUSY_MS, took


def test_escape_stops_before_the_first_word(
    node: Node, engine: Engine, open_page: OpenPage
) -> None:
    chat = open_page(node, sim={"frames": 5, "first_ms": 20_000, "tag": "escape"}).ask()
    chat.wait_for("thinking")
    chat.page.keyboard.press("Escape")
    chat.wait_for("stopped")
    assert wait_for(lambda: engine.ended("escape"))[0]["how"] == "aborted"


# -- refusals ------------------------------------------------------------------------------------


def test_refusal_counts_down_and_then_lets_a_person_try_again(
    node: Node, open_page: OpenPage
) -> None:
    chat = open_page(node, sim={"frames": 3, "gap_ms": 5})
    others = [Client(node.port).post(chat_body(frames=5000)) for _ in range(STREAMS)]
    assert [other.head().status for other in others] == [200] * STREAMS
    try:
        chat.ask().wait_for("refused")
        assert chat.status == "请求未被受理：当前并发已满"
        assert chat.text == ""
        retry = chat.answer.get_by_role("button", name="重试")
        assert retry.is_disabled()
        assert "秒后可重试" in retry.inner_text()
        chat.page.get_by_label("输入内容").fill("还在吗")
        assert chat.page.get_by_role("button", name="发送").is_disabled()
        before = int("".join(filter(str.isdigit, retry.inner_text())))
        assert 1 <= before <= 60
    finally:
        for other in others:
            other.fin()
    wait_for(retry.is_enabled, timeout_s=before + 10)
    assert len(chat.page.evaluate("window.asked")) == 1  # nobody came back by himself
    assert chat.announced()[-1] == "现在可以重试。"
    assert chat.page.get_by_role("button", name="发送").is_enabled()
    wait_for(lambda: node.in_use() == (0, 0))
    retry.click()
    chat.wait_for("whole")
    assert chat.text == "患者主诉发热"
    assert chat.page.locator(".answer").count() == 1


def test_server_that_is_away_is_said_so(node: Node, open_page: OpenPage) -> None:
    chat = open_page(node)
    chat.page.context.set_offline(True)
    chat.ask().wait_for("refused")
    assert chat.status == "请求未被受理：无法连接服务器"


# -- silence and failure -------------------------------------------------------------------------


def test_stall_is_shown_by_its_heartbeats_and_then_goes_on(node: Node, open_page: OpenPage) -> None:
    chat = open_page(node, sim={"frames": 3, "first_ms": 1000, "gap_ms": 700}).ask()
    chat.wait_for("whole")
    states = chat.states()
    assert "thinking 引擎仍在工作（心跳 2）" in states
    kinds = [state.split()[0] for state in states]
    assert "thinking" in kinds[kinds.index("streaming") :] and kinds[-1] == "whole"
    assert chat.text == "患者主诉发热"


def test_engine_that_dies_leaves_no_whole_answer(node: Node, open_page: OpenPage) -> None:
    chat = open_page(node, sim={"frames": 50, "gap_ms": 10, "fail_after": 13})
    chat.ask("<img src=x onerror=alert(1)>").wait_for("incomplete")
    assert chat.text == "患者主诉发热三天，体温最高39.2℃，无咳嗽。"
    assert "不完整" in chat.status
    assert "以下缺失" in chat.answer.locator(".body").inner_text()
    assert chat.page.locator(".question img").count() == 0
    chat.page.get_by_label("输入内容").fill("再问")
    chat.page.get_by_label("输入内容").press("Enter")
    wait_for(lambda: len(chat.page.evaluate("window.asked")) == 2)
    assert len(chat.page.evaluate("window.asked")[1]["body"]["messages"]) == 1


ERROR = b'{"error":{"message":"<b>CUDA out of memory</b>","code":"oom"}}'


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ((chunk(b"data: " + ERROR + b"\n\n"), chunk(DONE), LAST), "oom"),
        ((chunk(b"event: error\ndata: " + ERROR + b"\n\n"), LAST), "oom"),
        ((delta("", "stop"), LAST), "没有收到结束标记"),
        ((delta("", "length"), chunk(DONE), LAST), "达到长度上限"),
    ],
)
def test_stream_that_ends_badly_is_incomplete(
    ending: tuple[bytes, ...], why: str, played: tuple[Node, Scripted], open_page: OpenPage
) -> None:
    node, engine = played
    engine.parts = (HEAD, delta("体温 39.2"), *ending)
    chat = open_page(node).ask().wait_for("incomplete")
    assert chat.text == "体温 39.2"
    assert chat.status == f"回答中断，内容不完整：{why}"
    assert chat.answer.locator("b").count() == 0
    assert chat.answer.get_by_role("button", name="复制").count() == 0
    assert chat.answer.get_by_role("button", name="重试").is_enabled()


# -- who looks, and how --------------------------------------------------------------------------


def test_hidden_tab_has_its_text(node: Node, plain_tabs: Any) -> None:
    sim = {"frames": 100, "gap_ms": 60, "payload": "十个字一段的文字呢。"}
    chat = ChatPage(plain_tabs.new_page(), node, sim).ask().wait_for("streaming")
    plain_tabs.new_page().bring_to_front()
    wait_for(lambda: chat.page.evaluate("document.hidden"))
    hidden_at = chat.page.evaluate("performance.now()")
    wait_for(lambda: chat.state == "whole", 20)
    assert len(chat.text) == 1_000
    unseen = [piece for piece in chat.came() if piece[0] > hidden_at]
    assert len(unseen) > 5
    # Browsers let a hidden tab's timers run once a second; what comes is there without them.
    assert greatest_lag_ms(chat) <= PROMISED_LAG_MS + BUSY_MS
    assert not chat.complaints


def test_reduced_motion_is_kept_to(node: Node, open_page: OpenPage) -> None:
    sim = {"frames": 30, "gap_ms": 100, "payload": "十个字一段的文字呢。"}
    chat = open_page(node, sim=sim, reduced_motion="reduce").ask().wait_for("whole")
    shown, came = chat.shown(), chat.came()
    assert len(shown) <= len(came) + 3
    assert greatest_lag_ms(chat) < PROMISED_LAG_MS + BUSY_MS  # and not at the end, after 3 s
    mark = chat.answer.locator(".mark")
    assert mark.evaluate("m => getComputedStyle(m, '::before').animationName") == "none"


def test_page_is_used_by_keyboard_alone_and_speaks_english(node: Node, open_page: OpenPage) -> None:
    chat = open_page(node, sim={"frames": 3, "gap_ms": 5})
    page = chat.page
    page.get_by_role("button", name="English").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.lang") == "en"
    page.keyboard.press("Tab")  # the scenes
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.type("fever")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("three days")
    page.keyboard.press("Enter")
    chat.wait_for("whole")
    [asked] = page.evaluate("window.asked")
    assert asked["headers"]["X-Medical-Scene"] == "QA"
    assert asked["body"]["messages"][0]["content"] == "fever\nthree days"
    assert chat.status == "Complete"
    assert page.get_by_role("button", name="New chat").is_visible()


def test_nothing_is_wider_than_a_phone(node: Node, open_page: OpenPage) -> None:
    chat = open_page(
        node, sim={"frames": 30, "gap_ms": 0}, viewport={"width": 320, "height": 640}
    ).ask("长" * 400)
    chat.wait_for("whole")
    width = chat.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 320
    assert chat.page.locator("#log").evaluate("log => log.scrollWidth - log.clientWidth") <= 0
