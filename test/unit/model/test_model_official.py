"""Tests of official checkpoints at small sizes: loading, scale, merging, round trip, wrong files."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.model_inputs import random_conditions, wake, with_variant
from support.official_files import random_tensors, write_official

from kinema4d_model.checkpoints import lora as adapters
from kinema4d_model.checkpoints.bundle import ModelBundle
from kinema4d_model.checkpoints.official import (
    ADDED_FILE,
    ADDED_NAMES,
    DOMAIN_FILE,
    LORA_FILE,
    find_official,
    load_4dnex,
    load_official,
    save_official,
)
from kinema4d_model.network import KinemaTransformer
from kinema4d_model.preset import Preset
from kinema4d_model.preset_parts import LoraSpec
from kinema4d_ros.core.errors import ErrorCode, FileFormatError, GeneratorError

RANK = LoraSpec(rank=4, alpha=2)
KEY = "transformer.blocks.1.attn2.to_out.0.lora_B.weight"


def network(preset: Preset, variant: str = "act") -> KinemaTransformer:
    return ModelBundle.from_preset(with_variant(preset, variant), seed=3).transformer


@torch.no_grad()
def output(transformer: KinemaTransformer, preset: Preset) -> torch.Tensor:
    noisy = torch.randn(1, 16, 3, 4, 12, generator=torch.Generator().manual_seed(9))
    return transformer(noisy, torch.tensor([300.0]), transformer.prepare(random_conditions(preset)))


def weights(transformer: KinemaTransformer) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in transformer.named_parameters()}


@pytest.mark.parametrize("variant", ["act", "pm"])
def test_loading_applies_every_tensor_with_the_scale_the_file_lacks(tiny: Preset, variant: str, tmp_path: Path) -> None:
    folder = write_official(tmp_path / "ckpt", network(tiny, variant))
    assert find_official(folder).variant == variant
    loaded = network(tiny, variant)
    assert load_official(loaded, folder, RANK).variant == variant

    by_hand = network(tiny, variant)
    added, lora = load_file(folder / ADDED_FILE), load_file(folder / LORA_FILE)
    with torch.no_grad():
        parameters = dict(by_hand.named_parameters())
        for name, tensor in added.items():
            parameters[ADDED_NAMES[name]].copy_(tensor)
        for name in {n.split(".lora_")[0] for n in lora}:
            update = lora[f"{name}.lora_B.weight"] @ lora[f"{name}.lora_A.weight"]
            parameters[name.removeprefix("transformer.") + ".weight"].add_(0.5 * update)
    bare = output(network(tiny, variant), tiny)
    torch.testing.assert_close(output(loaded, tiny), output(by_hand, tiny), rtol=1e-4, atol=1e-4)
    assert (output(loaded, tiny) - bare).abs().max() > 1e-2
    assert len(lora) == 2 * 2 * 4 * 2


@pytest.mark.parametrize("variant", ["act", "pm"])
def test_round_trip_of_the_official_layout(tiny: Preset, variant: str, tmp_path: Path) -> None:
    first = write_official(tmp_path / "first", network(tiny, variant))
    loaded = network(tiny, variant)
    load_official(loaded, first, RANK)
    assert save_official(loaded, tmp_path / "second").variant == variant
    for name in (ADDED_FILE, LORA_FILE):
        a, b = load_file(first / name), load_file(tmp_path / "second" / name)
        assert set(a) == set(b)
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_adapters_merge_unmerge_switch_and_are_removed(tiny: Preset, tmp_path: Path) -> None:
    transformer = network(tiny)
    wake(transformer.robot_tokens)
    bare = output(transformer, tiny)
    names = {}
    for seed, name in enumerate(("one", "two")):
        path = write_official(tmp_path / name, network(tiny), seed=10 * seed)
        adapters.add_lora(transformer, load_file(path / LORA_FILE), name, rank=4, alpha=2)
        names[name] = output(transformer, tiny)
    assert adapters.adapter_names(transformer) == ("one", "two")
    assert (names["one"] - names["two"]).abs().max() > 1e-2

    adapters.activate(transformer, {"one": 1.0})
    assert torch.equal(output(transformer, tiny), names["one"])
    adapters.activate(transformer, {})
    assert torch.equal(output(transformer, tiny), bare)
    adapters.activate(transformer, {"one": 0.5, "two": 0.25})
    mixed = output(transformer, tiny)
    assert min((mixed - x).abs().max() for x in (bare, *names.values())) > 1e-3

    adapters.activate(transformer, {"two": 1.0})
    before = transformer.blocks[0].attn1.to_q.base_layer.weight.clone()
    adapters.merge(transformer)
    assert (transformer.blocks[0].attn1.to_q.base_layer.weight - before).abs().max() > 1e-3
    torch.testing.assert_close(output(transformer, tiny), names["two"], rtol=1e-4, atol=1e-4)
    adapters.unmerge(transformer)
    torch.testing.assert_close(transformer.blocks[0].attn1.to_q.base_layer.weight, before, rtol=0, atol=1e-6)
    torch.testing.assert_close(output(transformer, tiny), names["two"], rtol=1e-4, atol=1e-4)

    adapters.remove(transformer, "two")
    adapters.activate(transformer, {"one": 1.0})
    torch.testing.assert_close(output(transformer, tiny), names["one"], rtol=1e-4, atol=1e-4)
    adapters.remove(transformer, "one")
    assert adapters.adapter_names(transformer) == ()
    assert not [n for n, _ in transformer.named_parameters() if "lora" in n or "base_layer" in n]
    torch.testing.assert_close(output(transformer, tiny), bare, rtol=1e-4, atol=1e-4)


def test_adapter_names_are_checked(tiny: Preset, tmp_path: Path) -> None:
    transformer = network(tiny)
    with pytest.raises(GeneratorError, match="none is loaded"):
        adapters.activate(transformer, {"one": 1.0})
    path = write_official(tmp_path, network(tiny))
    adapters.load_lora(transformer, path / LORA_FILE, "one")
    with pytest.raises(GeneratorError, match="already loaded"):
        adapters.load_lora(transformer, path / LORA_FILE, "one")
    with pytest.raises(GeneratorError, match="'two' is not loaded; expected one of one"):
        adapters.remove(transformer, "two")


def test_loading_an_adapter_keeps_the_trained_parameters(tiny: Preset, tmp_path: Path) -> None:
    transformer = network(tiny)
    before = {n: p.requires_grad for n, p in transformer.named_parameters()}
    load_official(transformer, write_official(tmp_path, network(tiny)), RANK)
    after = {
        n.replace(".base_layer", ""): p.requires_grad for n, p in transformer.named_parameters() if "lora" not in n
    }
    assert after == before


def test_any_other_lora_of_wan_can_be_added(tiny: Preset, tmp_path: Path) -> None:
    """For example a distilled one: other layers, other rank, scale 1; also under the original Wan's names."""
    ffn = {"blocks.0.ffn.net.0.proj.lora_A.weight": (3, 24), "blocks.0.ffn.net.0.proj.lora_B.weight": (48, 3)}
    tensors = random_tensors({f"transformer.{n}": s for n, s in ffn.items()}, 1)
    save_file(tensors, tmp_path / "a.safetensors")
    transformer = network(tiny)
    adapters.load_lora(transformer, tmp_path / "a.safetensors", "fast")
    by_hand = network(tiny)
    down, up = tensors.values()
    with torch.no_grad():
        by_hand.blocks[0].ffn.net[0].proj.weight.add_(up @ down)
    torch.testing.assert_close(output(transformer, tiny), output(by_hand, tiny), rtol=1e-4, atol=1e-5)

    original = {f"diffusion_model.blocks.{b}.self_attn.{x}.lora_{half}.weight": (3, 24) if half == "A" else (24, 3)
                for b in (0, 1) for x in "qkvo" for half in "AB"}  # fmt: skip
    save_file(random_tensors(original, 2), tmp_path / "b.safetensors")
    adapters.load_lora(transformer, tmp_path / "b.safetensors", "other")
    assert adapters.adapter_names(transformer) == ("fast", "other")

    save_file({"transformer.head.lora_A.weight": torch.zeros(3, 24)}, tmp_path / "c.safetensors")
    with pytest.raises(FileFormatError, match=r"1 unexpected: head\.lora_A\.weight"):
        adapters.load_lora(transformer, tmp_path / "c.safetensors", "bad")
    mixed = tensors | random_tensors({"transformer.blocks.1.ffn.net.2.lora_A.weight": (5, 48)}, 3)
    save_file(mixed, tmp_path / "d.safetensors")
    with pytest.raises(FileFormatError, match=r"ranks \[3, 5\]"):
        adapters.load_lora(transformer, tmp_path / "d.safetensors", "bad")


def copied(path: Path) -> dict[str, torch.Tensor]:
    """Copy the tensors of a file that will be overwritten."""
    return {name: tensor.clone() for name, tensor in load_file(path).items()}


def edit(file: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = copied(folder / file)
        change(tensors)
        save_file(tensors, folder / file)

    return apply


def truncate(file: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = (folder / file).read_bytes()
        (folder / file).write_bytes(data[: len(data) - 100])

    return apply


def disguise(file: str, protocol: int | None) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = copied(folder / file)
        if protocol is None:
            torch.save(tensors, folder / file)
        else:
            (folder / file).write_bytes(pickle.dumps({n: t.tolist() for n, t in tensors.items()}, protocol))

    return apply


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (edit(ADDED_FILE, lambda t: t.pop("arm_ln.bias")), "FILE_MALFORMED", ["1 missing: arm_ln.bias"]),
        (edit(ADDED_FILE, lambda t: t.update(arm=torch.zeros(1))), "FILE_MALFORMED", ["1 unexpected: arm"]),
        (
            edit(ADDED_FILE, lambda t: t.update({"arm_pos_emb": torch.zeros(1, 8, 3, 2, 4)})),
            "FILE_MALFORMED",
            ["1 wrong shape: arm_pos_emb is [1, 8, 3, 2, 4], not [1, 8, 3, 2, 3]"],
        ),
        (
            edit(ADDED_FILE, lambda t: (t.pop("arm_pos_emb"), t.update(extra=torch.zeros(2)))),
            "FILE_MALFORMED",
            ["1 missing: arm_pos_emb", "1 unexpected: extra"],
        ),
        (edit(LORA_FILE, lambda t: t.pop(KEY)), "FILE_MALFORMED", [f"1 missing: {KEY}"]),
        (edit(LORA_FILE, lambda t: t.update({"other": torch.zeros(1)})), "FILE_MALFORMED", ["1 unexpected: other"]),
        (
            edit(LORA_FILE, lambda t: t.update({KEY: torch.zeros(23, 4)})),
            "FILE_MALFORMED",
            [f"{KEY} is [23, 4], not [24, 4]"],
        ),
        (edit(LORA_FILE, lambda t: t.clear()), "FILE_MALFORMED", ["32 missing", "and 24 more"]),
        (truncate(LORA_FILE), "FILE_MALFORMED", ["cannot be read as safetensors"]),
        (truncate(ADDED_FILE), "FILE_MALFORMED", ["cannot be read as safetensors"]),
        (disguise(ADDED_FILE, None), "FILE_UNSUPPORTED", ["is a pickle file"]),
        (disguise(LORA_FILE, 4), "FILE_UNSUPPORTED", ["is a pickle file"]),
        (disguise(LORA_FILE, 0), "FILE_MALFORMED", ["cannot be read as safetensors"]),
        (lambda folder: (folder / LORA_FILE).unlink(), "FILE_MISSING", [LORA_FILE, "does not exist"]),
        (lambda folder: (folder / ADDED_FILE).unlink(), "FILE_MISSING", [ADDED_FILE, "does not exist"]),
        (
            lambda folder: save_file({"head.weight": torch.zeros(1)}, folder / ADDED_FILE),
            "FILE_MALFORMED",
            ["neither of the two variants", "it holds head.weight"],
        ),
    ],
)
def test_a_wrong_file_is_refused_without_changing_the_network(
    tiny: Preset, tmp_path: Path, spoil: Callable[[Path], None], code: str, words: list[str]
) -> None:
    transformer = network(tiny)
    folder = write_official(tmp_path, transformer)
    spoil(folder)
    before = weights(transformer)
    with pytest.raises(FileFormatError) as caught:
        load_official(transformer, folder, RANK)
    assert caught.value.code is ErrorCode[code]
    for word in words:
        assert word in str(caught.value)
    after = weights(transformer)
    assert set(after) == set(before)
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_another_rank_is_named(tiny: Preset, tmp_path: Path) -> None:
    folder = write_official(tmp_path, network(tiny), rank=6)
    with pytest.raises(FileFormatError, match="its rank is 6, the preset's is 4"):
        load_official(network(tiny), folder, RANK)


def test_an_adapter_of_another_scale_needs_a_matching_preset(tiny: Preset, tmp_path: Path) -> None:
    transformer = network(tiny)
    tensors = load_file(write_official(tmp_path / "first", transformer) / LORA_FILE)
    adapters.add_lora(transformer, tensors, "kinema4d", rank=4, alpha=12)
    save_official(transformer, tmp_path / "own")
    with pytest.raises(FileFormatError, match=r"its alpha is 12 \(stated in its header\), the preset's is 2"):
        load_official(network(tiny), tmp_path / "own", RANK)
    loaded = network(tiny)
    load_official(loaded, tmp_path / "own", LoraSpec(4, 12))
    assert loaded.blocks[1].attn2.to_v.scaling == {"kinema4d": 3.0}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"transformer.lora_alpha": "x"}', '{"transformer.alpha_pattern": {"a": 1}}']
)
def test_a_header_without_a_usable_alpha_is_refused(tiny: Preset, tmp_path: Path, text: str) -> None:
    folder = write_official(tmp_path, network(tiny))
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / LORA_FILE).items()}
    save_file(tensors, folder / LORA_FILE, metadata={"lora_adapter_metadata": text})
    with pytest.raises(FileFormatError, match="states no usable alpha"):
        load_official(network(tiny), folder, RANK)


def test_the_other_variant_is_named(tiny: Preset, tmp_path: Path) -> None:
    folder = write_official(tmp_path, network(tiny, "pm"))
    with pytest.raises(FileFormatError, match="is a 'pm' checkpoint, the network is made for 'act'") as caught:
        load_official(network(tiny), folder, RANK)
    assert "robot.variant: pm" in str(caught.value)


def test_a_valid_file_may_start_with_the_bytes_of_a_pickle(tmp_path: Path) -> None:
    """The first bytes of safetensors are the header length: 128 equals a pickle's protocol opcode."""
    from kinema4d_model.checkpoints.tensor_files import tensor_shapes

    for padding in range(200):
        save_file({"x" * (padding + 1): torch.zeros(2)}, tmp_path / "x.safetensors")
        if (tmp_path / "x.safetensors").read_bytes()[0] == 0x80:
            break
    assert (tmp_path / "x.safetensors").read_bytes()[0] == 0x80
    assert list(tensor_shapes(tmp_path / "x.safetensors").values()) == [(2,)]


class Bomb:
    def __reduce__(self) -> Any:
        return (print, ("this must never run",))


def write_4dnex(folder: Path, transformer: KinemaTransformer, domain: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(domain, folder / DOMAIN_FILE)
    save_file(random_tensors(adapters.lora_shapes(transformer, 4), 1), folder / LORA_FILE)
    return folder


@pytest.mark.parametrize("wrap", [lambda t: t, lambda t: {"learnable_domain_embeddings": torch.nn.Parameter(t)}])
def test_4dnex_gives_adapter_and_domain_embeddings(tiny: Preset, tmp_path: Path, wrap: Any) -> None:
    transformer, domain = network(tiny), torch.randn(2, 24)
    load_4dnex(transformer, write_4dnex(tmp_path, transformer, wrap(domain)), RANK)
    assert torch.equal(transformer.patch_embedding.domain, domain)
    assert adapters.adapter_names(transformer) == ("4dnex",)
    assert (transformer.robot_tokens.project.weight == 0).all()
    lora = load_file(tmp_path / LORA_FILE)
    layer = transformer.blocks[0].attn1.to_q
    assert layer.scaling == {"4dnex": 0.5}
    assert torch.equal(layer.lora_A["4dnex"].weight, lora["transformer.blocks.0.attn1.to_q.lora_A.weight"])


@pytest.mark.parametrize(
    ("domain", "words"),
    [
        (torch.zeros(3, 24), r"learnable_domain_embeddings is \[3, 24\], not \[2, 24\]"),
        ([1, 2], "holds list"),
        (Bomb(), "cannot be read"),
    ],
)
def test_a_4dnex_file_with_other_contents_is_refused(
    tiny: Preset, tmp_path: Path, domain: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    transformer = network(tiny)
    write_4dnex(tmp_path, transformer, domain)
    with pytest.raises(FileFormatError, match=words):
        load_4dnex(transformer, tmp_path, RANK)
    assert "this must never run" not in capsys.readouterr().out
    assert (transformer.patch_embedding.domain == 0).all()
    assert adapters.adapter_names(transformer) == ()


def test_a_missing_or_truncated_4dnex_file(tiny: Preset, tmp_path: Path) -> None:
    transformer = network(tiny)
    with pytest.raises(FileFormatError, match="does not exist"):
        load_4dnex(transformer, tmp_path, RANK)
    write_4dnex(tmp_path, transformer, torch.zeros(2, 24))
    (tmp_path / DOMAIN_FILE).write_bytes((tmp_path / DOMAIN_FILE).read_bytes()[:200])
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_4dnex(transformer, tmp_path, RANK)


def test_the_name_table_covers_every_added_parameter(tiny: Preset) -> None:
    """Every added parameter has an official name, except the action tokens, which exist only here."""
    preset = dataclasses.replace(tiny, robot=dataclasses.replace(tiny.robot, action_dim=7))
    transformer = network(preset)
    added = {n for n, _ in transformer.named_parameters() if transformer.is_added(n)}
    assert {n for n in added if not n.startswith("action_tokens.")} == set(ADDED_NAMES.values())
