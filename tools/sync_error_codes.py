"""Write the constants of kinema4d_msgs/msg/ErrorCode.msg from kinema4d_ros.core.errors.ErrorCode."""

from __future__ import annotations

from pathlib import Path

from kinema4d_ros.core.errors import ErrorCode

MESSAGE = Path(__file__).resolve().parents[1] / "kinema4d_msgs" / "msg" / "ErrorCode.msg"


def main() -> None:
    """Replace the constants of the file and keep its head."""
    head = [line for line in MESSAGE.read_text().splitlines() if "=" not in line]
    while head and not head[-1].strip():
        head.pop()
    constants = [f"uint16 {code.name}={code.value}" for code in ErrorCode]
    MESSAGE.write_text("\n".join([*head, "", *constants]) + "\n")


if __name__ == "__main__":
    main()
