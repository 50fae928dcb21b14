"""The chat page as a person sees it, and what the page itself can tell of times."""

import json
from typing import Any

from tests.harness.node import Node

# What the simulator is to do goes along with each question; the page knows nothing of it.
# Beside that only looking: every text that was ever shown, every piece that came, every click.
WATCH = """
(() => {
  const sim = %s;
  const plain = window.fetch;
  window.asked = [];
  window.fetch = (url, options) => {
    const body = {...JSON.parse(options.body), sim};
    window.asked.push({at: Date.now(), headers: options.headers, body});
    return plain(url, {...options, body: JSON.stringify(body)});
  };
  window.states = [];
  window.shown = [];
  window.came = [];
  const decode = TextDecoder.prototype.decode;
  TextDecoder.prototype.decode = function (...args) {
    const text = decode.apply(this, args);
    window.came.push({at: performance.now(), text});
    return text;
  };
  const look = () => {
    const answer = [...document.querySelectorAll(".answer")].at(-1);
    const state = `${answer?.dataset.state} ${answer?.querySelector(".label")?.textContent}`;
    if (window.states.at(-1) !== state) window.states.push(state);
    const body = [...document.querySelectorAll(".answer .body")].at(-1);
    const text = body?.firstChild?.data ?? "";
    if (window.shown.at(-1)?.text !== text) window.shown.push({at: performance.now(), text});
  };
  new MutationObserver(look).observe(document, {
    subtree: true, childList: true, characterData: true,
    attributes: true, attributeFilter: ["data-state"],
  });
  window.clicked = {};
  document.addEventListener("click", (event) => {
    window.clicked[event.target.id] = Date.now() - (performance.now() - event.timeStamp);
  }, true);
})();
"""


class ChatPage:
    """The newest answer is what is meant where nothing else is said."""

    def __init__(self, page: Any, node: Node, sim: dict[str, Any]) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._console)
        page.set_default_timeout(10_000)
        page.add_init_script(WATCH % json.dumps(sim))
        page.goto(node.url + "/")
        self.answer = page.locator(".answer").last

    def _console(self, message: Any) -> None:
        # The browser itself notes each answer that is no success, and each connection that breaks.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def ask(self, text: str = "发热三天", scene: str = "问答") -> "ChatPage":
        self.page.get_by_role("radio", name=scene).check()
        self.page.get_by_label("输入内容").fill(text)
        self.page.get_by_role("button", name="发送").click()
        return self

    def wait_for(self, state: str, timeout_s: float = 15) -> "ChatPage":
        self.page.locator(f".answer[data-state={state}]").last.wait_for(timeout=timeout_s * 1000)
        return self

    @property
    def state(self) -> str:
        return str(self.answer.get_attribute("data-state"))

    @property
    def text(self) -> str:
        """What has been typed."""
        return str(self.answer.locator(".body").evaluate("body => body.firstChild.data"))

    @property
    def status(self) -> str:
        return str(self.answer.locator(".label").inner_text())

    def states(self) -> list[str]:
        """Every state and label that was ever shown: ``thinking 引擎仍在工作``."""
        return list(self.page.evaluate("window.states"))

    def shown(self) -> list[dict[str, Any]]:
        """Every text that was ever shown, with its time in ms."""
        return list(self.page.evaluate("window.shown"))

    def came(self) -> list[tuple[float, str]]:
        """The answer's text as it came, with its times in ms."""
        pieces, rest = [], ""
        for chunk in self.page.evaluate("window.came"):
            *lines, rest = (rest + chunk["text"]).split("\n")
            text = "".join(_content(line) for line in lines)
            if text:
                pieces.append((chunk["at"], text))
        return pieces

    def announced(self) -> list[str]:
        return list(self.page.locator("#announced p").all_text_contents())


def _content(line: str) -> str:
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def greatest_lag_ms(chat: ChatPage) -> float:
    """By how much what was shown was ever behind what had come."""
    shown = chat.shown()
    greatest, total, at = 0.0, 0, 0
    for came_at, text in chat.came():
        total += len(text)
        while len(shown[at]["text"]) < total:
            at += 1
        greatest = max(greatest, shown[at]["at"] - came_at)
    return greatest
