"""Acts that are guarded: the same for the command line and for the console, under the name of whoever acts.

Others are the ledger's own (`dpswd.private_curator.books.operator`), opened by a `HomeDirectory` with the operator's
name.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from dpswd.private_curator.books.audit import Progress, VerificationReport, untold, verify_file
from dpswd.private_curator.books.figures import AccountStatus
from dpswd.private_curator.books.ledger import Ledger
from dpswd.private_curator.books.operator import check_extends
from dpswd.private_curator.books.operators import Enrolled
from dpswd.private_curator.books.witness import Witness
from dpswd.private_curator.operator import guards
from dpswd.private_curator.operator.officer import checked_statement
from dpswd.private_curator.operator.seconding import seconded
from dpswd.private_curator.serving import renewals
from dpswd.private_curator.serving.renewals import SigningRequest
from dpswd.private_curator.settings import tree as configuration
from dpswd.private_curator.storage.certificates import ClientCertificate
from dpswd.private_curator.storage.home_directory import HomeDirectory
from dpswd.shared.accounting.persons import allowed_for_record, promised_to_person
from dpswd.shared.certificates import request_fingerprint
from dpswd.shared.core.errors import CredentialsInvalid, SettingsError
from dpswd.shared.core.ledger.receipts import SignedEntry
from dpswd.shared.core.privacy.budget import PrivacyBudget

MIN_DIGITS = 16
"""Hexadecimal digits of a request's fingerprint that have to be told: 64 bits, which nobody hits by trying."""


def extension(home: HomeDirectory, *, epsilon: float, delta: float | None = None) -> guards.Effect:
    """What extending the budget would change; nothing is done.

    Raises:
        InvalidValue: it is no budget, or no larger one.
    """
    status = home.read_ledger().status
    own, persons = status.data_set, status.records_per_person
    before = PrivacyBudget(own.epsilon, own.delta)
    after = stated_budget(own, epsilon, delta, records_per_person=persons)
    check_extends(before, after)
    spent, _ = promised_to_person(own.epsilon_spent, own.delta, persons)
    before, after = _of_person(before, persons), _of_person(after, persons)
    return guards.extending(records=status.records, before=before, after=after, spent=spent)


def extend_budget(
    home: HomeDirectory, *, epsilon: float, delta: float | None = None, reason: str, typed: str | None = None
) -> None:
    """Raises the budget.

    Args:
        home: of the curator.
        epsilon: the new one, for a person.
        delta: the new one, for a person; a record's stays as it is by default.
        reason: stands in the ledger.
        typed: the effect's words, where it has doubts.

    Raises:
        SettingsError: it was not typed out, or waits for a second operator.
        InvalidValue: it is smaller, or the data set has ended.
    """
    extension(home, epsilon=epsilon, delta=delta).confirm(typed)
    arguments = {"epsilon": epsilon, "delta": delta}
    with seconded(home, "extend", arguments, reason=reason) as acting, acting.open_ledger() as ledger:
        status = ledger.status()
        target = stated_budget(status.data_set, epsilon, delta, records_per_person=status.records_per_person)
        ledger.extend_budget(target, reason=reason)


def approve_certificate(
    home: HomeDirectory,
    data: bytes,
    *,
    days: float,
    epsilon: float | None = None,
    delta: float | None = None,
    renew: bool = False,
    replace: bool = False,
    fingerprint: str | None = None,
) -> tuple[ClientCertificate, bool]:
    """Signs a client's request and registers its certificate.

    Args:
        home: of the curator.
        data: the request, or a renewal.
        days: validity of the certificate.
        epsilon: a new client's share; None for none.
        delta: the share's; the data set's by default.
        renew: a plain request is for a client that exists.
        replace: its old certificates stop counting at once.
        fingerprint: the request's, as the client told it over another way. A renewal needs none: the old key
            proves who asks.

    Returns:
        The certificate, and whether the client existed before.

    Raises:
        SettingsError: the fingerprint is missing or another one, a share for a client that has one, or the approval
            waits for a second operator.
        CredentialsInvalid: the old certificate of a renewal does not count, or a plain request asks for a known name.
        InvalidValue: the request is none, or the share is larger than the data set's budget.
    """
    asked = renewals.read(data, home.authority, now=dt.datetime.now(dt.UTC))
    with home.open_ledger() as ledger:
        exists = _is_registered(ledger, asked, renew=renew)
    if exists and epsilon is not None:
        raise SettingsError(f"{asked.name} is a client already; change its share with `dpswd-curator clients --share`")
    if replace and not exists:
        raise SettingsError(f"{asked.name} is no client yet, and has no certificate to replace; leave --replace out")
    if asked.proven_by is None:
        check_fingerprint(asked.request, fingerprint)
    arguments = {"request": request_fingerprint(asked.request), "epsilon": epsilon, "delta": delta, "days": days}
    arguments |= {"replace": replace}
    with seconded(home, "approve", arguments, reason=f"approve {asked.name}") as acting, acting.open_ledger() as ledger:
        share = None if epsilon is None else budget_of(ledger, epsilon=epsilon, delta=delta)
        issued = acting.authority.sign_request(asked.request, name=asked.name, days=days)
        register(ledger, asked.name, issued.fingerprint, share, exists=exists, replace=replace)
    return issued, exists


def enrol_operator(home: HomeDirectory, name: str, key: str, *, issuer: str | None = None) -> None:
    """Enrols an operator; takes two where two are enrolled and any act takes two.

    Raises:
        SettingsError: it waits for a second operator, or who acts shows no credential that counts.
        InvalidValue: the name or the key is taken, or none.
    """
    arguments = {"operator": name, "key": key, "issuer": issuer}
    with seconded(home, "enrol", arguments, reason=f"enrol {name}") as acting, acting.open_ledger() as ledger:
        ledger.enrol(name, key, second=configuration.load(home.path).operators.second, issuer=issuer)


def remove_operator(home: HomeDirectory, name: str, *, reason: str) -> None:
    """Takes an operator out, as `enrol_operator` enrols one.

    Raises:
        SettingsError: see `enrol_operator`.
        InvalidValue: there is none of this name.
    """
    with seconded(home, "remove", {"operator": name}, reason=reason) as acting, acting.open_ledger() as ledger:
        ledger.remove_operator(name, reason=reason, second=configuration.load(home.path).operators.second)


def state(home: HomeDirectory, item: str, words: str) -> None:
    """States something for the report.

    Raises:
        SettingsError: it waits for a second operator.
        InvalidValue: the words are none that the item takes.
    """
    words = checked_statement(item, words)
    arguments = {"item": item, "words": words}
    with seconded(home, "state", arguments, reason=f"state {item}") as acting, acting.open_ledger() as ledger:
        ledger.record_statement(item, words)


def check_enrolled(home: HomeDirectory, enrolled: Enrolled) -> None:
    """Holds whoever acts to the operators of a ledger, where an act is not the ledger's own to refuse.

    Raises:
        SettingsError: operators are enrolled, and who acts is none of them.
    """
    by = home.acting
    if enrolled.keys and not enrolled.counts(by.name, by.credential):
        raise SettingsError(
            f"this ledger has operators ({', '.join(sorted(enrolled.keys))}), and {by.name!r} has shown the credential "
            "of none: give yours with --credential FILE"
        )


def check_fingerprint(request: bytes, fingerprint: str | None) -> None:
    """Holds a request to the fingerprint that its client told over another way than the one that brought it.

    Raises:
        SettingsError: nothing was told, too little, or another fingerprint.
    """
    digits = "".join((fingerprint or "").split()).replace(":", "").lower()
    if len(digits) < MIN_DIGITS:
        raise SettingsError(
            "whoever brought this request may have made it: ask the team, over another way, for the request's "
            f"fingerprint (`dpswd-client init` and `certificate` print it), and give it, at least {MIN_DIGITS} digits "
            "(--fingerprint)"
        )
    if not request_fingerprint(request).startswith(digits):
        raise SettingsError(
            f"this request has the fingerprint {request_fingerprint(request)}, and another one was told: it is not the "
            "team's; nothing was signed"
        )


def verify_ledger(
    home: HomeDirectory,
    *,
    receipts: Iterable[SignedEntry] = (),
    every_signature: bool = True,
    progress: Progress = untold,
) -> VerificationReport:
    """Verifies the ledger in use, also against what this curator noted; keeps the outcome, and tells of a bad one.

    The key's public half is read from the operator's own file: the ledger's word for it would prove nothing.

    Args:
        home: of the curator.
        receipts: entries that somebody kept elsewhere.
        every_signature: see `verify_file`.
        progress: told how far it is.
    """
    noted = Witness(home.ledger_witness()).entry()
    report = verify_file(
        home.ledger_location(),
        public_key=home.read_ledger_key().public_key().public_bytes_raw(),
        receipts=[*receipts, *([] if noted is None else [noted])],
        every_signature=every_signature,
        progress=progress,
    )
    first = "" if report.ok else report.findings[0].text
    if not report.ok:
        notices = home.notices()
        notices.odd(first)
        notices.close()
    home.checks.note("verify", ok=report.ok, entries=report.entries, by=home.operator, text=first)
    return report


def register(
    ledger: Ledger, name: str, fingerprint: str, share: PrivacyBudget | None, *, exists: bool, replace: bool
) -> None:
    """Lets a certificate count: a new client's, with its share; or a known one's, beside its others or instead of them.

    Raises:
        InvalidValue: see `OperatorActs.add_client` and those beside it.
    """
    if not exists:
        ledger.add_client(name, fingerprint, share)
    elif replace:
        ledger.renew_client(name, fingerprint)
    else:
        ledger.add_certificate(name, fingerprint)


def _is_registered(ledger: Ledger, asked: SigningRequest, *, renew: bool) -> bool:
    """Whether the request is for a client that exists, and may be granted.

    Raises:
        CredentialsInvalid: the old certificate of a renewal does not count, or a plain request asks for a known name.
        SettingsError: ``--renew`` for a client that does not exist.
    """
    client = next((each for each in ledger.clients() if each.name == asked.name), None)
    if asked.proven_by is not None:
        if client is None or client.revoked or asked.proven_by not in client.fingerprints:
            raise CredentialsInvalid(
                f"the certificate that {asked.name!r} renews does not count here: it was never added, or was withdrawn"
            )
        return True
    if client is None:
        if renew:
            raise SettingsError(f"there is no client {asked.name!r} to renew; leave --renew out to add it")
        return False
    if not renew:
        raise CredentialsInvalid(
            f"{asked.name!r} is a client already, and a plain request does not prove who made it; ask for a renewal "
            "(`dpswd-client certificate --renew`), or make sure who asks and give --renew"
        )
    return True


def stated_budget(now: AccountStatus, epsilon: float, delta: float | None, *, records_per_person: int) -> PrivacyBudget:
    """The ledger's budget, which is of a record, that promises a person what an operator states.

    Args:
        now: the data set's account.
        epsilon: for a person.
        delta: the same; None keeps a record's delta as it is, and a person's follows.
        records_per_person: k.

    Raises:
        InvalidValue: it is no budget.
    """
    # Said of what was typed, before it is divided.
    PrivacyBudget(epsilon, now.delta if delta is None else delta)
    each, its_delta = allowed_for_record(epsilon, now.delta if delta is None else delta, records_per_person)
    return PrivacyBudget(each, now.delta if delta is None else its_delta)


def budget_of(books: Ledger, *, epsilon: float, delta: float | None = None) -> PrivacyBudget:
    """A budget under the data set's relation, by default with its delta.

    Raises:
        InvalidValue: epsilon or delta is outside what is allowed.
    """
    account = books.status().data_set
    delta = account.delta if delta is None else delta
    return books.accounting.budget(epsilon=epsilon, delta=delta, relation=account.relation)


def _of_person(budget: PrivacyBudget, records_per_person: int) -> PrivacyBudget:
    epsilon, delta = promised_to_person(budget.epsilon, budget.delta, records_per_person)
    return PrivacyBudget(epsilon, min(delta, 0.5))
