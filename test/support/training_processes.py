"""Training in separate processes, forked from one that has imported everything: killed, or in pairs.

    python test/support/training_processes.py kill FOLDER --kills 20 --seed 3
    python test/support/training_processes.py pair FOLDER --processes 2
    python test/support/training_processes.py kill,pair FOLDER

FOLDER is written by `training_runs.make_run`. "kill" trains in FOLDER/killed, kills the process with SIGKILL at random
times, resumes it, and finally lets it finish. "pair" trains in FOLDER/pair over gloo. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test"), str(ROOT), str(ROOT / "model")]

from kinema4d_model.training.checkpoints import CheckpointFolder  # noqa: E402
from kinema4d_model.training.config import load_config  # noqa: E402
from kinema4d_model.training.metrics_log import read_log  # noqa: E402
from kinema4d_model.training.stages import run_stages  # noqa: E402

ENOUGH_S = 240


def train(folder: Path, out: Path, resume: bool) -> None:
    config = load_config(folder / "train.yaml")
    if not (out / "codec").is_dir():
        out.mkdir(parents=True, exist_ok=True)
        shutil.copytree(folder / "codec", out / "codec", dirs_exist_ok=True)
    run_stages(config, out, stages=("network",), resume=resume, bar=False)


def spawn(folder: Path, out: Path, resume: bool, environment: dict[str, str] | None = None) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ.update(environment or {})
        train(folder, out, resume)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, seconds: float, reached: Callable[[], bool] = lambda: False) -> int | None:
    """Return the exit status, or None if it still runs after that time or when `reached` returns True."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not reached():
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def _reached(log: Path, stamp: int, step: int) -> bool:
    if not log.is_file() or log.stat().st_mtime_ns == stamp:
        return False
    return max([line["step"] for line in read_log(log)], default=0) >= step


def kill(folder: Path, kills: int, seed: int) -> dict[str, object]:
    out = folder / "killed"
    rng = random.Random(seed)  # noqa: S311 - moments, not secrets
    steps: list[int] = []
    done = 0
    while done < kills:
        log = out / "metrics.jsonl"
        stamp = log.stat().st_mtime_ns if log.is_file() else 0
        wanted = (steps[-1] if steps else 0) + rng.randint(0, 4)
        child = spawn(folder, out, resume=True)
        # The log is rewritten when the child resumes: old lines after the checkpoint are ignored.
        status = wait(child, ENOUGH_S, lambda log=log, stamp=stamp, wanted=wanted: _reached(log, stamp, wanted))
        if status is None:
            status = wait(child, rng.uniform(0.0, 0.2))
        if status is not None:
            # Finished before the kill: start again, since there is nothing left to interrupt.
            if status:
                raise SystemExit(f"training ended with {status}")
            shutil.rmtree(out)
            steps.append(0)
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        done += 1
        # Checkpoints after a kill must be readable or absent.
        found = CheckpointFolder(out / "checkpoints").newest()
        named = list((out / "checkpoints").glob("step-*")) if (out / "checkpoints").is_dir() else []
        if named and (found is None or found.path != max(named)):
            raise SystemExit(f"{max(named)} is damaged")
        steps.append(0 if found is None else found.progress.step)
    if wait(spawn(folder, out, resume=True), ENOUGH_S) != 0:
        raise SystemExit("the last run did not finish")
    return {"kills": done, "checkpoints": steps}


def pair(folder: Path, processes: int) -> dict[str, object]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    children = [
        spawn(folder, folder / "pair", False, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]
    codes = [wait(child, ENOUGH_S) for child in children]
    for child, code in zip(children, codes, strict=True):
        if code is None:
            os.kill(child, signal.SIGKILL)
    if any(codes):
        raise SystemExit(f"the processes ended with {codes}")
    return {"processes": processes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("kill", "pair", "kill,pair"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    found: dict[str, object] = {}
    if "kill" in a.mode:
        found |= kill(a.folder, a.kills, a.seed)
    if "pair" in a.mode:
        found |= pair(a.folder, a.processes)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
