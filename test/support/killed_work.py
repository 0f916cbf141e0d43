"""Long jobs in processes that are killed repeatedly, forked from one that has imported everything.

    python test/support/killed_work.py rollouts|demos|data FOLDER --kills 20 --seed 3

Runs the job once without interruption in FOLDER/whole, then in FOLDER/killed: kills it with SIGKILL at random times,
checks every existing file, restarts it, and finally lets it finish. Prints JSON: kills, full repetitions of the job,
mismatches with the uninterrupted job, unreadable files, maximum number of leftovers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test"), str(ROOT), str(ROOT / "model")]

import numpy as np  # noqa: E402
from support.scenes import cast_world, overhead_camera  # noqa: E402

from kinema4d_ros.core.errors import KinemaError  # noqa: E402
from kinema4d_ros.core.rollout import Provenance, Rollout  # noqa: E402
from kinema4d_ros.io.files import replacing_file  # noqa: E402
from kinema4d_ros.policies.demos import DemoSettings, make_demos, read_demo  # noqa: E402
from kinema4d_ros.policies.view import demo_view  # noqa: E402

ENOUGH_S = 600.0


def some_rollout(number: int, frames: int = 5) -> Rollout:
    """Make a rollout that differs for every number."""
    rng = np.random.default_rng(number)
    camera = overhead_camera(96, 64)
    xyz = np.stack([cast_world(camera)] * frames) + rng.normal(0, 0.001, (frames, 64, 96, 3)).astype(np.float32)
    return Rollout(
        rgb=rng.integers(0, 256, xyz.shape, dtype=np.uint8),
        xyz=xyz,
        robot_mask=rng.random(xyz.shape[:3]) < 0.2,
        camera=camera,
        times=np.arange(frames) * 0.1,
        provenance=Provenance("composite", "plane", "a" * 64, "b" * 64, number, 0.0, {}),
        rollout_id=f"{number:016x}",
        plan_hash="c" * 64,
    )


class Rollouts:
    """Saves the same folder repeatedly; it must hold the last acknowledged rollout or a later one."""

    saves = 6

    def work(self, folder: Path) -> None:
        done = folder / "acknowledged"
        number = int(done.read_text()) + 1 if done.is_file() else 0
        for index in range(number, self.saves):
            some_rollout(index).save(folder / "rollout")
            with replacing_file(done) as temporary:
                temporary.write_text(str(index))

    def look(self, folder: Path) -> int:
        """Return the number of damaged or lost rollouts."""
        done = folder / "acknowledged"
        if not done.is_file():
            return 0
        text = done.read_text()
        try:
            found = Rollout.load(folder / "rollout")
        except KinemaError:
            traceback.print_exc()
            return 1
        expected = [some_rollout(int(text) + more).rollout_id for more in (0, 1)]
        return int(found.rollout_id not in expected)

    def same(self, one: Path, other: Path) -> bool:
        a, b = Rollout.load(one / "rollout"), Rollout.load(other / "rollout")
        return a.rollout_id == b.rollout_id and bool(np.array_equal(a.xyz, b.xyz, equal_nan=True))


class Demos:
    """Demonstrations for a policy: an episode is complete or absent."""

    episodes = 3
    settings = DemoSettings(rate_hz=2.0)

    def work(self, folder: Path) -> None:
        make_demos(folder, self.episodes, self.settings, view=demo_view(48, 32))

    def look(self, folder: Path) -> int:
        damaged = 0
        for path in folder.glob("episode_*.npz"):
            try:
                read_demo(path)
            except KinemaError:
                damaged += 1
        return damaged

    def same(self, one: Path, other: Path) -> bool:
        names = sorted(path.name for path in one.glob("episode_*"))
        pairs = [(read_demo(one / name), read_demo(other / name)) for name in names]
        return names == sorted(path.name for path in other.glob("episode_*")) and all(
            np.array_equal(a.image, b.image) and np.array_equal(a.action, b.action) and a.lifted == b.lifted
            for a, b in pairs
        )


class Data:
    """A dataset: the same bytes in every file."""

    counts = {"train": 2, "val": 1, "ood": 0}  # noqa: RUF012 - never changed

    def __init__(self) -> None:
        from kinema4d_model.data.lab_config import load_config, parse_config

        small = {"frames": 6, "width": 48, "height": 32, "shard_episodes": 1, "kinds": {"push": 1.0}}
        self._config = parse_config({**load_config("nano").document, **small}, "test")

    def work(self, folder: Path) -> None:
        from kinema4d_model.data.make import make_dataset

        make_dataset(self._config, folder, self.counts, seed=7)

    def look(self, folder: Path) -> int:
        from kinema4d_model.data.shards import open_index, read_episode

        damaged = 0
        for path in folder.glob("*/[!.]*.tar"):
            try:
                index = open_index(path)
                for number in range(len(index.episodes)):
                    read_episode(index, number)
            except KinemaError:
                damaged += 1
        return damaged

    def same(self, one: Path, other: Path) -> bool:
        def content(folder: Path) -> dict[str, bytes]:
            return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

        return content(one) == content(other)


KINDS: dict[str, Callable[[], Rollouts | Demos | Data]] = {"rollouts": Rollouts, "demos": Demos, "data": Data}


def spawn(work: Callable[[Path], None], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work(folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, seconds: float) -> int | None:
    """Return the exit status, or None if the process still runs after that time."""
    end = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= end:
            return None
        time.sleep(0.002)


def hidden(folder: Path) -> int:
    """Return the number of temporary files left behind, without locks."""
    return sum(path.name.startswith(".") and path.name != ".lock" for path in folder.rglob("*") if path.parent.exists())


def kill(kind: str, folder: Path, kills: int, seed: int) -> dict[str, int]:
    job = KINDS[kind]()
    whole, killed = folder / "whole", folder / "killed"
    whole.mkdir(parents=True)
    began = time.monotonic()
    if wait(spawn(job.work, whole), ENOUGH_S) != 0:
        raise SystemExit("the undisturbed work failed")
    took_s = time.monotonic() - began
    rng = random.Random(seed)  # noqa: S311 - moments, not secrets
    told = {"kills": 0, "anew": 0, "mismatches": 0, "damaged": 0, "leftovers": 0}
    killed.mkdir()
    while told["kills"] < kills:
        child = spawn(job.work, killed)
        status = wait(child, rng.uniform(0.0, 0.6 * took_s))
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told["kills"] += 1
        elif status != 0:
            raise SystemExit(f"work that was started again ended with {status}")
        else:
            # Finished before the kill: compare, and start again, since there is nothing left to interrupt.
            told["mismatches"] += not job.same(whole, killed)
            told["anew"] += 1
            shutil.rmtree(killed)
            killed.mkdir()
        told["damaged"] += job.look(killed)
        told["leftovers"] = max(told["leftovers"], hidden(killed))
    if wait(spawn(job.work, killed), ENOUGH_S) != 0:
        raise SystemExit("the last run did not finish")
    told["mismatches"] += not job.same(whole, killed)
    told["left at the end"] = hidden(killed) - hidden(whole)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=tuple(KINDS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    print(json.dumps(kill(a.kind, a.folder, a.kills, a.seed)))


if __name__ == "__main__":
    main()
