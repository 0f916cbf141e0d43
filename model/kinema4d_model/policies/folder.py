"""Folder of a trained policy: `policy.json` and `weights.safetensors`, written atomically.

policy.json: format, version, network (sizes), view (of the camera), rate_hz, robot, joint_names, duration_s, training,
numbers (mean and spread of joints, actions and grasps)
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from kinema4d_model.checkpoints.tensor_files import read_tensors
from kinema4d_model.policies.network import NetworkConfig, PolicyNetwork
from kinema4d_model.training.checkpoints import restore_weights
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, KinemaError
from kinema4d_ros.io.files import read_json, reading, replacing_folder
from kinema4d_ros.policies.protocol import PolicyError
from kinema4d_ros.policies.view import WorkspaceView

__all__ = ["Numbers", "TrainedPolicy", "read_policy", "write_policy"]

FORMAT, VERSION = "kinema4d_diffusion_policy", 1
_FILES = ("policy.json", "weights.safetensors")
_MAX_JSON_BYTES = 1_000_000

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Numbers:
    """Means and spreads for normalisation: joints (J,), chunks (horizon, J), grasps (J - 1,); all float32.

    Arm joints of a chunk are relative to the current joints, the gripper is absolute.
    """

    joints_mean: Floats
    joints_spread: Floats
    chunk_mean: Floats
    chunk_spread: Floats
    grasp_mean: Floats
    grasp_spread: Floats

    def lists(self) -> dict[str, Any]:
        """Return the values as lists for JSON."""
        return {name: value.tolist() for name, value in vars(self).items()}


@dataclass(frozen=True, eq=False)
class TrainedPolicy:
    """A trained policy with everything needed for inference.

    Attributes:
        network: in evaluation mode.
        numbers: normalisation.
        view: camera view of its input.
        rate_hz: of its actions.
        robot, joint_names: the robot and joints that it moves.
        duration_s: of the longest demonstration.
        training: training parameters, for information.
    """

    network: PolicyNetwork
    numbers: Numbers
    view: WorkspaceView
    rate_hz: float
    robot: str
    joint_names: tuple[str, ...]
    duration_s: float
    training: dict[str, Any]


def write_policy(policy: TrainedPolicy, folder: str | Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Write a policy's folder and replace an older one; `weights` replace those of the network."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "network": asdict(policy.network.config),
        "view": policy.view.as_dict(),
        "rate_hz": policy.rate_hz,
        "robot": policy.robot,
        "joint_names": list(policy.joint_names),
        "duration_s": policy.duration_s,
        "training": policy.training,
        "numbers": policy.numbers.lists(),
    }
    tensors = weights or dict(policy.network.named_parameters())
    with replacing_folder(folder, lambda old: (old / _FILES[0]).is_file()) as temporary:
        save_file({n: t.detach().cpu().contiguous() for n, t in tensors.items()}, temporary / _FILES[1])
        (temporary / _FILES[0]).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def read_policy(folder: str | Path) -> TrainedPolicy:
    """Read a policy from its folder.

    Raises:
        PolicyError: POLICY_UNAVAILABLE; names the file that is missing, truncated or of another kind.
    """
    with reading(folder, "the folder of a trained policy", error=PolicyError, code=ErrorCode.POLICY_UNAVAILABLE):
        return _read(Path(folder))


def _read(root: Path) -> TrainedPolicy:
    missing = [name for name in _FILES if not (root / name).is_file()]
    if missing:
        raise _unusable(
            f"{root} has no {' and no '.join(missing)}",
            "the folder of a trained policy",
            "train one: kinema4d policy demos, then kinema4d policy train",
        )
    if (root / _FILES[0]).stat().st_size > _MAX_JSON_BYTES:
        raise _unusable(f"{root / _FILES[0]} is larger than {_MAX_JSON_BYTES:,} bytes", "a policy's description")
    try:
        document = read_json(root / _FILES[0], _MAX_JSON_BYTES)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise ValueError(f"format {document['format']}, version {document['version']}")
        names = tuple(str(n) for n in document["joint_names"])
        network = PolicyNetwork(NetworkConfig.from_dict(document["network"]))
        numbers = _numbers(document["numbers"], network.config)
        rate_hz, duration_s = float(document["rate_hz"]), float(document["duration_s"])
        if len(names) != network.config.joints or not (0.1 <= rate_hz <= 1000 and 0 < duration_s <= 3600):
            raise ValueError(f"{len(names)} joints, {rate_hz} Hz, {duration_s} s")
        view = WorkspaceView.from_dict(document["view"])
        if (view.height, view.width) != network.config.image:
            raise ValueError(f"a view of {view.height} x {view.width} for a network of {network.config.image}")
    except (ValueError, KeyError, TypeError, OverflowError, FileFormatError) as error:
        raise _unusable(f"{root / _FILES[0]} cannot be used: {error!r}", f"{FORMAT} version {VERSION}") from None
    try:
        restore_weights(dict(read_tensors(root / _FILES[1])), dict(network.named_parameters()), root / _FILES[1])
    except KinemaError as error:
        raise _unusable(f"{root / _FILES[1]} cannot be used: {error}", "the weights of this network") from None
    training = document.get("training")
    return TrainedPolicy(
        network.eval(), numbers, view, rate_hz, str(document["robot"]), names, duration_s,
        training if isinstance(training, dict) else {},
    )  # fmt: skip


def _numbers(values: Any, config: NetworkConfig) -> Numbers:
    shapes = {
        "joints": (config.joints,),
        "chunk": (config.horizon, config.joints),
        "grasp": (config.joints - 1,),
    }
    found = {}
    for name, shape in shapes.items():
        for kind in ("mean", "spread"):
            array = np.array(values[f"{name}_{kind}"], dtype=np.float32)
            if array.shape != shape or not np.all(np.isfinite(array)) or (kind == "spread" and np.any(array <= 0)):
                raise ValueError(f"{name}_{kind} of shape {array.shape}")
            found[f"{name}_{kind}"] = array
    return Numbers(**found)


def _unusable(what: str, expected: str, hint: str = "") -> PolicyError:
    return PolicyError(what, expected=expected, hint=hint, code=ErrorCode.POLICY_UNAVAILABLE)
