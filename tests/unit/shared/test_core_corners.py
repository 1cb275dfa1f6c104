"""Lines of the core that nothing else comes by: what it refuses, and what it says of itself."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpswd.private_curator.core.ledger import sqlite, store
from dpswd.private_curator.core.ledger.database import by_seq
from dpswd.private_curator.core.ledger.statements import Request
from dpswd.shared.accounting.pricing import PRICING, filter_for
from dpswd.shared.core.errors import (
    BudgetExhausted,
    InvalidEvent,
    InvalidValue,
    LedgerCorrupt,
    LedgerUnavailable,
    RequestInvalid,
)  # fmt: skip
from dpswd.shared.core.ledger.receipts import MAX_STATEMENT_BYTES, SignedEntry
from dpswd.shared.core.mechanisms.class_statistics import sums
from dpswd.shared.core.mechanisms.class_statistics.geometry import Weights
from dpswd.shared.core.mechanisms.declared import Declared
from dpswd.shared.core.mechanisms.evaluation.counts import PLACE_UNITS, EvaluationCounter, count_width
from dpswd.shared.core.mechanisms.evaluation.mechanism import EvaluationDeclaration
from dpswd.shared.core.mechanisms.feature_sums.mechanism import SumsDeclaration
from dpswd.shared.core.mechanisms.interface import DataSetFacts, Facts, Limits, Mechanism, ModelFacts, RunSize
from dpswd.shared.core.mechanisms.linear import LinearRun, Shard, ShardSum, added
from dpswd.shared.core.mechanisms.quantiles.coefficients import project, release_coefficients
from dpswd.shared.core.mechanisms.score_statistics.geometry import sensitivity
from dpswd.shared.core.mechanisms.score_statistics.mechanism import Scored, ScoresDeclaration, ScoresReply
from dpswd.shared.core.mechanisms.sliced import SlicedDeclaration, SlicedReply
from dpswd.shared.core.noise.directions import directions
from dpswd.shared.core.noise.noise import GridArray, finest_exponent, narrowest_integer, sum_grid
from dpswd.shared.core.privacy import bracket
from dpswd.shared.core.privacy.budget import PrivacyBudget
from dpswd.shared.core.privacy.event_json import event_from_json
from dpswd.shared.core.privacy.events import MAX_STEPS, RowProjections, RunEvent, StepEvent
from dpswd.shared.core.privacy.filter import MAX_ORDER, PrivacyFilter
from dpswd.shared.core.privacy.filter_json import MAX_TEXT_LENGTH, load
from dpswd.shared.core.wire.payloads import Wire, floats
from dpswd.shared.published_mechanisms import ALL_MECHANISMS
from dpswd.shared.seeded_noise import SeededNoise

N, C, D = 30, 3, 5
FACTS = Facts(DataSetFacts(N, (4,), C), ModelFacts((4,), D, {"weight": (D, 4), "bias": (D,)}))
BUDGET = PrivacyBudget(1.0, 1e-5)
SCORES = ScoresDeclaration(C, 0.5, 2.0, 1.0, np.ones(1 + D - C, dtype=np.float32))
SUMS = SumsDeclaration(1.0, ("weight",))


def filter_of(**changes):
    lanes = {"orders": (2.0, 4.0), "shares": (0.5, 0.25), "infinity_share": 0.25, "gaussian_share": 0.0}
    return PrivacyFilter(BUDGET, pricing=PRICING, **lanes | {"run_delta": 0.0} | changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"orders": (2.0,)}, "same length"),
        ({"orders": (), "shares": ()}, "at least 1"),
        ({"orders": (1.0, 4.0)}, "above 1"),
        ({"orders": (2.0, 2.0 * MAX_ORDER + 1.0)}, "at most 8192"),
        ({"orders": (4.0, 2.0)}, "increase"),
        ({"orders": (2.0, 2.0)}, "increase"),
        ({"shares": (-0.1, 0.5)}, "from 0 to below 1"),
        ({"shares": (1.0, 0.0), "infinity_share": 0.0}, "from 0 to below 1"),
        ({"infinity_share": -0.1}, "from 0 to below 1"),
        ({"infinity_share": 0.26}, "use delta only once"),
        ({"gaussian_share": 0.01}, "use delta only once"),
        ({"gaussian_share": -0.1}, "from 0 to below 1"),
        ({"run_delta": -1e-9}, "run_delta"),
        ({"run_delta": 0.26e-5}, "run_delta"),
    ],
)
def test_a_filter_is_refused(changes, why):
    with pytest.raises(InvalidValue, match=why):
        filter_of(**changes)


def test_a_filter_at_the_edge_of_what_is_allowed_is_made():
    assert filter_of(orders=(2.0, 2.0 * MAX_ORDER), run_delta=0.25e-5).run_delta == 0.25e-5
    assert filter_of(shares=(0.75, 0.0)).limit(2.0, 0.0) == -float("inf")


def test_a_step_that_only_rounding_would_admit_does_not_fit():
    """A third of the limit three times is a last digit more than the limit."""

    class Thirds:
        def step_costs(self, step, orders, *, committed):
            return tuple(limit / 3.0 for limit in privacy._limits)

        def pld_epsilon(self, run, delta):
            return float("inf")

    privacy = PrivacyFilter(BUDGET, (20.0,), (0.5,), 0.0, 0.0, 0.0, Thirds())
    assert privacy._limits[0] > 0.0
    step = StepEvent(100, 100, (RowProjections(8, 4, 2.0),))
    assert privacy.fits(privacy.zero(), RunEvent(step, steps=1)) == 2


@pytest.mark.parametrize("tiny", [1e9, 1e6, 1e5, 3e4, 1e4, 3e3, 1e3])
def test_the_lane_of_infinity_fits_as_many_steps_as_it_admits(tiny):
    """The answer is admitted, and one more is not, or is beyond what a run may have."""
    step = StepEvent(7438, 128, (RowProjections(784, 200, tiny),))
    privacy = filter_for(PrivacyBudget(0.5, 1e-5), plan=RunEvent(step, steps=1000))
    most = privacy.fits(privacy.zero(), RunEvent(step, steps=1))
    assert 0 < most <= MAX_STEPS
    privacy.admit(privacy.zero(), privacy.price(RunEvent(step, steps=most)))
    if most < MAX_STEPS:
        with pytest.raises(BudgetExhausted):
            privacy.admit(privacy.zero(), privacy.price(RunEvent(step, steps=most + 1)))


def test_a_filters_text_is_text_of_a_bounded_length():
    for wrong in (b"{}", " " * (MAX_TEXT_LENGTH + 1)):
        with pytest.raises(InvalidValue, match="at most 100000"):
            load(wrong, "filter", ())
    with pytest.raises(InvalidValue, match="not JSON"):
        load(" " * MAX_TEXT_LENGTH, "filter", ())


def test_floats_travel_whole_and_shapes_are_held():
    with pytest.raises(RequestInvalid, match="7 bytes"):
        floats(bytes(7), field="weights")
    Wire().check((1, 2, 3), field="any")
    with pytest.raises(RequestInvalid, match="needed is"):
        Wire(shape=("d", "d")).check((2, 3), field="square")


def test_the_bracket_counts_nothing_below_order_two():
    """At orders from 1 to 2 a sampled step's lower bound lies on the chord of the cumulants of 2 and 3, or is 0."""
    step = StepEvent(1000, 100, (RowProjections(8, 4, 2.0),))
    low, high = bracket.lower_costs(step, np.array([1.5, 2.0]))
    assert 0.0 <= low <= high
    assert bracket._log_kummer(5, 0.0) == 0.0


def test_the_bracket_counts_no_part_as_nothing_because_it_is_new():
    step = SimpleNamespace(records=1000, batch=100, parts=(SimpleNamespace(sigma=2.0),))
    with pytest.raises(InvalidEvent, match="no pair of neighbours is written down for SimpleNamespace"):
        bracket.pair_shift(step)


def test_sums_of_too_many_parameters_are_refused_and_a_step_without_rules_breaks_none():
    mechanism = ALL_MECHANISMS["feature_sums"]
    (broken,) = mechanism.violations(SUMS, RunSize(N), FACTS, Limits(max_adapted_parameters=3))
    assert broken == ("declaration.parameters", "have 20 values; at most 3 are allowed")
    for records, few in ((2**32, True), (2**32 + 1, False)):
        facts = replace(FACTS, data=replace(FACTS.data, records=records))
        rules = [rule for _, rule in mechanism.violations(SUMS, RunSize(records), facts, Limits())]
        assert (f"is {records}; at most {2**32} are added up" not in rules) is few
    assert Mechanism.check(mechanism, None, SUMS, FACTS, Limits()) == []
    assert Mechanism.work(mechanism, SUMS) == (SUMS.to_bytes(),)


def test_equal_features_under_two_labels_lie_apart_by_their_labels_and_their_counts():
    assert Weights(2, 1.0, 0.0, 0.0).two_classes() == 4.0
    assert Weights(2, 0.0, 0.0, 0.0).two_classes() == 2.0


def test_a_released_curvature_is_read_as_the_symmetric_matrix_that_it_is():
    square = np.arange(1.0, 1.0 + 3 * 4 / 2)
    declared = ScoresDeclaration(C, 0.5, 2.0, 1.0, np.ones(3, dtype=np.float32))
    values = np.concatenate([np.zeros(C + 3 * C), square * 2.0])
    reply = SimpleNamespace(sum=SimpleNamespace(to_numpy=lambda: values))
    read = Scored.of(reply, declared).square
    assert np.array_equal(read, read.T)
    assert read[0, 1] == pytest.approx(2.0 / np.sqrt(2.0) * 2.0 / declared.square_weight)
    assert np.diag(read) == pytest.approx(np.array([1.0, 4.0, 6.0]) * 2.0 / declared.square_weight)


@pytest.mark.parametrize("batch", [3, 30, 120])
def test_coefficients_travel_in_a_type_that_holds_half_the_root_of_the_batch(batch):
    """At the noise where that decides between two types."""
    bounds = np.sqrt(batch) / 2.0, np.sqrt(batch) // 2.0
    sigmas = np.geomspace(1e-5, 1.0, 4000)
    deciding = [s for s in sigmas if len({narrowest_integer(float(bound), sigma=float(s)) for bound in bounds}) > 1]
    assert deciding
    sigma = float(deciding[0])
    features, noise = 0.5 * torch.ones(batch, 1, dtype=torch.float64), SeededNoise(bytes(32))
    released = release_coefficients(
        features, torch.ones(1, 2, dtype=torch.float64), coefficients=1, sigma=sigma, noise=noise
    )
    assert released.integer == narrowest_integer(float(bounds[0]), sigma=sigma)


def test_calibration_is_declared_with_its_noise_and_several_models_are_named():
    mechanism = ALL_MECHANISMS["evaluation"]
    one = mechanism.violations(EvaluationDeclaration(C, 1.0, 1.0, bins=5), RunSize(N), FACTS, Limits())
    assert ("declaration.bins", "and calibration_sigma belong together; declare both, or neither") in one
    (scores,) = [text for field, text in one if field == "parameters.graph_digest"]
    assert "models" not in scores
    several = mechanism.violations(EvaluationDeclaration(C, 1.0, models=4), RunSize(N), FACTS, Limits())
    assert any("of each of 4 models" in text for _, text in several)


def test_a_budget_that_bears_no_step_says_so():
    assert "not one such step fits" in str(BudgetExhausted(1.0, 0.5, 0.5, steps_that_fit=0))
    assert "at most 1 such steps" in str(BudgetExhausted(1.0, 0.5, 0.5, steps_that_fit=1))
    assert MAX_STEPS == 10**9


def test_directions_of_a_reply_are_those_of_its_seed():
    values = GridArray(np.zeros((6, 4), dtype=np.int16), 0.1, "int16")
    drawn = SlicedReply(bytes(range(32)), values).directions(torch.zeros(2, D, dtype=torch.float64))
    assert drawn.dtype == torch.float64
    assert torch.equal(drawn, directions(bytes(range(32)), D, 4).double())


def test_a_record_moves_half_a_bin_at_most_and_one_count_of_each_kind():
    mechanism = ALL_MECHANISMS["evaluation"]
    reaches = mechanism.reaches(EvaluationDeclaration(C, 1.0), FACTS)
    assert [(reach.most, reach.counts) for reach in reaches] == [
        (1, True), (1, True), (PLACE_UNITS / 2, False), (1, True), (1, True)
    ]  # fmt: skip


def test_counts_that_float64_cannot_hold_are_refused_in_numbers():
    with pytest.raises(InvalidValue, match=f"below {2**41 - 16}: use more noise"):
        count_width(records=2**60, sigma=1.0)


def test_counts_travel_in_the_narrowest_type_that_holds_them_and_their_noise():
    most = (2**31 - 1 - 2**15) // 2**11  # records, in steps of 2^-11
    assert [count_width(records=records, sigma=1.0) for records in (most, most + 1)] == ["int32", "int64"]


def test_texts_and_statements_may_be_as_long_as_is_said_and_no_longer():
    with pytest.raises(InvalidEvent, match="is not JSON"):
        event_from_json(" " * 10_000)
    with pytest.raises(InvalidEvent, match="at most 10000 characters"):
        event_from_json(" " * 10_001)
    for more in (1, 2, 1000):
        with pytest.raises(InvalidValue, match=f"this one has {MAX_STATEMENT_BYTES + more}"):
            SignedEntry.parse(b" " * (MAX_STATEMENT_BYTES + more), b"")


def test_shards_together_are_the_records_from_the_first_on():
    two = [ShardSum(Shard(start, start + 3), (np.array([start]),)) for start in (3, 0)]
    whole = added(two, records=6)
    assert (whole.shard, whole.sums[0].tolist()) == (Shard(0, 6), [3])


@pytest.mark.parametrize(("features", "columns"), [((4,), (4, 2)), ((3, 4), (4,)), ((3, 5), (4, 2))])
def test_only_rows_are_projected(features, columns):
    with pytest.raises(InvalidValue, match=r"use \(b, d\) and \(d, k\)"):
        project(torch.zeros(features), torch.zeros(columns))


def test_in_one_dimension_every_direction_sees_the_whole_shift():
    """And without random directions there is nothing to integrate over: the shift is known."""
    assert [list(each) for each in bracket._shift_nodes(bracket.PairShift(1, 5, 0.25, 0.5))] == [[1.75], [1.0]]
    assert [list(each) for each in bracket._shift_nodes(bracket.PairShift(7, 5, 0.0, 0.5))] == [[0.5], [1.0]]


def test_evaluations_say_what_they_release():
    said = ALL_MECHANISMS["evaluation"].summary
    one = EvaluationDeclaration(C, 1.0, partly_labelled=True)
    assert said(one, FACTS) == "noised counts: the numbers of correct and of wrong predictions"
    assert said(replace(one, models=2), FACTS) == (
        "noised counts: the number of correct predictions of each of 2 models, the number of labelled records"
    )
    assert said(EvaluationDeclaration(C, 1.0, 1.0, 4, 1.0), FACTS) == (
        "noised counts: the number of correct predictions, 3 x 3 counts, 4 bins of confidences"
    )


@pytest.mark.parametrize(("features", "labels"), [((2, C), (3,)), ((3, C), (2,)), ((3, C - 1), (3,)), ((3, C), (3, 1))])
def test_scores_and_labels_of_other_shapes_are_not_counted(features, labels):
    with pytest.raises(InvalidValue, match=r"needed: \(m, 3\)"):
        EvaluationCounter(classes=C).add(torch.zeros(features), np.zeros(labels, dtype=np.int64))


@pytest.mark.parametrize("label", [C, -2])
def test_a_label_of_no_class_is_not_counted(label):
    with pytest.raises(InvalidValue, match=f"a label is outside of 0 to {C - 1}$"):
        EvaluationCounter(classes=C).add(torch.zeros(1, C), np.array([label]))


def test_a_sum_that_fits_no_grid_is_refused_in_numbers():
    most = 2.0**20 - 17
    assert finest_exponent(most - 1.0, sigma=1.0) == 11
    with pytest.raises(InvalidValue, match=f"below {most:.0f}: use more noise"):
        finest_exponent(most + 1.0, sigma=1.0)


def test_the_width_of_a_sums_grid_is_the_least_that_holds_it():
    """Int32 as long as a grid of 14 or finer fits, then int64, and beyond 2^52 steps nothing."""
    narrow = 2.0**31 / 2.0**14 - 17.0
    assert sum_grid(1.0, sigma=1.0) == (20, "int32")
    assert sum_grid(narrow, sigma=1.0) == (14, "int32")
    assert sum_grid(narrow + 2.0, sigma=1.0) == (20, "int64")
    assert sum_grid(2.0**32 - 17.0, sigma=1.0) == (20, "int64")
    with pytest.raises(InvalidValue, match=f"below {2**32 - 16}"):
        sum_grid(2.0**32, sigma=1.0)


@pytest.mark.parametrize(("weight", "square"), [(0.5, 4.125), (2.0, 2.0 + 8.0 + 0.125), (3.0, 2.0 + 18.0 + 0.5 / 9.0)])
def test_the_sensitivity_of_scores_is_the_pages(weight, square):
    """docs/privacy/score-statistics.md: 4 + beta of opposite gradients, or both together where beta is large."""
    beta = weight**2
    exact = max(4.0 + beta, square)
    stated = sensitivity(count_weight=0.5, square_weight=weight, values=1)
    assert stated == pytest.approx((0.5 + exact) ** 0.5 + 2.0**-20, rel=1e-8)


def test_sums_of_many_records_are_those_of_their_parts():
    """They are added in pieces of 16,384."""
    generator = torch.Generator().manual_seed(3)
    features = 0.3 * torch.randn(40_000, 2, generator=generator)
    labels = np.arange(40_000) % C
    whole, parts = (
        sums.ClassSums(
            classes=C, dimension=2, moments=True, bits=13, feature_map=None, device=torch.device("cpu")
        )
        for _ in range(2)
    )  # fmt: skip
    whole.add(features, labels)
    for start in range(0, 40_000, 5000):
        parts.add(features[start : start + 5000], labels[start : start + 5000])
    assert whole.sums[0].tolist() == [13334, 13333, 13333]
    for one, other in zip(whole.sums, parts.sums, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("wrong", ["", "x" * 129, "a\0b", 5])
def test_a_request_id_is_printable_and_short(wrong):
    assert Request(client="team", request_id="x" * 128, digest="d" * 64).mark == ("team", "x" * 128)
    with pytest.raises(InvalidValue, match="1 to 128 printable"):
        Request(client="team", request_id=wrong, digest="d" * 64)


@pytest.mark.parametrize(
    "chain", [[(2, store.GENESIS)], [(1, "other")], [(1, store.GENESIS), (3, "hash 1")], [(1, store.GENESIS), (2, "x")]]
)
def test_a_ledger_whose_links_do_not_hold_is_not_opened(chain, monkeypatch):
    entries = [SimpleNamespace(seq=seq, previous=before, hash=f"hash {seq}") for seq, before in chain]
    monkeypatch.setattr(store, "read_entries", lambda _: entries)
    ledger = object.__new__(store.Store)
    ledger.location = "here"
    with pytest.raises(LedgerCorrupt, match="does not follow"):
        ledger._follow_the_chain(None)


def broken(name, declared, *, records=N):
    facts = Facts(replace(FACTS.data, records=records), FACTS.model)
    return ALL_MECHANISMS[name].violations(declared, RunSize(records), facts, Limits())


def test_sums_that_no_grid_holds_are_refused():
    assert not broken("feature_sums", SUMS)
    ((field, why),) = broken("feature_sums", replace(SUMS, sigma=1e-9))
    assert (field, "sigma" in why) == ("declaration.sigma", True)
    assert ("parameters.batch_size", "at most") in [
        (field, "at most" if "at most" in why else why) for field, why in broken("feature_sums", SUMS, records=2**40)
    ]


def test_scores_that_no_grid_holds_are_refused():
    assert not broken("score_statistics", SCORES)
    assert [field for field, _ in broken("score_statistics", replace(SCORES, sigma=1e-9))] == ["declaration.sigma"]
    few = Facts(FACTS.data, ModelFacts((4,), C - 1, {}))
    ((field, _),) = ALL_MECHANISMS["score_statistics"].violations(SCORES, RunSize(N), few, Limits())
    assert field == "parameters.graph_digest"


def test_a_reply_of_another_length_is_no_reply_of_the_run():
    values = GridArray(np.zeros(SCORES.values + 1, dtype=np.int32), 0.1, "int32")
    with pytest.raises(InvalidValue, match=f"releases {SCORES.values}"):
        Scored.of(ScoresReply(values), SCORES)


@pytest.mark.parametrize(("name", "declared"), [("score_statistics", SCORES), ("feature_sums", SUMS)])
def test_of_no_records_the_sum_is_zero(name, declared):
    run = LinearRun(ALL_MECHANISMS[name], declared, FACTS)
    empty = run.accumulator(torch.device("cpu")).sums
    assert not any(np.asarray(part).any() for part in empty)
    shard = run.mechanism.summed(declared, FACTS, Shard(0, 0), None, None, torch.device("cpu"))
    for one, other in zip(shard.sums, empty, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize(("name", "declared"), [("rows", SlicedDeclaration(20, 1.0)), ("score_statistics", SCORES)])
def test_what_work_depends_on_is_the_graph_the_batch_and_the_declaration(name, declared):
    mechanism = ALL_MECHANISMS[name]
    of = Declared(mechanism, declared, RunSize(24, 3), FACTS, "graph")
    assert of.work == ("graph", 24, name, *mechanism.work(declared))
    assert of.summary == mechanism.summary(declared, FACTS)


def saturating_products(a, b):
    """As of processors that add two products in 16 bits."""
    pairs = a.int()[:, 0::2, None] * b.int()[None, 0::2] + a.int()[:, 1::2, None] * b.int()[None, 1::2]
    return pairs.clamp(-(2**15), 2**15 - 1).sum(dim=1, dtype=torch.int32)


def test_short_products_are_used_where_they_are_exact(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    sums.short_products.cache_clear()
    try:
        assert not sums.short_products()
        sums.short_products.cache_clear()
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
        monkeypatch.setattr(torch, "_int_mm", saturating_products)
        assert not sums.short_products()
    finally:
        sums.short_products.cache_clear()


def test_an_error_of_sqlite_without_a_code_is_of_a_closed_file(tmp_path):
    error = sqlite.translate(sqlite3.ProgrammingError("Cannot operate on a closed database."), tmp_path, asked=True)
    assert isinstance(error, LedgerUnavailable)
    assert "is closed" in str(error)


def test_a_lock_that_cannot_be_opened_spends_nothing(tmp_path):
    with (
        pytest.raises(LedgerUnavailable, match="cannot be opened: No such file"),
        sqlite.file_lock(tmp_path / "nowhere" / "lock", timeout_s=0.0, held_by="another"),
    ):
        pytest.fail("it was held")


class Unruly:
    """A connection of SQLite's that answers otherwise, as a file system without shared memory or a dead disk would."""

    in_transaction = True

    def __init__(self, answer=None):
        self.answer, self.closed = answer, False

    def execute(self, _):
        if self.answer is None:
            raise sqlite3.OperationalError("disk I/O error")
        return self

    def fetchone(self):
        return self.answer

    def close(self):
        self.closed = True


@pytest.fixture
def database(tmp_path, monkeypatch):
    """Of a ledger file, without its tables."""
    monkeypatch.setattr(sqlite.sqlite_tables, "check", lambda connection: None)
    sqlite3.connect(tmp_path / "ledger").close()
    (tmp_path / "ledger").touch()
    made = sqlite.SqliteDatabase(tmp_path / "ledger")
    yield made
    made.close()


def test_a_file_system_without_sqlites_log_is_refused(database):
    with pytest.raises(LedgerUnavailable, match="mode 'delete'"):
        database._prepare(Unruly(("delete",)))


def test_where_nothing_can_be_rolled_back_the_connection_is_closed(database):
    quiet, dead = Unruly(("ok",)), Unruly()
    database._rollback(quiet)
    assert not quiet.closed
    before, database._connection = database._connection, dead
    before.close()
    database._rollback(dead)
    assert dead.closed
    assert database._connection is None
    dead.in_transaction = False
    database._rollback(dead)  # nothing to roll back: nothing is asked
    with database.read() as connection:  # and the next one opens it anew
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_another_process_opens_the_ledger_itself(database, monkeypatch):
    monkeypatch.setattr(database, "_pid", database._pid + 1)
    with pytest.raises(LedgerUnavailable, match="forked"), database.read():
        pytest.fail("it was read")
    monkeypatch.undo()


def test_a_ledger_whose_key_was_changed_is_not_signed_with_the_one_before():
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    opened = SimpleNamespace(_books=SimpleNamespace(public_key="ab"), _key=key, _find_key=None, location="here")
    with pytest.raises(LedgerUnavailable, match="here: its key was changed to ab; open it with that one"):
        store.Store._hold_key(opened)
    opened._books.public_key = key.public_key().public_bytes_raw().hex()
    store.Store._hold_key(opened)
    assert opened._key is key


def test_entries_that_are_missing_or_misfiled_are_corruption():
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE entries (seq INTEGER, kind TEXT, statement BLOB, signature BLOB)")
    connection.executemany("INSERT INTO entries VALUES (?, 'x', '', '')", [(-5,), (0,), (1,)])
    assert [row[0] for row in by_seq(connection, "SELECT seq FROM entries")] == [
        -5,
        0,
        1,
    ]  # whatever somebody put there
    with pytest.raises(LedgerCorrupt, match="entry 3 is missing"):
        store.entry_row(connection, 3)
    with pytest.raises(LedgerCorrupt, match="not readable"):
        store.parsed_entry("run-opened", b"nothing", b"")
