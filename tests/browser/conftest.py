"""One browser for all, and the chat page in it."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.browser.chat_page import ChatPage
from tests.harness.node import Node, wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="package")
def playwright() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  not needed for a skip

    with sync_playwright() as playwright:
        yield playwright


@pytest.fixture(scope="package")
def browser(playwright: Any) -> Iterator[Any]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield browser
    browser.close()


@pytest.fixture
def plain_tabs(playwright: Any, tmp_path: Path) -> Iterator[Any]:
    """A browser whose tabs hide each other: playwright's own has every tab think it is seen."""
    profile = tmp_path / "profile"
    process = subprocess.Popen(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--remote-debugging-port=0",
         f"--user-data-dir={profile}", "about:blank"],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        told = profile / "DevToolsActivePort"
        port, *_ = wait_for(lambda: told.exists() and told.read_text().split(), timeout_s=15)
        url = f"http://127.0.0.1:{port}"
        # One that is asked before its first tab is there does not answer.
        wait_for(lambda: requests.get(f"{url}/json/list", timeout=5).json(), timeout_s=15)
        browser = playwright.chromium.connect_over_cdp(url, no_defaults=True)
        yield browser.contexts[0]
        browser.close()
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., ChatPage]]:
    """Opens a node's page in a profile of its own; at the end it must have complained of
    nothing but refused requests."""
    opened: list[ChatPage] = []

    def start(node: Node, *, sim: dict[str, Any] | None = None, **context: Any) -> ChatPage:
        page = browser.new_context(locale="zh-CN", **context).new_page()
        opened.append(ChatPage(page, node, sim or {}))
        return opened[-1]

    yield start
    for chat in opened:
        chat.page.context.close()
    complaints = [text for chat in opened for text in chat.complaints]
    assert not complaints, complaints
