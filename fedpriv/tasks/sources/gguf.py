"""A quantised language model from a GGUF file, dequantised once into a folder that loads in seconds."""

from __future__ import annotations

from pathlib import Path


def convert_gguf(folder: Path, target: Path) -> int:
    """Write the model and tokenizer of the one GGUF file in ``folder`` as a transformers folder.

    Returns
    -------
    int
        Number of parameters.

    Raises
    ------
    ValueError
        When there is not exactly one file, or the packages that read it are missing.
    """
    files = sorted(folder.glob("*.gguf"))
    if len(files) != 1:
        raise ValueError(f"{len(files)} GGUF files, expected one")
    try:
        import accelerate  # noqa: F401  (transformers needs both to read the file)
        import gguf  # noqa: F401
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ValueError(f"{error.name} is not installed; type: pip install 'fedpriv[language]'") from error
    quantised = AutoModelForCausalLM.from_pretrained(folder, gguf_file=files[0].name, local_files_only=True)
    # A model that came from a GGUF file refuses to be saved; a fresh one with the same state does not.
    plain = AutoModelForCausalLM.from_config(quantised.config)
    plain.load_state_dict(quantised.state_dict())
    plain.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=files[0].name, local_files_only=True).save_pretrained(
        target
    )
    return sum(parameter.numel() for parameter in plain.parameters())
