"""Each architecture through the whole of training and sampling, as its registry entry asks for.

The models are tiny and random; the classes and configurations are the real ones, with Gemma-3 also
as the image-text model that it is from 4B on, and gpt-oss from weights in MXFP4.
"""

import json

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from calibration_tuning import chat, checkpoints, prompts, training
from calibration_tuning.divergences import divergence
from calibration_tuning.errors import InputError
from calibration_tuning.families import Distribution
from calibration_tuning.packing import pack, packed_logits
from calibration_tuning.planning import load_yaml
from calibration_tuning.sampling import sample_completions
from calibration_tuning.trie import build_trie
from repository import ROOT
from tiny_models import ARCHITECTURES, IMAGE_TEXT, SLIDING_WINDOW, save_tiny

LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}
SETTINGS = {
    "objective": "soft_target",
    "decimals": 1,
    "max_bins": 51,
    "epochs": 0.006,
    "values_per_prompt": 2,
    "packing": 2,
    "batch": 8,
    "learning_rate": 1e-2,
    "weight_decay": 0.01,
    "warmup": 0.1,
    "checkpoint_steps": 50,
    "dtype": "float32",
}
GRIDS = load_yaml(ROOT / "config" / "families.yaml")["families"]
RECORDS = prompts.build_prompts(GRIDS, "families.yaml")["train"]
SCOPES = {IMAGE_TEXT: "language_model"}
EVERY = (*ARCHITECTURES, IMAGE_TEXT)


def fetch_tiny(architecture, folder):
    source = save_tiny(architecture, folder / "source")
    checkpoints.fetch("tiny", {"source": f"path:{source}"}, folder / "tiny", folder / "downloads")
    return folder / "tiny"


def trainable(model):
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("architecture", EVERY)
def test_from_prompts_to_an_adapter_to_samples(architecture, tmp_path):
    folder = fetch_tiny(architecture, tmp_path)
    tokenizer = checkpoints.load_tokenizer(folder)
    base = checkpoints.load_model(folder, "float32", "cpu")
    frozen = {name: value.clone() for name, value in base.state_dict().items()}
    model = checkpoints.attach_new_adapter(base, LORA, 11, SCOPES.get(architecture))
    encode, end_id = chat.completion_encoder(tokenizer), chat.end_of_turn_id(tokenizer, {})
    dataset = training.VisitDataset(
        RECORDS,
        training.plan_visits([record["family"] for record in RECORDS], SETTINGS, 11),
        SETTINGS,
        encode_prompt=lambda text: chat.encode_prompt(tokenizer, text, {}),
        encode=encode,
        end_id=end_id,
        seed=11,
    )
    history = training.train(model, dataset, SETTINGS, 4, 11, tmp_path / "work", "test")
    assert len(history) > 1
    assert all(np.isfinite(entry["loss"]) for entry in history)
    # The base is as it was, bit for bit, and only the projections of the attention are adapted.
    for name, value in base.state_dict().items():
        if "lora_" not in name:
            assert torch.equal(value, frozen[name.replace(".base_layer", "")]), name
    assert all(w.abs().max() > 0 for n, w in trainable(model).items() if "lora_B" in n)
    names = {name.split(".lora_")[0].split(".")[-1] for name in trainable(model)}
    assert names == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert not any("vision" in n or "experts" in n or "router" in n for n in trainable(model))

    checkpoints.save_adapter(model, tmp_path / "adapter", "a-revision")
    fresh = checkpoints.load_model(folder, "float32", "cpu")
    loaded = PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    prompt = chat.encode_prompt(tokenizer, RECORDS[0]["prompt"], {})
    ids = torch.tensor([prompt])
    torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits)

    samples = sample_completions(
        loaded, tokenizer, prompt, 5, stop_ids=frozenset({end_id}), max_new_tokens=4, seed=[1]
    )
    assert len(samples) == 5
    trie = build_trie(
        Distribution(RECORDS[0]["family"], RECORDS[0]["params"]), 1, "full", encode, end_id
    )
    found = divergence(loaded, prompt, trie, exact_prefixes=30, sampled_paths=4, seed=[2])
    assert np.isfinite(found.sequence_kl)
    assert found.sequence_kl > 0


def test_an_image_text_model_packs_as_its_language_model_does(tmp_path):
    """Beyond the sliding window too; it needs no token_type_ids for text."""
    model = checkpoints.load_model(fetch_tiny(IMAGE_TEXT, tmp_path), "float32", "cpu")
    rng = np.random.default_rng(0)
    prompt = rng.integers(5, 90, SLIDING_WINDOW + 4).tolist()
    sequences = [prompt + rng.integers(5, 8, 4).tolist() for _ in range(3)]
    tree = pack(sequences)
    last = torch.from_numpy(tree.nodes[:, -1])
    tensors = [torch.from_numpy(a) for a in (tree.token_ids, tree.positions, tree.subtree_end)]
    packed = packed_logits(model, *tensors, rows=last)
    alone = torch.stack([model(torch.tensor([s])).logits[0, -1] for s in sequences])
    torch.testing.assert_close(packed, alone, atol=2e-5, rtol=1e-5)


def test_an_image_text_model_needs_a_scope_and_a_scope_must_exist(tmp_path):
    model = checkpoints.load_model(fetch_tiny(IMAGE_TEXT, tmp_path), "float32", "cpu")
    assert sum(name.endswith("q_proj") for name, _ in model.named_modules()) == 4  # two towers
    with pytest.raises(InputError, match="image-text model; expected a lora_scope"):
        checkpoints.attach_new_adapter(model, LORA, 1)
    with pytest.raises(InputError, match=r"no q_proj, .* within text_model to adapt"):
        checkpoints.attach_new_adapter(model, LORA, 1, "text_model")
    adapted = checkpoints.attach_new_adapter(model, LORA, 1, "language_model")
    assert len(trainable(adapted)) == 2 * 4 * 2
    assert all(".language_model." in name for name in trainable(adapted))


@pytest.mark.parametrize("architecture", EVERY)
def test_adapters_are_float32_under_a_bfloat16_base(architecture, tmp_path):
    folder = fetch_tiny(architecture, tmp_path)
    base = checkpoints.load_model(folder, "bfloat16", "cpu")
    model = checkpoints.attach_new_adapter(base, LORA, 1, SCOPES.get(architecture))
    weights = trainable(model)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    frozen = {p.dtype for p in model.parameters() if not p.requires_grad}
    assert frozen == {torch.bfloat16}
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=2e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(torch.tensor([[1, 20, 30]])).logits.float().logsumexp(-1).sum().backward()
    optimizer.step()
    # bfloat16 has steps of 2**-9 of a value: most changes of 2e-4 would be rounded away in it.
    moved = [
        (weight.detach() - before[name]).abs().max() > 0
        for name, weight in weights.items()
        if "lora_B" in name
    ]
    assert all(moved)
    checkpoints.save_adapter(model, tmp_path / "adapter", "a-revision")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    fresh = checkpoints.load_model(folder, "bfloat16", "cpu")
    loaded = checkpoints.load_adapter(fresh, tmp_path / "adapter", merge=False)
    assert {p.dtype for n, p in loaded.named_parameters() if "lora_" in n} == {torch.float32}


FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4_VALUES = torch.cat([FP4, -FP4])  # by the four bits of a code, the first one the sign


def to_mxfp4(codes: torch.Tensor, exponents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (experts, rows, blocks, 32) as the hub stores them: two a byte, the first one low."""
    low, high = codes[..., 0::2], codes[..., 1::2]
    return (low | (high << 4)).to(torch.uint8), (exponents + 127).to(torch.uint8)


@pytest.fixture
def mxfp4_model(tmp_path):
    """A gpt-oss whose experts are in MXFP4, its folder, and the same weights unquantized."""
    source = save_tiny("gptoss", tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    plain = dict(weights)
    for name in [name for name in weights if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = weights[name].shape
        shape = (experts, outputs, inputs // 32)
        codes = torch.randint(0, 16, (*shape, 32), generator=generator)
        exponents = torch.randint(-5, -2, shape, generator=generator)
        values = FP4_VALUES[codes] * 2.0 ** exponents[..., None]
        plain[name] = values.reshape(experts, outputs, inputs).transpose(1, 2).contiguous()
        del weights[name]
        weights[f"{name}_blocks"], weights[f"{name}_scales"] = to_mxfp4(codes, exponents)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    }
    (source / "config.json").write_text(json.dumps(config))
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    checkpoints.fetch("tiny", {"source": f"path:{source}"}, tmp_path / "tiny", tmp_path / "d")
    return tmp_path / "tiny", plain


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mxfp4_weights_are_undone_exactly(mxfp4_model, dtype, tmp_path):
    folder, plain = mxfp4_model
    model = checkpoints.load_model(folder, dtype, "cpu", "mxfp4")
    loaded = model.state_dict()
    experts = [name for name in plain if name.endswith(("gate_up_proj", "down_proj"))]
    assert len(experts) == 4
    for name in experts:  # every value of MXFP4 is one of bfloat16
        assert torch.equal(loaded[name].float(), plain[name]), name
    assert {value.dtype for value in loaded.values()} == {getattr(torch, dtype)}
    adapted = checkpoints.attach_new_adapter(model, LORA, 1)
    adapted(torch.tensor([[1, 20, 30]])).logits.float().sum().backward()
    assert all(weight.grad is not None for weight in trainable(adapted).values())
    adapted.unload().save_pretrained(tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved/config.json").read_text())


def test_another_quantization_than_the_registrys_is_refused(mxfp4_model, tmp_path):
    folder, _ = mxfp4_model
    with pytest.raises(InputError, match="quantization is mxfp4, the registry says none"):
        checkpoints.load_model(folder, "bfloat16", "cpu")
    plain = fetch_tiny("gptoss", tmp_path / "plain")
    with pytest.raises(InputError, match="quantization is none, the registry says mxfp4"):
        checkpoints.load_model(plain, "bfloat16", "cpu", "mxfp4")


@pytest.mark.parametrize("architecture", EVERY)
def test_spread_over_the_devices_of_the_machine(architecture, tmp_path):
    """Here that is the CPU alone; layers are never divided, on any number of devices."""
    from accelerate import infer_auto_device_map

    folder = fetch_tiny(architecture, tmp_path)
    whole = checkpoints.load_model(folder, "float32", "cpu")
    spread = checkpoints.load_model(folder, "float32", "auto")
    ids = torch.tensor([[1, 20, 30]])
    assert torch.equal(spread(ids).logits, whole(ids).logits)
    size = sum(p.numel() * p.element_size() for p in whole.parameters())
    # Two pretend devices, neither of which holds the whole model.
    devices = infer_auto_device_map(
        whole,
        max_memory={"disk": 0, "cpu": int(0.9 * size)},
        no_split_module_classes=whole._no_split_modules,
    )
    assert set(devices.values()) == {"cpu", "disk"}
    inside = [name for name in devices if ".layers." in name and "vision" not in name]
    assert all(name.split(".layers.")[1].isdigit() for name in inside), devices
