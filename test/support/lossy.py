"""Servers that lose responses, as rmw_fastrtps does before it has discovered the client's reader."""

from __future__ import annotations

from typing import Any

from rclpy.impl.implementation_singleton import rclpy_implementation


class LossyActionHandle:
    """Replacement of an action server's handle that drops the first responses of each kind.

    Args:
        handle: the server's handle.
        lose: number of responses to drop by kind, e.g. {"send_goal_response": 1}.
    """

    def __init__(self, handle: Any, lose: dict[str, int]) -> None:
        self._handle, self._lose = handle, lose

    def __getattr__(self, name: str) -> Any:
        if self._lose.get(name, 0) > 0:
            self._lose[name] -= 1
            raise rclpy_implementation.RCLError("client will not receive response")
        return getattr(self._handle, name)


def lose_answers(service: Any, lost: list[Any], how_many: int) -> None:
    """Drop a service's first responses; they are kept in `lost`."""
    send = service.send_response

    def sometimes(response: Any, header: Any) -> None:
        if len(lost) < how_many:
            lost.append(response)
        else:
            send(response, header)

    service.send_response = sometimes
