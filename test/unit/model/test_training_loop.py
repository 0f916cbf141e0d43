from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.training_examples import SweptSquares
from support.training_runs import make_run

from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.lora import adapter_names
from kinema4d_model.checkpoints.manifest import read_manifest
from kinema4d_model.preset import load_preset
from kinema4d_model.training.checkpoints import CheckpointFolder, Progress
from kinema4d_model.training.config import DataSpec, OptimiserSpec, RunSpec, StartSpec, TrainConfig
from kinema4d_model.training.latents import LatentSet, encode_source
from kinema4d_model.training.loop import Trainer, gather_learning, make_accelerator
from kinema4d_model.training.metrics_log import MetricsLog, read_log
from kinema4d_model.training.network_task import NetworkTask
from kinema4d_model.training.stages import learning_names, make_bundle, run_stages
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, GeneratorError, SetupError
from kinema4d_ros.io.images import read_image

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an uninterrupted run of 12 steps."""
    folder = tmp_path_factory.mktemp("run")
    run_stages(make_run(folder), folder, stages=("network", "export"), bar=False)
    return folder


def changed(config: TrainConfig, **run: Any) -> TrainConfig:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, **run))


def elsewhere(run: Path, folder: Path) -> Path:
    shutil.copytree(run / "codec", folder / "codec")
    return folder


def losses(folder: Path) -> list[tuple[int, float | None, float | None]]:
    return [
        (line["step"], line.get("loss"), line.get("validation_loss")) for line in read_log(folder / "metrics.jsonl")
    ]


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    found = CheckpointFolder(folder / "checkpoints").newest()
    assert found is not None
    return {f"{part}.{n}": t for part in ("weights", "average", "optimiser") for n, t in found.tensors(part).items()}


@pytest.mark.full
def test_overfitting_one_batch_drives_the_loss_to_nearly_zero(run: Path, tmp_path: Path) -> None:
    """Two episodes, a noise-free target (residual), and noise levels that keep the input readable."""
    config = make_run(run)
    config = dataclasses.replace(
        changed(config, steps=220, batch=2, ema_decay=None, validate_every=1000, checkpoint_every=1000),
        optimiser=OptimiserSpec(kind="muon", lr=2e-2, warmup_steps=5, betas=(0.9, 0.95), weight_decay=0.0),
        objective=dataclasses.replace(config.objective, dynamic_weight=0.0, focus_weight=0.0),
    )
    bundle = make_bundle(config, run)
    two = tmp_path / "two"
    encode_source(bundle, SweptSquares(bundle.preset, 2), two, shard_episodes=2)
    task = NetworkTask(bundle, learning_names(config, bundle), config, LatentSet(two, bundle.preset), None)
    Trainer(task, config, tmp_path, make_accelerator(config), bar=False).run()
    found = [loss for _, loss, _ in losses(tmp_path) if loss is not None]
    assert np.mean(found[-10:]) < 0.03 * np.mean(found[:3])


def test_a_resumed_run_is_bit_exact(run: Path, tmp_path: Path) -> None:
    config, out = make_run(run), elsewhere(run, tmp_path)
    calls = iter(range(100))
    stopped = run_stages(config, out, stages=("network",), stop=lambda: next(calls) >= 5, bar=False)
    assert stopped is not None
    assert stopped.step == 5
    with pytest.raises(FileFormatError, match="already holds a run") as caught:
        run_stages(config, out, stages=("network",), bar=False)
    assert caught.value.code is ErrorCode.FILE_NOT_WRITABLE
    run_stages(config, out, stages=("network",), resume=True, bar=False)
    assert losses(out) == losses(run)
    ours, theirs = final_weights(out), final_weights(run)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.full
def test_killed_and_paired_processes(run: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments changes no loss; two processes over gloo have the losses of one."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("codec", "latents"):
        (folder / name).symlink_to(run / name)
    for name in ("train.yaml", "preset.yaml"):
        shutil.copy(run / name, folder / name)
    script = ROOT / "test" / "support" / "training_processes.py"
    done = subprocess.run(
        [sys.executable, str(script), "kill,pair", str(folder), "--kills", "4", "--seed", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["kills"] == 4
    assert losses(folder / "killed") == losses(run)
    ours, theirs = final_weights(folder / "killed"), final_weights(run)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    pair = losses(folder / "pair")
    assert [step for step, _, _ in pair] == [step for step, _, _ in losses(run)]
    for (_, a, b), (_, c, d) in zip(pair, losses(run), strict=True):
        assert (a or b) == pytest.approx(c or d, rel=1e-5)


def test_accumulated_passes_are_one_batch(run: Path, tmp_path: Path) -> None:
    config = changed(make_run(run), accumulate=2, steps=6)
    run_stages(changed(make_run(run), steps=6), elsewhere(run, tmp_path / "one"), stages=("network",), bar=False)
    run_stages(config, elsewhere(run, tmp_path / "two"), stages=("network",), bar=False)
    for (_, a, b), (_, c, d) in zip(losses(tmp_path / "two"), losses(tmp_path / "one"), strict=True):
        assert (a or b) == pytest.approx(c or d, rel=1e-4)


def test_gradient_checkpointing_changes_no_loss(run: Path, tmp_path: Path) -> None:
    config = changed(make_run(run), gradient_checkpointing=True, steps=4)
    run_stages(
        changed(config, gradient_checkpointing=False), elsewhere(run, tmp_path / "a"), stages=("network",), bar=False
    )
    run_stages(config, elsewhere(run, tmp_path / "b"), stages=("network",), bar=False)
    for (_, a, b), (_, c, d) in zip(losses(tmp_path / "b"), losses(tmp_path / "a"), strict=True):
        assert (a or b) == pytest.approx(c or d, rel=1e-5)


def test_resume_with_another_config_or_data_is_refused(run: Path, tmp_path: Path) -> None:
    config, out = make_run(run), elsewhere(run, tmp_path)
    calls = iter(range(100))
    run_stages(config, out, stages=("network",), stop=lambda: next(calls) >= 2, bar=False)
    other = dataclasses.replace(config, optimiser=dataclasses.replace(config.optimiser, lr=1e-3))
    with pytest.raises(FileFormatError, match="another config"):
        run_stages(other, out, stages=("network",), resume=True, bar=False)


def test_output_files_of_a_run(run: Path) -> None:
    checkpoints = sorted(p.name for p in (run / "checkpoints").iterdir())
    assert [n for n in checkpoints if n.startswith("step-")] == ["step-00000010", "step-00000012"]
    assert len([n for n in checkpoints if n.startswith("best-")]) == 1
    best = CheckpointFolder(run / "checkpoints").newest("best")
    assert best is not None
    validated = {step: value for step, _, value in losses(run) if value is not None}
    assert best.progress.step == min(validated, key=lambda step: validated[step])
    assert best.progress.best == validated[best.progress.step]
    lines = read_log(run / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))
    assert {"lr", "grad_norm", "samples_per_s", "seconds"} <= lines[0].keys()
    assert {"psnr", "psnr_dynamic", "xyz_error", "composite_psnr"} <= lines[4].keys()
    strip = read_image(run / "strips" / "network-00000012.png")
    # Three pairs (truth, prediction, composite), both halves, of 32 rows and a gap each; black below.
    assert strip.shape == (6 * 34 + 8, 7 * 50, 3)


def test_the_export_has_the_averaged_best_weights_and_a_model_card(run: Path) -> None:
    bundle = ModelBundle.from_pretrained(run / "model", verify=True)
    best = CheckpointFolder(run / "checkpoints").newest("best")
    assert best is not None
    own = dict(bundle.transformer.named_parameters())
    average = best.tensors("average")
    assert average
    assert all(torch.equal(own[name], tensor) for name, tensor in average.items())
    assert any(not torch.equal(tensor, average[name]) for name, tensor in best.tensors("weights").items())
    codec = make_bundle(make_run(run), run).codec
    clip = torch.rand(1, 3, 9, 32, 48)
    assert torch.equal(bundle.codec.encode(clip), codec.encode(clip))
    card = (run / "model" / "README.md").read_text()
    for fact in (
        read_manifest(run / "model").sha256,
        "12 episodes",
        "| seed | 0 |",
        f"{best.progress.step} of 12",
        " h on ",
    ):
        assert fact in card


def test_lora_on_a_tiny_wan_lowers_the_loss_and_keeps_the_base(tmp_path: Path) -> None:
    base = ModelBundle.from_preset("tiny", seed=5)
    base.save_pretrained(tmp_path / "base")
    encode_source(base, SweptSquares(base.preset, 4), tmp_path / "latents" / "train", shard_episodes=4)
    config = TrainConfig(
        name="lora",
        preset="tiny",
        learn="lora",
        data=DataSpec(latents=str(tmp_path / "latents")),
        start=StartSpec(bundle=str(tmp_path / "base")),
        optimiser=OptimiserSpec(lr=2e-2, warmup_steps=3),
        run=RunSpec(steps=40, batch=4, checkpoint_every=20, log_every=1, threads=1),
    )
    out = tmp_path / "out"
    bundle = make_bundle(config, out)
    assert adapter_names(bundle.transformer) == ("kinema4d",)
    learning = learning_names(config, bundle)
    assert all(".lora_" in n or bundle.transformer.is_added(n) for n in learning)
    assert any(".lora_" in n for n in learning)
    before = {n: t.clone() for n, t in bundle.transformer.state_dict().items()}
    task = NetworkTask(bundle, learning, config, LatentSet(tmp_path / "latents" / "train", bundle.preset), None)
    Trainer(task, config, out, make_accelerator(config), bar=False).run()
    found = [loss for _, loss, _ in losses(out) if loss is not None]
    assert np.mean(found[-8:]) < 0.9 * np.mean(found[:4])
    after = bundle.transformer.state_dict()
    moved = {n for n in after if not torch.equal(after[n], before[n])}
    assert moved
    assert moved <= set(learning)
    assert any(".lora_B." in n for n in moved)

    run_stages(config, out, stages=("export",), bar=False)
    files = {p.name for p in (out / "model").iterdir()}
    assert files == {"pytorch_lora_weights.safetensors", "added_weights.safetensors", "manifest.json", "README.md"}
    official = load_file(out / "model" / "pytorch_lora_weights.safetensors")
    key = "blocks.1.attn2.to_v.lora_B.weight"
    assert torch.equal(official[f"transformer.{key}"], after[key.replace("lora_B.", "lora_B.kinema4d.")])


def test_a_loss_that_is_not_finite_names_the_episodes(run: Path, tmp_path: Path) -> None:
    config = make_run(run)
    bundle = make_bundle(config, run)
    with torch.no_grad():
        bundle.transformer.proj_out.bias[0] = math.nan
    task = NetworkTask(
        bundle, learning_names(config, bundle), config, LatentSet(run / "latents" / "train", bundle.preset), None
    )
    trainer = Trainer(task, config, tmp_path, make_accelerator(config), bar=False)
    with pytest.raises(GeneratorError, match=r"the loss is nan in step 1; .*square-0-00"):
        trainer.run()
    assert trainer.checkpoints.newest() is None


def test_an_incomplete_checkpoint_is_never_loaded(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=3)
    parts = {"weights": {"a": torch.arange(100.0)}, "optimiser": {"a|step": torch.tensor(3.0)}}
    for step in (1, 2, 3):
        folder.save("step", Progress(step=step), parts)

    def newest() -> int:
        found = folder.newest()
        return -1 if found is None else found.progress.step

    assert newest() == 3
    # State after a crash: not renamed yet.
    (tmp_path / ".step-00000009.abc").mkdir()
    (tmp_path / ".step-00000009.abc" / "progress.json").write_text("{}")
    assert newest() == 3
    # State after reordered disk writes: renamed, but truncated or without its last file.
    weights = tmp_path / "step-00000003" / "weights.safetensors"
    whole = weights.read_bytes()
    for broken in (whole[:-1], whole[:-4] + b"\x00\x00\x80\x3f"):
        weights.write_bytes(broken)
        assert newest() == 2
    weights.unlink()
    assert newest() == 2
    (tmp_path / "step-00000002" / "progress.json").write_text('{"format": "kinema4d-check')
    assert newest() == 1
    folder.clean()
    assert not list(tmp_path.glob(".*"))


def test_a_failed_checkpoint_keeps_the_previous_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep=1)
    folder.save("step", Progress(step=1), {"weights": {"a": torch.ones(3)}})

    def fail(path: Path) -> None:
        assert (path / "weights.safetensors").is_file()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        folder.save("step", Progress(step=2), {"weights": {"a": torch.zeros(3)}}, fail)
    found = folder.newest()
    assert found is not None
    assert found.progress.step == 1
    assert torch.equal(found.tensors("weights")["a"], torch.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


def test_log_lines_after_the_checkpoint_are_removed(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 2.0}\n{"step": 3, "lo')
    log = MetricsLog(tmp_path, 1, 5, bar=False)
    log.write(2, loss=7.0)
    log.close()
    assert [(line["step"], line["loss"]) for line in read_log(tmp_path / "metrics.jsonl")] == [(1, 1.0), (2, 7.0)]


@pytest.mark.skipif(find_spec("wandb") is not None, reason="only where wandb is not installed")
def test_wandb_without_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="the package wandb is not installed"):
        MetricsLog(tmp_path, 0, 5, bar=False, wandb="kinema4d")


def test_a_batch_that_cannot_be_divided_is_refused(run: Path, tmp_path: Path) -> None:
    config = make_run(run)
    accelerator = make_accelerator(config)
    bundle = make_bundle(config, run)
    stored = LatentSet(run / "latents" / "train", bundle.preset)
    task = NetworkTask(bundle, learning_names(config, bundle), config, stored, None)
    object.__setattr__(config.run, "accumulate", 3)
    with pytest.raises(FileFormatError, match="batch 4 cannot be divided"):
        Trainer(task, config, tmp_path, accelerator, bar=False)


def test_a_start_bundle_of_another_size_is_refused(run: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(make_run(run), preset="tiny", start=StartSpec(bundle=str(run / "model")))
    with pytest.raises(FileFormatError, match="another transformer than preset 'tiny'"):
        make_bundle(config, tmp_path)
    again = dataclasses.replace(make_run(run), start=StartSpec(bundle=str(run / "model")))
    started = make_bundle(again, tmp_path)
    exported = ModelBundle.from_pretrained(run / "model")
    assert torch.equal(started.transformer.proj_out.weight, exported.transformer.proj_out.weight)
    assert load_preset(str(run / "preset.yaml")) == started.preset


def test_trainable_parameters_are_gathered_under_their_own_names(run: Path) -> None:
    """In one process nothing is sharded; names and values must equal those of a plain checkpoint."""
    config = make_run(run)
    bundle = make_bundle(config, run)
    names = learning_names(config, bundle)
    bundle.transformer.proj_out.bias.requires_grad_(False)
    task = NetworkTask(bundle, names, config, LatentSet(run / "latents" / "train", bundle.preset), None)
    gathered = gather_learning(task.module, names)
    assert gathered.keys() == set(names) - {"proj_out.bias"}
    assert all(torch.equal(gathered[name], task.learning[name]) for name in gathered)
