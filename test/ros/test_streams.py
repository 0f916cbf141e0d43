"""Fast topics beside the executor: everything arrives, in order, and nothing that goes wrong stops it."""

from __future__ import annotations

import threading
import time
from typing import Any

from support.ros_graph import DISCOVERY_S, Graph, wait_for

from kinema4d_ros.ros import names
from kinema4d_ros.ros.qos import STREAM_OUT
from kinema4d_ros.ros.streams import Streams


def pair(graph: Graph, callback: Any, complaints: list[str]) -> tuple[Streams, Any]:
    sender, listener = graph.node("sender"), graph.node("listener")
    publisher = sender.create_publisher(names.JOINT_STATES.interface(), names.JOINT_STATES.name, STREAM_OUT)
    streams = Streams(listener, lambda error, prefix: complaints.append(f"{prefix}{error}"))
    streams.listen(names.JOINT_STATES, callback)
    wait_for(lambda: publisher.get_subscription_count() == 1, DISCOVERY_S, "discovery")
    return streams, publisher


def send(publisher: Any, number: int) -> None:
    message = names.JOINT_STATES.interface()()
    message.name = [str(number)]
    publisher.publish(message)


def test_messages_arrive_in_order_in_one_thread(graph: Graph) -> None:
    heard: list[int] = []
    threads: set[str] = set()

    def take(message: Any) -> None:
        heard.append(int(message.name[0]))
        threads.add(threading.current_thread().name)

    streams, publisher = pair(graph, take, [])
    for number in range(40):
        send(publisher, number)
        # A best-effort topic keeps the newest five: the next one waits until this one is taken.
        wait_for(lambda number=number: len(heard) > number, DISCOVERY_S, f"message {number}")
    streams.close()
    assert heard == list(range(40))
    assert threads == {"streams"}


def test_a_callback_that_fails_is_reported_and_the_next_message_is_taken(graph: Graph) -> None:
    heard: list[str] = []
    complaints: list[str] = []

    def take(message: Any) -> None:
        if message.name[0] == "0":
            raise ValueError("cannot use it")
        heard.append(message.name[0])

    streams, publisher = pair(graph, take, complaints)
    send(publisher, 0)
    wait_for(lambda: complaints, DISCOVERY_S, "the complaint")
    send(publisher, 1)
    wait_for(lambda: heard, DISCOVERY_S, "the next message")
    streams.close()
    assert heard == ["1"]
    assert complaints == ["joint_states: cannot use it"]


def test_a_burst_leaves_the_newest(graph: Graph) -> None:
    heard: list[int] = []
    streams, publisher = pair(graph, lambda message: heard.append(int(message.name[0])), [])
    for number in range(200):
        send(publisher, number)
    wait_for(lambda: heard and heard[-1] == 199, DISCOVERY_S, "the last message of the burst")
    streams.close()
    assert heard == sorted(heard)


def test_nothing_is_taken_after_the_end(graph: Graph) -> None:
    heard: list[str] = []
    streams, publisher = pair(graph, lambda message: heard.append(message.name[0]), [])
    streams.close()
    send(publisher, 7)
    time.sleep(0.3)
    assert heard == []
    assert "streams" not in {thread.name for thread in threading.enumerate()}
