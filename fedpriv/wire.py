"""What server half and client half must agree on: record keys, stages, field names, error codes, versions.

Every message of fedpriv is a plain Flower ``train`` message. A record in its content tells what is asked:

* ``fedpriv.secure-sum`` (ConfigRecord, requests and replies): one step of a secure sum. The fields of every
  stage are the constants below; the records of the caller's payload travel beside it, on the request for the
  masked input only.
* ``fedpriv.secure-sum.vector`` (ArrayRecord, reply to the masked-input request): the masked vector, one array
  of unsigned integers of shape (length,).
* ``fedpriv.secure-sum.ahead`` (ConfigRecord, beside the first one): the same fields, for the next session. A
  masked-input message may carry its stage "keys", the unmask message that follows its stage "shares".

``fedpriv.secure-sum.state``, ``fedpriv.secure-sum.state-ahead`` and ``fedpriv.secure-sum.seen`` never travel:
they are a client's records in its ``Context.state``.

Node ids travel as lists of integers; keys and shares as one ``bytes`` field of fixed-size items in the order
of the ids beside it, so that a check of the size is a complete check of the layout.

Change ``SCHEMA`` whenever the meaning of a field changes: a client refuses a schema that it does not know.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

SCHEMA = 1
MESSAGE_TYPE = "train"

# -- records -------------------------------------------------------------------------------------------------
RESERVED_PREFIX = "fedpriv.secure-sum"
RECORD_SECURE_SUM = "fedpriv.secure-sum"
RECORD_RESULT = "fedpriv.secure-sum.vector"
RECORD_AHEAD = "fedpriv.secure-sum.ahead"
RESULT_ARRAY = "vector"
STATE_SESSION = "fedpriv.secure-sum.state"
STATE_AHEAD = "fedpriv.secure-sum.state-ahead"
STATE_SEEN = "fedpriv.secure-sum.seen"

# -- stages, in order; the last one replaces all others in a simulation --------------------------------------
STAGE_KEYS = "keys"
STAGE_SHARES = "shares"
STAGE_MASKED_INPUT = "masked-input"
STAGE_UNMASK = "unmask"
STAGE_SIMULATED = "simulated"
STAGES = (STAGE_KEYS, STAGE_SHARES, STAGE_MASKED_INPUT, STAGE_UNMASK, STAGE_SIMULATED)
#: Stage whose message carries a stage of the next session -> that stage.
STAGES_AHEAD = {STAGE_MASKED_INPUT: STAGE_KEYS, STAGE_UNMASK: STAGE_SHARES}

# -- fields of RECORD_SECURE_SUM -----------------------------------------------------------------------------
FIELD_SCHEMA = "schema"  # int
FIELD_STAGE = "stage"  # str, one of STAGES
FIELD_SESSION = "session"  # bytes, SESSION_BYTES long, see secure_sum.keys.new_session_id
FIELD_PURPOSE = "purpose"  # str: what is summed, bound into every key of the session
FIELD_LENGTH = "length"  # int: number of coordinates
FIELD_MODULUS_BITS = "modulus-bits"  # int b: sums are mod 2^b
FIELD_MAGNITUDE_LIMIT = (
    "magnitude-limit"  # int: largest absolute value of a client's integers, 0 = 2^(b-1) - 1
)
FIELD_MASK_KEY = "mask-key"  # bytes: X25519 public key for pairwise masks
FIELD_SHARE_KEY = "share-key"  # bytes: X25519 public key for shares in transit
FIELD_NEIGHBOURS = "neighbours"  # list[int]
FIELD_MASK_KEYS = "mask-keys"  # bytes: KEY_BYTES per neighbour
FIELD_SHARE_KEYS = "share-keys"  # bytes: KEY_BYTES per neighbour
FIELD_THRESHOLD = "threshold"  # int: Shamir threshold in this neighbourhood
FIELD_SHARES = "shares"  # bytes: SEALED_SHARE_BYTES per neighbour
FIELD_COMMITMENT = "commitment"  # bytes: hash of the self-mask seed
FIELD_UNREADABLE = "unreadable"  # list[int]: neighbours whose sealed shares did not authenticate
FIELD_ALIVE = "alive"  # list[int]: neighbours (and the node itself) whose masked vectors are in the sum
FIELD_DEAD = "dead"  # list[int]: neighbours that exchanged shares but sent no masked vector
FIELD_SELF_SHARES = "self-shares"  # bytes: SHARE_BYTES per id in FIELD_ALIVE of the reply
FIELD_KEY_SHARES = "key-shares"  # bytes: SHARE_BYTES per id in FIELD_DEAD of the reply

SESSION_BYTES = 24
KEY_BYTES = 32
SHARE_BYTES = 16
SEALED_SHARE_BYTES = 12 + 2 * SHARE_BYTES + 16  # nonce, two shares, AES-GCM tag
COMMITMENT_BYTES = 32
HISTORY_BYTES = 16

MAX_LENGTH = 2**31 - 1
MIN_MODULUS_BITS, MAX_MODULUS_BITS = 2, 64

# -- records of the algorithms, on the masked-input request beside the caller's payload ----------------------
RECORD_VOTE = "fedpriv.vote"
RECORD_UPDATE = "fedpriv.update"
RECORD_EVALUATE = "fedpriv.evaluate"
RECORD_ZEROTH_ORDER = "fedpriv.zeroth-order"
RECORD_PAC_ZERO = "fedpriv.pac-zero"
RECORD_RECORD_LEVEL = "fedpriv.record-level"
RECORD_SILO_CHECK = "fedpriv.silo-check"
RECORD_ALLOCATION = "fedpriv.allocation"
PURPOSE_VOTE = "vote"
PURPOSE_UPDATE = "update"
PURPOSE_EVALUATE = "evaluate"
PURPOSE_ZEROTH_ORDER = "zeroth-order"
PURPOSE_RECORD_LEVEL = "record-level"
PURPOSE_RECORD_ZEROTH_ORDER = "record-zeroth-order"
PURPOSE_PAC_ZERO = "pac-zero"
PURPOSE_ALLOCATION = "allocation"
NOISE_SHARE_STD = "share-std"  # float: standard deviation of the client's noise share, grid steps
NOISE_SEED = "noise-seed"  # str: "" for secure noise; anything else only in a simulation
VOTE_CANDIDATES = "candidates"  # str: JSON list of objects
VOTE_VOTES = "votes"  # int: approvals per client
VOTE_UNITS = "units-per-vote"  # int: grid steps of one vote
UPDATE_CLIPPING_NORM = "clipping-norm"  # float
UPDATE_CLIP_UNITS = "clip-units"  # int: the clipping norm in grid steps
UPDATE_SAMPLING_RATE = "sampling-rate"  # float: rate of the client's own coin; 1: takes part, 0: sends zeros
UPDATE_IDLE_TRAINS = "idle-trains"  # bool: train and discard when the coin says no
UPDATE_ROUND = "round"  # int
ZEROTH_ORDER_SEED = "direction-seed"  # bytes: public seed of the round's directions
ZEROTH_ORDER_KIND = "direction-kind"  # str: orthonormal, independent or signs
ZEROTH_ORDER_DIRECTIONS = "directions"  # int: K
ZEROTH_ORDER_FINGERPRINT = "fingerprint"  # bytes: first numbers of the directions, hashed
ZEROTH_ORDER_SMOOTHING = "smoothing"  # float: xi
ZEROTH_ORDER_CLIP = "clip"  # float: bound on each quotient
ZEROTH_ORDER_BATCH = "batch-size"  # int: records per round; 0 for all
ZEROTH_ORDER_NORMS = "norms"  # list[float]: of the normal vectors that are divided by them; may be left out
# The model, without sending it: the steps since one that the client keeps, or builds by itself.
RECORD_MODEL = "fedpriv.model"
MODEL_ID = "model-id"  # bytes: hash of the model of this round
MODEL_HISTORY = "history"  # bytes: which sequence of models the positions are in
MODEL_POSITION = "position"  # int: of the model that the steps start from; 0 is the initial one
MODEL_KEEP = "keep"  # bool: keep the model of this round for later steps
MODEL_SEEDS = "step-seeds"  # bytes: SEED_BYTES per step
MODEL_COEFFICIENTS = "step-coefficients"  # list[float]: K per step
MODEL_NORMS = "step-norms"  # list[float]: K per step, or none, see ZEROTH_ORDER_NORMS
STATE_MODEL = "fedpriv.model"  # client's Context.state: arrays of the model that it keeps
STATE_MODEL_PLACE = "fedpriv.model-place"  # its history and position
PAC_RUN = "run"  # str: name of the run that the silo's secret belongs to
PAC_VARIANT = "variant"  # str: zpl or mi
PAC_SUBSETS = "subsets"  # int: M
PAC_NATS = "nats"  # float: budget of a silo in the run
PAC_ROUNDS = "rounds"  # int: rounds that share it
PAC_DIAGNOSTICS = "diagnostics"  # str: simulation only: folder for lines about unanimity; "" for none
PAC_BIT = "bit"  # int, reply outside a secure sum: +1 or -1
CONFIG_STATE_PATH = "state-path"  # node config: private folder of the silo
CONFIG_MAX_NATS = "max-nats"  # node config: largest budget that the silo accepts
STATE_SILO_FILE = "fedpriv.silo-file"  # prefix of records in Context.state, in a simulation
# Record-level training; beside it UPDATE_CLIPPING_NORM, UPDATE_CLIP_UNITS, UPDATE_ROUND, NOISE_SEED, ``arrays``
# and, unless the ball is around the origin, ``center``. Without a secure sum it asks for a check of the silo.
SILO_SAMPLING_RATE = "record-sampling-rate"  # float: q of the silo's own Poisson batches
SILO_NOISE_STD = "record-noise-std"  # float: noise of the sum of a step, grid steps
SILO_STEPS = "local-steps"  # int: E
SILO_LEARNING_RATE = "learning-rate"  # float
SILO_ADJACENCY = "adjacency"  # str
SILO_RADIUS = "radius"  # float: R, the model is kept within R of the centre
SILO_RADIUS_UNITS = "radius-units"  # int: R in grid steps of the secure sum
SILO_MAX_WEIGHT = "max-weight"  # int: 1 for a uniform average, else the most records that count
SILO_RUN = "run"  # str: name of the run in the silo's own account
SILO_STAGE = "stage"  # str: name of the stage there
SILO_MAX_EPSILON = "max-epsilon"  # float: the run's limit on its own releases; 0 for none
SILO_DELTA = "delta"  # float: at which it holds
SILO_SIMULATION_FOLDER = (
    "simulation-folder"  # str: parent of the accounts of simulated silos without state-path
)
SILO_NUM_RECORDS = "num-records"  # int, reply to a check: size of the silo, public by declaration
# Random allocation; beside it the update record, whose sampling rate is 1, and ``arrays``.
ALLOCATION_NAME = "allocation"  # str: name of the run's draw of bins, under which a client keeps its own
ALLOCATION_BINS = "bins"  # int: b
ALLOCATION_EPOCHS = "epochs"  # int: k
ALLOCATION_REDRAWN = "redrawn"  # bool: bins are drawn again each epoch
ALLOCATION_BEGINS = (
    "begins"  # bool: False after a restart, when a client without a disk may have lost its bin
)
ALLOCATION_SIMULATION_FOLDER = "simulation-folder"  # str: parent of simulated clients' folders, "" for none
EVALUATE_CAP = "cap"  # int: most examples that a client counts
EVALUATE_UNITS = "units-per-example"  # int: grid steps of one example
CONFIG_MIN_NOISE_SHARE = "min-noise-share"  # node config: smallest accepted share std over the sensitivity

# -- node config keys ----------------------------------------------------------------------------------------
CONFIG_MIN_NEIGHBOURS = "min-neighbours"
DEFAULT_MIN_NEIGHBOURS = 2
CONFIG_SIMULATION = "fedpriv-simulation"
CONFIG_MIN_NOISE_MULTIPLIER = (
    "min-noise-multiplier"  # record-level: smallest accepted noise of a step over the clip
)
CONFIG_MAX_SAMPLING_RATE = "max-sampling-rate"  # record-level: largest accepted rate of the batches
CONFIG_MAX_EPSILON = "max-epsilon"  # record-level: limit of the silo's own account, over all runs
CONFIG_DELTA = "delta"  # at which it holds


class ErrorCode(IntEnum):
    """Codes of our error replies (Flower's own codes are below 1000)."""

    WRONG_MESSAGE_TYPE = 1001
    NO_RECORD = 1002
    WRONG_SCHEMA = 1003
    MALFORMED = 1004
    SESSION_SEEN = 1005
    OUT_OF_ORDER = 1006
    TOO_FEW_NEIGHBOURS = 1007
    LOW_THRESHOLD = 1008
    BOTH_SHARES = 1009
    TOO_FEW_SURVIVORS = 1010
    NOT_A_SIMULATION = 1011
    BAD_VECTOR = 1012
    OUT_OF_RANGE = 1013
    PRODUCE_FAILED = 1014
    INTERNAL = 1015
    MISCONFIGURED = 1016
    NOISE_TOO_SMALL = 2001
    SEED_REFUSED = 2002
    BAD_REQUEST = 2003
    UNKNOWN_PURPOSE = 2004
    MODEL_UNKNOWN = 2005
    DIRECTIONS_DIFFER = 2006
    SILO_MISCONFIGURED = 2101
    SILO_NOISE_TOO_SMALL = 2102
    SILO_RATE_TOO_LARGE = 2103
    SILO_NO_ACCOUNT = 2104
    SILO_NO_DATA = 2105
    NO_STATE_PATH = 2007
    STATE_UNREADABLE = 2008
    UNIVERSE_CHANGED = 2009
    BUDGET_TOO_LARGE = 2010


ERROR_WORDS: dict[int, str] = {
    ErrorCode.WRONG_MESSAGE_TYPE: "a secure sum is answered under message type 'train' only",
    ErrorCode.NO_RECORD: "the request has no 'fedpriv.secure-sum' record",
    ErrorCode.WRONG_SCHEMA: "the request has a schema version that this client does not know",
    ErrorCode.MALFORMED: "the request is malformed",
    ErrorCode.SESSION_SEEN: "the session id is not newer than one this client has seen",
    ErrorCode.OUT_OF_ORDER: "the stage was answered before, is out of order or belongs to no open session",
    ErrorCode.TOO_FEW_NEIGHBOURS: "fewer neighbours than this client's node config 'min-neighbours' asks for",
    ErrorCode.LOW_THRESHOLD: (
        "the share threshold is not above half of the neighbourhood and above node config 'min-neighbours'"
    ),
    ErrorCode.BOTH_SHARES: "the request could reveal both kinds of share of one peer",
    ErrorCode.TOO_FEW_SURVIVORS: "fewer survivors than the share threshold",
    ErrorCode.NOT_A_SIMULATION: "an unmasked sum was asked outside a simulation",
    ErrorCode.BAD_VECTOR: "the client's vector has the wrong length or is not of integers",
    ErrorCode.OUT_OF_RANGE: "a value of the client's vector is outside the agreed range",
    ErrorCode.PRODUCE_FAILED: "the client's own function failed; see the client's log",
    ErrorCode.INTERNAL: "the client could not process the request",
    ErrorCode.NOISE_TOO_SMALL: "the noise share asked for is below node config 'min-noise-share'",
    ErrorCode.SEED_REFUSED: "seeded noise was asked outside a simulation",
    ErrorCode.BAD_REQUEST: "the request's parameters are missing, of the wrong type or out of range",
    ErrorCode.UNKNOWN_PURPOSE: "this client has no mod for the purpose of the secure sum",
    ErrorCode.MODEL_UNKNOWN: "this client does not keep the model that the request builds on",
    ErrorCode.DIRECTIONS_DIFFER: (
        "this client's numpy expands the seed of the directions to other numbers than the server's"
    ),
    ErrorCode.NO_STATE_PATH: (
        "node config 'state-path' must name a private folder in which this silo can keep its secrets"
    ),
    ErrorCode.STATE_UNREADABLE: "the silo's state file cannot be read; a fresh secret would break the guarantee",
    ErrorCode.UNIVERSE_CHANGED: (
        "the silo's records, or the run's subsets, budget or rounds, are not those that its secret was drawn for"
    ),
    ErrorCode.BUDGET_TOO_LARGE: "the run's budget is above node config 'max-nats'",
    ErrorCode.SILO_MISCONFIGURED: (
        "node config: 'max-epsilon' must be a number above 0 and come with a 'delta' in (0, 1), "
        "'min-noise-multiplier' a number of at least 0, 'max-sampling-rate' a number in (0, 1]"
    ),
    ErrorCode.SILO_NOISE_TOO_SMALL: "the noise of a step is below node config 'min-noise-multiplier'",
    ErrorCode.SILO_RATE_TOO_LARGE: "the sampling rate of records is above node config 'max-sampling-rate'",
    ErrorCode.SILO_NO_ACCOUNT: (
        "the silo has no account of its own: node config 'state-path' must name a folder that it can write"
    ),
    ErrorCode.SILO_NO_DATA: "the silo's data cannot be used; its own log says why",
    ErrorCode.MISCONFIGURED: (
        "node config: 'min-neighbours' must be an integer of at least 1, and 'min-noise-share' a number of "
        "at least 0"
    ),
    # Flower's own codes, in words that carry nothing of the client's data (its reasons may hold a repr).
    1: "the ClientApp could not be loaded",
    2: "the ClientApp raised an exception; see the client's log",
    3: "the message was unavailable",
    4: "the reply was unavailable",
    5: "the node is unavailable",
    6: "a mod's precondition failed",
    7: "the app bundle is invalid",
    8: "the client process crashed",
}


def error_words(code: int) -> str:
    """Words for an error reply's code; a text that came with the reply is never repeated.

    Parameters
    ----------
    code : int
        Code of the error reply, Flower's or ours.

    Returns
    -------
    str
        A sentence that holds no data of the client.
    """
    return ERROR_WORDS.get(code, f"error code {int(code)}")


def stage_of(message: Message) -> str | None:
    """Stage of a secure sum that a message belongs to; None for any other message.

    Parameters
    ----------
    message : Message
        A request or a reply.

    Returns
    -------
    str or None
        One of ``STAGES``.
    """
    if not message.has_content():
        return None
    record = message.content.get(RECORD_SECURE_SUM)
    stage = record.get(FIELD_STAGE) if record is not None and hasattr(record, "get") else None
    return stage if isinstance(stage, str) and stage in STAGES else None


def content_bytes(content: RecordDict) -> int:
    """Payload bytes of a message's content: field values, arrays and names, without the transport's framing.

    Parameters
    ----------
    content : RecordDict
        Content of a request or a reply.

    Returns
    -------
    int
        Bytes; integers and floats count 8, as on the wire.
    """
    total = 0
    for name, record in content.items():
        total += len(name)
        for key, value in record.items():
            total += len(key)
            if hasattr(value, "data"):  # an Array
                total += len(value.data)
                continue
            for item in value if isinstance(value, list) else [value]:
                total += len(item) if isinstance(item, bytes | str) else 8
    return total
