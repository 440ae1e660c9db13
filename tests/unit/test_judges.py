"""Judges of generations against the same computed by hand, and models that are none."""

import json

import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForSequenceClassification, set_seed

from calibration_tuning import checkpoints
from calibration_tuning.errors import InputError
from calibration_tuning.evaluations import judges, novelty
from repository import ROOT
from tiny_models import build_model, build_tokenizer, save_tiny

THRESHOLDS = [-9.0, -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0]
TEXTS = ["my number is seven", "seven is the number that I took", "a cat", ""]


def as_fetched(folder):
    """The folder with the manifest of a fetched model, which holds it for whole."""
    names = [path.name for path in folder.iterdir() if path.name != "manifest.json"]
    sizes = {name: {"size": (folder / name).stat().st_size} for name in names}
    (folder / "manifest.json").write_text(json.dumps({"files": sizes}))
    return folder


def save_classifier(folder, model_type, labels, seed=0):
    set_seed(seed)
    tokenizer = build_tokenizer("qwen3")
    tokenizer.cls_token, tokenizer.sep_token = "<start>", "<end>"
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        type_vocab_size=2,
        pad_token_id=0,
        num_labels=labels,
    )
    model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return as_fetched(folder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return as_fetched(save_tiny("encoder", tmp_path_factory.mktemp("encoder")))


def test_the_encoder_is_the_cosine_of_mean_states(encoder):
    tokenizer = checkpoints.load_tokenizer(encoder)
    model = judges.load(encoder, {"kind": "encoder", "dtype": "float32"}, "cpu", "AutoModel")
    first, second = (
        model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].detach().numpy().mean(0)
        for text in TEXTS[:2]
    )
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    for threshold in (cosine - 1e-4, cosine + 1e-4):
        settings = {"kind": "encoder", "dtype": "float32", "threshold": threshold}
        judge = judges.load_equivalence(encoder, settings, "cpu")
        assert judge(*TEXTS[:2]) == (cosine > threshold)
        assert judge(*TEXTS[1::-1]) == (cosine > threshold)  # symmetric


@pytest.mark.parametrize("model_type", ["bert", "deberta-v2"])
def test_the_classifier_sees_both_texts_cut_and_marked(tmp_path, model_type):
    folder = save_classifier(tmp_path, model_type, labels=2)
    tokenizer = checkpoints.load_tokenizer(folder)
    long = "x" * 300  # a token a character
    ids, types = judges.pair_ids(tokenizer, "ab", long)
    a, b, x = (tokenizer.convert_tokens_to_ids(token) for token in "abx")
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert ids == [cls, a, b, sep, *[x] * 128, sep]
    assert types == [0] * 4 + [1] * 129
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0].double()
    expected = float((logits[1] - logits.logsumexp(0)).exp())
    settings = {"kind": "classifier", "dtype": "float32"}
    for threshold, same in ((expected - 1e-5, True), (expected + 1e-5, False)):
        judge = judges.load_equivalence(folder, settings | {"threshold": threshold}, "cpu")
        assert judge("ab", long) is same


def test_likelihood_is_the_mean_of_the_tokens_log_probabilities():
    model, tokenizer = build_model("llama"), build_tokenizer("llama")
    found = judges.mean_log_probabilities(model, tokenizer, "say 12", TEXTS, {})
    prompt = "<bos><start>user\nsay 12<end>\n<start>assistant\n"
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    for text, value in zip(TEXTS, found, strict=True):
        if not text:
            assert value == -np.inf
            continue
        ids = prompt_ids + tokenizer.encode(f"{text}<end>", add_special_tokens=False)
        with torch.no_grad():
            log_p = torch.log_softmax(model(torch.tensor([ids])).logits[0].double(), -1)
        each = [log_p[i - 1, ids[i]].item() for i in range(len(prompt_ids), len(ids))]
        assert value == pytest.approx(np.mean(each), abs=1e-5)


def test_likelihood_does_not_depend_on_what_is_rated_beside_it(monkeypatch):
    model, tokenizer = build_model("qwen3"), build_tokenizer("qwen3")
    together = judges.mean_log_probabilities(model, tokenizer, "say", TEXTS * 2, {})
    monkeypatch.setattr(judges, "TOKENS_AT_A_TIME", 1)
    alone = judges.mean_log_probabilities(model, tokenizer, "say", TEXTS * 2, {})
    assert together == pytest.approx(alone, abs=1e-5)


def test_ratings_go_up_with_likelihood_and_an_empty_response_has_the_lowest(tmp_path):
    folder = as_fetched(save_tiny("qwen3", tmp_path))
    settings = {"kind": "likelihood", "dtype": "float32", "thresholds": THRESHOLDS, "chat": {}}
    ratings = judges.load_rater(folder, settings, "cpu")("say", TEXTS)
    model, tokenizer = build_model("qwen3"), build_tokenizer("qwen3")
    values = judges.mean_log_probabilities(model, tokenizer, "say", TEXTS, {})
    assert ratings == [1 + sum(value > t for t in THRESHOLDS) for value in values]
    assert ratings[-1] == 1


def test_a_reward_is_the_models_own_number_for_the_conversation(tmp_path):
    folder = save_classifier(tmp_path, "llama", labels=1)
    settings = {"kind": "reward", "dtype": "float32", "thresholds": [-1e9] * 5 + [1e9] * 4}
    assert judges.load_rater(folder, settings, "cpu")("hi", ["yes", "no"]) == [6, 6]
    tokenizer = checkpoints.load_tokenizer(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    text = "<bos><start>user\nhi<end>\n<start>assistant\nyes<end>\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits.item()
    assert judges.reward(model, tokenizer, "hi", "yes") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        ("classifier", 3, "a classifier with 3 labels; expected 2"),
        ("reward", 2, "a reward with 2 labels; expected 1"),
    ],
)
def test_a_wrong_number_of_labels_is_one_line(tmp_path, kind, labels, message):
    folder = save_classifier(tmp_path, "bert", labels)
    settings = {"kind": kind, "dtype": "float32", "threshold": 0.5, "thresholds": THRESHOLDS}
    load = judges.load_equivalence if kind == "classifier" else judges.load_rater
    with pytest.raises(InputError, match=message) as caught:
        load(folder, settings, "cpu")
    assert "\n" not in str(caught.value)


def test_a_language_model_is_no_classifier(tmp_path):
    """transformers would give it a random head and only warn."""
    folder = as_fetched(save_tiny("llama", tmp_path))
    settings = {"kind": "classifier", "dtype": "float32", "threshold": 0.5}
    with pytest.raises(InputError, match=r"not a classifier: the weight files lack score\.weight"):
        judges.load_equivalence(folder, settings, "cpu")


def drop_weights(folder, part):
    path = folder / "model.safetensors"
    weights = load_file(path)
    kept = {name: weight for name, weight in weights.items() if part not in name}
    assert len(kept) < len(weights)
    save_file(kept, path, metadata={"format": "pt"})
    return as_fetched(folder)


@pytest.mark.parametrize("model_type", ["bert", "deberta-v2"])
@pytest.mark.parametrize("part", ["pooler", "classifier"])
def test_a_classifier_without_a_part_of_its_head_is_refused(tmp_path, model_type, part):
    folder = drop_weights(save_classifier(tmp_path, model_type, labels=2), part)
    settings = {"kind": "classifier", "dtype": "float32", "threshold": 0.5}
    with pytest.raises(InputError, match=rf"not a classifier: the weight files lack .*{part}"):
        judges.load_equivalence(folder, settings, "cpu")


def test_a_reward_model_without_its_head_is_refused(tmp_path):
    folder = drop_weights(save_classifier(tmp_path, "llama", labels=1), "score")
    settings = {"kind": "reward", "dtype": "float32", "thresholds": THRESHOLDS}
    with pytest.raises(InputError, match=r"not a reward: the weight files lack score\.weight"):
        judges.load_rater(folder, settings, "cpu")


def test_an_encoder_needs_no_pooler(tmp_path):
    folder = drop_weights(save_tiny("encoder", tmp_path), "pooler")
    settings = {"kind": "encoder", "dtype": "float32", "threshold": -1}
    assert judges.load_equivalence(folder, settings, "cpu")(*TEXTS[:2])


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path, name):
    folder = save_classifier(tmp_path, "bert", labels=2)
    (folder / name).write_bytes((folder / name).read_bytes()[:100])
    as_fetched(folder)
    settings = {"kind": "classifier", "dtype": "float32", "threshold": 0.5}
    with pytest.raises(InputError, match="no classifier can be loaded") as caught:
        judges.load_equivalence(folder, settings, "cpu")
    assert "\n" not in str(caught.value)


def test_labelled_pairs_are_well_formed():
    path = ROOT / "tests" / "data" / "equivalence_pairs.jsonl"
    pairs = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(pair) == {"prompt_id", "first", "second", "same"} for pair in pairs)
    assert len({(pair["first"], pair["second"]) for pair in pairs}) == len(pairs) >= 240
    assert 0.45 < np.mean([pair["same"] for pair in pairs]) < 0.55
    short = [novelty.share_words(pair["first"], pair["second"]) is not None for pair in pairs]
    assert short.count(False) >= 200
    assert short.count(True) >= 30
    prompts = (ROOT / "config" / "prompts" / "novelty.jsonl").read_text().splitlines()
    assert {json.loads(line)["id"] for line in prompts} <= {pair["prompt_id"] for pair in pairs}
    # The threshold is chosen on the groups; texts of theirs would make the check easier.
    groups = (ROOT / "tests" / "data" / "equivalence_groups.jsonl").read_text().splitlines()
    seen = {text for line in groups for group in json.loads(line)["groups"] for text in group}
    assert not seen & {pair[side] for pair in pairs for side in ("first", "second")}


def test_a_tokenizer_of_another_address_is_brought_alone(tmp_path):
    """As DeBERTa's on the hub: a sentencepiece file and its configuration, beside weights."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("one two three four five six seven eight nine ten\n" * 50)
    source, tokenizer = tmp_path / "classifier", tmp_path / "tokenizer"
    save_classifier(source, "deberta-v2", labels=2)
    for path in source.glob("*token*"):
        path.unlink()
    tokenizer.mkdir()
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(tokenizer / "spm"),
        vocab_size=24,
        **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
        **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
        user_defined_symbols=["[MASK]"],
        minloglevel=2,
    )
    (tokenizer / "tokenizer_config.json").write_text('{"vocab_type": "spm"}')
    (tokenizer / "config.json").write_text('{"model_type": "deberta-v2", "num_labels": 9}')
    folder = tmp_path / "models" / "judge"
    folder.parent.mkdir()
    settings = {"source": f"path:{source}", "tokenizer_source": f"path:{tokenizer}"}
    checkpoints.fetch("judge", settings, folder, tmp_path / "downloads")
    settings = {"kind": "classifier", "dtype": "float32"}
    judge = judges.load_equivalence(folder, settings | {"threshold": -1}, "cpu")
    assert judge("one two", "two one")
    ids, types = judges.pair_ids(checkpoints.load_tokenizer(folder), "one two", "ten")
    assert (ids[0], ids[-1]) == (1, 2)
    assert ids.count(2) == 2
    assert types[0] == 0
    assert types[-1] == 1
