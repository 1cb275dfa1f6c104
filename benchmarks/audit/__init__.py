"""Canary attacks on the live service: what an attacker can prove about epsilon, beside what the ledger claims.

    python -m benchmarks.audit                      # writes measured/audit.md
    python -m benchmarks.audit --trials 300 --page docs/privacy/audit.md
    python -m benchmarks.audit --mock --trials 300 --broken-trials 300 --page docs/privacy/audit-mechanisms.md \
        --attacks "labelled rows" "class statistics" ...  # every mechanism's own, without a service

Two neighbouring data sets, D and D', differ in one record: the canary. For each a curator runs with real certificates,
a real ledger and a real gRPC server on loopback; a client attacks both in the same way and computes, for each release
or run, how likely it is under D' against D. From how often it can tell them apart follows a lower bound on epsilon
that no correct claim may fall below. The same audit of curators with one deliberate fault each must catch every one.
Hours with a live service; each curator's row is in --results when it is done.
"""
