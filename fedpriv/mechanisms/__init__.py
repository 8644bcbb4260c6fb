"""What is done to numbers on their way out of a client: clip, project, encode, add noise, sample, vote.

Nothing here talks to Flower and nothing here needs torch: every function takes and returns numpy arrays.
"""

from fedpriv.mechanisms.allocation_schedule import RandomAllocationSchedule
from fedpriv.mechanisms.ballots import Ballot
from fedpriv.mechanisms.clipping import ClippedUpdate, clip_to_norm
from fedpriv.mechanisms.grid import GridCodec
from fedpriv.mechanisms.noise import NoiseShares, SecureSource, SeededSource, gaussian, rounded_gaussian
from fedpriv.mechanisms.projection import Ball
from fedpriv.mechanisms.sampling import (
    FixedSizeCohort,
    FullParticipation,
    PoissonCohort,
    Sampler,
    SelfSampling,
)
from fedpriv.mechanisms.updates import ArrayLayout, check_private_arrays

__all__ = [
    "ArrayLayout",
    "Ball",
    "Ballot",
    "ClippedUpdate",
    "FixedSizeCohort",
    "FullParticipation",
    "GridCodec",
    "NoiseShares",
    "PoissonCohort",
    "RandomAllocationSchedule",
    "Sampler",
    "SecureSource",
    "SeededSource",
    "SelfSampling",
    "check_private_arrays",
    "clip_to_norm",
    "gaussian",
    "rounded_gaussian",
]
