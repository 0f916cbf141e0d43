"""World models by name: "composite", a preset of the diffusion model, or generator nodes of a running graph.

composite           no learning
nano, wan14b, ...   presets; a folder with weights may be given
ros, ros:gpu1       the generator node of a namespace
ros:gpu1+ros:gpu2   one model that several nodes serve, see `pool`
truth               no model: the judge is shown the lab's own pictures, which tells its errors from a model's
"""

from __future__ import annotations

from pathlib import Path

from kinema4d_ros.errors import ErrorCode
from kinema4d_ros.evaluation.errors import EvaluationError
from kinema4d_ros.generators import create_generator
from kinema4d_ros.generators.protocol import Generator
from kinema4d_ros.trials.pool import GeneratorPool

__all__ = ["TRUTH", "has_weights", "make_generator", "node_names", "require_model"]

TRUTH = "truth"


def node_names(model: str) -> tuple[str, ...]:
    """Namespaces of the generator nodes behind a model; none if it runs in this process.

    >>> node_names("ros:gpu1+ros:gpu2"), node_names("ros"), node_names("nano")
    (('gpu1', 'gpu2'), ('',), ())
    """
    parts = [part.partition(":") for part in model.split("+")]
    return tuple(space.strip("/") for _, _, space in parts) if parts[0][0] == "ros" else ()


def has_weights(model: str) -> bool:
    """Whether a model is a preset, whose weights lie in a folder of this machine."""
    return model not in ("composite", TRUTH) and not node_names(model)


def require_model(model: str) -> None:
    """Refuse a name that cannot be a model; whether its weights or nodes are there is not looked at."""
    parts = model.split("+")
    nodes = [part for part in parts if part == "ros" or part.startswith("ros:")]
    pooled = len(parts) > 1
    if not model or (pooled and (len(nodes) < len(parts) or len(set(node_names(model))) < len(parts))):
        raise EvaluationError(
            f"model '{model}' is not known",
            expected="composite, a preset, ros:NAMESPACE, or nodes joined by +, each once: ros:gpu1+ros:gpu2",
            code=ErrorCode.ARGUMENT_INVALID,
        )


def make_generator(name: str, checkpoint: str = "", *, locks: str | Path = "", turn: int = 0) -> Generator:
    """The generator of a name.

    Args:
        name: see above; "truth" has none.
        checkpoint: a folder with weights; by default the preset's own.
        locks: folder in which workers that share nodes take turns; needed by several nodes.
        turn: number of the worker: the node it begins at.
    """
    require_model(name)
    if name == "composite":
        return create_generator("composite")
    nodes = node_names(name)
    if len(nodes) > 1:
        return GeneratorPool(nodes, locks, turn=turn)
    if nodes:
        return create_generator("ros", namespace=nodes[0])
    return create_generator("diffusion", preset=name, checkpoint=checkpoint)
