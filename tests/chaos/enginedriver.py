"""Searches and verifies as `dragon` would: `python enginedriver.py WORKDIR EXECUTOR STAGES SETTINGS [retry]`.

STAGES is a comma-separated list, SETTINGS are fields of the configuration as JSON. The names of the
threads that the process still has at its end go to standard output, as JSON.
"""

import json
import sys
import threading
from pathlib import Path

from littledragon.pipelines.config import load
from littledragon.pipelines.driver import run_stage
from littledragon.pipelines.errors import UserError
from littledragon.pipelines.executor import executor
from littledragon.pipelines.lease import acquire_all
from littledragon.pipelines.stages import stage
from littledragon.pipelines.store import Store


def main() -> int:
    workdir, where, stages, settings, *retry = sys.argv[1:]
    config = load("smoke", **json.loads(settings))
    names = stages.split(",")
    try:
        store = Store.open(Path(workdir))
        with acquire_all(store.path, names) as leases, executor(where, workers=2) as place:
            for name in names:
                run_stage(store, stage(name), config, place, leases[name], retry="failed" if retry else None)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(json.dumps([thread.name for thread in threading.enumerate()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
