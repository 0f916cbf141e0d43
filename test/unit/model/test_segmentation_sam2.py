"""Tests of SAM 2's real classes with small random weights: prompts, propagation, weights folders, errors."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny_sam2 import CONFIG, save_tiny, tiny_sam2

from kinema4d_model.segmentation import Sam2Segmenter, load_sam2
from kinema4d_model.segmentation.sam2_package import Normalize, Resize, ToTensor, import_sam2
from kinema4d_model.segmentation.sam2_segmenter import _fill_holes, mask_box, mask_logits, mask_points
from kinema4d_model.segmentation.sam2_weights import build_sam2
from kinema4d_ros.core.errors import ErrorCode, FileFormatError
from kinema4d_ros.io.files import write_yaml
from kinema4d_ros.segmentation import Prompt, RobotSegmenter, SegmentationError, make_segmenter

IMAGE = np.random.default_rng(0).integers(0, 255, (90, 120, 3), dtype=np.uint8)
VIDEO = np.stack([np.roll(IMAGE, 3 * k, axis=1) for k in range(3)])
ROBOT = np.zeros((90, 120), np.bool_)
ROBOT[20:70, 30:60] = True
ROBOT[20:35, 30:100] = True


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return tiny_sam2()


@pytest.fixture(scope="module")
def segmenter(model: torch.nn.Module) -> Sam2Segmenter:
    return Sam2Segmenter(model)


def test_the_segmenter_uses_the_real_sam2_classes(segmenter: Sam2Segmenter, model: torch.nn.Module) -> None:
    assert isinstance(segmenter, RobotSegmenter)
    assert type(model).__module__ == "sam2.sam2_video_predictor"
    assert type(segmenter._predictor).__module__ == "sam2.sam2_image_predictor"


def test_the_torchvision_replacement_is_removed_after_import() -> None:
    import_sam2()
    module = sys.modules.get("torchvision")
    assert module is None or getattr(module, "__version__", None) is not None


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt(points=[60, 40]),
        Prompt(points=[[60, 40], [5, 5]], labels=[1, 0]),
        Prompt(boxes=[[10, 10, 80, 80], [20, 20, 50, 70]]),
        Prompt(mask=ROBOT),
        Prompt(points=[40, 30], boxes=[20, 10, 110, 80], mask=ROBOT),
    ],
    ids=["point", "points", "boxes", "rendered", "all"],
)
def test_one_image_by_every_prompt(segmenter: Sam2Segmenter, prompt: Prompt) -> None:
    found = segmenter.segment(IMAGE, prompt)
    assert found.masks.shape == IMAGE.shape[:2]
    assert found.masks.dtype == np.bool_
    assert found.masks.any()
    assert not found.masks.all()
    assert found.scores.shape == (1,)
    assert 0 < found.scores[0] <= 1
    assert np.array_equal(found.masks, segmenter.segment(IMAGE, prompt).masks)


def test_a_prompt_changes_the_mask(segmenter: Sam2Segmenter) -> None:
    drawn = segmenter.segment(IMAGE, Prompt(mask=ROBOT)).masks
    moved = segmenter.segment(IMAGE, Prompt(mask=np.roll(ROBOT, 15, axis=0))).masks
    assert not np.array_equal(drawn, moved)


@pytest.mark.parametrize("frame", [0, 1, 2])
@pytest.mark.parametrize("kind", ["points", "boxes", "mask"])
def test_a_prompt_is_propagated_through_a_video(segmenter: Sam2Segmenter, kind: str, frame: int) -> None:
    prompt = {
        "points": Prompt(points=[60, 40], frame=frame),
        "boxes": Prompt(boxes=[[10, 10, 80, 80], [20, 20, 50, 70]], frame=frame),
        "mask": Prompt(mask=ROBOT, frame=frame),
    }[kind]
    told: list[tuple[int, int]] = []
    found = segmenter.segment(VIDEO, prompt, progress=lambda done, total: told.append((done, total)))
    assert found.masks.shape == VIDEO.shape[:3]
    assert found.empty == ()
    assert (found.scores > 0.5).all()
    assert told[-1] == (3, 3)


def test_masks_for_each_image_are_refined_one_by_one(segmenter: Sam2Segmenter) -> None:
    masks = np.stack([ROBOT, np.zeros_like(ROBOT), ROBOT])
    found = segmenter.segment(VIDEO, Prompt(mask=masks))
    assert found.empty == (1,)
    assert found.scores[1] == 0
    assert np.array_equal(found.masks[0], segmenter.segment(IMAGE, Prompt(mask=ROBOT)).masks)
    assert any("no robot found in 1 of 3" in note for note in found.notes)


def test_an_empty_mask_prompt_gives_an_empty_mask(segmenter: Sam2Segmenter) -> None:
    found = segmenter.segment(IMAGE, Prompt(mask=np.zeros_like(ROBOT)))
    assert found.empty == (0,)
    assert found.scores.tolist() == [0.0]


@pytest.mark.parametrize("prompt", [None, Prompt(), Prompt(text="  ")])
def test_no_prompt_is_refused(segmenter: Sam2Segmenter, prompt: Prompt | None) -> None:
    with pytest.raises(SegmentationError, match="needs a prompt"):
        segmenter.segment(IMAGE, prompt)


def test_only_negative_points_are_refused(segmenter: Sam2Segmenter) -> None:
    with pytest.raises(SegmentationError, match="no point lies on the robot"):
        segmenter.segment(IMAGE, Prompt(points=[3, 3], labels=[0]))


def test_text_without_a_detector_is_refused(segmenter: Sam2Segmenter) -> None:
    with pytest.raises(SegmentationError, match="no detector") as error:
        segmenter.segment(IMAGE, Prompt(text="a robot arm"))
    assert error.value.code == ErrorCode.SETUP_MISSING


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_load_from_a_folder(tmp_path: Path, model: torch.nn.Module, suffix: str) -> None:
    save_tiny(tmp_path / "w", model, suffix)
    loaded = make_segmenter("sam2", weights=tmp_path / "w", device="cpu")
    expected = Sam2Segmenter(model).segment(IMAGE, Prompt(mask=ROBOT))
    assert np.array_equal(loaded.segment(IMAGE, Prompt(mask=ROBOT)).masks, expected.masks)


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("a pickle ran code",)


def test_a_pickle_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_yaml(tmp_path / "sam2.yaml", {"config": CONFIG, "overrides": ["model.image_size=128"]})
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"model": _Evil()}))
    with pytest.raises(FileFormatError) as error:
        load_sam2(tmp_path)
    assert error.value.code in (ErrorCode.FILE_UNSUPPORTED, ErrorCode.FILE_MALFORMED)
    torch.save({"model": _Evil()}, tmp_path / "evil.pt")
    with pytest.raises(FileFormatError) as error:
        load_sam2(tmp_path)
    assert error.value.code == ErrorCode.FILE_UNSUPPORTED
    (tmp_path / "evil.pt").rename(tmp_path / "evil.safetensors")
    with pytest.raises(FileFormatError, match="pickle"):
        load_sam2(tmp_path)
    assert "ran code" not in capsys.readouterr().out


def test_folders_without_sam2_weights_are_refused(tmp_path: Path, model: torch.nn.Module) -> None:
    with pytest.raises(FileFormatError, match="is not a folder") as error:
        load_sam2(tmp_path / "nowhere")
    assert error.value.code == ErrorCode.FILE_MISSING
    with pytest.raises(FileFormatError, match="holds no weights"):
        load_sam2(tmp_path)
    folder = save_tiny(tmp_path / "w", model)
    (folder / "sam2.yaml").unlink()
    with pytest.raises(FileFormatError, match="does not identify its network"):
        load_sam2(folder)
    write_yaml(folder / "sam2.yaml", {"config": CONFIG, "overrides": 3})
    with pytest.raises(FileFormatError, match="list of overrides"):
        load_sam2(folder)
    (folder / "other.safetensors").write_bytes(b"")
    with pytest.raises(FileFormatError, match="other, tiny"):
        load_sam2(folder)


def test_weights_of_another_network_are_refused(tmp_path: Path, model: torch.nn.Module) -> None:
    folder = save_tiny(tmp_path / "w", model)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors["maskmem_tpos_enc"] = torch.zeros(2, 2)
    torch.save(tensors, folder / "tiny.pt")
    (folder / "tiny.safetensors").unlink()
    with pytest.raises(FileFormatError, match="maskmem_tpos_enc"):
        load_sam2(folder)


@pytest.mark.parametrize(
    "override",
    [
        "model._target_=os.system",
        "++model.image_encoder._target_=os.system",
        "hydra.run.dir=/tmp",
        "model.x=${oc.env:HOME}",
    ],
)
def test_overrides_cannot_name_code(override: str) -> None:
    with pytest.raises(FileFormatError, match="refused"):
        build_sam2(CONFIG, [override])


def test_only_configurations_of_sam2_are_built() -> None:
    with pytest.raises(FileFormatError, match="is not one of sam2's"):
        build_sam2("../../evil.yaml")
    with pytest.raises(FileFormatError, match="cannot be built"):
        build_sam2(CONFIG, ["model.no_such_number=3"])


def test_our_transforms_resize_and_normalise() -> None:
    tensor = ToTensor()(IMAGE)
    assert tensor.shape == (3, 90, 120)
    assert float(tensor[1, 4, 7]) == pytest.approx(IMAGE[4, 7, 1] / 255)
    script = torch.jit.script(torch.nn.Sequential(Resize((45, 60)), Normalize([0.5, 0.4, 0.3], [0.2, 0.25, 0.5])))
    flat = torch.full((3, 90, 120), 0.7)
    assert torch.allclose(script(flat)[:, 10, 10], torch.tensor([1.0, 1.2, 0.8]), atol=1e-5)
    # Antialiased: the mean survives a strong reduction.
    small = Resize((9, 12))(tensor)
    assert torch.allclose(small.mean(dim=(1, 2)), tensor.mean(dim=(1, 2)), atol=5e-3)


def test_the_rendered_robot_gives_a_box_points_and_logits() -> None:
    left, top, right, bottom = mask_box(ROBOT)
    assert 0 <= left < 30
    assert 0 <= top < 20
    assert 100 < right <= 120
    assert 70 < bottom <= 90
    points = mask_points(ROBOT)
    assert 2 <= len(points) <= 6
    columns, rows = np.floor(points).astype(int).T
    assert ROBOT[rows, columns].all()
    logits = mask_logits(ROBOT, 32)
    assert logits.shape == (1, 32, 32)
    assert logits[0, 16, 11] > 4
    assert logits[0, 30, 30] < -4


def test_small_holes_are_filled_and_large_ones_kept() -> None:
    mask = np.ones((200, 300), np.bool_)
    mask[50, 50] = False
    mask[100:140, 100:140] = False
    filled = _fill_holes(mask)
    assert filled[50, 50]
    assert not filled[120, 120]
