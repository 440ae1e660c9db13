"""Base models and adapters on disk, with tiny models of the four architectures."""

import json
import socket

import gguf
import numpy as np
import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, set_seed

from calibration_tuning import checkpoints
from calibration_tuning.errors import InputError
from tiny_models import ARCHITECTURES, IMAGE_TEXT, save_tiny

LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}
IDS = torch.tensor([[1, 20, 30, 40, 50]])


def fetch_tiny(architecture, folder):
    source = save_tiny(architecture, folder / "source")
    checkpoints.fetch("tiny", {"source": f"path:{source}"}, folder / "tiny", folder / "downloads")
    return folder / "tiny"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return fetch_tiny("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*arguments):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def train_a_little(model):
    """Move the adapter off its start, where it changes nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_adapter_round_trip_needs_no_network(architecture, tmp_path, no_network):
    folder = fetch_tiny(architecture, tmp_path)
    assert checkpoints.load_tokenizer(folder).encode("7")
    base = checkpoints.load_model(folder, "float32", "cpu")
    before = base(IDS).logits
    model = checkpoints.attach_new_adapter(base, LORA, seed=1)
    torch.testing.assert_close(model.eval()(IDS).logits, before)  # a new adapter changes nothing
    after = train_a_little(model)(IDS).logits
    assert (after - before).abs().max() > 1e-3
    checkpoints.save_adapter(model, tmp_path / "adapter", "a-revision")
    for merge in (False, True):
        fresh = checkpoints.load_model(folder, "float32", "cpu")
        loaded = checkpoints.load_adapter(fresh, tmp_path / "adapter", merge=merge).eval()
        torch.testing.assert_close(loaded(IDS).logits, after, atol=1e-5, rtol=1e-5)


def test_same_seed_same_bytes_and_another_seed_other_bytes(llama, tmp_path):
    def saved(seed, name):
        set_seed(len(name))  # what came before does not matter
        base = checkpoints.load_model(llama, "float32", "cpu")
        checkpoints.save_adapter(
            checkpoints.attach_new_adapter(base, LORA, seed), tmp_path / name, "a-revision"
        )
        return [path.read_bytes() for path in sorted((tmp_path / name).iterdir())]

    first = saved(1, "first")
    assert len(first) == 2
    assert saved(1, "second") == first
    assert saved(2, "third") != first


def test_saved_adapter_records_its_base_and_loads_with_peft_alone(llama, tmp_path):
    base = checkpoints.load_model(llama, "float32", "cpu")
    model = train_a_little(checkpoints.attach_new_adapter(base, LORA, seed=1))
    revision = "pypi:package==1.0#inside/model.gguf"
    checkpoints.save_adapter(model, tmp_path / "adapter", revision)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (str(llama), revision)
    # As a list it would be a set in PEFT, in another order in every process: other bytes.
    assert isinstance(config["target_modules"], str)
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)


def test_adapter_of_a_bfloat16_base_stays_float32(llama):
    base = checkpoints.load_model(llama, "bfloat16", "cpu")
    model = checkpoints.attach_new_adapter(base, LORA, seed=1)
    trained = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_lora_is_on_the_four_attention_projections_of_every_layer(architecture, tmp_path):
    base = checkpoints.load_model(fetch_tiny(architecture, tmp_path), "float32", "cpu")
    model = checkpoints.attach_new_adapter(base, LORA, seed=1)
    names = {name.split(".lora_A")[0] for name, _ in model.named_parameters() if "lora_A" in name}
    assert len(names) == 4 * base.config.num_hidden_layers


def test_model_without_the_projections_is_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.config = AutoConfig.for_model("llama")
    with pytest.raises(InputError, match="q_proj"):
        checkpoints.lora_config(LORA, model)


@pytest.mark.parametrize("damage", ["no manifest", "no weights", "short weights"])
def test_a_folder_that_is_not_whole_says_how_to_fetch_it(damage, tmp_path):
    folder = fetch_tiny("llama", tmp_path)
    if damage == "no manifest":
        (folder / "manifest.json").unlink()
    elif damage == "no weights":
        (folder / "model.safetensors").unlink()
    else:
        with open(folder / "model.safetensors", "r+b") as file:
            file.truncate(1000)
    for load in (checkpoints.load_tokenizer, lambda f: checkpoints.load_model(f, "float32", "cpu")):
        with pytest.raises(InputError, match=r"snakemake --forcerun fetch_model -- .*\.json"):
            load(folder)


def test_damaged_weights_of_the_right_size_are_one_clear_line(tmp_path):
    folder = fetch_tiny("llama", tmp_path)
    with open(folder / "model.safetensors", "r+b") as file:
        file.write(b"\xff" * 64)
    with pytest.raises(InputError, match=r"damaged.*forcerun fetch_model"):
        checkpoints.load_model(folder, "float32", "cpu")


@pytest.mark.parametrize("architecture", [*ARCHITECTURES, IMAGE_TEXT])
def test_a_weight_that_is_in_no_file_is_missed(architecture, tmp_path):
    """transformers would draw it at random and only warn."""
    source = save_tiny(architecture, tmp_path / "source")
    weights = load_file(source / "model.safetensors")
    lost = max(name for name in weights if name.endswith("self_attn.k_proj.weight"))
    del weights[lost]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    checkpoints.fetch("tiny", {"source": f"path:{source}"}, tmp_path / "tiny", tmp_path / "d")
    with pytest.raises(InputError, match=r"lack .*k_proj\.weight; .*forcerun fetch_model"):
        checkpoints.load_model(tmp_path / "tiny", "float32", "cpu")


@pytest.mark.parametrize(
    "damage", ["truncated", "missing", "config", "other weights", "other base"]
)
def test_damaged_adapter_is_refused(damage, llama, tmp_path):
    base = checkpoints.load_model(llama, "float32", "cpu")
    adapter = tmp_path / "adapter"
    model = checkpoints.attach_new_adapter(base, LORA, seed=1)
    checkpoints.save_adapter(model, adapter, "a-revision")
    weights = adapter / "adapter_model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif damage == "missing":
        weights.unlink()
    elif damage == "config":
        (adapter / "adapter_config.json").write_text("{")
    elif damage == "other weights":
        save_file({"something.lora_A.weight": torch.zeros(4, 32)}, weights)
    fresh = checkpoints.load_model(llama, "float32", "cpu")
    if damage == "other base":
        config = AutoConfig.from_pretrained(llama, num_hidden_layers=1, hidden_size=16)
        fresh = AutoModelForCausalLM.from_config(config)
    with pytest.raises(
        InputError, match=f"{weights}: not a whole adapter .*forcerun train_adapter"
    ):
        checkpoints.load_adapter(fresh, adapter, merge=False)


def write_tiny_gguf(path):
    """A one-layer Llama with a byte-level tokenizer of a few tokens and a chat template."""
    generator = np.random.default_rng(0)
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"0123456789.-", "12", "Ċ"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for m in messages %}{{ m.content + '<|im_end|>' }}{% endfor %}")
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64)}
    shapes |= {"attn_norm": (32,), "ffn_norm": (32,)}
    tensors = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    tensors |= {"token_embd.weight": (len(tokens), 32), "output_norm.weight": (32,)}
    tensors |= {"output.weight": (len(tokens), 32)}
    for name, shape in tensors.items():
        writer.add_tensor(name, generator.normal(0, 0.3, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_becomes_safetensors_with_the_same_logits(tmp_path, no_network):
    write_tiny_gguf(tmp_path / "tiny.gguf")
    settings = {"source": f"path:{tmp_path}/tiny.gguf"}
    folder = tmp_path / "models" / "tiny"
    checkpoints.fetch("tiny", settings, folder, tmp_path / "downloads")
    assert not list(folder.glob("*.gguf"))
    assert "quantization_config" not in (folder / "config.json").read_text()
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf")
    converted = checkpoints.load_model(folder, "float32", "cpu")
    ids = torch.tensor([[1, 4, 5, 6]])
    assert torch.equal(converted(ids).logits, reference.eval()(ids).logits)
    assert checkpoints.load_tokenizer(folder).chat_template is not None


def test_gguf_that_is_none_is_one_clear_line(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(InputError, match=r"bad\.gguf: cannot be read as a GGUF model"):
        checkpoints.fetch("bad", {"source": f"path:{tmp_path}/bad.gguf"}, tmp_path / "m", tmp_path)
    assert not (tmp_path / "m").exists()
