"""Tiny random models and tokenizers of the four architectures, made on the spot.

The models come from the real configuration classes, so they have what makes each architecture
different: Gemma-3's sliding window and scaled embeddings, Qwen3's query and key norms, gpt-oss's
attention sinks and mixture of experts. The tokenizers are byte-free character tokenizers with a
chat template; "grouped" ones merge up to three digits from the left, as Llama-3 and gpt-oss do.
"""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
    set_seed,
)

ARCHITECTURES = ("qwen3", "gemma3", "llama", "gptoss")
IMAGE_TEXT = "gemma3-image-text"
ENCODER = "encoder"
GROUPED_DIGITS = ("llama", "gptoss")
SPECIAL_TOKENS = ["<pad>", "<bos>", "<start>", "<end>", "<eos>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start>' + message['role'] + '\n' + message['content'] + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start>assistant\n' }}{% endif %}"
)
SLIDING_WINDOW = 8


def build_tokenizer(architecture: str) -> PreTrainedTokenizerFast:
    """A tokenizer over printable ASCII; its end-of-turn token `<end>` is not its eos token."""
    tokens = SPECIAL_TOKENS + ["\n"] + [chr(code) for code in range(32, 127)]
    pattern = r"[\s\S]"
    if architecture in GROUPED_DIGITS:
        tokens += [f"{n:02d}" for n in range(100)] + [f"{n:03d}" for n in range(1000)]
        pattern = r"\d{1,3}|[\s\S]"
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=["<start>", "<end>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_config(architecture: str, vocabulary_size: int):
    """The real configuration class of an architecture, two layers, 32 wide."""
    shape = {
        "vocab_size": vocabulary_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 4,
    }
    layers = ["sliding_attention", "full_attention"]
    specific = {
        "qwen3": ("qwen3", {}),
        "gemma3": ("gemma3_text", {"sliding_window": SLIDING_WINDOW, "layer_types": layers}),
        "llama": ("llama", {}),
        "gptoss": (
            "gpt_oss",
            {
                "sliding_window": SLIDING_WINDOW,
                "layer_types": layers,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
            },
        ),
    }
    model_type, extra = specific[architecture]
    return AutoConfig.for_model(model_type, **shape, **extra)


def build_model(architecture: str, seed: int = 0) -> torch.nn.Module:
    """A random float32 model; weights are large enough that its distributions are not flat."""
    set_seed(seed)
    config = build_config(architecture, len(build_tokenizer(architecture)))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 or "sinks" in name:
                parameter.normal_(0.0, 0.15)
    return model.eval()


def build_image_text_model(seed: int = 0) -> torch.nn.Module:
    """Gemma-3 with a vision tower, as from 4B on; its language model is that of `build_model`."""
    set_seed(seed)
    text = build_config("gemma3", len(build_tokenizer("gemma3"))).to_dict()
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 16,
        "patch_size": 8,
    }
    config = AutoConfig.for_model(
        "gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4
    )
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0.0, 0.15)
    return model.eval()


def build_encoder(seed: int = 0) -> torch.nn.Module:
    """A sentence encoder of the class of the stand-in for NoveltyBench's classifier."""
    set_seed(seed)
    config = AutoConfig.for_model(
        "bert",
        vocab_size=len(build_tokenizer("qwen3")),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        pad_token_id=0,
    )
    return AutoModel.from_config(config, dtype=torch.float32).eval()


def save_tiny(architecture: str, folder: Path | str, seed: int = 0) -> Path:
    """Save a model and its tokenizer as a local hub-like repository."""
    folder = Path(folder)
    if architecture == IMAGE_TEXT:
        build_image_text_model(seed).save_pretrained(folder)
        build_tokenizer("gemma3").save_pretrained(folder)
    elif architecture == ENCODER:
        build_encoder(seed).save_pretrained(folder)
        build_tokenizer("qwen3").save_pretrained(folder)
    else:
        build_model(architecture, seed).save_pretrained(folder)
        build_tokenizer(architecture).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    import sys

    save_tiny(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0)
