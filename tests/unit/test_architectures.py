"""Each architecture through the whole of training and sampling, as its registry entry asks for.

The models are tiny and random; the classes and configurations are the real ones, with Gemma-3 also
as the image-text model that it is from 4B on, and gpt-oss from weights in MXFP4.
"""

import json
import re

import numpy as np
import pytest
import torch
from accelerate import dispatch_model, infer_auto_device_map
from peft import PeftModel
from safetensors.torch import load_file, save_file

import tiny_training
from calibration_tuning import chat, checkpoints, training
from calibration_tuning.divergences import divergence
from calibration_tuning.errors import InputError
from calibration_tuning.families import Distribution
from calibration_tuning.packing import pack, packed_logits
from calibration_tuning.sampling import sample_completions
from calibration_tuning.trie import build_trie
from repository import replace
from tiny_models import ARCHITECTURES, IMAGE_TEXT, SLIDING_WINDOW, build_model, save_tiny

LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}
SETTINGS = tiny_training.SETTINGS | {"epochs": 0.006, "checkpoint_steps": 50}
RECORDS = tiny_training.training_prompts()
MXFP4 = "gptoss-mxfp4"
SCOPES = {IMAGE_TEXT: "language_model"}
QUANTIZATIONS = {MXFP4: "mxfp4"}
EVERY = (*ARCHITECTURES, IMAGE_TEXT, MXFP4)
IDS = torch.tensor([[1, 20, 30]])
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4_VALUES = torch.cat([FP4, -FP4])  # by the four bits of a code, the first one the sign


def to_mxfp4(codes: torch.Tensor, exponents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (experts, rows, blocks, 32) as the hub stores them: two a byte, the first one low."""
    low, high = codes[..., 0::2], codes[..., 1::2]
    return (low | (high << 4)).to(torch.uint8), (exponents + 127).to(torch.uint8)


def save_mxfp4(folder) -> dict[str, torch.Tensor]:
    """A gpt-oss whose experts are in MXFP4, and all its weights with those values unquantized."""
    save_tiny("gptoss", folder)
    weights = load_file(folder / "model.safetensors")
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
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens"]
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": [*kept, "lm_head"]}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return plain


def fetch_tiny(architecture, folder):
    source = folder / "source"
    if architecture == MXFP4:
        save_mxfp4(source)
    else:
        save_tiny(architecture, source)
    return fetch(source, folder)


def fetch(source, folder):
    checkpoints.fetch("tiny", {"source": f"path:{source}"}, folder / "tiny", folder / "downloads")
    return folder / "tiny"


def load(architecture, folder, dtype, device="cpu"):
    return checkpoints.load_model(folder, dtype, device, QUANTIZATIONS.get(architecture))


def trainable(model):
    return {n: p for n, p in model.named_parameters() if p.requires_grad}


def trained_weights(model):
    return {n: p.detach() for n, p in model.named_parameters() if "lora_" in n}


@pytest.mark.parametrize("architecture", EVERY)
def test_from_prompts_to_an_adapter_to_samples(architecture, tmp_path):
    """gpt-oss from MXFP4 in bfloat16, as it is trained; the others in float32."""
    settings = SETTINGS | {"dtype": "bfloat16" if architecture == MXFP4 else "float32"}
    folder = fetch_tiny(architecture, tmp_path)
    tokenizer = checkpoints.load_tokenizer(folder)
    base = load(architecture, folder, settings["dtype"])
    frozen = {name: value.clone() for name, value in base.state_dict().items()}
    model = checkpoints.attach_new_adapter(base, LORA, 11, SCOPES.get(architecture))
    encode, end_id = chat.completion_encoder(tokenizer), chat.end_of_turn_id(tokenizer, {})
    dataset = training.VisitDataset(
        RECORDS,
        training.plan_visits([record["family"] for record in RECORDS], settings, 11),
        settings,
        encode_prompt=lambda text: chat.encode_prompt(tokenizer, text, {}),
        encode=encode,
        end_id=end_id,
        seed=11,
    )
    history = training.train(model, dataset, settings, 4, 11, tmp_path / "work", "test")
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
    fresh = load(architecture, folder, settings["dtype"])
    loaded = PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    assert trained_weights(loaded).keys() == trained_weights(model).keys()
    for name, weight in trained_weights(model).items():
        assert torch.equal(trained_weights(loaded)[name], weight), name
    prompt = chat.encode_prompt(tokenizer, RECORDS[0]["prompt"], {})
    if architecture != MXFP4:  # the Trainer leaves its autocast on the model that it trained
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


def test_the_hubs_names_of_gemmas_weights_are_understood(tmp_path):
    """Those of google/gemma-3-4b-it; transformers has named the parts anew since."""
    ours = checkpoints.load_model(fetch_tiny(IMAGE_TEXT, tmp_path), "float32", "cpu")
    source = tmp_path / "source"
    weights = load_file(source / "model.safetensors")
    hub = {re.sub(r"^vision_tower\.", "vision_tower.vision_model.", n): weights[n] for n in weights}
    assert "language_model.model.layers.0.self_attn.q_proj.weight" in hub
    assert "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight" in hub
    save_file(hub, source / "model.safetensors", metadata={"format": "pt"})
    theirs = checkpoints.load_model(fetch(source, tmp_path), "float32", "cpu")
    for name, value in ours.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], value), name


@pytest.mark.parametrize("architecture", EVERY)
def test_adapters_are_float32_under_a_bfloat16_base(architecture, tmp_path):
    folder = fetch_tiny(architecture, tmp_path)
    base = load(architecture, folder, "bfloat16")
    model = checkpoints.attach_new_adapter(base, LORA, 1, SCOPES.get(architecture))
    weights = trainable(model)
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    frozen = {p.dtype for p in model.parameters() if not p.requires_grad}
    assert frozen == {torch.bfloat16}
    with torch.no_grad():  # off the start, where half of the adapter has no gradient
        for weight in weights.values():
            weight.normal_(0.0, 0.15)
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    optimizer = torch.optim.AdamW(weights.values(), lr=2e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(IDS).logits.float()[..., 7:9].sum().backward()
    optimizer.step()
    pairs = [(before[name], weight.detach()) for name, weight in weights.items()]
    moved = torch.cat([(old != new).ravel() for old, new in pairs]).float().mean()
    rounded = torch.cat([(old.bfloat16() != new.bfloat16()).ravel() for old, new in pairs])
    assert moved > 0.99
    assert rounded.float().mean() < 0.7  # the trap: what bfloat16 weights would see of the step
    checkpoints.save_adapter(model, tmp_path / "adapter", "a-revision")
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {weight.dtype for weight in saved.values()} == {torch.float32}
    fresh = load(architecture, folder, "bfloat16")
    loaded = checkpoints.load_adapter(fresh, tmp_path / "adapter", merge=False)
    assert {weight.dtype for weight in trained_weights(loaded).values()} == {torch.float32}
    assert torch.equal(loaded.eval()(IDS).logits, model.eval()(IDS).logits)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_mxfp4_weights_are_undone_exactly(dtype, tmp_path):
    plain = save_mxfp4(tmp_path / "source")
    model = load(MXFP4, fetch(tmp_path / "source", tmp_path), dtype)
    loaded = model.state_dict()
    experts = [name for name in plain if name.endswith(("gate_up_proj", "down_proj"))]
    assert len(experts) == 4
    for name in experts:  # every value of MXFP4 is one of bfloat16
        assert torch.equal(loaded[name].float(), plain[name]), name
    assert {value.dtype for value in loaded.values()} == {getattr(torch, dtype)}
    never_quantized = build_model("gptoss")
    never_quantized.load_state_dict(plain)
    never_quantized.to(getattr(torch, dtype))
    logits = model(IDS).logits
    assert torch.equal(logits, never_quantized(IDS).logits)
    assert model.hf_quantizer is None
    adapted = checkpoints.attach_new_adapter(model, LORA, 1)
    adapted(IDS).logits.float().sum().backward()
    assert all(weight.grad is not None for weight in trainable(adapted).values())
    adapted.unload().save_pretrained(tmp_path / "saved")
    checkpoints.load_tokenizer(tmp_path / "tiny").save_pretrained(tmp_path / "saved")
    again = load("gptoss", fetch(tmp_path / "saved", tmp_path), dtype)
    assert torch.equal(again(IDS).logits, logits)


def test_another_quantization_than_the_registrys_is_refused(tmp_path):
    """Before any weight is read: these could not be."""
    mxfp4 = fetch_tiny(MXFP4, tmp_path / "mxfp4")
    plain = fetch_tiny("gptoss", tmp_path / "plain")
    for folder in (mxfp4, plain):
        with open(folder / "model.safetensors", "r+b") as file:
            file.write(b"\xff" * 64)
    with pytest.raises(InputError, match="quantization is mxfp4, the registry says none"):
        checkpoints.load_model(mxfp4, "bfloat16", "cpu")
    with pytest.raises(InputError, match="quantization is none, the registry says mxfp4"):
        checkpoints.load_model(plain, "bfloat16", "cpu", "mxfp4")
    replace(mxfp4 / "config.json", '"mxfp4"', '"other"')
    for said in (None, "mxfp4", "other"):
        with pytest.raises(InputError, match=r"quantization is other, .*\(none or mxfp4\)"):
            checkpoints.load_model(mxfp4, "bfloat16", "cpu", said)


def test_a_part_of_a_spread_model_beside_the_gpus_is_refused(tmp_path):
    checkpoints._check_spread(tmp_path, {"model.embed_tokens": 0, "model.layers.0": 1})
    with pytest.raises(InputError, match=r"too little memory for 2 parts .*\(model\.layers\.1, "):
        checkpoints._check_spread(tmp_path, {"a": 0, "model.layers.1": "cpu", "b": "disk"})


@pytest.mark.parametrize("architecture", EVERY)
def test_spread_over_the_devices_of_the_machine(architecture, tmp_path):
    """Here that is the CPU alone."""
    folder = fetch_tiny(architecture, tmp_path)
    whole = load(architecture, folder, "float32")
    spread = load(architecture, folder, "float32", "auto")
    assert torch.equal(spread(IDS).logits, whole(IDS).logits)
    # The hooks that carry tensors from one device to the next leave ours as they are.
    hooked = dispatch_model(spread, {"": "cpu"}, main_device="cpu", force_hooks=True)
    prompt = list(range(30, 42))
    options = {"stop_ids": {3}, "max_new_tokens": 2, "max_rows": 8, "seed": 1}
    tokenizer = checkpoints.load_tokenizer(folder)
    alike = [sample_completions(m, tokenizer, prompt, 9, **options) for m in (whole, hooked)]
    assert alike[0] == alike[1]


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, IMAGE_TEXT])
def test_layers_are_never_divided(architecture, tmp_path):
    """On two pretend GPUs, the first of which holds more and more of the model."""
    model = load(architecture, fetch_tiny(architecture, tmp_path), "float32")
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    parts = set()
    for share in np.arange(0.5, 1.05, 0.05):
        parts |= infer_auto_device_map(
            model,
            max_memory={0: int(share * size), 1: 2 * size},
            no_split_module_classes=model._no_split_modules,
        ).keys()
    assert any(re.search(r"(?<!encoder)\.layers\.\d+$", part) for part in parts), parts
    assert not any(re.search(r"\.layers\.\d+\.", part) for part in parts), parts
