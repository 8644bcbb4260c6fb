"""A tiny language model with its tokenizer, and made sentences: the real code path without a download."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

GOOD = ("fine", "warm", "bright", "lovely")
BAD = ("dull", "cold", "flat", "awful")
PLAIN = ("the", "film", "movie", "story", "is", "was", "it", "and", "very", "a", "scene")


def made_tokenizer() -> Any:
    """Words and spaces as they come: 'Ġ' stands for a space before a word, as in GPT-2's vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*GOOD, *BAD, *PLAIN, "It", "great", "terrible", "N/A", ".", "..."]
    vocabulary = ["<unk>", "<end>", *words, *(f"Ġ{word}" for word in words)]
    tokenizer = Tokenizer(
        models.WordLevel({token: number for number, token in enumerate(vocabulary)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>")


def made_model(kind: str = "llama", tied: bool = True, seed: int = 0) -> Any:
    """A causal model of transformers with random weights and 3 blocks of width 16: llama, biased (llama) or opt."""
    import torch
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 64,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 80,
        "tie_word_embeddings": tied,
    }
    if kind == "opt":
        config = transformers.OPTConfig(**sizes, ffn_dim=32, word_embed_proj_dim=16, dropout=0.0)
    else:
        biased = kind == "biased"
        config = transformers.LlamaConfig(
            **sizes, num_key_value_heads=2, intermediate_size=32, attention_bias=biased, mlp_bias=biased
        )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for (
            parameter
        ) in model.parameters():  # biases and norms start at 0 and 1: nothing would be tested of them
            parameter.data.add_(0.2 * torch.randn(parameter.shape))
    return model.eval()


def write_model(folder: Path, kind: str = "llama", tied: bool = True, seed: int = 0) -> Path:
    """Save a made model and its tokenizer as transformers does."""
    made_model(kind, tied, seed).save_pretrained(folder)
    made_tokenizer().save_pretrained(folder)
    return folder


def made_sentences(count: int, seed: int = 0) -> tuple[list[str], list[int]]:
    """Sentences of one to nine words whose polarity is a word in them."""
    rng = np.random.default_rng(seed)
    sentences, labels = [], []
    for _ in range(count):
        label = int(rng.integers(2))
        words = list(rng.choice(PLAIN, size=int(rng.integers(0, 9))))
        words.insert(int(rng.integers(len(words) + 1)), str(rng.choice(GOOD if label else BAD)))
        sentences.append(" ".join(words))
        labels.append(label)
    return sentences, labels


def write_sentences(path: Path, count: int, seed: int = 0) -> Path:
    """Write made sentences as a CSV file with columns sentence and label."""
    sentences, labels = made_sentences(count, seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence", "label"])
        writer.writerows(zip(sentences, labels, strict=True))
    return path
