"""Coverage-guided fuzzing of the language: `python tests/fuzz/fuzz_tsel.py SECONDS` (needs `atheris`).

An input that begins with a brace is a trace to encode, any other a text to decode; what is accepted must hold to the
rules and be written again as it was (`tests/schemas/hammer.py`). Half of the new inputs come from our own mutators,
which know the formats, half from libFuzzer's. Seeds are real texts and traces in a temporary folder, which is kept,
and named, only where something was found.
"""

import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HELPERS = Path(__file__).parents[1] / "schemas"
LONGEST = 65_536
HUNG_S = 5


def main(seconds: int) -> int:
    """Fuzz in a process of its own, since libFuzzer ends the one that it runs in; 1 where something was found."""
    sys.path.insert(0, str(HELPERS))
    import mutants

    folder = Path(tempfile.mkdtemp(prefix="dragon-fuzz-"))
    corpus, found = folder / "corpus", folder / "found"
    corpus.mkdir()
    found.mkdir()
    for number, base in enumerate(mutants.bases()):
        for kind, text in zip(("line", "json", "trace"), (*base.texts, base.trace), strict=True):
            if len(text.encode()) <= LONGEST:
                (corpus / f"{number}.{kind}").write_text(text, encoding="utf-8")
    command = [sys.executable, __file__, "--here", str(corpus), f"-max_total_time={seconds}", f"-max_len={LONGEST}"]
    command += [f"-timeout={HUNG_S}", "-rss_limit_mb=2048", f"-artifact_prefix={found}/", "-print_final_stats=1"]
    code = subprocess.run(command, check=False, timeout=seconds + 600).returncode
    if code == 0 and not list(found.iterdir()):
        shutil.rmtree(folder)
        return 0
    sys.stderr.write(f"found, with exit code {code}: {[path.name for path in found.iterdir()]} in {found}\n")
    return 1


def here(arguments: list[str]) -> None:
    """Fuzz in this process; libFuzzer ends it."""
    sys.path.insert(0, str(HELPERS))
    import atheris

    with atheris.instrument_imports(include=["littledragon.schemas"]):
        import hammer
    from text_mutants import TEXTS

    def one(data: bytes) -> None:
        trace = data[:1] == b"{"
        outcome = hammer.wrong_trace(data.decode(errors="replace")) if trace else hammer.wrong(data)
        if outcome[0] not in ("refused", "accepted"):
            raise AssertionError(outcome)

    def mutate(data: bytes, longest: int, seed: int) -> bytes:
        draw = random.Random(seed)
        if draw.random() < 0.5:
            return bytes(atheris.Mutate(data, longest))
        _, change = draw.choice(TEXTS)
        return change(draw, data.decode(errors="replace")).encode(errors="surrogatepass")[:longest]

    atheris.Setup([sys.argv[0], *arguments], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(sys.argv[2:])
    else:
        sys.exit(main(int(sys.argv[1])))
