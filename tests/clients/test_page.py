"""The page at `/`, used as people use it, in Debian's Chromium."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Locator, Page, expect, sync_playwright
from serving import NAME, Server

# Where to leave pictures of the page for people to look at.
PICTURES = os.environ.get("OXIDE_INFER_PAGE_PICTURES")
CHARTS = ("speed", "prefill", "ttft", "running", "waiting", "kv", "prefix")
SCHEMES = ("light", "dark")
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
TIMEOUT = 30_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert found, "there is no Chromium: run `scripts/need.sh chromium`, which says how to install it"
    expect.set_options(timeout=TIMEOUT)
    with sync_playwright() as playwright:
        # Containers run as root, which Chromium's own sandbox refuses; the only page that it loads is ours.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A tab with the page, and all that went wrong in it."""

    def __init__(self, browser: Browser, url: str, **options: object) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT)
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self.note)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", self.dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.url = url

    def note(self, message: object) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def dismiss(self, dialog: Dialog) -> None:
        self.wrong.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def close(self) -> None:
        self.context.close()
        assert self.wrong == []
        assert all(request.startswith(self.url) for request in self.requests), self.requests

    @property
    def message(self) -> Locator:
        return self.page.get_by_label("Message")

    @property
    def answers(self) -> Locator:
        return self.page.locator(".message.assistant")

    def ask(self, text: str) -> None:
        self.message.fill(text)
        self.message.press("Enter")

    def set(self, label: str, value: str) -> None:
        self.page.get_by_label(label).fill(value)

    def conversation(self) -> list[dict]:
        """What the page keeps over a reload."""
        return json.loads(self.page.evaluate("sessionStorage.getItem('oxide-infer.conversation')"))


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Callable[..., Tab]]:
    """Opens tabs of the shared server, and checks that nothing went wrong in them."""
    tabs: list[Tab] = []

    def open_one(**options: object) -> Tab:
        options.setdefault("viewport", DESKTOP)
        tabs.append(Tab(browser, server.url, **options))
        return tabs[-1]

    yield open_one
    for one in tabs:
        one.close()


def test_an_answer_streams_and_stays_over_a_reload(tab: Callable[..., Tab], server: Server) -> None:
    one = tab()
    expect(one.page.get_by_role("heading", name=NAME)).to_be_visible()
    expect(one.message).to_be_focused()
    one.set("Most tokens", "40")
    one.set("Temperature", "0")
    one.set("System prompt", "You are a pirate.")
    # The lengths that the answer had on its way.
    one.page.evaluate("""() => {
        window.lengths = [];
        new MutationObserver(() => {
            const text = document.querySelector(".message.assistant .text")?.textContent ?? "";
            if (text.length !== window.lengths.at(-1)) window.lengths.push(text.length);
        }).observe(document.getElementById("log"), { childList: true, subtree: true, characterData: true });
    }""")
    with one.page.expect_request("**/v1/chat/completions") as sent:
        one.message.fill("Count from")
        one.message.press("Shift+Enter")
        one.message.press_sequentially("one to ten.")
        one.message.press("Enter")
    body = sent.value.post_data_json
    assert body["messages"] == [
        {"role": "system", "content": "You are a pirate."},
        {"role": "user", "content": "Count from\none to ten."},
    ]
    assert (body["temperature"], body["max_tokens"], "top_p" in body) == (0, 40, False)
    expect(one.answers.locator(".note")).to_contain_text(re.compile(r"\d+ tokens · first after \d+ ms · [\d.]+ tok/s"))
    expect(one.page.get_by_role("button", name="Send")).to_be_visible()
    expect(one.message).to_be_focused()
    assert len([length for length in one.page.evaluate("window.lengths") if length > 0]) > 3
    # The same as what another client is told.
    told = server.http.post("/v1/chat/completions", json={**body, "stream": False, "stream_options": None}).json()
    assert one.conversation()[1]["content"] == told["choices"][0]["message"]["content"]

    answer = one.answers.locator(".text").inner_text()
    one.page.reload()
    expect(one.page.locator(".message.user .text")).to_have_text("Count from\none to ten.")
    expect(one.answers.locator(".text")).to_have_text(answer, use_inner_text=True)
    expect(one.page.get_by_label("Most tokens")).to_have_value("40")
    expect(one.page.get_by_label("System prompt")).to_have_value("You are a pirate.")
    # The conversation goes on where it was.
    with one.page.expect_request("**/v1/chat/completions") as sent:
        one.ask("Go on.")
    roles = [message["role"] for message in sent.value.post_data_json["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    expect(one.answers).to_have_count(2)
    expect(one.page.get_by_role("button", name="Send")).to_be_visible()
    one.page.keyboard.press("Alt+n")
    expect(one.answers).to_have_count(0)
    expect(one.page.get_by_text("Ask something.")).to_be_visible()


@pytest.mark.parametrize("way", ["button", "key"])
def test_an_answer_can_be_stopped_and_its_request_ends(tab: Callable[..., Tab], server: Server, way: str) -> None:
    one = tab()
    one.page.route("**/v1/chat/completions", endlessly)
    one.ask("Tell me a very long story.")
    expect(one.answers.locator(".text")).to_have_text(re.compile(".{20}", re.DOTALL))
    assert server.metric("num_requests_running") == 1
    if way == "button":
        one.page.get_by_role("button", name="Stop").click()
    else:
        one.page.keyboard.press("Escape")
    expect(one.answers.locator(".note")).to_have_text("Stopped")
    expect(one.page.get_by_role("button", name="Send")).to_be_visible()
    server.wait_for_metric("num_requests_running", 0)
    assert len(one.answers.locator(".text").inner_text()) >= 20


def test_a_reload_in_the_middle_of_an_answer_keeps_what_had_arrived(tab: Callable[..., Tab], server: Server) -> None:
    one = tab()
    one.page.route("**/v1/chat/completions", endlessly)
    one.ask("Tell me a very long story.")
    expect(one.answers.locator(".text")).to_have_text(re.compile(".{20}", re.DOTALL))
    arrived = one.answers.locator(".text").inner_text()
    one.page.reload()
    server.wait_for_metric("num_requests_running", 0)
    expect(one.page.locator(".message.user .text")).to_have_text("Tell me a very long story.")
    assert one.answers.locator(".text").inner_text().startswith(arrived[:20])
    expect(one.page.get_by_role("button", name="Send")).to_be_visible()


def test_an_answer_that_breaks_off_stays_as_far_as_it_came(tab: Callable[..., Tab]) -> None:
    one = tab()
    error = {"error": {"message": "the engine has failed: no power", "type": "server_error"}}
    for last, why in ((error, "the engine has failed: no power"), (None, "the connection ended before the answer did")):
        stream = events(delta("Half an"), *([last] if last else []))
        one.page.route("**/v1/chat/completions", answering(stream))
        one.ask("Hello?")
        expect(one.page.get_by_role("alert")).to_have_text(f"Broken off: {why}.")
        expect(one.answers.last.locator(".text")).to_have_text("Half an")
        expect(one.answers.last.locator(".note")).to_have_text(f"Broken off: {why}")
        expect(one.message).to_have_value("")


def delta(content: str) -> dict:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None}]}


def events(*chunks: dict) -> str:
    """Server-sent events with what proxies may make of them: comments, and lines that end with two characters."""
    return ": comment\r\n\r\n" + "".join(f"data: {json.dumps(chunk)}\r\n\r\n" for chunk in chunks)


def answering(stream: str) -> Callable:
    return lambda route: route.fulfill(content_type="text/event-stream", body=stream)


def endlessly(route: object) -> None:
    route.continue_(post_data={**route.request.post_data_json, "ignore_eos": True, "max_tokens": 1500})


def test_what_the_server_refuses_is_said_and_the_question_is_not_lost(tab: Callable[..., Tab]) -> None:
    one = tab()
    one.set("Top p", "0")
    one.ask("Hello?")
    alert = one.page.get_by_role("alert")
    expect(alert).to_have_text(re.compile(r"No answer: 'top_p' .*"))
    expect(one.message).to_have_value("Hello?")
    expect(one.answers).to_have_count(0)
    # The browser itself logs every response that is an error.
    assert len(one.wrong) == 1 and "400" in one.wrong.pop()
    one.set("Top p", "0.9")
    one.set("Most tokens", "2")
    one.message.press("Enter")
    expect(one.answers.locator(".note")).to_contain_text("2 tokens")
    expect(one.answers.locator(".note")).to_contain_text("cut at the limit")
    expect(alert).to_be_hidden()


def test_a_server_that_is_gone_is_said_and_one_that_is_back_is_used(tab: Callable[..., Tab]) -> None:
    one = tab()
    state = one.page.locator("#live-state")
    expect(state).to_have_text("Every second")
    one.context.set_offline(True)
    expect(state).to_have_text("No numbers: the server cannot be reached.")
    one.ask("Are you there?")
    expect(one.page.get_by_role("alert")).to_have_text("No answer: the server cannot be reached.")
    one.context.set_offline(False)
    expect(state).to_have_text("Every second")
    assert one.wrong and all("ERR_INTERNET_DISCONNECTED" in wrong for wrong in one.wrong)
    one.wrong.clear()


def test_the_live_panel_shows_what_the_metrics_say(tab: Callable[..., Tab], server: Server) -> None:
    one = tab()
    chart = {name: one.page.locator(f"#chart-{name}") for name in CHARTS}
    expect(chart["waiting"].locator("output")).to_have_text("0")
    one.page.route("**/v1/chat/completions", endlessly)
    one.ask("Tell me a very long story.")
    expect(chart["running"].locator("output")).to_have_text("1")
    expect(chart["speed"].locator("output")).to_have_text(re.compile(r"^[1-9][\d.]*k? tok/s$"))
    expect(chart["ttft"].locator("output")).to_have_text(re.compile(r"^[\d.]+ m?s$"))
    expect(chart["kv"].locator("output")).to_have_text(re.compile(r"^0?[\d.]+ %$"))
    expect(chart["prefix"].locator("output")).to_have_text(re.compile(r"^\d[\d.]* %$"))
    # A line of several points, of which one is above the ground.
    points = chart["speed"].locator("polyline").get_attribute("points").split()
    heights = [float(point.split(",")[1]) for point in points]
    assert len(points) > 1 and min(heights) < 30 and max(heights) <= 30
    one.page.keyboard.press("Escape")
    expect(chart["running"].locator("output")).to_have_text("0")
    facts = one.page.locator("#facts")
    expect(facts).to_contain_text("Kernel artifacts in the plan")
    device = server.http.get("/page/stats").json()["device"]
    expect(facts).to_contain_text(device)
    expect(one.page.locator("#device")).to_contain_text(device)


MARKDOWN = r"""# Title
A *few* **bold _nested_ words**, `code <b>`, snake_case_name and 2 * 3 * 4.

- one
- two
  1. deep
  2. deeper

3. third

```python
print("<script>alert(1)</script>")
# no heading
```
> quoted
---
[site](https://example.com/a?b=1&c) [bad](javascript:alert) [rel](/v1/models)
[ref](//a.example/) [odd](javascript://a.example/%0Aalert) [file](file://a/b)
<img src=x onerror=alert(2)>

<script>alert(3)</script> \*plain\*
~~~
open"""
HTML = (
    "<h3>Title</h3><p>A <em>few</em> <strong>bold <em>nested</em> words</strong>, <code>code &lt;b&gt;</code>, "
    "snake_case_name and 2 * 3 * 4.</p>"
    "<ul><li>one</li><li>two<ol><li>deep</li><li>deeper</li></ol></li></ul>"
    '<ol start="3"><li>third</li></ol>'
    '<pre><code>print("&lt;script&gt;alert(1)&lt;/script&gt;")\n# no heading</code></pre>'
    "<blockquote><p>quoted</p></blockquote><hr>"
    '<p><a href="https://example.com/a?b=1&amp;c" target="_blank" rel="noopener noreferrer">site</a> '
    "[bad](javascript:alert) [rel](/v1/models)\n"
    "[ref](//a.example/) [odd](javascript://a.example/%0Aalert) [file](file://a/b)\n"
    "&lt;img src=x onerror=alert(2)&gt;</p>"
    "<p>&lt;script&gt;alert(3)&lt;/script&gt; *plain*</p>"
    "<pre><code>open</code></pre>"
)
SHOW = """async (texts) => {
    const { show } = await import("./page/files/markdown.js");
    const place = document.createElement("div");
    const kept = [];
    for (const text of texts) {
        const first = place.firstElementChild;
        show(place, text);
        kept.push(first === place.firstElementChild);
    }
    return { html: place.innerHTML, kept };
}"""


def test_markdown_becomes_elements_and_html_stays_text(tab: Callable[..., Tab]) -> None:
    one = tab()
    assert one.page.evaluate(SHOW, [MARKDOWN])["html"] == HTML
    # Token by token it comes to the same, and blocks that are complete are left alone.
    grown = one.page.evaluate(SHOW, [MARKDOWN[:end] for end in range(1, len(MARKDOWN) + 1)])
    assert grown["html"] == HTML
    assert all(grown["kept"][MARKDOWN.index("\n") + 1 :])


def test_an_answer_that_is_html_does_nothing(tab: Callable[..., Tab]) -> None:
    one = tab()
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    one.page.route("**/v1/chat/completions", answering(events(delta(evil)) + "data: [DONE]\r\n\r\n"))
    one.ask(evil)
    expect(one.answers.locator(".text")).to_have_text(evil)
    expect(one.page.locator(".message.user .text")).to_have_text(evil)
    assert one.page.locator("#log img, #log script").count() == 0


def test_the_policy_stops_scripts_styles_and_other_hosts(tab: Callable[..., Tab]) -> None:
    one = tab()
    ran = one.page.evaluate("""async () => {
        const script = document.createElement("script");
        script.textContent = "window.injected = true";
        document.body.append(script);
        const left = await fetch("http://127.0.0.1:1/", { mode: "no-cors" }).then(() => "sent", () => "refused");
        return [window.injected === true, left];
    }""")
    assert ran == [False, "refused"]
    assert len(one.wrong) >= 2 and all("Content Security Policy" in wrong or "Refused" in wrong for wrong in one.wrong)
    one.wrong.clear()
    one.requests[:] = [request for request in one.requests if request.startswith(one.url)]


def test_a_key_is_asked_for_when_one_is_set(browser: Browser, start: Callable[..., Server]) -> None:
    server = start("--api-key", "sk-ö")
    one = Tab(browser, server.url)
    dialog = one.page.get_by_role("dialog")
    expect(dialog).to_contain_text("This server wants an API key")
    one.page.get_by_label("API key", exact=True).fill("wrong")
    one.page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    one.set("Most tokens", "3")
    one.ask("Hello?")
    expect(dialog).to_contain_text("The server refused: the API key is not valid.")
    assert len(one.wrong) == 1 and "401" in one.wrong.pop()
    one.page.get_by_label("API key", exact=True).fill("sk-ö")
    one.page.get_by_role("button", name="Use this key").click()
    expect(one.message).to_have_value("Hello?")
    one.message.press("Enter")
    expect(one.answers.locator(".note")).to_contain_text("tokens")
    # A reload asks for nothing.
    one.page.reload()
    expect(one.page.locator("#live-state")).to_have_text("Every second")
    expect(dialog).to_be_hidden()
    one.close()


def test_without_ui_there_is_no_page(start: Callable[..., Server]) -> None:
    server = start("--no-ui")
    for path in ("/", "/page/stats", "/page/files/main.js"):
        assert server.http.get(path).status_code == 404
    assert server.http.get("/v1/models").status_code == 200


@pytest.mark.parametrize("device", ["desktop", "phone"])
def test_it_is_readable_at_every_width_and_in_both_schemes(tab: Callable[..., Tab], device: str) -> None:
    options = {"has_touch": True, "device_scale_factor": 2} if device == "phone" else {}
    one = tab(viewport=PHONE if device == "phone" else DESKTOP, **options)
    size = one.page.viewport_size
    toggle = one.page.get_by_role("button", name="Settings", exact=True)
    side = one.page.get_by_role("complementary")
    if device == "phone":
        expect(side).to_be_hidden()
        toggle.click()
        expect(one.message).to_be_hidden()
    one.set("Most tokens", "40")
    one.set("Temperature", "0")
    if device == "phone":
        within(side, size)
        pictures(one.page, f"{device}-side")
        one.page.get_by_role("button", name="Conversation").click()
        expect(side).to_be_hidden()
    else:
        expect(toggle).to_be_hidden()
    one.ask("Write a Python function that adds two numbers, as a Markdown code block, and a list of three fruits.")
    expect(one.answers.locator(".note")).to_contain_text("tokens")
    pictures(one.page, device)

    assert one.page.evaluate("document.documentElement.scrollWidth") <= size["width"], "nothing scrolls sideways"
    composer, log = one.page.locator("#composer"), one.page.get_by_role("log")
    boxes = [within(part, size) for part in (one.page.locator("header"), log, composer)]
    for above, below in zip(boxes, boxes[1:], strict=False):
        assert above["y"] + above["height"] <= below["y"] + 1
    if device == "desktop":
        assert within(side, size)["x"] >= boxes[1]["x"] + boxes[1]["width"] - 1
    assert within(one.page.get_by_role("button", name="Send"), size)["height"] >= 32
    for scheme in SCHEMES:
        one.page.emulate_media(color_scheme=scheme)
        for text, ground in (("body", "body"), (".note", "body"), ("#send", "#send"), (".user .text", ".user .text")):
            assert contrast(one.page, text, ground) >= 4.5, f"{text} on {ground}, {scheme}"
        is_dark = luminance(color(one.page, "body", "background-color")) < 0.5
        assert is_dark == (scheme == "dark")


def within(part: Locator, size: dict) -> dict:
    """The place of a part, which is inside the window."""
    box = part.bounding_box()
    assert box and box["x"] >= 0 and box["y"] >= 0
    assert box["x"] + box["width"] <= size["width"] + 1 and box["y"] + box["height"] <= size["height"] + 1, box
    return box


def pictures(page: Page, name: str) -> None:
    for scheme in SCHEMES if PICTURES else ():
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=Path(PICTURES) / f"{name}-{scheme}.png")


def color(page: Page, selector: str, property: str) -> list[float]:
    style = page.locator(selector).first.evaluate("(node, name) => getComputedStyle(node)[name]", property)
    return [float(part) for part in re.findall(r"[\d.]+", style)[:3]]


def luminance(rgb: list[float]) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in rgb)]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(page: Page, text: str, ground: str) -> float:
    """The contrast ratio of a text's color to a ground's, as WCAG 2 defines it."""
    both = [luminance(color(page, text, "color")), luminance(color(page, ground, "background-color"))]
    return (max(both) + 0.05) / (min(both) + 0.05)


def test_keys_alone_reach_everything_in_the_order_of_the_page(tab: Callable[..., Tab]) -> None:
    one = tab()
    expect(one.page.locator("#live-state")).to_have_text("Every second")
    one.page.get_by_role("button", name="New chat").focus()
    reached = []
    for _ in range(13):
        reached.append(one.page.evaluate("document.activeElement.id || document.activeElement.name"))
        one.page.keyboard.press("Tab")
    settings = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed", "reset"]
    # The panel scrolls, so the browser lets keys reach it, too.
    in_order = [name for name in reached if name != "side"]
    assert in_order[:12] == ["new-chat", "log", "message", "send", "system", *settings][:12]
