"""What models write for the prompts of `dragon eval`: behind an OpenAI-compatible endpoint, or on this machine."""

import contextlib
import functools
import gc
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from littledragon.pipelines import llm
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.journal import Journal
from littledragon.pipelines.progress import Counts, busy, say
from littledragon.pipelines.questions import ENDED, Prompt, Settings, Source, Text, is_number
from littledragon.pipelines.threads import side_by_side
from littledragon.release import published
from littledragon.schemas.ids import digest

if TYPE_CHECKING:
    from littledragon.pipelines.legal_decoding import Vocabulary

Row = dict[str, Any]

_One = tuple[str, int]
"""An output: its prompt and number."""
Writer = Callable[[Sequence[_One]], Generator[Text, None, None]]
"""Writes these outputs, in any order."""


def generated(
    source: Source, prompts: dict[str, Prompt], path: Path, settings: Settings, writer: Writer | None = None
) -> list[Text]:
    """What the model (or another writer) writes; what it wrote for an earlier run of the same is read."""
    run = {"source": source.as_dict()} | settings.deciding(source)
    with Journal(path, {"run": run}) as journal:
        kept: dict[_One, Text] = {}
        for row in journal.rows:
            id, number, output, seconds = (row.get(name) for name in ("example_id", "number", "output", "seconds"))
            if not (isinstance(id, str) and type(number) is int and isinstance(output, str) and is_number(seconds)) or (
                row.get("ended") not in (None, *ENDED)
            ):
                raise UserError(f"{path}: a row that is no output: choose another --out")
            if id in prompts and 0 <= number < settings.samples:
                kept[id, number] = Text(id, number, output, seconds, ended=row.get("ended"))
        wanted = [(id, n) for n in range(settings.samples) for id in prompts if (id, n) not in kept]
        progress = Counts("generating", len(wanted) + len(kept), {"kept": len(kept)} if kept else {})
        faults: dict[_One, Text] = {}
        ask = _asked if source.endpoint else _sampled
        with contextlib.closing(writer(wanted) if writer else ask(source, prompts, wanted, settings)) as generated:
            for text in generated:
                where = (text.example_id, text.number)
                if text.fault is None:
                    line = {"example_id": text.example_id, "number": text.number, "output": text.output}
                    journal.append(line | {"seconds": text.seconds} | ({"ended": text.ended} if text.ended else {}))
                    kept[where] = text
                else:
                    faults[where] = text
                progress.one("written" if text.fault is None else "faults")
        progress.end()
    _say_how_they_ended(kept.values())
    return [*kept.values(), *faults.values()]


def _say_how_they_ended(texts: Iterable[Text]) -> None:
    """How many of a model's outputs ended in which way, where anybody knows."""
    counts = Counter(text.ended for text in texts if text.ended is not None)
    words = {
        "eos": "ended by themselves",
        "cut": "cut at their bound of tokens",
        "stuck": "ended as no token was legal",
    }
    if counts:
        say(
            f"eval: of {counts.total()} outputs "
            + ", ".join(f"{counts[one]} {words[one]}" for one in ENDED if counts[one])
        )


def _asked(
    source: Source, prompts: dict[str, Prompt], wanted: Sequence[_One], settings: Settings
) -> Generator[Text, None, None]:
    """The replies of an endpoint, many questions at once. Raises UserError: it takes none of them."""
    assert source.endpoint is not None
    assert source.model is not None
    here = threading.local()

    def ask(what: _One) -> Text:
        id, number = what
        try:
            if not hasattr(here, "client"):
                here.client = llm.Client(
                    source.endpoint,
                    source.model or "",
                    settings.rpm,
                    settings.deadline_s,
                    formatted=False,
                    sampling=settings.sampling(source),
                )
            answer = here.client.ask(prompts[id].messages)
        except llm.LlmError as error:
            if error.kind == "unauthorized":
                raise UserError(f"{source.endpoint}: {error.detail}") from None
            if error.kind not in llm.FINAL or error.detail.startswith("HTTP "):
                return Text(id, number, "", fault=f"no output: {error}")
            # The model refused, or wrote more than it may: its own failure.
            return Text(id, number, "", error.seconds, ended="cut" if error.kind == "too_long" else None)
        return Text(id, number, answer.text, answer.seconds, ended="eos")

    yield from side_by_side(ask, wanted, settings.threads or 16)


@dataclass
class _Local:
    """A local model, loaded. ends: the tokens that end an answer. most: positions of its context. vocabulary: of its
    tokens, where they are masked. compiled: whether a step is compiled, for a number of outputs that stays the same and
    a cache of keys and values that does not grow; ready: the numbers of outputs for which that is done."""

    model: Any
    tokenizer: Any
    ends: list[int]
    most: int
    vocabulary: "Vocabulary | None"
    compiled: bool = False
    ready: set[int] = field(default_factory=set)

    def tokens(self, prompt: Prompt) -> list[int]:
        """What the model is asked, in tokens."""
        said = self.tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
        found: list[int] = self.tokenizer(said, add_special_tokens=False)["input_ids"]
        return found


def _loaded(source: Source, settings: Settings) -> _Local:
    """Raises UserError: no model lies there, or it has no chat template, or no end."""
    if not Path(source.model or "").is_dir():
        raise UserError(f"--model {source.model}: no folder of a model (or give --endpoint URL too)")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    except ImportError as error:
        raise UserError(f"a local model needs {error.name}: pip install 'littledragon[train]'") from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours = {"local_files_only": True, "trust_remote_code": False}
    with busy(f"loading {source.model}"), _told(source):
        tokenizer = AutoTokenizer.from_pretrained(source.model, **ours)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        model = AutoModelForCausalLM.from_pretrained(source.model, dtype=dtype, **ours)
        if tokenizer.chat_template is None:
            raise UserError(f"--model {source.model}: its tokenizer has no chat template")
        ends = _ends(model, tokenizer)
        model.generation_config = GenerationConfig()  # how many texts it writes, and how, is said here alone
        most = int(getattr(model.config.get_text_config(), "max_position_embeddings", 1 << 20))
    if not ends:
        raise UserError(f"--model {source.model}: it has no token that ends an answer: give its tokenizer an eos_token")
    vocabulary = None
    if settings.constrain:
        from littledragon.pipelines.legal_decoding import vocabulary_of

        vocabulary = vocabulary_of(tokenizer, ends)
    compiled = device == "cuda" and bool(getattr(model, "_can_compile_fullgraph", False))
    return _Local(model.to(device).eval(), tokenizer, ends, most, vocabulary, compiled)


@contextlib.contextmanager
def _told(source: Source) -> Iterator[None]:
    """A folder may hold anything: whatever it makes the libraries raise is said of it, in a line."""
    try:
        yield
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise UserError(f"--model {source.model}: {published.short(error)}") from None


def _sampled(
    source: Source, prompts: dict[str, Prompt], wanted: Sequence[_One], settings: Settings
) -> Generator[Text, None, None]:
    """What a local model writes, some prompts at once; the seconds of each are those of its batch.

    Batches are those of all prompts, also where some outputs are there already: where a run was interrupted decides no
    output of the next one.

    Raises:
        UserError: no model lies there, or it has no chat template, or no end.
    """
    if not wanted:
        return
    local, most = _loaded(source, settings), settings.sampling(source)["max_tokens"]
    with _told(source):
        lengths = {id: len(local.tokens(prompt)) for id, prompt in prompts.items()}
    if not min(lengths.values()):
        raise UserError(f"--model {source.model}: its chat template makes nothing of a prompt")
    room = {id: max(0, min(most, local.most - length)) for id, length in lengths.items()}
    every = [(id, number) for number in range(settings.samples) for id in prompts]
    write = functools.partial(_written, local, prompts, room, source, settings)
    free = functools.partial(_free, local)
    missing, largest = set(wanted), min(settings.batch, len(every))
    for batch in batches(every, lengths, room, settings.batch):
        if missing.isdisjoint(batch):
            continue
        parts, fits = halved(write, batch, largest, free)
        if fits < largest:
            say(f"eval: {largest} outputs at once do not fit into the GPU's memory: {fits} from now on")
            largest = fits
        for part, texts in parts:
            lost = "no output: the GPU's memory does not suffice for it"
            for text in texts if texts is not None else [Text(id, n, "", fault=lost) for id, n in part]:
                if (text.example_id, text.number) in missing:
                    yield text
    del local, write, free
    _free()  # the kernels that are judged next need the memory


def batches(
    outputs: Sequence[_One], lengths: Mapping[str, int], room: Mapping[str, int], size: int
) -> Iterator[list[_One]]:
    """All outputs, `size` at once, those together whose prompts have a like number of tokens: padding is work too.

    The longest come first, as what does not fit into memory then shows at once, and no cache has to be larger than the
    first one. Where prompts leave different room for an answer they are not put together, so that each has all of its
    own.
    """
    order = sorted(outputs, key=lambda one: (room[one[0]], -lengths[one[0]], *one))
    for _, same in itertools.groupby(order, key=lambda one: room[one[0]]):
        alike = list(same)
        yield from (alike[first : first + size] for first in range(0, len(alike), size))


def halved(
    write: Callable[[Sequence[_One], int], list[Text]], batch: Sequence[_One], largest: int, free: Callable[[], None]
) -> tuple[list[tuple[Sequence[_One], list[Text] | None]], int]:
    """What is written of a batch, in parts of at most `largest`, or of half as many each time that memory does not
    suffice (`free` is called before); and how many fitted. None of an output that does not fit alone. `write` is told
    how many a part has at most."""
    import torch

    waiting: list[Sequence[_One]] = [batch[first : first + largest] for first in range(0, len(batch), largest)]
    done: list[tuple[Sequence[_One], list[Text] | None]] = []
    while waiting:
        part = waiting.pop(0)
        try:
            texts: list[Text] | None = write(part, largest)
        except torch.OutOfMemoryError:
            texts = None
        if texts is None:
            free()
        if texts is None and largest > 1:  # a short part may be filled up
            largest = (len(part) + 1) // 2
            left = [*part, *(one for later in waiting for one in later)]
            waiting = [left[first : first + largest] for first in range(0, len(left), largest)]
        else:
            done.append((part, texts))
    return done, largest


def _written(
    local: _Local,
    prompts: dict[str, Prompt],
    room: Mapping[str, int],
    source: Source,
    settings: Settings,
    batch: Sequence[_One],
    rows: int,
) -> list[Text]:
    """What the model writes of one batch, of at most `rows`, whose prompts all leave as many tokens of room."""
    import torch

    if not room[batch[0][0]]:  # its own failure: the prompt alone fills the model's context
        return [Text(id, number, "", 0.0, ended="cut") for id, number in batch]
    asked = [local.tokens(prompts[id]) for id, _ in batch]
    if local.compiled:  # each other number of outputs would be compiled for
        asked += [asked[-1]] * (rows - len(asked))
    longest, device = max(map(len, asked)), local.model.device
    padding = local.ends[0] if local.tokenizer.pad_token_id is None else local.tokenizer.pad_token_id
    inputs = torch.tensor([[padding] * (longest - len(one)) + one for one in asked], device=device)
    attention = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in asked], device=device)
    masks = []
    if local.vocabulary is not None:
        from littledragon.pipelines.legal_decoding import LegalTokens

        masks = [LegalTokens(local.vocabulary, longest, len(batch))]
    temperature = settings.sampling(source)["temperature"]
    how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
    write = functools.partial(
        local.model.generate, input_ids=inputs, attention_mask=attention, max_new_tokens=room[batch[0][0]],
        eos_token_id=local.ends, pad_token_id=padding, **(how or {"do_sample": False}),
    )  # fmt: skip
    if local.compiled:
        write.keywords["cache_implementation"] = "static"
    if local.compiled and rows not in local.ready and room[batch[0][0]] >= _STEPS:
        try:
            with busy("compiling the model"):
                write(stopping_criteria=[_Stop(rows, longest + _STEPS)], min_new_tokens=_STEPS)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of the many kinds that a compiler has; often there is no C compiler
            say(f"eval: the model is not compiled, which makes it slower: {published.short(error)}")
            local.compiled = False
            return _written(local, prompts, room, source, settings, batch, rows)
        local.ready.add(rows)
    stops = [_Stop(len(batch))] if len(asked) > len(batch) else []
    torch.manual_seed(int(digest([settings.seed, batch]), 16) % (1 << 63))
    began = time.monotonic()
    tokens = write(logits_processor=masks, stopping_criteria=stops)[: len(batch), longest:].tolist()
    took = time.monotonic() - began
    stuck = {place for mask in masks for place in mask.stuck}
    texts = []
    for place, ((id, number), row) in enumerate(zip(batch, tokens, strict=True)):
        stop = next((at for at, token in enumerate(row) if token in local.ends), None)
        ended = "stuck" if place in stuck else "cut" if stop is None else "eos"
        said = local.tokenizer.decode(row[:stop], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        texts.append(Text(id, number, str(said), took, ended=ended))
    return texts


_STEPS = 6
"""Tokens of the answer that is thrown away: with the first ones a step is compiled, recorded and replayed."""


class _Stop:
    """Ends the answers that only fill a batch up, those from the `wanted`-th, and all of them at `length` tokens."""

    def __init__(self, wanted: int, length: int | None = None) -> None:
        self.wanted = wanted
        self.length = length

    def __call__(self, tokens: Any, scores: Any, **_: Any) -> Any:
        import torch

        ended = torch.arange(tokens.shape[0], device=tokens.device) >= self.wanted
        return ended | (self.length is not None and tokens.shape[1] >= self.length)


def _free(local: _Local | None = None) -> None:
    """Give the memory back that a GPU's allocator keeps, and what compiled steps of a model have there."""
    import torch

    if not torch.cuda.is_available():
        return
    if local is not None:
        local.ready.clear()
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def _ends(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: the model's, the tokenizer's, and the one that the chat template puts there."""
    own = model.generation_config.eos_token_id
    ends = {*(own if isinstance(own, list) else [own]), tokenizer.eos_token_id}
    said = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": "ANSWER"}], tokenize=False
    )
    tail = tokenizer(said.rpartition("ANSWER")[2].strip(), add_special_tokens=False)["input_ids"][:1]
    ends |= set(tail) & set(tokenizer.all_special_ids)
    return sorted(end for end in ends if end is not None)
