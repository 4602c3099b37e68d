"""Cline's command line, with OpenAI's chat API."""

from edits import calling, short
from programs import Programs
from proxy import Record

MODEL = "smollm2-135m-instruct"
CHAT = "/v1/chat/completions"
QUIET = {"CLINE_TELEMETRY_DISABLED": "1", "CLINE_NO_AUTO_UPDATE": "1"}


def asked(programs: Programs, *arguments: str) -> str:
    account = ["--provider", "openai", "--apikey", "none", "--modelid", MODEL, "--baseurl", f"{programs.record.url}/v1"]
    programs.run("cline", "auth", *account, **QUIET)
    return programs.run("cline", "--yolo", *arguments, **QUIET)


def test_an_answer(programs: Programs, record: Record) -> None:
    record.edit = short()
    assert asked(programs, "Count from one to ten.").strip()
    assert not record.errors


def test_a_file_is_written(programs: Programs, record: Record) -> None:
    file = programs.work / "hello.txt"
    record.edit = calling("write_to_file", path=str(file), content="hello")
    asked(programs, "Write hello to hello.txt.")
    assert file.read_text().strip() == "hello"
    assert not record.errors
