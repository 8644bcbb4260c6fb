"""Fine-tuning of a language model by forward passes: accuracy against budget, evidence, cost of a step."""
