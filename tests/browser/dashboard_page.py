"""The dashboard as somebody on call sees it."""

from typing import Any

from tests.harness.node import Node, wait_for

LIVE = "html[data-link=live]"


class Dashboard:
    """One browser profile with ``/ui/`` open; ``complaints`` is what the page itself said was
    wrong."""

    def __init__(self, page: Any, node: Node, token: str | None = None) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._console)
        page.set_default_timeout(10_000)
        page.goto(node.admin + "/ui/")
        if token is not None:
            self.give(token)

    def _console(self, message: Any) -> None:
        # The browser itself notes each answer that is no success, and each connection that breaks.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def give(self, token: str) -> "Dashboard":
        """Type a token and send it."""
        self.page.locator("#token").fill(token)
        self.page.keyboard.press("Enter")
        return self

    def live(self) -> "Dashboard":
        self.page.locator(LIVE).wait_for(state="attached")
        return self

    # -- streams -----------------------------------------------------------------------------

    def rows(self) -> list[list[str]]:
        """The rows that are there, from top to bottom: id, place, scene, tokens, age …"""
        return list(
            self.page.evaluate(
                """() => [...document.querySelectorAll(".space > .row:not([hidden])")]
                     .sort((a, b) => a.ariaRowIndex - b.ariaRowIndex)
                     .map(row => [...row.children].map(cell => cell.innerText))"""
            )
        )

    def row(self, lease_id: str) -> Any:
        return self.page.locator(".space > .row", has_text=lease_id[:8])

    def count(self) -> str:
        return str(self.page.locator("#count").inner_text())

    def filter(self, words: str) -> "Dashboard":
        self.page.locator("#words").fill(words)
        return self

    # -- pools -------------------------------------------------------------------------------

    def backend(self, name: str) -> Any:
        return self.page.locator(
            ".backend", has=self.page.get_by_role("button", name=name, exact=False)
        ).filter(has_text=name)

    def meter(self, backend: str, unit: str) -> tuple[int, str]:
        """What a bar says is in use, and in words."""
        bar = self.backend(backend).get_by_role("meter").nth(0 if unit == "streams" else 1)
        return int(bar.get_attribute("aria-valuenow")), str(bar.get_attribute("aria-valuetext"))

    def press(self, backend: str, button: str) -> "Dashboard":
        self.backend(backend).locator(".actions").get_by_text(button, exact=True).click()
        return self

    # -- dialogs and notices -----------------------------------------------------------------

    @property
    def dialog(self) -> Any:
        return self.page.locator("dialog[open]")

    def told(self) -> list[str]:
        """What the open dialog says will happen."""
        return list(self.dialog.locator(".told li").all_inner_texts())

    def confirm(self) -> "Dashboard":
        self.dialog.locator("button[type=submit], button:not([type])").click()
        return self

    def wait_for_notice(self, words: str) -> None:
        self.page.locator("#notices").get_by_text(words).last.wait_for()

    def attention(self) -> list[str]:
        return list(self.page.locator("#attention-list .words").all_inner_texts())

    def wait_for_attention(self, words: str) -> None:
        wait_for(lambda: any(words in line for line in self.attention()), timeout_s=10)

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))
