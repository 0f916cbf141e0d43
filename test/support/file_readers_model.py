"""File readers that need torch, rosbags or pyarrow: bags, datasets, shards, checkpoints, presets, configs.

See `file_readers` for the fields of an entry.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from support.file_readers import Reader, picture
from support.official_files import write_official

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.manifest import write_manifest
from kinema4d_model.checkpoints.official import find_official, load_4dnex, load_official
from kinema4d_model.data.episode_files import encode_episode
from kinema4d_model.data.shards import index_path, open_index, read_document, read_episode, write_shard
from kinema4d_model.preset import load_preset
from kinema4d_ros.io.resources import share_path

__all__ = ["MODEL"]

NAMES = ["joint1.pos", "joint2.pos", "gripper.pos"]


def _bag(kind: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from rosbags.rosbag2 import StoragePlugin, Writer
        from rosbags.typesys import Stores, get_typestore

        store = get_typestore(Stores.ROS2_JAZZY)
        state, header, stamp = (
            store.types[n] for n in ("sensor_msgs/msg/JointState", "std_msgs/msg/Header", "builtin_interfaces/msg/Time")
        )
        path = folder / "bag"
        with Writer(path, version=9, storage_plugin=StoragePlugin[kind]) as writer:
            topic = writer.add_connection("/joint_states", "sensor_msgs/msg/JointState", typestore=store)
            for i in range(5):
                message = state(
                    header=header(stamp=stamp(sec=i, nanosec=0), frame_id=""),
                    name=["a", "b"],
                    position=np.array([0.1 * i, 0.2]),
                    velocity=np.empty(0),
                    effort=np.empty(0),
                )
                writer.write(topic, 10**9 * (50 + i), store.serialize_cdr(message, "sensor_msgs/msg/JointState"))
        return path

    return make


def _bag_file(kind: str, suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        bag = _bag(kind)(folder)
        (file,) = bag.glob(f"*{suffix}")
        file.rename(folder / f"recording{suffix}")
        shutil.rmtree(bag)
        return folder / f"recording{suffix}"

    return make


def _read_trajectory(path: Path) -> Any:
    from kinema4d_ros.io.trajectories import read_trajectory

    return read_trajectory(path)


def _lerobot(version: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        import pyarrow as pa
        import pyarrow.parquet as pq

        root = folder / "set"
        rows = {
            "observation.state": np.zeros((6, 3)).tolist(),
            "action": np.ones((6, 3)).tolist(),
            "timestamp": (np.arange(6) / 30).tolist(),
            "frame_index": list(range(6)),
            "episode_index": [0] * 6,
        }
        feature = {"dtype": "float32", "shape": [3], "names": NAMES}
        info = {"codebase_version": version, "fps": 30, "total_episodes": 1, "chunks_size": 1000}
        info["features"] = {"observation.state": feature, "action": feature}
        (root / "meta").mkdir(parents=True)
        (root / "meta" / "info.json").write_text(json.dumps(info))
        data = root / "data" / "chunk-000" / ("episode_000000.parquet" if version == "v2.1" else "file-000.parquet")
        data.parent.mkdir(parents=True)
        pq.write_table(pa.table(rows), data)
        if version != "v2.1":
            where = {"episode_index": [0], "data/chunk_index": [0], "data/file_index": [0]}
            (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
            pq.write_table(pa.table(where), root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
        return root

    return make


def _episode() -> Any:
    from kinema4d_model.data.episode import (
        Episode,
        ObjectTrack,
        Outcome,
        pack_depth,
        point_bounds,
        points_from_depth,
        unpack_depth,
    )
    from kinema4d_ros.core.camera import PinholeCamera

    frames, height, width = 3, 8, 12
    rng = np.random.default_rng(0)
    depth = unpack_depth(pack_depth(rng.uniform(0.3, 2.0, (frames, height, width)).astype(np.float32)))
    camera = PinholeCamera.look_at((1, -0.5, 0.7), (0.3, 0, 0), width=width, height=height, fov_y_deg=40)
    bounds = point_bounds(points_from_depth(depth, camera))
    track = ObjectTrack("cube", "box", (1.0, 2.0, 3.0), (0.0, 1.0, 0.0), np.stack([np.eye(4)] * frames))
    return Episode(
        key="a-000001",
        rgb=rng.integers(0, 256, (frames, height, width, 3), dtype=np.uint8),
        depth_m=depth,
        ids=rng.integers(0, 4, (frames, height, width), dtype=np.uint8),
        names=("base", "finger", "cube"),
        link_count=2,
        times=np.linspace(0, 2, frames),
        camera=camera,
        robot="",
        joint_names=("j1", "j2"),
        joints=rng.normal(size=(frames, 2)),
        actions=rng.normal(size=(frames, 2)),
        condition_ids=rng.integers(0, 3, (frames, height, width), dtype=np.uint8),
        bounds=bounds,
        known_bounds=bounds,
        task="pick",
        outcome=Outcome(True, "cube", {"lifted_m": 0.1}, (track,)),
        source="test",
        condition=None,
        captions={"instruction": "pick up the cube"},
        seeds={"scene": 7},
        versions={"kinema4d_ros": "0.1.0"},
        details={"sigma": 0.5},
    )


def _shard(folder: Path) -> Path:
    episode = _episode()
    again = dataclasses.replace(episode, key="a-000002")
    write_shard(folder / "train-000000.tar", [(e.key, encode_episode(e)) for e in (episode, again)])
    return folder / "train-000000.tar"


def _read_shard(path: Path) -> Any:
    index = open_index(path)
    numbers = range(len(index.episodes))
    return [(read_document(index, number), read_episode(index, number)) for number in numbers]


def _forget_index(path: Path) -> None:
    index_path(path).unlink()


def _dataset(folder: Path) -> Path:
    from kinema4d_model.data.dataset_folder import DatasetFolder

    (folder / "data" / "train").mkdir(parents=True)
    DatasetFolder.create(
        folder / "data", {"name": "x", "seed": 1, "splits": {"train": 2}, "config": {}, "versions": {}}
    )
    _shard(folder / "data" / "train")
    return folder / "data"


def _open_dataset(path: Path) -> Any:
    from kinema4d_model.data.dataset_folder import DatasetFolder

    dataset = DatasetFolder.open(path)
    return [dataset.count(split) for split in dataset.splits]


def _copy(source: str, name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        shutil.copy(share_path(source), folder / name)
        return folder / name

    return make


def _train_config(path: Path) -> Any:
    from kinema4d_model.training.config import load_config

    return load_config(path)


def _data_config(path: Path) -> Any:
    from kinema4d_model.data.lab_config import load_config

    return load_config(path)


@lru_cache(maxsize=1)
def _small() -> ModelBundle:
    tiny = load_preset("tiny")
    from support.training_runs import tiny_linear

    preset = dataclasses.replace(tiny_linear(), lora=tiny.lora)
    return ModelBundle.from_preset(preset, seed=0)


def _bundle(folder: Path) -> Path:
    _small().save_pretrained(folder / "model")
    return folder / "model"


def _sign_bundle(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    write_manifest(folder)


@lru_cache(maxsize=1)
def _tiny() -> ModelBundle:
    return ModelBundle.from_preset("tiny", seed=0)


def _official(folder: Path) -> Path:
    return write_official(folder / "official", _tiny().transformer, rank=_rank())


def _rank() -> int:
    lora = load_preset("tiny").lora
    return 4 if lora is None else lora.rank


def _load_official(path: Path) -> Any:
    from kinema4d_model.checkpoints.lora import adapter_names, remove
    from kinema4d_model.preset_parts import LoraSpec

    network = _tiny().transformer
    find_official(path)
    try:
        return load_official(network, path, LoraSpec(_rank(), 2))
    finally:
        for name in adapter_names(network):
            remove(network, name)


def _four_d(folder: Path) -> Path:
    path = _official(folder)
    (path / "added_weights.safetensors").unlink()
    torch.save(
        torch.zeros(tuple(_tiny().transformer.patch_embedding.domain.shape)), path / "learnable_domain_embeddings.pt"
    )
    return path


def _load_four_d(path: Path) -> Any:
    from kinema4d_model.checkpoints.lora import adapter_names, remove
    from kinema4d_model.preset_parts import LoraSpec

    network = _tiny().transformer
    try:
        return load_4dnex(network, path, LoraSpec(_rank(), 2))
    finally:
        for name in adapter_names(network):
            remove(network, name)


def _progress(folder: Path) -> Path:
    from kinema4d_model.training.checkpoints import CheckpointFolder, Progress

    checkpoints = CheckpointFolder(folder / "checkpoints")
    weights = {"w": torch.zeros(3, 4)}
    checkpoints.save("step", Progress(7, 1.5, 0.2, 6, "a", "b"), {"weights": weights, "average": weights})
    return folder / "checkpoints"


def _resume(path: Path) -> Any:
    from kinema4d_model.training.checkpoints import CheckpointFolder, restore_weights

    found = CheckpointFolder(path).newest()
    if found is not None:
        for part in ("weights", "average", "optimiser"):
            tensors = found.tensors(part)
            if tensors:
                restore_weights(tensors, {"w": torch.zeros(3, 4)}, found.path)
    return found


def _sign_progress(folder: Path) -> None:
    from kinema4d_model.checkpoints.manifest import file_sha256

    (step,) = folder.glob("step-*")
    document = json.loads((step / "progress.json").read_text())
    document["files"] = {p.name: [p.stat().st_size, file_sha256(p)] for p in step.glob("*.safetensors")}
    (step / "progress.json").unlink()
    (step / "progress.json").write_text(json.dumps(document))


def _latents(folder: Path) -> Path:
    from kinema4d_model.training.latents import FORMAT, INDEX

    preset = _small().preset
    grid = (preset.latent_frames, preset.latent_height, preset.latent_width)
    wide = (2, preset.codec.latent_channels, *grid[:2], 2 * grid[2])
    bits = np.packbits(np.zeros(int(np.prod(grid)), bool))
    row = {n: torch.from_numpy(np.stack([bits] * 2)) for n in ("mask", "dynamic", "focus")}
    row |= {n: torch.zeros(wide) for n in ("target", "robot", "base")}
    (folder / "latents").mkdir()
    save_file(row, folder / "latents" / "00000.safetensors", metadata={"fingerprint": "f"})
    document = {"format": FORMAT, "fingerprint": "f", "names": ["a", "b"], "shard_episodes": 2}
    (folder / "latents" / INDEX).write_text(json.dumps(document))
    return folder / "latents"


def _read_latents(path: Path) -> Any:
    from kinema4d_model.training.config import AugmentSpec
    from kinema4d_model.training.latents import LatentSet

    found = LatentSet(path, _small().preset)
    return [found.sample(i, AugmentSpec(), torch.Generator().manual_seed(0)) for i in range(min(len(found), 3))]


def _policy(folder: Path) -> Path:
    from kinema4d_model.policies.folder import Numbers, TrainedPolicy, write_policy
    from kinema4d_model.policies.network import NetworkConfig, PolicyNetwork
    from kinema4d_ros.policies.view import demo_view

    config = NetworkConfig(joints=3, image=(16, 24), horizon=4, channels=8, keypoints=4, width=16, depth=1)
    one = np.ones
    numbers = Numbers(*(one(s, np.float32) for s in ((3,), (3,), (4, 3), (4, 3), (2,), (2,))))
    names = ("a", "b", "c")
    made = TrainedPolicy(PolicyNetwork(config), numbers, demo_view(24, 16), 10.0, "yam", names, 5.0, {})
    write_policy(made, folder / "policy")
    return folder / "policy"


def _read_policy(path: Path) -> Any:
    from kinema4d_model.policies.folder import read_policy

    return read_policy(path)


def _lifter(folder: Path) -> Path:
    from kinema4d_model.pipeline.lifting.lifter import WEIGHTS

    shutil.copytree(WEIGHTS, folder / "lifter")
    return folder / "lifter"


def _load_lifter(path: Path) -> Any:
    from kinema4d_model.pipeline.lifting import lifter

    lifter._load.cache_clear()
    return lifter.load_lifter(path)


def _lerobot_policy(folder: Path) -> Path:
    root = folder / "saved"
    root.mkdir()
    (root / "config.json").write_text(json.dumps({"type": "act", "n_obs_steps": 1}))
    save_file({"w": torch.zeros(2)}, root / "model.safetensors")
    steps = {"name": "p", "steps": [{"registry_name": "device_processor", "config": {"device": "cpu"}}]}
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        (root / name).write_text(json.dumps(steps))
    return root


def _read_lerobot_policy(path: Path) -> Any:
    """Read the files that are read before LeRobot is imported, since it may not be installed."""
    from kinema4d_model.policies.lerobot_policy import LerobotPolicy
    from kinema4d_ros.core.errors import KinemaError

    try:
        return LerobotPolicy(str(path))
    except KinemaError as error:
        if "package" in str(error) and "lerobot" in str(error) and "not installed" in str(error):
            return None
        raise


def _metric_weights(folder: Path) -> Path:
    (folder / "weights").mkdir()
    torch.save({"w": torch.zeros(2, 3)}, folder / "weights" / "rgb_imagenet.pt")
    return folder / "weights"


def _read_metric_weights(path: Path) -> Any:
    from kinema4d_model.metrics.weights import _read

    return _read(path / "rgb_imagenet.pt")


def _sam2_pt(path: Path) -> Any:
    from kinema4d_model.segmentation.sam2_weights import _read_pt

    return _read_pt(path / "rgb_imagenet.pt")


def _log(folder: Path) -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": i, "loss": 0.5}) + "\n" for i in range(4)))
    return folder / "metrics.jsonl"


def _read_log(path: Path) -> Any:
    from kinema4d_model.training.metrics_log import read_log

    return read_log(path)


def _movie(folder: Path) -> Path:
    from kinema4d_model.data.episode_files import encode_stream

    (folder / "video.mkv").write_bytes(encode_stream(np.stack([picture(32, 24)] * 3), "rgb"))
    return folder / "video.mkv"


def _read_movie(path: Path) -> Any:
    from kinema4d_model.data.importers.video import read_video

    return read_video(path)


MODEL = (
    Reader("mcap file", _bag_file("MCAP", ".mcap"), _read_trajectory),
    Reader("mcap bag", _bag("MCAP"), _read_trajectory),
    Reader("sqlite file", _bag_file("SQLITE3", ".db3"), _read_trajectory),
    Reader("sqlite bag", _bag("SQLITE3"), _read_trajectory),
    Reader("lerobot v2.1", _lerobot("v2.1"), _read_trajectory),
    Reader("lerobot v3.0", _lerobot("v3.0"), _read_trajectory),
    Reader("episode shard", _shard, _read_shard, repair=_forget_index),
    Reader("dataset folder", _dataset, _open_dataset),
    Reader("preset", _copy("config/model/tiny.yaml", "preset.yaml"), load_preset),
    Reader("training config", _copy("config/train/nano.yaml", "train.yaml"), _train_config),
    Reader("data config", _copy("config/data/nano.yaml", "data.yaml"), _data_config),
    Reader("model folder", _bundle, ModelBundle.from_pretrained, repair=_sign_bundle),
    Reader("official checkpoint", _official, _load_official),
    Reader("4dnex checkpoint", _four_d, _load_four_d),
    Reader("training checkpoint", _progress, _resume, repair=_sign_progress),
    Reader("latents", _latents, _read_latents),
    Reader("policy folder", _policy, _read_policy),
    Reader("lerobot policy", _lerobot_policy, _read_lerobot_policy),
    Reader("lifter", _lifter, _load_lifter),
    Reader("metric weights", _metric_weights, _read_metric_weights),
    Reader("sam2 weights", _metric_weights, _sam2_pt),
    Reader("training log", _log, _read_log),
    Reader("imported video", _movie, _read_movie),
)
