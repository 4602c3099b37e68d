"""The chat on a pseudo-terminal: what the user sees, and what the server gets."""

import json
import os
import signal
from pathlib import Path

from tests.service.commands.chat.pseudo_terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, UP, terminal
from tests.service.commands.fake_openai import FakeOpenAI, serving
from tests.service.hosting.serving import LATE, states
from tests.service.hosting.serving import serving as serving_models
from tests.service.live import answer, hurried, running
from tests.waiting import PATIENCE

BRIEF = ("Yes", ".")


def sent(fake: FakeOpenAI) -> list[list[str]]:
    """The texts of the messages of each request."""
    return [[message["content"] for message in body["messages"]] for body in fake.requests]


def test_lines_of_one_message() -> None:
    """Pasted, with Alt-Enter, with a backslash: one request each."""
    fake = FakeOpenAI(pieces=BRIEF, finish_reason="stop")
    with serving(fake) as url, terminal("--url", url) as chat:
        chat.prompts()
        chat.paste("one\r\ntwo\n\nthree")
        chat.shows("  three")
        chat.type(ENTER)
        chat.says("> one", "  two", "", "  three", "Yes.")
        chat.type(f"a{ALT_ENTER}b\\{ENTER}c")
        chat.shows("  c")
        chat.type(ENTER)
        chat.says("> a", "  b", "  c", "Yes.")
        chat.paste("\n    if x:\n        return  \n")  # the indentation stays
        chat.shows("return")
        chat.type(ENTER)
        chat.prompts()
        chat.type(CTRL_D)
        assert chat.end() == 0
    assert [texts[-1] for texts in sent(fake)] == ["one\ntwo\n\nthree", "a\nb\nc", "    if x:\n        return"]


def test_history_outlives_the_chat_and_only_the_user_reads_it(tmp_path: Path) -> None:
    fake = FakeOpenAI(pieces=BRIEF, finish_reason="stop")
    with serving(fake) as url:
        with terminal("--url", url, state=tmp_path) as chat:
            chat.send("What is a noria?")
            chat.says("> What is a noria?", "Yes.")
            chat.type(CTRL_D)
            assert chat.end() == 0
        with terminal("--url", url, state=tmp_path) as chat:
            chat.prompts()
            chat.type(UP)
            chat.shows("> What is a noria?")
            chat.type(f" Really?{ENTER}")
            chat.shows("Yes.")
    assert sent(fake)[1] == ["What is a noria? Really?"]
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.stat().st_mode & 0o777 == 0o600


def test_ctrl_c_clears_the_line_and_stops_the_answer_and_ctrl_d_ends_the_chat() -> None:
    fake = FakeOpenAI(pieces=("endless ",) * 3000, delay=0.02)
    with serving(fake) as url, terminal("--url", url) as chat:
        chat.prompts()
        chat.type("nonsense")
        chat.shows("> nonsense")
        chat.type(CTRL_C)
        chat.send("Go on")
        chat.shows("endless endless")
        chat.type(CTRL_C)
        chat.shows("[stopped]")
        assert fake.closed_early.wait(PATIENCE)
        fake.pieces = BRIEF
        chat.send("And now?")
        chat.shows("Yes.")
        chat.prompts()
        os.kill(chat.process.pid, signal.SIGINT)
        chat.says(">")  # another prompt
        chat.send("/exit")
        assert chat.end() == 0
    first, second = sent(fake)
    assert first == ["Go on"]
    assert second[1].startswith("endless endless")
    assert [second[0], second[2]] == ["Go on", "And now?"]


def test_an_answer_cannot_control_the_terminal() -> None:
    fake = FakeOpenAI(
        thoughts=("I add\x1b[31m", " them."),
        pieces=("The lazy dog \x1b]0;title\x07and sleeps", " in the sun."),
        finish_reason="stop",
    )
    with serving(fake) as url, terminal("--url", url) as chat:
        chat.send("Why?")
        chat.says("> Why?", "I add[31m them.", "", "The lazy dog ]0;titleand sleeps in the sun.")
        assert b"\x1b[2mI" in chat.written  # the thought is dim
        assert b"\x1b[31m" not in chat.written
        assert b"\x1b]0" not in chat.written


def test_errors_leave_the_chat_as_it_was() -> None:
    """A refusal, an error in mid-answer, a server that has gone: each is a message, and the next answer comes."""
    fake = FakeOpenAI(pieces=("Half", " an answer "), key="k", fails={2: 503}, finish_reason="stop")
    with serving(fake) as url, terminal("--url", url, "--api-key", "k") as chat:
        fake.break_stream = "error"
        chat.send("One?")
        chat.says("> One?", "Half an answer", "the engine died")
        fake.break_stream = ""
        chat.send("Two?")
        chat.says("> Two?", "told to fail with 503")
        fake.key = "another"
        chat.send("/retry")
        chat.says("> /retry", "wrong key")
        fake.key, fake.pieces = "k", BRIEF
        chat.send("/retry")
        chat.says("> /retry", "Yes.")
        assert sent(fake)[-1] == ["One?", "Half an answer ", "Two?"]
        fake.pieces, fake.delay = ("endless ",) * 3000, 0.02
        chat.send("Three?")
        chat.shows("endless endless")
        fake.vanish.set()
        chat.shows("the connection broke: ")
        chat.prompts()


def test_the_server_refuses_a_value_and_the_chat_goes_on() -> None:
    with running() as live, terminal("--url", live.url, columns=120) as chat:
        chat.send("/set stream false")
        chat.says("> /set stream false", "the chat sets stream itself")
        chat.send("/set temperature 2.5")
        chat.says("> /set temperature 2.5", "temperature must be between 0.0 and 2.0, got 2.5")
        chat.send("/set nonsense 1")
        chat.says("> /set nonsense 1", "nonsense 1")
        chat.send("//Hello")
        chat.until(
            lambda: chat.lines[-1] == "> //Hello" and "unknown field" in chat.lines[-2], "the message, given back"
        )
        chat.type(CTRL_C)
        chat.send("/set nonsense default")
        chat.says("> /set nonsense default", "nonsense default")
        chat.send("/set max_tokens 5")
        chat.says("> /set max_tokens 5", "max_tokens 5")
        chat.send("/set")
        chat.says("> /set", "max_tokens 5")
        chat.send("Hello")
        chat.shows("[cut at max_tokens 5]")


def test_lines_break_at_spaces(tmp_path: Path) -> None:
    """A word in pieces moves whole, one that is longer than a line fills lines; wide letters count twice."""
    pieces = ("one two thr", "ee four fi", "ve\nsix ", "a" * 30, " seven 水", "車 eight nine")
    fake = FakeOpenAI(pieces=pieces, finish_reason="stop")
    with serving(fake) as url, terminal("--url", url, columns=20) as chat:
        chat.send("Count")
        long = ["six", "a" * 20, "a" * 10 + " seven", "水車 eight nine"]
        chat.says("> Count", "one two three four", "five", *long)
        chat.send(f"/save {tmp_path}/c")
        chat.shows("saved 2 messages")
    assert json.loads((tmp_path / "c").read_text())[-1]["content"] == "".join(pieces)


def test_the_progress_of_a_long_prompt_is_shown_and_erased() -> None:
    with running(model="slow", max_step_tokens=64) as live, terminal("--url", live.url, "--max-tokens", "3") as chat:
        chat.prompts()
        chat.paste("word " * 600)
        chat.shows("word word")
        chat.type(ENTER)
        chat.shows("[cut at max_tokens 3]")
        assert b"reading " in chat.written
        assert "reading " not in chat.text


def test_commands(tmp_path: Path) -> None:
    fake = FakeOpenAI(pieces=BRIEF, finish_reason="stop")
    saved = tmp_path / "saved.json"
    with serving(fake) as url, terminal("--url", url, "--system", "Be brief.", columns=120) as chat:
        chat.send("/help")
        chat.shows("/exit                 end the chat")
        chat.send("/retyr")
        chat.says("> /retyr", "no command /retyr; did you mean /retry?")
        chat.send("/retry")
        chat.says("> /retry", "there is no message to answer again")
        chat.send("//usr is a folder?")
        chat.says("> //usr is a folder?", "Yes.")
        fake.pieces = ("No.",)
        chat.send("/retry")
        chat.says("> /retry", "No.")
        chat.send(f"/save {saved}")
        chat.says(f"> /save {saved}", f"saved 3 messages in {saved}")
        chat.send("/reset")
        chat.says("> /reset", "the conversation is empty")
        chat.send("/system Rhyme.")
        chat.says("> /system Rhyme.", "system message: Rhyme.")
        chat.send("New?")
        chat.says("> New?", "No.")
        chat.send(f"/load {saved}")
        chat.says(f"> /load {saved}", "loaded 3 messages")
        chat.send("Old?")
        chat.says("> Old?", "No.")
    assert sent(fake) == [
        ["Be brief.", "/usr is a folder?"],
        ["Be brief.", "/usr is a folder?"],
        ["Rhyme.", "New?"],
        ["Be brief.", "/usr is a folder?", "No.", "Old?"],
    ]
    assert [message["role"] for message in json.loads(saved.read_text())] == ["system", "user", "assistant"]


def test_the_model_is_switched_inside_a_conversation(tmp_path: Path) -> None:
    entries = {"small": {"source": "recite"}, "late": {"source": "large", **LATE}}
    with serving_models(tmp_path, entries) as live, terminal("--url", live.url, "--max-tokens", "8") as chat:
        chat.says("small is ready. /help lists the commands, Ctrl-D ends the chat.")
        chat.send("Hello")
        chat.says("> Hello", "Hello")
        chat.send("/model")
        chat.says("> /model", "* small  ready", "  late   unloaded")
        chat.send("/model late")
        chat.shows("loading late...")
        chat.shows("loading weights 50%")
        with hurried():
            chat.says("> /model late", "late answers from now on")  # the progress is erased
        chat.send("Again")
        chat.says("> Again", answer("u:Hello;a:Hello;u:Again;a:", 8), "[cut at max_tokens 8]")


def test_ctrl_c_while_a_model_loads_leaves_the_chat_as_it_was(tmp_path: Path) -> None:
    entries = {"small": {"source": "recite"}, "late": {"source": "large", **LATE}}
    with serving_models(tmp_path, entries) as live, terminal("--url", live.url) as chat:
        chat.send("/model late")
        chat.shows("loading late...")
        chat.type(CTRL_C)
        chat.send("Still here?")
        chat.says("> Still here?", "Still here?")
        with hurried():
            pass


def test_a_chat_with_a_model_that_is_not_loaded_begins_once_it_is(tmp_path: Path) -> None:
    with serving_models(tmp_path, {"late": {"source": "recite", **LATE}, "small": {}}) as live:
        assert states(live)["late"] == "unloaded"
        with terminal("--url", live.url) as chat:
            chat.says("late is ready. /help lists the commands, Ctrl-D ends the chat.")
            assert states(live)["late"] == "ready"


def test_a_message_that_loads_the_model_shows_how_far_it_is(tmp_path: Path) -> None:
    """The key may not load models: the message does."""
    (tmp_path / "keys.toml").write_text('[[keys]]\nname = "guest"\nkey = "guest-key"\n')
    entries = {"small": {}, "late": {"source": "large", **LATE}}
    with (
        serving_models(tmp_path, entries, api_key_file=tmp_path / "keys.toml") as live,
        terminal("--url", live.url, "--api-key", "guest-key", "--max-tokens", "8") as chat,
    ):
        chat.send("/model late")
        chat.says("> /model late", "late answers from now on")
        chat.send("Hi")
        chat.shows("loading weights 50%")
        with hurried():
            chat.says("> Hi", answer("u:Hi;a:", 8), "[cut at max_tokens 8]")


def test_a_dumb_terminal_gets_no_control_sequences() -> None:
    fake = FakeOpenAI(pieces=BRIEF, thoughts=("Hm",))
    with serving(fake) as url, terminal("--url", url, kind="dumb") as chat:
        chat.send("Hi")
        chat.shows("Yes.")
    assert b"\x1b[2m" not in chat.written
    assert b"\x1b[J" not in chat.written


def test_tab_completes_begun_commands_fields_and_files(tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text("[]")
    with serving(FakeOpenAI()) as url, terminal("--url", url) as chat:
        for begun, whole in (
            ("/he", "/help"),
            ("/set repetition", "/set repetition_penalty"),
            ("/sy", "/system"),
            ("/model fa", "/model fake-1"),
        ):
            chat.prompts()
            chat.type(f"{begun}\t")
            chat.shows(f"> {whole}")
            chat.type(CTRL_C)
        chat.prompts()
        chat.type(f"/load {tmp_path}/ta\t")
        chat.until(lambda: "/talk.json" in "".join(line.strip() for line in chat.text.splitlines()), "the file")
        chat.type(f"{CTRL_C}{CTRL_D}")
        assert chat.end() == 0
