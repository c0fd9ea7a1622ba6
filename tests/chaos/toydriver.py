"""Runs the toy stage as `dragon` would: `python toydriver.py WORKDIR NOTES EXECUTOR SEED MS [retry]`."""

import sys
from pathlib import Path

import toystage

from littledragon.pipelines import driver
from littledragon.pipelines.config import load
from littledragon.pipelines.driver import run_stage
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import executor
from littledragon.pipelines.lease import acquire
from littledragon.pipelines.store import Store

driver.SMALL_FILES = 5  # compact often, so that kills meet it


def main() -> int:
    workdir, notes, where, seed, ms, *retry = sys.argv[1:]
    config = load("smoke", seed=int(seed), repeat_ms=float(ms), teacher_url=notes)
    try:
        store = Store.open(Path(workdir), create=True)
        with acquire(store.path, toystage.NAME) as lease, executor(where, workers=2) as place:
            run_stage(store, toystage, config, place, lease, retry="failed" if retry else None)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
