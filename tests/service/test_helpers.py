"""The memory of what was used last. The thread's own tests are those of images and of grammars."""

from service.helpers import Recent


def test_what_was_used_last_stays() -> None:
    recent: Recent[str, str] = Recent(3, len)
    recent.note("a", "x")
    recent.note("b", "yy")
    assert recent.find("a") == "x"
    recent.note("c", "z")
    assert [recent.find(key) for key in "abc"] == ["x", None, "z"]
    recent.note("c", "zz")
    recent.note("d", "")
    assert [recent.find(key) for key in "acd"] == ["x", "zz", ""]
    recent.forget("c")
    recent.note("e", "ee")
    assert len(recent) == 3
    recent.note("f", "too long")
    assert len(recent) == 0
