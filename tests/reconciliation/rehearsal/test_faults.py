from __future__ import annotations

from collections import Counter

import pytest

from reconciliation.rehearsal.faults import DURATIONS, NAMED, Fault, FaultSpec, FaultSpecError, Plan


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cut", "not of the form name=number"),
        ("cut=", "not of the form name=number"),
        ("cut=often", "not of the form name=number"),
        ("cut=nan", "not of the form name=number"),
        ("cot=0.1", "no fault is called 'cot'"),
        ("cut=1.1", "between 0 and 1"),
        ("cut=-0.1", "between 0 and 1"),
        ("cut=inf", "between 0 and 1"),
        ("cut=0.1,cut=0.2", "given twice"),
        ("cut=0.6,lost=0.6", "add up to 1.2"),  # one request meets one fault
        ("late_s=-1", "between 0 and 60"),
        ("late_s=3600", "between 0 and 60"),  # nobody waits for a rehearsal for an hour
    ],
)
def test_a_specification_that_cannot_be_meant_is_refused(text: str, why: str) -> None:
    with pytest.raises(FaultSpecError, match=why):
        FaultSpec.parse(text)


@pytest.mark.parametrize("text", [*NAMED, "cut=0.25, late=0.5 ,late_s=3", "5xx=0.4", "", "decline=1,blind=1"])
def test_a_specification_reads_what_it_prints(text: str) -> None:
    spec = FaultSpec.parse(text)
    again = FaultSpec.parse(str(spec))
    assert (dict(again.rates), again.slow_s, again.late_s, again.hidden_s) == (
        dict(spec.rates),
        spec.slow_s,
        spec.late_s,
        spec.hidden_s,
    )


def test_none_means_no_fault_at_all() -> None:
    plan = Plan(FaultSpec.parse("none"), seed=1)
    assert all(plan.fault_of(f"c{n}", 1) is None for n in range(500))
    assert not any(plan.declines(f"c{n}") or plan.blinds(f"c{n}", 1) for n in range(500))


def test_server_errors_are_halved_between_before_and_after() -> None:
    rates = FaultSpec.parse("5xx=0.3").rates
    assert rates == {Fault.SERVER_ERROR_AFTER: 0.15, Fault.SERVER_ERROR_BEFORE: 0.15}


@pytest.mark.parametrize("fault", Fault)
def test_a_rate_of_one_meets_every_arrival(fault: Fault) -> None:
    plan = Plan(FaultSpec.parse(f"{fault}=1"), seed=5)
    assert {plan.fault_of(f"c{n}", arrival) for n in range(20) for arrival in (1, 2, 3)} == {fault}


def test_faults_come_about_as_often_as_asked() -> None:
    plan = Plan(FaultSpec.parse("standard"), seed=11)
    met = Counter(plan.fault_of(f"c{n}", 1) for n in range(10_000))
    for fault in Fault:
        assert abs(met[fault] / 10_000 - plan.spec.rates[fault]) < 0.01, fault


def test_the_plan_depends_on_seed_call_and_arrival_and_on_nothing_else() -> None:
    spec = FaultSpec.parse("standard")
    drawn = [[Plan(spec, seed).fault_of(f"c{n}", 1) for n in range(200)] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != [Plan(spec, 1).fault_of(f"c{n}", 2) for n in range(200)]


def test_a_declined_call_is_declined_whatever_its_requests_meet() -> None:
    plan = Plan(FaultSpec.parse("cut=0.5,decline=0.5"), seed=2)
    met = {(plan.fault_of(f"c{n}", 1) is None, plan.declines(f"c{n}")) for n in range(200)}
    assert met == {(True, True), (True, False), (False, True), (False, False)}


def test_every_duration_has_a_default_and_can_be_set() -> None:
    for name, default in DURATIONS.items():
        assert getattr(FaultSpec.parse(""), name) == default
        assert getattr(FaultSpec.parse(f"{name}=0.25"), name) == 0.25
