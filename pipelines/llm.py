"""Asking a model behind an OpenAI-compatible endpoint: one question, one answer, within a deadline.

The SDK's own retries are off. Here: a limit of requests a minute that all processes of this machine share, retries with
jitter that honour Retry-After, errors told apart by whether they may pass, and an exchange that is bounded in size
and in time whatever its status: a watchdog shuts the connection at the deadline, as a timeout of the transport starts
anew with each byte.
"""

import contextlib
import email.utils
import fcntl
import json
import math
import os
import random
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from littledragon.schemas.ids import digest

Kind = Literal["declined", "too_long", "unauthorized", "network", "rate_limited", "server", "garbled", "deadline"]
Message = dict[str, str]

MAX_BODY: Final = 4 << 20
"""Bytes of one answer's body, whatever its status."""
DUMMY_KEYS: Final = frozenset(
    {"empty", "none", "null", "dummy", "no-key", "nokey", "fake", "test", "token", "placeholder", "unused",
     "not-needed", "sk-no-key-required", "ollama", "lm-studio", "vllm", "local"}
)  # fmt: skip
"""What an endpoint at home is given where the SDK insists on a key: words that replies may use, and no secrets."""
LEAST_KEY: Final = 4
"""Shorter keys are no secrets either."""
FINAL: Final = ("declined", "too_long")
"""Errors that another try does not mend."""
_LEAST_WAIT_S: Final = 0.5
_MOST_WAIT_S: Final = 30.0


class LlmError(Exception):
    """No answer. `kind` says why; of these, `FINAL` are for good and the others may pass later. seconds: as `Answer`'s,
    where an exchange came to its end."""

    seconds: float = 0.0

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Kind = kind
        self.detail = detail

    def __reduce__(self) -> tuple[type["LlmError"], tuple[Kind, str]]:
        return LlmError, (self.kind, self.detail)


@dataclass(frozen=True)
class Answer:
    """A model's reply, and what the endpoint says it cost.

    seconds: of the exchange that gave it; waiting for its turn, and earlier tries, are left aside.
    """

    text: str
    tokens_in: int
    tokens_out: int
    seconds: float = field(default=0.0, compare=False)


class Client:
    """One model behind one endpoint."""

    def __init__(
        self,
        url: str | None,
        model: str,
        rpm: int,
        deadline_s: float,
        *,
        formatted: bool = True,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """Args:
        url: base URL of the endpoint; None is OpenAI's own.
        model: the model's name there.
        rpm: requests a minute at most, over all processes of this machine that use this endpoint.
        deadline_s: of one question, retries and waiting included.
        formatted: ask for a JSON object, unless the endpoint knows no such thing.
        sampling: other fields of a request: temperature, max_tokens.

        Raises:
        LlmError: the key in the environment is none.
        """
        from openai import DefaultHttpxClient, OpenAI

        key = (os.environ.get("OPENAI_API_KEY") or "").strip()
        if not (key.isascii() and key.isprintable()):
            raise LlmError("unauthorized", "OPENAI_API_KEY holds letters that no key has: set it again")
        self._echo = _echo(key)
        # Endpoints at home often want no key, but the SDK insists on one.
        self._sdk = OpenAI(
            base_url=url,
            api_key=key or "none",
            max_retries=0,
            # Each request has a connection of its own: the watchdog learns of a connection when it is opened.
            default_headers={"Accept-Encoding": "identity", "Connection": "close"},
            http_client=DefaultHttpxClient(event_hooks={"request": [self._watch], "response": [self._refuse]}),
        )
        self._watchdog: _Watchdog | None = None
        self._formatted = formatted
        self._sampling = dict(sampling or {})
        self._model = model
        self._deadline_s = deadline_s
        self._limit = _RateLimit(str(url), rpm)

    def close(self) -> None:
        """Close its connections."""
        self._sdk.close()

    def ask(self, messages: Sequence[Message]) -> Answer:
        """The model's reply to a dialogue.

        Whatever the endpoint says, an echo of the key is blotted out: replies and errors are stored.

        Raises:
            LlmError: there is none; `kind` tells whether it may pass.
        """
        end = time.monotonic() + self._deadline_s
        formatted, tries = self._formatted, 0
        last: LlmError | None = None  # what the endpoint said: it tells more than that the time is up
        began = time.monotonic()
        while True:
            try:
                self._limit.wait(end)
                began = time.monotonic()
                answer = self._once(messages, formatted, end)
            except LlmError as error:
                error.seconds = time.monotonic() - began
                if error.kind != "deadline" or last is None:
                    raise
                raise LlmError("deadline", f"{error.detail}; before that, {last.detail}") from None
            except _BadRequest as bad:
                # Perhaps the endpoint knows no `response_format`.
                if not formatted:
                    raise bad.error from None
                formatted = False
            except _Passing as passing:
                tries += 1
                pause = _backoff(tries) if passing.after_s is None else passing.after_s + _backoff(0)
                last = passing.error
                if time.monotonic() + pause >= end:
                    detail = f"{last.detail} (after {tries} tries in {self._deadline_s:g} s)"
                    raise LlmError(last.kind, detail) from None
                time.sleep(pause)
            else:
                self._formatted = formatted
                return replace(answer, seconds=time.monotonic() - began)

    def _once(self, messages: Sequence[Message], formatted: bool, end: float) -> Answer:
        import openai

        late = LlmError("deadline", f"no whole answer within {self._deadline_s:g} s")
        request: Any = self._sdk.chat.completions.with_streaming_response
        wish = self._sampling | ({"response_format": {"type": "json_object"}} if formatted else {})
        with _Watchdog(end) as self._watchdog:
            try:
                timeout = max(end - time.monotonic(), 0.01)
                with request.create(model=self._model, messages=list(messages), timeout=timeout, **wish) as response:
                    body = b"".join(_bounded(response.iter_bytes()))
            except Exception as error:
                # What `_refuse` raises comes wrapped; the body is read after the SDK's own handling, so that what its
                # transport raises then is its own.
                cause = error.__cause__ if isinstance(error, openai.APIConnectionError) and error.__cause__ else error
                if self._watchdog.fired or "timeout" in type(cause).__name__.lower():
                    raise late from None
                if isinstance(cause, LlmError | _Passing | _BadRequest):
                    raise cause from None
                if type(cause).__module__.partition(".")[0] in _TRANSPORTS or cause is not error:
                    raise _Passing(LlmError("network", self._line(cause))) from None
                raise
            if self._watchdog.fired:
                raise late
        return self._answer(body)

    def _watch(self, request: Any) -> None:
        """Before a request: have the watchdog told of its connection."""
        if self._watchdog is not None:
            request.extensions["trace"] = self._watchdog.trace

    def _refuse(self, response: Any) -> None:
        """Before the SDK reads a response: read that of a failure, within bounds, and say what it means."""
        if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise _Passing(LlmError("garbled", "the answer is compressed, which was not asked for"))
        if response.is_success:
            return
        status, headers, body = response.status_code, response.headers, b"".join(_bounded(response.iter_raw()))
        try:
            said = json.loads(body)["error"]["message"]
        except (ValueError, KeyError, TypeError, RecursionError):
            said = body.decode(errors="replace")
        raise _by_status(status, f"HTTP {status}: {self._line(said)}", headers)

    def _blotted(self, text: str) -> str:
        return self._echo.sub("(key)", text) if self._echo else text

    def _line(self, error: object) -> str:
        """What was said, on one line; the key is blotted out before it is cut, as half a key is one too."""
        return " ".join(self._blotted(str(error)[:MAX_BODY]).split())[:300]

    def _answer(self, body: bytes) -> Answer:
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
            raise LlmError("declined", f"the model refused: {self._line(refusal or ended)}")
        if ended == "length":
            raise LlmError("too_long", "the reply was cut off at the model's limit")
        if not isinstance(text, str):
            raise _Passing(LlmError("garbled", "the answer has no text"))
        tokens_in, tokens_out = (n if isinstance(n, int) and 0 <= n < 1 << 40 else 0 for n in counts)
        return Answer(self._blotted(text), tokens_in, tokens_out)


_TRANSPORTS: Final = ("httpx", "httpx2", "httpcore", "httpcore2", "h11")


def _echo(key: str) -> re.Pattern[str] | None:
    """Matches a key, also where some of its letters are escaped as JSON or Python does; None where it is no secret."""
    if len(key) < LEAST_KEY or key.lower() in DUMMY_KEYS:
        return None
    letters = (rf"(?:{re.escape(c)}|\\+(?:{re.escape(c)}|(?i:u{ord(c):04x}|x{ord(c):02x})))" for c in key)
    return re.compile("".join(letters))


def _bounded(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks of a body.

    Raises:
        LlmError: they are more than `MAX_BODY` bytes.
    """
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_BODY:
            raise LlmError("too_long", f"the answer is larger than {MAX_BODY} bytes")
        yield chunk


class _Watchdog:
    """Shuts the connection of one exchange at `end` (monotonic seconds), so that every wait on it ends."""

    def __init__(self, end: float) -> None:
        self.fired = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(max(0.0, end - time.monotonic()), self._fire)
        self._timer.daemon = True

    def __enter__(self) -> "_Watchdog":
        self._timer.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._timer.cancel()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """The transport opened a connection, or wrapped it in TLS: that is the one to shut."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
            if self.fired:
                self._fire()

    def _fire(self) -> None:
        with self._lock:
            self.fired = True
            if self._socket is not None:
                # The plain socket's own method: that of TLS would change what the reading thread is using.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _BadRequest(Exception):
    """The endpoint does not take the request as it is."""

    def __init__(self, error: LlmError) -> None:
        super().__init__(str(error))
        self.error = error


class _Passing(Exception):
    """An error after which another try makes sense, after `after_s` where the endpoint said so."""

    def __init__(self, error: LlmError, after_s: float | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s


def _by_status(status: int, detail: str, headers: Any) -> Exception:
    """What an HTTP status means."""
    if status == 413:
        return LlmError("too_long", detail)
    if status in (400, 422):
        return _BadRequest(LlmError("declined", detail))
    if status == 451:
        return LlmError("declined", detail)
    if status in (408, 409, 425, 429):
        return _Passing(LlmError("rate_limited", detail), _retry_after(headers))
    if status >= 500:
        return _Passing(LlmError("server", detail), _retry_after(headers))
    # The others (no key, no credit, no such model, a wrong address) are about the endpoint, never about one label.
    return LlmError("unauthorized", f"{detail}: check OPENAI_API_KEY, the account, teacher_url and teacher_model")


def _retry_after(headers: Any) -> float | None:
    """Seconds that the endpoint asks to wait, from `retry-after-ms` or Retry-After (seconds or a date).

    None where it asks for no wait that has a length: then the ordinary one is due.
    """
    text = headers.get("retry-after") or ""
    readings: tuple[Callable[[], float], ...] = (
        lambda: float(headers.get("retry-after-ms")) / 1000,
        lambda: float(text),
        lambda: email.utils.parsedate_to_datetime(text).timestamp() - time.time(),
    )
    for reading in readings:
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            seconds = reading()
            if math.isfinite(seconds) and seconds > 0:
                return seconds
    return None


def _backoff(tries: int) -> float:
    """Seconds before the next try: doubling with each try, with full jitter above a floor."""
    most = min(_MOST_WAIT_S, _LEAST_WAIT_S * 2.0 ** min(tries, 10))
    return random.uniform(_LEAST_WAIT_S / 2, most)


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
