"""`LerobotPolicy`: any policy saved by LeRobot, loaded from its folder; policy kind `lerobot`.

config.json                    type of policy, features
model.safetensors              weights
policy_preprocessor.json       normalisation of inputs, with its .safetensors
policy_postprocessor.json      normalisation of outputs
"""

from __future__ import annotations

import sys
from importlib import import_module, invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from kinema4d_model.policies.chunk_policy import paced
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import read_json
from kinema4d_ros.policies.protocol import ActionChunk, EpisodeStart, Observation, PolicyError
from kinema4d_ros.policies.view import demo_view

__all__ = ["LerobotPolicy", "find_lerobot", "policy_class", "policy_types", "require_lerobot"]

# Import of LeRobot with our versions of torch, transformers and diffusers, which differ from its requirements.
#
# A plain import fails for two reasons. `lerobot.policies` imports every policy, and some break with our transformers,
# so only the requested one is imported. A torchvision built for CUDA on a CPU torch registers fake kernels for two
# missing operators, so these are declared first. Neither changes code that runs in a policy.
#
# `make setup-lerobot` installs it into a separate folder, which is added at the end of the path only when a LeRobot
# policy is requested: other code is unaffected, and our versions of shared packages take precedence.

_INSTALL = "make setup-lerobot"
_NEEDED = ("lerobot", "torchvision", "draccus")
_OWN_FOLDER = Path(sys.prefix) / "share" / "kinema4d-lerobot"
_declared: list[Any] = []


def find_lerobot() -> bool:
    """Return whether LeRobot is installed; its separate folder is appended to the path, so our packages come first."""
    if any(find_spec(name) is None for name in _NEEDED) and _OWN_FOLDER.is_dir() and str(_OWN_FOLDER) not in sys.path:
        sys.path.append(str(_OWN_FOLDER))
        invalidate_caches()
    return all(find_spec(name) is not None for name in _NEEDED)


def require_lerobot() -> None:
    """Make `lerobot.policies.*` importable.

    Raises:
        PolicyError: POLICY_UNAVAILABLE with the command that installs it.
    """
    if not find_lerobot():
        missing = [name for name in _NEEDED if find_spec(name) is None]
        raise PolicyError(
            f"LeRobot is not installed: missing {', '.join(missing)}",
            expected="the optional packages of requirements/lerobot.txt",
            hint=_INSTALL,
            code=ErrorCode.POLICY_UNAVAILABLE,
        )
    _declare_operators()
    if "lerobot.policies" not in sys.modules:
        package = ModuleType("lerobot.policies")
        package.__path__ = [str(Path(import_module("lerobot").__path__[0]) / "policies")]
        sys.modules["lerobot.policies"] = package


def policy_types() -> tuple[str, ...]:
    """Return the names of the policy types of the installed LeRobot."""
    require_lerobot()
    root = Path(sys.modules["lerobot.policies"].__path__[0])
    return tuple(sorted(p.name for p in root.iterdir() if (p / f"modeling_{p.name}.py").is_file()))


def policy_class(kind: str) -> Any:
    """Import LeRobot's class of a policy type, such as "diffusion" or "act", and register its configuration.

    Raises:
        PolicyError: unknown type, or a type that cannot be imported with the installed versions.
    """
    if kind not in policy_types():
        raise PolicyError(
            f"policy type {kind[:80]!r} is not a LeRobot policy type",
            expected=f"one of {', '.join(policy_types())}",
            code=ErrorCode.POLICY_UNAVAILABLE,
        )
    try:
        import_module(f"lerobot.policies.{kind}.configuration_{kind}")
        module = import_module(f"lerobot.policies.{kind}.modeling_{kind}")
        base = import_module("lerobot.policies.pretrained").PreTrainedPolicy
    except Exception as error:  # importing with other package versions can raise anything
        raise PolicyError(
            f"LeRobot's '{kind}' cannot be imported: {type(error).__name__}: {error}",
            expected="a policy type that works with the installed versions",
            hint="run it in LeRobot's own environment and connect with remote:HOST:PORT",
            code=ErrorCode.POLICY_UNAVAILABLE,
        ) from error
    found = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, base) and c is not base]
    named = [c for c in found if getattr(c, "name", "") == kind]
    if not named:
        raise PolicyError(f"LeRobot's '{kind}' has no policy class", expected="one", code=ErrorCode.POLICY_UNAVAILABLE)
    return named[0]


def _declare_operators() -> None:
    if "torchvision" in sys.modules or _declared:
        return
    try:
        import_module("torchvision")
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)  # keep a reference: the operators vanish with the library
    import_module("torchvision")


FILES = ("config.json", "model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json")
VIEWS = ("full", "workspace")
GRIPPERS = ("joint", "normalised")


class LerobotPolicy:
    """A LeRobot policy with one camera that moves all joints.

    Policies with a history get one observation per call of `act`: with `steps=1` these are spaced as in training.

    Args:
        source: the folder.
        hz: rate of the actions, which the folder does not contain.
        steps: actions per chunk; 0 = the policy's own number of executed actions.
        view: "full" image, or the "workspace" crop of the demonstration camera.
        gripper: "joint" = the gripper's joint position; "normalised" = 0 closed, 1 open.
        device: "cpu" or "cuda".
        limit_s: maximum length of an episode, seconds; 0 = unlimited.
    """

    def __init__(
        self,
        source: str = "",
        *,
        hz: float = 10.0,
        steps: int = 0,
        view: str = "full",
        gripper: str = "joint",
        device: str = "cpu",
        limit_s: float = 0.0,
    ) -> None:
        root = Path(source)
        missing = [name for name in FILES if not (root / name).is_file()]
        if not source or missing:
            raise _unusable(f"'{source}' has no {', '.join(missing)}", "the folder of a saved LeRobot policy")
        for name, value, choices in (("view", view, VIEWS), ("gripper", gripper, GRIPPERS)):
            if value not in choices:
                raise _bad_option(name, value, f"one of {', '.join(choices)}")
        if not (isinstance(hz, int | float) and 0.1 <= hz <= 1000) or type(steps) is not int or not 0 <= steps <= 1000:
            raise _bad_option("hz, steps", (hz, steps), "0.1 to 1000 Hz, 0 to 1000 steps")
        if isinstance(limit_s, bool) or not isinstance(limit_s, int | float) or not 0 <= limit_s <= 3600:
            raise _bad_option("limit_s", limit_s, "0 to 3600 seconds")
        config = _read_json(root / FILES[0])
        for name in FILES[2:]:
            _require_own_steps(root / name)
        require_lerobot()
        try:
            self._load(root, policy_class(str(config.get("type"))), device)
        except PolicyError:
            raise
        except Exception as error:  # the loader can raise anything on a corrupt folder
            raise _unusable(
                f"{root} cannot be loaded: {type(error).__name__}: {error}"[:500], "a complete folder"
            ) from error
        self._name, self._hz, self._view, self._gripper = f"lerobot:{root.name}", float(hz), view, gripper
        self._steps = steps or int(getattr(self._policy.config, "n_action_steps", 1))
        self._limit_s = float(limit_s)
        self._start: EpisodeStart | None = None
        self._last: NDArray[np.float64] | None = None
        self._calls = 0

    @property
    def name(self) -> str:
        """`lerobot:` and the name of the folder."""
        return self._name

    def reset(self, start: EpisodeStart) -> None:
        """Begin an episode.

        Raises:
            PolicyError: the policy has another number of joints or other inputs.
        """
        joints, config = len(start.robot.joint_names), self._policy.config
        state, action = config.robot_state_feature, config.action_feature
        sizes = {
            "state": joints if state is None else int(state.shape[0]),
            "action": 0 if action is None else int(action.shape[0]),
        }
        wrong = [f"{name} of {size}" for name, size in sizes.items() if size != joints]
        if wrong:
            raise PolicyError(
                f"'{self._name}' has {' and '.join(wrong)} numbers, robot '{start.robot.name}' has {joints} joints",
                expected=f"{', '.join(start.robot.joint_names)}",
            )
        if len(config.image_features) > 1 or config.env_state_feature is not None:
            raise PolicyError(
                f"'{self._name}' has inputs {', '.join(config.input_features)}",
                expected="one camera and the joints",
            )
        self._policy.reset()
        self._start, self._last, self._calls = start, None, 0

    def act(self, observation: Observation) -> ActionChunk:
        """Predict the next actions.

        Raises:
            PolicyError: no episode, or any exception raised by LeRobot.
        """
        if self._start is None:
            raise PolicyError("there is no episode", expected="reset before act")
        robot = self._start.robot
        seed = np.random.SeedSequence([self._start.seed, self._calls]).generate_state(1)[0]
        self._calls += 1
        try:
            batch = self._before(self._inputs(observation))
            # LeRobot uses torch's global random generator, which other code in this process shares.
            with torch.random.fork_rng():
                torch.manual_seed(int(seed))
                rows = [self._after(self._policy.select_action(batch)) for _ in range(self._steps)]
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(
                f"'{self._name}' raised {type(error).__name__}: {error}"[:500], expected="actions"
            ) from error
        targets = torch.stack([row.reshape(-1) for row in rows]).double().numpy()
        if robot.gripper is not None and self._gripper == "normalised":
            column = robot.joint_names.index(robot.gripper.joint)
            targets[:, column] = robot.gripper.position(np.clip(targets[:, column], 0.0, 1.0))
        if not np.all(np.isfinite(targets)):
            raise PolicyError(f"'{self._name}' returned actions that are not finite", expected="finite numbers",
                              code=ErrorCode.POLICY_BAD_ACTION)  # fmt: skip
        begin = np.asarray(observation.joints, np.float64) if self._last is None else self._last
        made = paced(robot, targets, begin, 1.0 / self._hz)
        self._last = made[-1]
        times = (np.arange(len(made)) + 1) / self._hz
        return ActionChunk(times, made, done=bool(0 < self._limit_s <= observation.time_s + times[-1]))

    def close(self) -> None:
        """Discard the episode."""
        self._start = None

    def _load(self, root: Path, kind: Any, device: str) -> None:
        config = import_module("lerobot.configs.policies").PreTrainedConfig.from_pretrained(root, local_files_only=True)
        config.device = device
        self._policy: Any = kind.from_pretrained(root, config=config, local_files_only=True, strict=True)
        pipeline = import_module("lerobot.processor").PolicyProcessorPipeline
        converters = import_module("lerobot.processor.converters")
        overrides = {"device_processor": {"device": device}}
        self._before: Any = pipeline.from_pretrained(
            root, config_filename=FILES[2], overrides=overrides, local_files_only=True
        )
        self._after: Any = pipeline.from_pretrained(
            root,
            config_filename=FILES[3],
            local_files_only=True,
            to_transition=converters.policy_action_to_transition,
            to_output=converters.transition_to_policy_action,
        )

    def _inputs(self, observation: Observation) -> dict[str, Any]:
        start, config = self._start, self._policy.config
        state = np.array(observation.joints, np.float32)
        robot = None if start is None else start.robot
        if robot is not None and robot.gripper is not None and self._gripper == "normalised":
            column = robot.joint_names.index(robot.gripper.joint)
            state[column] = robot.gripper.normalised(state[column])
        batch: dict[str, Any] = {"task": "" if start is None else start.instruction}
        if config.robot_state_feature is not None:
            batch["observation.state"] = torch.from_numpy(state)
        for key, feature in config.image_features.items():
            _, height, width = feature.shape
            if self._view == "workspace":
                image = demo_view(width, height).of(observation.image, observation.camera)
            else:
                shrink = cv2.INTER_AREA if width < observation.image.shape[1] else cv2.INTER_LINEAR
                image = np.asarray(cv2.resize(observation.image, (width, height), interpolation=shrink), np.uint8)
            batch[key] = torch.from_numpy(image).permute(2, 0, 1).float() / 255.0
        return batch


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path)
    except FileFormatError as error:
        raise _unusable(error.what, "a JSON file") from None
    if not isinstance(found, dict):
        raise _unusable(f"{path} holds a {type(found).__name__}", "a JSON object")
    return found


def _require_own_steps(path: Path) -> None:
    """Raise PolicyError unless a processor names only LeRobot's own classes; otherwise it could import any class."""
    steps = _read_json(path).get("steps", [])
    for step in steps if isinstance(steps, list) else [steps]:
        named = step.get("class", "") if isinstance(step, dict) else str(step)
        if named and not str(named).startswith("lerobot."):
            raise _unusable(f"{path} names class {str(named)[:100]!r}", "LeRobot's own processing steps")
        state = step.get("state_file") if isinstance(step, dict) else None
        if state is not None and (not isinstance(state, str) or Path(state).name != state):
            raise _unusable(f"{path} names file {str(state)[:100]!r}", "files of its own folder")


def _unusable(what: str, expected: str) -> PolicyError:
    return PolicyError(what, expected=expected, code=ErrorCode.POLICY_UNAVAILABLE)


def _bad_option(name: str, value: object, expected: str) -> PolicyError:
    return PolicyError(f"{name} is {value!r}", expected=expected, code=ErrorCode.ARGUMENT_INVALID)
