"""Pool of generator nodes: one worker per node at a time, and failover to another node."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kinema4d_ros.core.errors import ErrorCode, GeneratorError
from kinema4d_ros.evaluation.settings import has_weights, node_names
from kinema4d_ros.generators.pool import GeneratorPool


class Node:
    """A generator that returns its own name after a delay, or raises errors."""

    def __init__(self, name: str, *codes: ErrorCode, seconds: float = 0.0) -> None:
        self.name, self._codes, self._seconds = name, list(codes), seconds
        self.asked = self.inside = self.most = 0
        self.closed = False

    def generate(self, request: Any, progress: Any = None, cancel: Any = None) -> Any:
        self.asked += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(self._seconds)
        self.inside -= 1
        if self._codes:
            raise GeneratorError(f"{self.name} says no", code=self._codes.pop(0))
        return self.name

    def close(self) -> None:
        self.closed = True


def pool(folder: Path, nodes: Sequence[Node], **options: Any) -> GeneratorPool:
    known = {node.name: node for node in nodes}
    return GeneratorPool(list(known), folder, make=known.__getitem__, **options)


GONE, BUSY = ErrorCode.GENERATOR_UNAVAILABLE, ErrorCode.GENERATOR_BUSY


def test_workers_share_nodes_and_use_them_one_at_a_time(tmp_path: Path) -> None:
    nodes = [Node("a", seconds=0.05), Node("b", seconds=0.05)]
    found: list[Any] = []

    def work() -> None:
        own = pool(tmp_path, nodes, turn=len(threads))
        found.extend(own.generate(None) for _ in range(6))  # type: ignore[arg-type]

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 24
    assert {found.count("a") > 0, found.count("b") > 0} == {True}
    assert [node.most for node in nodes] == [1, 1]
    assert sum(node.asked for node in nodes) == 24


@pytest.mark.parametrize("code", [GONE, ErrorCode.GENERATOR_TIMEOUT])
def test_an_unavailable_node_is_skipped_and_retried_later(tmp_path: Path, code: ErrorCode) -> None:
    nodes = [Node("a", code), Node("b", code)]
    nodes[1]._codes.clear()
    own = pool(tmp_path, nodes, gone_s=0.3)
    assert [own.generate(None) for _ in range(3)] == ["b", "b", "b"]  # type: ignore[arg-type]
    assert nodes[0].asked == 1
    time.sleep(0.35)
    assert own.generate(None) == "a"  # type: ignore[arg-type]


def test_a_busy_node_is_retried_and_other_errors_are_raised(tmp_path: Path) -> None:
    own = pool(tmp_path, [Node("a", BUSY), Node("b", BUSY)])
    assert own.generate(None) in ("a", "b")  # type: ignore[arg-type]
    bad = pool(tmp_path, [Node("a", ErrorCode.GENERATOR_OUT_OF_MEMORY), Node("b", ErrorCode.GENERATOR_OUT_OF_MEMORY)])
    with pytest.raises(GeneratorError) as caught:
        bad.generate(None)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.GENERATOR_OUT_OF_MEMORY


def test_no_available_node_is_reported_at_once_and_again(tmp_path: Path) -> None:
    nodes = [Node("a", GONE, GONE), Node("b", GONE, GONE)]
    own = pool(tmp_path, nodes)
    for _ in range(2):
        with pytest.raises(GeneratorError, match=r"no node of ros:a\+ros:b answers .*a says no.*b says no") as caught:
            own.generate(None)  # type: ignore[arg-type]
        assert caught.value.code is GONE
    assert [node.asked for node in nodes] == [2, 2]
    own.close()
    assert all(node.closed for node in nodes)


def test_waiting_for_a_locked_node_has_a_timeout(tmp_path: Path) -> None:
    nodes = [Node("a", seconds=1.5), Node("b", seconds=1.5)]
    threads = [threading.Thread(target=pool(tmp_path, nodes).generate, args=(None,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not all(node.inside for node in nodes):
        time.sleep(0.01)
    with pytest.raises(GeneratorError, match=r"free for 0\.2 s") as caught:
        pool(tmp_path, nodes, patience_s=0.2).generate(None)  # type: ignore[arg-type]
    assert caught.value.code is BUSY
    for thread in threads:
        thread.join(60)


def hold(folder: str, held: Any) -> None:
    own = GeneratorPool(["a"], folder)
    assert own._lock("a") is not None
    held.set()
    time.sleep(600)


def test_a_killed_worker_releases_its_node(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    process = context.Process(target=hold, args=(str(tmp_path), held), daemon=True)
    process.start()
    assert held.wait(120)
    own = pool(tmp_path, [Node("a")], patience_s=0.2)
    with pytest.raises(GeneratorError):
        own.generate(None)  # type: ignore[arg-type]
    process.kill()
    process.join(30)
    assert own.generate(None) == "a"  # type: ignore[arg-type]


def test_workers_start_with_different_nodes(tmp_path: Path) -> None:
    nodes = [Node("a"), Node("b")]
    assert [pool(tmp_path, nodes, turn=turn).generate(None) for turn in range(3)] == ["a", "b", "a"]  # type: ignore[arg-type]


def test_names_of_models() -> None:
    assert node_names("ros:gpu1+ros:/gpu2/") == ("gpu1", "gpu2")
    assert [has_weights(name) for name in ("nano", "composite", "truth", "ros", "ros:a+ros:b")] == [True] + [False] * 4
