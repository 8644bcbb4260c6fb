"""Server halves: Flower strategies that an engineer can use in any ServerApp."""

from fedpriv.strategies.dp_hype import DpHype, VoteOutcome
from fedpriv.strategies.dpsgd_dc import DpsgdDc, RoundOutcome
from fedpriv.strategies.federated_average import FederatedAverage
from fedpriv.strategies.matrix_ftrl import MatrixFtrl, MatrixOutcome
from fedpriv.strategies.matrix_secrets import MatrixSecrets
from fedpriv.strategies.noised_sum import NoisedSum, NoisedSumResult
from fedpriv.strategies.optimizers import ServerAdam, ServerOptimizer, ServerSgd
from fedpriv.strategies.pac_zero import PacZero, PacZeroOutcome
from fedpriv.strategies.private_evaluation import EvaluationOutcome, PrivateEvaluation
from fedpriv.strategies.record_zeroth_order import RecordZerothOrder
from fedpriv.strategies.silo_sums import AverageOutcome, SiloCheck
from fedpriv.strategies.zeroth_order import ZerothOrder

__all__ = [
    "AverageOutcome",
    "DpHype",
    "DpsgdDc",
    "EvaluationOutcome",
    "FederatedAverage",
    "MatrixFtrl",
    "MatrixOutcome",
    "MatrixSecrets",
    "NoisedSum",
    "NoisedSumResult",
    "PacZero",
    "PacZeroOutcome",
    "PrivateEvaluation",
    "RecordZerothOrder",
    "RoundOutcome",
    "ServerAdam",
    "ServerOptimizer",
    "ServerSgd",
    "SiloCheck",
    "VoteOutcome",
    "ZerothOrder",
]
