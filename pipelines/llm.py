"""Asking a model behind an OpenAI-compatible endpoint: one question, one answer, within a deadline.

The SDK's own retries are off. Here: a limit of requests a minute that all processes of this machine share, retries with
jitter that honour Retry-After, a reply of bounded size, and errors told apart by whether they may pass.
"""

import contextlib
import email.utils
import fcntl
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from littledragon.schemas.ids import digest

Kind = Literal["declined", "too_long", "unauthorized", "network", "rate_limited", "server", "garbled", "deadline"]
Message = dict[str, str]

MAX_BODY: Final = 4 << 20
"""Bytes of one answer's body."""
LEAST_KEY: Final = 12
"""A shorter key is a word such as EMPTY, which an endpoint at home is given, and no secret."""
FINAL: Final = ("declined", "too_long")
"""Errors that another try does not mend."""
_LEAST_WAIT_S: Final = 0.5
_MOST_WAIT_S: Final = 30.0


class LlmError(Exception):
    """No answer. `kind` says why; of these, `FINAL` are for good and the others may pass later."""

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Kind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[type["LlmError"], tuple[Kind, str]]:
        return LlmError, (self.kind, self.detail)


@dataclass(frozen=True)
class Answer:
    """A model's reply, and what the endpoint says it cost."""

    text: str
    tokens_in: int
    tokens_out: int


class Client:
    """One model behind one endpoint."""

    def __init__(self, url: str | None, model: str, rpm: int, deadline_s: float) -> None:
        """Args:
        url: base URL of the endpoint; None is OpenAI's own.
        model: the model's name there.
        rpm: requests a minute at most, over all processes of this machine that use this endpoint.
        deadline_s: of one question, retries and waiting included.
        """
        from openai import OpenAI

        self._key = os.environ.get("OPENAI_API_KEY") or ""
        # Endpoints at home often want no key, but the SDK insists on one.
        self._sdk = OpenAI(
            base_url=url,
            api_key=self._key or "none",
            max_retries=0,
            default_headers={"Accept-Encoding": "identity"},
        )
        self._model = model
        self._deadline_s = deadline_s
        self._limit = _RateLimit(str(url), rpm)

    def close(self) -> None:
        """Close its connections."""
        self._sdk.close()

    def ask(self, messages: Sequence[Message]) -> Answer:
        """The model's reply to a dialogue, asked for as a JSON object.

        Whatever the endpoint says, an echo of the key is blotted out: replies and errors are stored.

        Raises:
            LlmError: there is none; `kind` tells whether it may pass.
        """
        try:
            answer = self._ask(messages)
        except LlmError as error:
            raise LlmError(error.kind, self._blotted(error.detail)) from None
        return replace(answer, text=self._blotted(answer.text))

    def _blotted(self, text: str) -> str:
        return text.replace(self._key, "(key)") if len(self._key) >= LEAST_KEY else text

    def _ask(self, messages: Sequence[Message]) -> Answer:
        end = time.monotonic() + self._deadline_s
        tries = 0
        while True:
            self._limit.wait(end)
            tries += 1
            try:
                return self._once(messages, end)
            except _Passing as passing:
                pause = _backoff(tries) if passing.after_s is None else passing.after_s + _backoff(0)
                if time.monotonic() + pause >= end:
                    detail = f"{passing.error.detail} (after {tries} tries in {self._deadline_s:g} s)"
                    raise LlmError(passing.error.kind, detail) from None
                time.sleep(pause)

    def _once(self, messages: Sequence[Message], end: float) -> Answer:
        import openai

        body = b""
        request: Any = self._sdk.chat.completions.with_streaming_response
        try:
            with request.create(
                model=self._model,
                messages=list(messages),
                response_format={"type": "json_object"},
                timeout=max(end - time.monotonic(), 0.01),
            ) as response:
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > MAX_BODY:
                        raise LlmError("too_long", f"the answer is larger than {MAX_BODY} bytes")
                    if time.monotonic() >= end:
                        raise LlmError("deadline", f"no whole answer within {self._deadline_s:g} s")
        except openai.APITimeoutError:
            raise LlmError("deadline", f"no answer within {self._deadline_s:g} s") from None
        except openai.APIStatusError as error:
            raise _by_status(error) from None
        except openai.APIConnectionError as error:
            raise _Passing(LlmError("network", _line(error.__cause__ or error))) from None
        except LlmError:
            raise
        except Exception as error:
            # The body is read after the SDK's own handling: what its transport raises then is its own.
            if "timeout" in type(error).__name__.lower():
                raise LlmError("deadline", f"no whole answer within {self._deadline_s:g} s") from None
            if type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "h11"):
                raise _Passing(LlmError("network", _line(error))) from None
            raise
        return _answer(body)


class _Passing(Exception):
    """An error after which another try makes sense, after `after_s` where the endpoint said so."""

    def __init__(self, error: LlmError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


def _by_status(error: Any) -> Exception:
    """What an HTTP status means."""
    status, detail = error.status_code, f"HTTP {error.status_code}: {_line(error)}"
    if status == 413:
        return LlmError("too_long", detail)
    if status in (400, 422, 451):
        return LlmError("declined", detail)
    if status in (408, 409, 425, 429):
        return _Passing(LlmError("rate_limited", detail), _retry_after(error.response.headers))
    if status >= 500:
        return _Passing(LlmError("server", detail), _retry_after(error.response.headers))
    # The others (no key, no credit, no such model, a wrong address) are about the endpoint, never about one label.
    return LlmError("unauthorized", f"{detail}: check OPENAI_API_KEY, the account, teacher_url and teacher_model")


def _retry_after(headers: Any) -> float | None:
    """Seconds that the endpoint asks to wait, from `retry-after-ms` or Retry-After (seconds or a date)."""
    with contextlib.suppress(TypeError, ValueError):
        return max(0.0, float(headers.get("retry-after-ms")) / 1000)
    text = headers.get("retry-after") or ""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _backoff(tries: int) -> float:
    """Seconds before the next try: doubling with each try, with full jitter above a floor."""
    most = min(_MOST_WAIT_S, _LEAST_WAIT_S * 2.0 ** min(tries, 10))
    return random.uniform(_LEAST_WAIT_S / 2, most)


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]


def _answer(body: bytes) -> Answer:
    """The reply in a response's body.

    Raises:
        LlmError: the model declined, or its reply was cut off.
        _Passing: the body is not a completion.
    """
    try:
        parsed = json.loads(body)
        choice = parsed["choices"][0]
        message, ended = choice["message"], choice.get("finish_reason")
        text, refusal = message.get("content"), message.get("refusal")
        usage = parsed.get("usage") or {}
        counts = [usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        raise _Passing(LlmError("garbled", "the answer is not a chat completion")) from None
    if refusal or ended == "content_filter":
        raise LlmError("declined", f"the model refused: {_line(refusal or ended)}")
    if ended == "length":
        raise LlmError("too_long", "the reply was cut off at the model's limit")
    if not isinstance(text, str):
        raise _Passing(LlmError("garbled", "the answer has no text"))
    tokens_in, tokens_out = (n if isinstance(n, int) and 0 <= n < 1 << 40 else 0 for n in counts)
    return Answer(text, tokens_in, tokens_out)


class _RateLimit:
    """At most so many requests a minute, over all processes of this user: they queue for slots in one small file."""

    def __init__(self, endpoint: str, rpm: int) -> None:
        self._path = Path(tempfile.gettempdir()) / f"littledragon-{os.getuid()}-{digest(endpoint)}.slot"
        self._apart_s = 60.0 / rpm

    def wait(self, end: float) -> None:
        """Wait for a slot.

        Raises:
            LlmError: kind deadline, when it lies beyond `end` (monotonic seconds).
        """
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            now = time.time()
            try:
                free = float(os.read(file, 64) or b"0")
            except ValueError:
                free = now
            free = max(now, free) if free < now + 86400 else now
            pause = free - now
            if time.monotonic() + pause >= end:
                raise LlmError("deadline", f"the limit of requests a minute leaves no slot for {pause:.0f} s")
            os.pwrite(file, f"{free + self._apart_s:.6f}".ljust(63).encode(), 0)
        finally:
            os.close(file)
        time.sleep(pause)
