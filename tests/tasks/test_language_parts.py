"""Every trainable part against transformers' own forward pass of the same model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from made_language import made_sentences, write_model

from fedpriv.tasks.language import MAX_TOKENS, PAD, PROMPT, VERBALISER, load_backbone, tokenise
from fedpriv.tasks.language_blocks import LastBlockParts
from fedpriv.tasks.language_features import anchors, represent
from fedpriv.tasks.language_models import LORA_RANK, build
from fedpriv.tasks.sentiment import PARTS

SENTENCES = made_sentences(40, seed=3)[0]
#: Kind of model, tied output, parts that it allows.
KINDS = [
    ("llama", True, tuple(PARTS)),
    ("biased", False, tuple(PARTS)),
    ("opt", True, ("readout", "head", "lora", "all")),
]
CASES = [(kind, tied, part) for kind, tied, parts in KINDS for part in parts if part != "head"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {kind: str(write_model(folder / kind, kind, tied)) for kind, tied, _ in KINDS}


def reference(folder: str, sentences: list[str]) -> torch.Tensor:
    """Logits of the two words, one sentence at a time and without any padding, and the public bias."""
    backbone = load_backbone(folder)
    words = [backbone.tokenizer.convert_tokens_to_ids(f"Ġ{word.strip()}") for word in VERBALISER]
    rows = []
    with torch.no_grad():
        for sentence in sentences:
            ids = backbone.tokenizer(sentence + PROMPT)["input_ids"][-MAX_TOKENS:]
            rows.append(backbone.model(torch.tensor([ids])).logits[0, -1, words].cpu())
    return torch.stack(rows) + torch.from_numpy(anchors(backbone).bias)


def inputs(folder: str, part: str, sentences: list[str] = SENTENCES) -> torch.Tensor:
    return torch.from_numpy(represent(load_backbone(folder), sentences, PARTS[part]).astype(np.float32))


@pytest.mark.parametrize(("kind", "tied", "part"), CASES)
def test_an_untrained_part_says_what_the_model_says(
    folders: dict[str, str], kind: str, tied: bool, part: str
) -> None:
    model = build(part, folders[kind], seed=1)
    with torch.no_grad():
        found = model(inputs(folders[kind], part))
    assert found.shape == (40, 2)
    assert torch.allclose(found, reference(folders[kind], SENTENCES), atol=2e-5)


@pytest.mark.parametrize(("kind", "tied", "part"), [case for case in CASES if "last-block" in case[2]])
def test_a_trained_last_block_is_the_block_of_the_model(
    folders: dict[str, str], kind: str, tied: bool, part: str
) -> None:
    """The changed weights, put into a copy of the whole model, give the same logits."""
    model = build(part, folders[kind], seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(7)))
        found = model(inputs(folders[kind], part))
    backbone = load_backbone(folders[kind])
    block, norm = backbone.model.base_model.layers[-1], backbone.model.base_model.norm
    modules = {
        **{name: getattr(block.self_attn, f"{name}_proj") for name in "qkvo"},
        **{name: getattr(block.mlp, f"{name}_proj") for name in ("gate", "up", "down")},
        "input_norm": block.input_layernorm,
        "post_norm": block.post_attention_layernorm,
        "final_norm": norm,
    }
    before = {name: tensor.clone() for name, tensor in backbone.model.state_dict().items()}
    try:
        with torch.no_grad():
            if part == "last-block":
                for name in ("q", "v"):
                    modules[name].weight.add_(getattr(model, name).update())
            else:
                for name, value in model.weights.items():
                    owner = modules[name.removesuffix("_bias")]
                    (owner.bias if name.endswith("_bias") else owner.weight).copy_(value)
        expected = reference(folders[kind], SENTENCES)
    finally:
        backbone.model.load_state_dict(before)
    assert torch.allclose(found, expected, atol=5e-5)
    assert not torch.allclose(found, reference(folders[kind], SENTENCES), atol=1e-2)


@pytest.mark.parametrize("kind", ["llama", "opt"])
def test_adapters_act_in_every_block_and_leave_the_shared_model_as_it_was(
    folders: dict[str, str], kind: str
) -> None:
    model, other = build("lora", folders[kind], seed=1), build("lora", folders[kind], seed=1)
    x = inputs(folders[kind], "lora")
    with torch.no_grad():
        start = other(x)
        for name, parameter in model.named_parameters():
            parameter.add_(0.3)
            assert not torch.allclose(model(x), start, atol=1e-4), name
            parameter.sub_(0.3)
            parameter.zero_()
        next(model.parameters()).add_(0.3)
        model(x)
        assert torch.equal(other(x), start)


@pytest.mark.parametrize(
    ("part", "shapes"),
    [
        ("readout", {"linear.weight": (2, 16), "linear.bias": (2,)}),
        ("last-block", {"q.b": (16, LORA_RANK), "v.b": (8, LORA_RANK)}),
        ("lora", {f"adapters.{i}_{n}.b": (16 if n == "q" else 8, LORA_RANK) for i in range(3) for n in "qv"}),
    ],
)
def test_what_travels_is_what_is_trained(
    folders: dict[str, str], part: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    model = build(part, folders["llama"], seed=1)
    assert {name: tuple(value.shape) for name, value in model.state_dict().items()} == shapes
    assert set(shapes) == {name for name, _ in model.named_parameters()}
    # the fixed part of adapters follows from the seed alone
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.1)
        same, another = build(part, folders["llama"], seed=1), build(part, folders["llama"], seed=2)
        for copy in (same, another):
            copy.load_state_dict(model.state_dict())
        x = inputs(folders["llama"], part)
        assert torch.equal(same(x), model(x))
        assert torch.equal(another(x), model(x)) == (part == "readout")


@pytest.mark.parametrize(("kind", "trained"), [("llama", 0), ("biased", 2 * 16)])
def test_all_parameters_count_a_tied_output_once(folders: dict[str, str], kind: str, trained: int) -> None:
    backbone, model = load_backbone(folders[kind]), build("all", folders[kind], seed=1)
    base = sum(parameter.numel() for parameter in backbone.model.base_model.parameters())
    assert sum(value.numel() for value in model.state_dict().values()) == base + trained
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert torch.allclose(  # the copy was changed, not the shared model
        build("all", folders[kind], seed=1)(inputs(folders[kind], "all")).detach(),
        reference(folders[kind], SENTENCES),
        atol=2e-5,
    )


@pytest.mark.parametrize("part", [part for part in PARTS if part != "head"])
def test_gradients_of_every_part_are_finite_and_reach_every_parameter(
    folders: dict[str, str], part: str
) -> None:
    model = build(part, folders["llama"], seed=1)
    logits = model(inputs(folders["llama"], part, SENTENCES[:6]))
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(logits[:, 1].sum() - logits[:, 0].sum(), list(parameters.values()))
    for name, gradient in zip(parameters, gradients, strict=True):
        assert torch.isfinite(gradient).all() and gradient.abs().sum() > 0, name


def test_a_long_prompt_keeps_the_question_at_its_end(folders: dict[str, str]) -> None:
    backbone = load_backbone(folders["llama"])
    tokens = tokenise(backbone, ["film " * 100, "film"])
    assert (tokens[0] != PAD).all() and (tokens[1] != PAD).sum() == 3
    assert (
        tokens[0, -2:].tolist()
        == tokens[1, 1:3].tolist()
        == [backbone.tokenizer.convert_tokens_to_ids(word) for word in ("ĠIt", "Ġwas")]
    )


def test_the_last_block_of_another_architecture_is_refused_with_what_is_allowed(
    folders: dict[str, str],
) -> None:
    with pytest.raises(ValueError, match=r"should go with a language-model of type llama, .*got 'opt'; use"):
        LastBlockParts.of(load_backbone(folders["opt"]).model)
    with pytest.raises(ValueError, match=r"part must be one of readout, .*, got 'most'"):
        build("most", folders["llama"], 0)
