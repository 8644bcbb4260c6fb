"""Ground truth for hidden-state bounds: exact laws of one-dimensional projected chains, by quadrature.

A state on [-D/2, D/2] is a density on Gauss-Legendre nodes and two atoms at the walls, where the projection
puts mass. One step maps a point x to the mixture of normal laws around given means, projected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, ndtr

Mean = Callable[[np.ndarray], np.ndarray]
Mixture = Sequence[tuple[float, Mean]]
"""Pairs of a probability and the mean as a function of the state."""


@dataclass
class Law:
    """Law of the state: density at the nodes, mass at the lower and the upper wall."""

    density: np.ndarray
    atoms: np.ndarray


class ProjectedLine:
    """The interval with its quadrature.

    ``edges`` are where the maps have kinks or jumps (beside equal panels).
    """

    def __init__(
        self, diameter: float, panels: int = 16, nodes: int = 12, edges: Sequence[float] = ()
    ) -> None:
        half = diameter / 2
        cuts = np.unique(np.concatenate([np.linspace(-half, half, panels + 1), np.clip(edges, -half, half)]))
        x, w = np.polynomial.legendre.leggauss(nodes)
        middles, halves = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts) / 2
        self.x = (middles[:, None] + halves[:, None] * x).ravel()
        self.w = (halves[:, None] * w).ravel()
        self.walls = np.array([-half, half])

    def kernel(self, mixture: Mixture, noise_std: float) -> np.ndarray:
        """Matrix from (nodes, walls) to (nodes, walls): density at the nodes and mass at the walls."""
        points = np.concatenate([self.x, self.walls])
        matrix = np.zeros((points.size, points.size))
        for probability, mean in mixture:
            center = mean(points)[:, None]
            inside = np.exp(-0.5 * ((self.x - center) / noise_std) ** 2) / (noise_std * np.sqrt(2 * np.pi))
            low = ndtr((self.walls[0] - center) / noise_std)
            high = ndtr((center - self.walls[1]) / noise_std)
            matrix += probability * np.hstack([inside, low, high])
        return matrix

    def run(self, start: float, kernels: Sequence[np.ndarray], first: tuple[Mixture, float]) -> Law:
        """Law after ``first`` (a mixture and a noise) from a point, then the kernels."""
        mixture, noise_std = first
        density, low, high = np.zeros(self.x.size), 0.0, 0.0
        for probability, mean in mixture:
            center = float(mean(np.array([start]))[0])
            density += probability * np.exp(-0.5 * ((self.x - center) / noise_std) ** 2)
            low += probability * ndtr((self.walls[0] - center) / noise_std)
            high += probability * ndtr((center - self.walls[1]) / noise_std)
        law = np.concatenate([density / (noise_std * np.sqrt(2 * np.pi)), [low, high]])
        weights = np.concatenate([self.w, [1.0, 1.0]])
        for kernel in kernels:
            law = (law * weights) @ kernel
        return Law(law[:-2], law[-2:])

    def total_mass(self, law: Law) -> float:
        return float(law.density @ self.w + law.atoms.sum())

    def divergence(self, p: Law, q: Law, alpha: float) -> float:
        """Exact Rényi divergence D_alpha(p || q), walls included."""
        tiny = np.finfo(np.float64).tiny
        log_p = np.log(np.maximum(np.concatenate([p.density, p.atoms]), tiny))
        log_q = np.log(np.maximum(np.concatenate([q.density, q.atoms]), tiny))
        weights = np.concatenate([self.w, [1.0, 1.0]])
        return float(logsumexp(alpha * log_p + (1 - alpha) * log_q, b=weights) / (alpha - 1))

    def hockey_stick(self, p: Law, q: Law, epsilon: float) -> float:
        """Exact delta at epsilon, for P against Q."""
        weights = np.concatenate([self.w, [1.0, 1.0]])
        gap = np.concatenate([p.density, p.atoms]) - np.exp(epsilon) * np.concatenate([q.density, q.atoms])
        return float(weights @ np.maximum(gap, 0.0))


def gaussian_sampled_divergence(q: float, noise_multiplier: float, alpha: float) -> float:
    """D_alpha((1 - q) N(0, z^2) + q N(1, z^2) || N(0, z^2)) by the trapezoid rule on the line."""
    z = noise_multiplier
    x = np.linspace(-12 * z - alpha - 2, 12 * z + alpha + 2, 20_001)
    log_q = -0.5 * (x / z) ** 2
    log_p = np.logaddexp(np.log1p(-q) + log_q, np.log(q) - 0.5 * ((x - 1) / z) ** 2)
    norm = np.log(z * np.sqrt(2 * np.pi)) - np.log(x[1] - x[0])
    return float((logsumexp(alpha * log_p + (1 - alpha) * log_q) - norm) / (alpha - 1))
