"""The chat view with the fake model: settings, forms, tools, images, probabilities, storage, hostile text."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.chat import (
    answers,
    ask,
    button,
    foreign,
    item,
    opened,
    replies,
    requests,
    set_fields,
    unlock,
    with_card,
)
from tests.service.live import Live, answer

DELIVERY = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    "return_progress": True,
}


def test_ranges_come_from_the_server_and_only_changes_are_sent(live: Live, page: Page) -> None:
    sent = requests(page)
    with_card(page, defaults={"temperature": 0.2, "top_p": 0.9})
    opened(page, live, settings=True)
    expect(page.get_by_text("This model's defaults: temperature 0.2, top_p 0.9.")).to_be_visible()
    schema = live.http.get("/openapi.json").json()["components"]["schemas"]["ChatBody"]["properties"]
    number = schema["repetition_penalty"]["anyOf"][0]
    field = page.get_by_label(f"repetition_penalty {number['minimum']} to {number['maximum']:g}", exact=True)
    field.fill("11")
    expect(field).to_have_attribute("aria-invalid", "true")
    ask(page, "refused")
    problem = "repetition_penalty: expected a number, 0.01 to 10; got 11"
    expect(page.get_by_role("alert").first).to_have_text(problem)
    expect(page.get_by_label("Message")).to_have_value("refused")
    expect(field).to_be_focused()
    field.fill("1.5")
    page.get_by_label("temperature 0 to 2").fill("0")
    page.get_by_label("max_tokens 1 to 512").fill("5")
    page.get_by_label("seed").fill("7")
    page.get_by_label("stop", exact=True).fill("\\n\\n\nEND")
    page.get_by_label("seed").fill("")
    page.get_by_label("System prompt").fill("Be brief.")
    ask(page, "hi")
    expect(page.locator(".cost")).to_be_visible()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    changed = {"repetition_penalty": 1.5, "temperature": 0, "max_tokens": 5, "stop": ["\n\n", "END"]}
    assert sent == [("chat/completions", {"model": "fake", "messages": messages, **changed, **DELIVERY})]
    page.reload()
    button(page, "Settings").click()
    expect(page.get_by_label("repetition_penalty")).to_have_value("1.5")
    expect(page.get_by_label("stop", exact=True)).to_have_value("\\n\\n\nEND")
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")


def test_an_answer_has_a_limit_that_a_person_can_change(reciting: Live, page: Page) -> None:
    sent = requests(page)
    opened(page, reciting, settings=True)
    limit = page.get_by_label("max_tokens 1 to 4096")
    expect(limit).to_have_attribute("placeholder", "1024 (this page's)")
    ask(page, "short")
    expect(answers(page)).to_have_text("short")
    long = "word " * 640  # 3,205 tokens of the context of 4,096, with no room for the limit
    ask(page, long)
    expect(answers(page).last).to_contain_text("word word")
    page.keyboard.press("Escape")
    button(page, "New chat").click()
    limit.fill("3")
    ask(page, "other")
    expect(answers(page)).to_have_text("oth")
    assert [body.get("max_tokens") for _, body in sent] == [1024, 1024, None, 3]


def test_regenerate_asks_for_another_answer(live: Live, page: Page) -> None:
    sent = requests(page)
    with_card(page, defaults={"temperature": 0.5, "top_p": 0.3})
    opened(page, live)
    ask(page, "again")
    for number in (1, 2):
        expect(page.locator(".cost")).to_be_visible()
        if number == 2:
            button(page, "Settings").click()
            page.get_by_label("seed").fill("7")
        button(page, "Regenerate").click()
        expect(page.locator(".switch")).to_contain_text(f"{number + 1} / {number + 1}")
    expect(page.locator(".cost")).to_be_visible()
    page.get_by_label("top_p").fill("0.4")
    button(page, "Regenerate").click()
    expect(page.locator(".switch")).to_contain_text("4 / 4")
    sampling = [{name: body.get(name) for name in ("seed", "top_p")} for _, body in sent]
    assert sampling == [
        {"seed": None, "top_p": None},
        {"seed": None, "top_p": 0.9},
        {"seed": 9, "top_p": 0.9},
        {"seed": 10, "top_p": 0.4},
    ]


def test_a_schema_is_checked_before_it_is_sent(live: Live, page: Page) -> None:
    sent = requests(page)
    opened(page, live, settings=True)
    page.get_by_label("JSON schema", exact=True).fill('{"type": ')
    ask(page, "hi")
    expect(page.get_by_role("alert").first).to_have_text(re.compile("^JSON schema: this is not JSON"))
    assert not sent
    button(page, "Example of JSON schema").click()
    ask(page, "hi")
    expect(page.locator(".message")).to_have_count(2)
    form = sent[0][1]["response_format"]
    assert (form["type"], form["json_schema"]["schema"]["required"]) == ("json_schema", ["city", "continent"])


def test_a_tool_call_and_its_result(live: Live, page: Page) -> None:
    sent = requests(page)
    with_card(page, capabilities={"tools": True})
    start = {"id": "abc", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    parts = [start, {"function": {"arguments": '{"city": '}}, {"function": {"arguments": '"Paris"}'}}]
    replies(page, [{"tool_calls": [{"index": 0, **part}]} for part in parts], ["It is sunny."])
    opened(page, live, settings=True)
    button(page, "Example of Tools").click()
    button(page, "Settings").click()
    ask(page, "Weather in Paris?")
    expect(page.get_by_role("group", name="Arguments")).to_have_text('{\n  "city": "Paris"\n}', use_inner_text=True)
    page.get_by_label("Result of get_weather").fill('{"sky": "clear"}')
    button(page, "Send the results").click()
    expect(answers(page).last).to_have_text("It is sunny.")
    (_, first), (_, second) = sent
    assert first["tools"][0]["function"]["name"] == "get_weather"
    call = {"id": "abc", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    assert second["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abc", "content": '{"sky": "clear"}'},
    ]


def test_what_the_card_says_of_its_model(live: Live, page: Page) -> None:
    opened(page, live)
    hint = page.locator(".composer .hint").last
    expect(hint).to_have_text("")
    with_card(page, description="It is <b>small</b>.")
    page.reload()
    expect(hint).to_have_text("fake: It is <b>small</b>.")


def test_thoughts_are_folded_away(live: Live, page: Page) -> None:
    replies(page, [{"reasoning_content": "Let me *think*."}, "Done."])
    opened(page, live)
    ask(page, "why")
    expect(answers(page)).to_have_text("Done.")
    expect(page.get_by_text("Let me think.")).to_be_hidden()
    page.get_by_text("Thought", exact=True).click()
    expect(page.get_by_text("Let me think.")).to_be_visible()


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_images_where_the_model_takes_them(live: Live, page: Page, tmp_path: Path) -> None:
    sent = requests(page)
    opened(page, live)
    expect(button(page, "Add file")).to_be_visible()  # a text file, see test_audio.py
    with_card(page, capabilities={"vision": True})
    page.reload()
    paste = """(box, data) => {
        const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
        const clipboardData = new DataTransfer();
        clipboardData.items.add(new File([bytes], "dot.png", { type: "image/png" }));
        box.dispatchEvent(new ClipboardEvent("paste", { clipboardData, cancelable: true, bubbles: true }));
    }"""
    opened(page, live)
    page.get_by_label("Message").evaluate(paste, PNG)
    expect(page.get_by_role("img", name="Image 1")).to_be_visible()
    button(page, "Remove image 1").click()
    expect(page.get_by_role("img", name="Image 1")).to_have_count(0)
    page.get_by_label("Message").evaluate(paste, PNG)
    expect(page.get_by_role("img", name="Image 1")).to_be_visible()
    ask(page, "What is it?")
    expect(page.locator(".message.user img")).to_be_visible()
    expect(page.locator(".ending")).to_be_visible()  # the fake model sees nothing
    assert sent[0][1]["messages"][0]["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "text", "text": "What is it?"},
    ]


def test_probabilities_by_pointer_and_by_keyboard(live: Live, page: Page) -> None:
    sent = requests(page)
    opened(page, live)
    set_fields(page, max_tokens="4")
    button(page, "Probabilities").click()
    ask(page, "odds")
    first, second, *_ = answer("u:odds;a:", 4)
    tokens = page.get_by_role("listbox", name="Tokens and their probabilities").get_by_role("option")
    expect(tokens).to_have_count(4)
    assert (sent[0][1]["logprobs"], sent[0][1]["top_logprobs"]) == (True, 5)
    # the fake model gives e^-0.5 to its token, e^-1.5 to the next in the alphabet, and so on
    shares = ["61 %", "22 %", "8.2 %", "3.0 %", "1.1 %"]
    rows = "".join(f"“{chr(ord(first) + n)}”{share}" for n, share in enumerate(shares))
    tokens.first.hover()
    expect(page.get_by_role("tooltip")).to_have_text(rows)
    page.get_by_label("Message").hover()
    expect(page.get_by_role("tooltip")).to_have_count(0)
    tokens.first.focus()
    expect(page.get_by_role("tooltip")).to_have_text(rows)
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(1)).to_be_focused()
    expect(page.get_by_role("tooltip")).to_contain_text(f"“{second}”61 %")
    page.keyboard.press("Escape")
    expect(page.get_by_role("tooltip")).to_have_count(0)
    expect(tokens.nth(1)).to_have_accessible_name(re.compile(re.escape(f"“{second}” 61 %; else ")))
    button(page, "Probabilities").click()
    expect(tokens).to_have_count(0)


HOSTILE = """<script>alert(1)</script> <img src=x onerror=alert(1)> <style>body{display:none}</style>
<div class="skip" style="position:fixed;inset:0">over</div>

![spy](https://elsewhere.test/spy.png) ![spy](data:image/svg+xml;base64,AAAA) [run](javascript:alert(1))
[ok](https://elsewhere.test/ok "t")
[x]: javascript:alert(1)

<iframe src="https://elsewhere.test"></iframe><svg onload=alert(1)><a href="https://elsewhere.test/raw">raw</a>

```x"><img/src=x/onerror=alert(1)>
</code></pre><script>alert(1)</script>
```
"""


def test_hostile_text_does_nothing(reciting: Live, page: Page) -> None:
    others = foreign(page, reciting)
    page.goto(reciting.url)
    ask(page, HOSTILE)
    expect(page.locator(".cost")).to_be_visible()
    content = answers(page)
    assert content.locator("script, img, style, iframe, svg, [style], [onerror], .skip").count() == 0
    links = content.locator("a").evaluate_all("links => links.map((link) => [link.href, link.target, link.rel])")
    rel = ["_blank", "noopener noreferrer nofollow"]
    assert links == [["https://elsewhere.test/spy.png", *rel], ["https://elsewhere.test/ok", *rel]]
    expect(content).to_contain_text("<script>alert(1)</script>")
    assert others == []


def test_entities_are_characters_outside_code(reciting: Live, page: Page) -> None:
    """As CommonMark 6.2 has them; HTML stays text, and its entities are decoded too."""
    page.goto(reciting.url)
    ask(
        page,
        "1 &lt; 2 &amp; 3\n\n<div>\n&lt;b&gt; &copy; A&B\n</div>\n\n`&lt;`\n\n```\n&amp;\n```\n\n![x &amp; y](http://a.test/?b&amp;c)",
    )
    expect(page.locator(".cost")).to_be_visible()
    blocks = answers(page).locator(".block")
    expect(blocks).to_contain_text(["1 < 2 & 3", "<div>\n<b> © A&B\n</div>", "&lt;", "&amp;", "x & y"])
    expect(answers(page).get_by_role("link")).to_have_attribute("href", "http://a.test/?b&c")


JSON = json.dumps({"city": "Par*is*", "of": ["_a_", 1.5e-7, True, None], "in": {"x": "a\\nb"}}, indent=2)


@pytest.mark.parametrize(
    ("text", "expression", "expected"),
    [
        (JSON, 'root.querySelector("pre")?.textContent', [JSON[: at + 1].strip() for at in range(len(JSON))]),
        ("is $x^2$,\n$$\ny\n$$\n", 'root.querySelectorAll("math").length', [0] * 7 + [1] * 9 + [2] * 2),
    ],
    ids=["JSON", "formulas"],
)
def test_nothing_jumps_while_a_text_is_written(
    live: Live, page: Page, text: str, expression: str, expected: list[Any]
) -> None:
    """JSON is code before its last bracket; a formula is text until it is whole."""
    page.goto(live.url)
    script = f"""async (text) => {{
        const {{ Markdown }} = await import("./page/chat/markdown.js");
        const root = document.createElement("div");
        const markdown = new Markdown(root);
        return Array.from(text, (_, at) => {{
            markdown.show(text.slice(0, at + 1));
            return {expression};
        }});
    }}"""
    assert page.evaluate(script, text) == expected


FORMULAS = r"""Let $x \in \mathbb{R}$ and \(a_1 * b_1 * c\), then:
$$
\begin{aligned} f(x) &= \frac{x}{2} \\\\ &= 3 \end{aligned}
$$

- \[ \sum_{i=1}^n i \]

It costs $5 or $6, US$7-$8, $9 (or 10$) at $HOME/$USER, `$a$`, \$b$.
"""


def test_formulas_are_drawn_and_prices_are_not(live: Live, page: Page) -> None:
    replies(page, [FORMULAS])
    page.goto(live.url)
    ask(page, "formulas")
    expect(page.locator(".cost, .message.assistant .quiet").first).to_be_visible()
    formulas = answers(page).locator("math")
    expect(formulas).to_have_count(4)
    expect(formulas).to_have_text(["x∈ℝ", "a1∗b1∗c", "f(x)=x2=3", "∑i=1ni"])
    assert formulas.evaluate_all(
        "list => list.map((one) => one.querySelector('mfrac, munderover, msub, mi').localName)"
    )
    assert answers(page).locator(".formula.display math").count() == 2
    prices = "It costs $5 or $6, US$7-$8, $9 (or 10$) at $HOME/$USER, $a$, $b$."
    expect(answers(page)).to_contain_text(prices)
    width = "one => one.querySelector('mtd').getBoundingClientRect().right"
    right = formulas.nth(2).locator("mtr").evaluate_all(f"list => list.map({width})")
    assert right[0] == right[1]


HOSTILE_FORMULAS = [
    r"\href{javascript:alert(1)}{x}",
    r"\includegraphics{https://elsewhere.test/spy.png}",
    r"\class{skip}{x}",
    r"\frac{1}{",
    r"\def\a{\a\a}\a",
    "x" * 2001,
    "{" * 1001,
]


def test_hostile_formulas_do_nothing(live: Live, page: Page) -> None:
    others = foreign(page, live)
    harmless = [r"\label{chat-input}\ref{wheel} x", r"\text{<img src=x onerror=alert(1)>}", r"\rule{9999em}{9999em}"]
    replies(page, ["\n\n".join(f"$${formula}$$" for formula in [*HOSTILE_FORMULAS, *harmless])])
    page.goto(live.url)
    ask(page, "hostile")
    blocks = answers(page).locator(".block:not(:empty)")
    expect(blocks).to_have_count(len(HOSTILE_FORMULAS) + len(harmless))
    assert [block.inner_text() for block in blocks.all()][: len(HOSTILE_FORMULAS)] == [
        f"$${f}$$" for f in HOSTILE_FORMULAS
    ]
    assert answers(page).locator("math").count() == len(harmless)
    assert answers(page).locator("img, a, [href], [id], .skip").count() == 0
    assert answers(page).locator("math").last.bounding_box()["height"] < 1000  # type: ignore[index]
    assert others == []


def test_nesting_without_end_is_shown_as_text(live: Live, page: Page) -> None:
    replies(page, ["> " * 5000 + "end"])
    page.goto(live.url)
    ask(page, "nest")
    expect(page.get_by_text("The answer is complete.")).to_be_attached()
    assert answers(page).inner_text() == "> " * 5000 + "end"
    assert answers(page).locator("blockquote").count() == 0


def test_code_is_coloured_and_copied(reciting: Live, page: Page) -> None:
    page.goto(reciting.url)
    code = "def f(x):\n    return x < 1 and 'a'"
    ask(page, f"Look:\n\n```python\n{code}\n```\n\n- [x] done")
    expect(answers(page).locator(".hljs-keyword").first).to_have_text("def")
    button(page, "Copy code").click()
    expect(button(page, "Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").rstrip() == code


def conversation_names(page: Page) -> Any:
    return page.get_by_role("list", name="Conversations").locator(".open")


def test_the_list_search_rename_delete(reciting: Live, page: Page) -> None:
    page.goto(reciting.url)
    for text in ("apples and pears", "oranges"):
        button(page, "New chat").click()
        ask(page, text)
        expect(page.locator(".cost")).to_be_visible()
    expect(conversation_names(page)).to_have_text(["oranges", "apples and pears"])
    page.get_by_label("Search conversations").fill("PEARS")
    expect(conversation_names(page)).to_have_text(["apples and pears"])
    item(page, "apples and pears").get_by_role("button", name="Rename").click()
    page.get_by_label("New title").fill("fruit")
    page.get_by_label("New title").press("Enter")
    expect(conversation_names(page)).to_have_text(["fruit"])  # found by its messages
    button(page, "fruit").click()
    expect(answers(page)).to_have_text("apples and pears")
    expect(page).to_have_title("fruit · Noria")
    page.once("dialog", lambda dialog: dialog.accept())
    item(page, "fruit").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Nothing found.")).to_be_visible()
    page.get_by_label("Search conversations").fill("")
    expect(conversation_names(page)).to_have_text(["oranges"])
    page.reload()
    expect(conversation_names(page)).to_have_text(["oranges"])


def test_export_and_import(reciting: Live, page: Page, tmp_path: Path) -> None:
    page.goto(reciting.url)
    button(page, "Probabilities").click()
    ask(page, "carry me")
    expect(page.locator(".cost")).to_be_visible()
    button(page, "Regenerate").click()
    expect(page.locator(".switch")).to_contain_text("2 / 2")
    expect(page.locator(".cost")).to_be_visible()
    ask(page, "and me")
    expect(page.locator(".cost")).to_have_count(2)
    with page.expect_download() as download:
        item(page, "carry me").get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "noria-carry-me.json"
    file = tmp_path / "export.json"
    download.value.save_as(file)
    load(page, file)
    expect(page.get_by_role("alert")).to_have_text("Imported: 1.")
    expect(conversation_names(page)).to_have_text(["carry me", "carry me"])
    with page.expect_download() as download:
        button(page, "Export all").click()
    assert download.value.suggested_filename == "noria-conversations.json"
    page.once("dialog", lambda dialog: dialog.accept())
    item(page, "carry me").last.get_by_role("button", name="Delete").click()  # the older one
    expect(conversation_names(page)).to_have_count(1)
    conversation_names(page).click()
    expect(page.locator(".message.user .text")).to_have_text(["carry me", "and me"])
    expect(page.locator(".switch")).to_contain_text("2 / 2")
    expect(page.locator(".token")).to_have_count(len("carry me" + "and me"))


def load(page: Page, file: Path) -> None:
    with page.expect_file_chooser() as chooser:
        button(page, "Import").click()
    chooser.value.set_files(file)


def one(**changes: Any) -> dict[str, Any]:
    """An export of a conversation with one message, or with these changes of its conversation."""
    nodes = [{"id": "a", "parent": None, "role": "user", "content": "hi"}]
    return {"format": "noria-conversations", "version": 1, "conversations": [{"title": "t", "nodes": nodes, **changes}]}


WRONG: list[tuple[Any, str]] = [
    ("{", "the file is not JSON"),
    ([], "the file is no export of conversations"),
    (one() | {"version": 2}, "the file has version 2, this page reads 1"),
    (one(nodes=[{"id": "a", "role": "system"}]), "conversations[0].nodes: expected a tree of messages"),
    (one(nodes=[{"id": "a", "role": "user"}] * 2), "conversations[0].nodes: expected a tree of messages"),
    (
        one(nodes=[{"id": "a", "parent": "b", "role": "user"}, {"id": "b", "parent": "a", "role": "user"}]),
        "conversations[0].nodes: expected a tree of messages",
    ),
]


def test_a_wrong_import_changes_nothing(live: Live, page: Page, tmp_path: Path) -> None:
    opened(page, live)
    file = tmp_path / "import.json"
    for content, problem in WRONG:
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        load(page, file)
        expect(page.get_by_role("alert")).to_contain_text(f"Nothing was imported: {problem}")
    page.reload()
    expect(page.get_by_text("No conversations yet.")).to_be_visible()


HTML = "<img src=x onerror=alert(1)>"


def test_texts_and_images_of_an_import_are_harmless(live: Live, page: Page, tmp_path: Path) -> None:
    others = foreign(page, live)
    opened(page, live)
    nodes: list[dict[str, Any]] = [
        {"id": "a", "role": "user", "content": HTML, "images": ["https://elsewhere.test/spy.png"]},
        {"id": "b", "parent": "a", "role": "assistant", "content": HTML, "error": HTML, "state": "failed"},
    ]
    file = tmp_path / "import.json"
    file.write_text(json.dumps(one(title=HTML, nodes=nodes)))
    load(page, file)
    button(page, HTML).click()
    expect(answers(page)).to_have_text(HTML)
    expect(page.locator(".ending.error")).to_contain_text(HTML)
    assert page.locator(".message img").count() == 0
    assert others == []


def test_a_full_storage_is_told_and_the_chat_goes_on(reciting: Live, page: Page) -> None:
    page.add_init_script(
        """IDBObjectStore.prototype.put = function () {
            throw new DOMException("no room", "QuotaExceededError");
        };"""
    )
    page.goto(reciting.url)
    ask(page, "full")
    expect(page.get_by_role("alert")).to_contain_text("The browser's storage is full.")
    expect(answers(page)).to_have_text("full")
    ask(page, "still")
    expect(answers(page).last).to_have_text("still")
    ask(page, "gone " * 200)
    expect(answers(page).last).to_contain_text("gone")
    page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")  # in mid-answer


AWKWARD = "it's \"quoted\" $HOME `id` $(id) \\n !! %s\nJSON\n<<'JSON' é 😀 \u2028 end"


@pytest.mark.parametrize("raw", [False, True], ids=["chat", "raw"])
@pytest.mark.parametrize("kind", ["curl", "Python"])
def test_a_request_as_code_gives_the_same_answer(locked: Live, page: Page, kind: str, raw: bool) -> None:
    page.goto(locked.url)
    unlock(page)
    button(page, "Settings").click()
    page.get_by_label("Raw completion").set_checked(raw)
    page.get_by_label("min_p").fill("0.05")  # no parameter of the package `openai`
    page.get_by_label("stop", exact=True).fill("never\nappears")
    if not raw:
        page.get_by_label("System prompt").fill(AWKWARD)
    button(page, "Settings").click()
    ask(page, f"u:{AWKWARD};a:" if raw else AWKWARD)
    expect(page.locator(".cost")).to_be_visible()
    button(page, f"Copy as {kind}").click()
    expect(button(page, "Copied")).to_be_visible()
    code = page.evaluate("navigator.clipboard.readText()")
    assert "secret" not in code
    command = ["bash", "-c"] if kind == "curl" else [sys.executable, "-c"]
    environment = {"PATH": "/usr/bin:/bin", "NORIA_API_KEY": "secret", "PYTHONUTF8": "1"}
    done = subprocess.run([*command, code], capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout.removesuffix("\n") if kind == "Python" else joined(done.stdout)) == AWKWARD


def joined(events: str) -> str:
    """The text of a stream."""
    data = [line.removeprefix("data: ") for line in events.split("\n") if line.startswith("data: {")]
    chunks = [choice for line in data for choice in json.loads(line)["choices"]]
    return "".join(chunk["text"] if "text" in chunk else chunk["delta"].get("content", "") for chunk in chunks)
