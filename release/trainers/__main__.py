"""What `dragon train` runs: a trainer's script as it stands, alone on its --out, and one line for whatever ends it.

    python -m littledragon.release.trainers sft --data RELEASE --init tiny --out DIR

An exception that the script does not foresee (a full disk, a chat template that fails) is said in one line too;
DRAGON_DEBUG=1 shows where it came from. SIGTERM ends a run as Ctrl-C does.
"""

import hashlib
import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SCRIPTS: Final = ("sft", "grpo")


def main(argv: Sequence[str]) -> None:
    """Run the script that the first word names with the rest as its options. Raises SystemExit, also of errors."""
    name, *options = argv
    if name not in SCRIPTS:
        sys.exit(f"error: {name}: choose {' or '.join(SCRIPTS)}")
    folder = Path(__file__).resolve().parent
    sys.argv = [f"dragon train {name}", *options]
    sys.path.insert(0, str(folder))  # as where it is run alone
    signal.signal(signal.SIGTERM, _stop)
    held = _alone(_out(options))
    try:
        runpy.run_path(str(folder / f"{name}.py"), run_name="__main__")
    except KeyboardInterrupt:
        sys.exit("error: stopped: give --resume to go on from the last checkpoint, if there is one")
    except Exception as error:
        if os.environ.get("DRAGON_DEBUG"):
            raise
        what = f" in {error.doc[:80]!r}" if isinstance(error, json.JSONDecodeError) else ""  # of --set
        said = " ".join(f"{type(error).__name__}: {error}{what}".split())[:500]
        sys.exit(f"error: {said} (DRAGON_DEBUG=1 shows where)")
    finally:
        if held is not None:
            held.close()


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def _out(options: Sequence[str]) -> str | None:
    """The value of --out, as argparse takes it, abbreviated or not."""
    for at, word in enumerate(options):
        flag, given, value = word.partition("=")
        if flag in ("--o", "--ou", "--out"):
            return value if given else next(iter(options[at + 1 :]), None)
    return None


def _alone(out: str | None) -> socket.socket | None:
    """What keeps other runs of this host from the same folder; the kernel lets go of it, however the process ends."""
    if out is None:
        return None
    name = hashlib.sha256(os.fsencode(Path(out).resolve())).hexdigest()
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0littledragon-train-{name}")
    except OSError:
        held.close()
        sys.exit(f"error: {out}: another run writes to it: wait for its end, or give another --out")
    return held


if __name__ == "__main__":
    main(sys.argv[1:])
