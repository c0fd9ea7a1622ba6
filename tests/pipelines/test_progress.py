"""What is said while work goes on."""

import time

import pytest

from littledragon.pipelines import progress


def test_what_is_quick_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.busy("asking"):
        pass
    assert capsys.readouterr().err == ""


def test_what_takes_long_says_so_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "BUSY_AFTER_S", 0.01)
    said, until = "", time.monotonic() + 10
    with progress.busy("asking"):
        while not said:
            assert time.monotonic() < until
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert said == "asking …\n"


def test_a_stage_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Progress("search") as bar:
        bar.plan(3, [("ok", None)])
        bar.ended("failed")
        bar.ended("ok")
        bar.say("finishing")
    first, finishing, last = capsys.readouterr().err.splitlines()
    assert first == "search: 1/3 · 1 ok"
    assert finishing == "search: 3/3 · 2 ok · 1 failed · finishing"
    assert last.startswith("search: 3/3 · 2 ok · 1 failed in ")
    assert "--retry failed" in last


def test_why_work_is_rejected_is_said_at_once_and_what_may_help(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.Progress("verify") as bar:
        bar.plan(3, [("rejected", "launch_bound")])
        bar.ended("rejected", progress.UNSTABLE)
        bar.ended("rejected", progress.UNSTABLE)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("verify: 3/3 · 3 rejected (2 default_unstable, 1 launch_bound) in ")
    assert "--retry default_unstable" in last
